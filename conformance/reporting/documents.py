"""Pages of the documentation that follow from data: contracts, cases by clause, and the schema of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from conformance.errors import plural
from conformance.library.operations import DEFAULT, folder_of
from conformance.library.reading import Library
from conformance.record.log import json_schema
from conformance.spec.case import Case
from conformance.spec.operation import Number, Operation, Port, RefusalRule, Tensor

GROUNDS = {
    "D": "documented on the operation's public page",
    "P": "in its public predecessor drafts",
    "M": "done by the published model's code",
    "X": "said by another public operation only",
    "I": "implied by the others",
    "C": "this project's choice",
}
GENERATED = "<!-- Written by `qsa-conformance docs` from operation.yaml and the case library; edit those. -->"


def documents(libraries: Sequence[Library]) -> dict[str, str]:
    """File name below docs/ to content, of every page that is generated."""
    pages = {page_of(library): contract(library) for library in libraries}
    pages |= {cases_page_of(library): cases(library) for library in libraries}
    return pages | {"log.schema.json": json.dumps(log_schema(), indent=2, ensure_ascii=False) + "\n"}


def page_of(library: Library) -> str:
    """The name of the page of a contract: contract.md for the first operation, with the operation's name for others."""
    name = library.operation.operation
    return "contract.md" if folder_of(name) == DEFAULT else f"contract-{folder_of(name).replace('_', '-')}.md"


def cases_page_of(library: Library) -> str:
    """The name of the page that lists an operation's cases."""
    return f"cases-{folder_of(library.operation.operation).replace('_', '-')}.md"


def outdated(libraries: Sequence[Library], folder: Path) -> list[str]:
    """The generated pages of a folder that are not what they would be now."""
    pages = documents(libraries)
    return [
        name
        for name, text in pages.items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def log_schema() -> Mapping[str, object]:
    """The JSON Schema of one line of a log."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of a log of qsa-conformance",
        **json_schema(),
    }


def contract(library: Library) -> str:
    """The contract as a Markdown page; every clause links the list of the cases that cite it."""
    operation = library.operation
    lines = [
        GENERATED,
        "",
        f"# The contract of {operation.operation}, version {operation.contract}",
        "",
        operation.says,
        "",
        f"What [the operation's public page]({operation.page}) leaves open is decided here; every clause says on "
        "what ground, and what can be read in another way can be switched (`--reading`).",
        "",
        *_symbols(operation),
        *_ports(operation),
        *_clauses(library),
        *_readings(operation),
        *_relations(operation),
        *_refusals(operation),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [[_prose(str(cell)).replace("|", "\\|") for cell in row] for row in rows]
    return [tabulate(cells, heads, tablefmt="github", disable_numparse=True), ""]


def _prose(text: str) -> str:
    """A text in which no star outside of code begins emphasis."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("*", "\\*") for i, part in enumerate(parts))


def _symbols(operation: Operation) -> list[str]:
    scalars = [(f"`{a.symbol}`", f"attribute `{name}`: {a.says}") for name, a in operation.attributes.items()]
    scalars += [(f"`{name}`", dim.says) for name, dim in operation.dims.items()]
    each = [(f"`{operation.length}`", f"valid tokens, from `{operation.lengths}`")] if operation.history else []
    each += [(f"`{name}`", f"{s.says}: `{s.expression}`") for name, s in operation.symbols.items()]
    each += [(f"`{name}`", f"{s.says}: `{s.expression}`") for name, s in operation.totals.items()]
    return [
        "## Symbols",
        "",
        "Of a call:",
        "",
        *_table(["symbol", "meaning"], scalars),
        "Of a sequence in it; `//` divides and rounds down, `top(x)` is the largest x of all sequences, 0 when there "
        "is none:",
        "",
        *_table(["symbol", "meaning"], each),
    ]


def _ports(operation: Operation) -> list[str]:
    def shape(tensor: Tensor) -> str:
        sizes, without = [tensor.shape], "empty"
        if isinstance(tensor, Port):
            sizes += tensor.forms.values()
            without = "left out" if tensor.optional else "empty"
        text = " or ".join(f"`[{', '.join(map(str, one))}]`" for one in sizes)
        return text + (f", {without} without {tensor.feature}" if tensor.feature else "")

    ports = [
        (i, f"`{p.name}`", shape(p), p.type, p.says, f"`{p.reads}`" if p.reads else "all")
        for i, p in enumerate(operation.ports)
    ]
    outputs = [
        (i, f"`{o.name}`", shape(o), o.type, o.says, f"`{o.feeds}`" if o.feeds else "")
        for i, o in enumerate(operation.outputs)
    ]
    attributes = [
        (
            f"`{name}`",
            a.type + ("" if a.least is None else f", at least {a.least:g}") + (f", `{a.valid}`" if a.valid else ""),
            _number(a.default),
            a.says,
        )
        for name, a in operation.attributes.items()
    ]
    features = [(name, f.says, f.off or "cannot be switched off") for name, f in operation.features.items()]
    return [
        "## Inputs, outputs, attributes",
        "",
        "T is one of f32, f16 and bf16, the same for all ports; I is i32 or i64. Elements that are not read may hold "
        "anything, NaN included. An output feeds the input beside it in the next call of a stream.",
        "",
        *_table(["", "input", "shape", "type", "", "read where"], ports),
        *_table(["", "output", "shape", "type", "", "feeds"], outputs),
        *_table(["attribute", "value", "where a case gives none", ""], attributes),
        *_table(["feature", "", "off when"], features),
    ]


def _clauses(library: Library) -> Iterator[str]:
    operation = library.operation
    yield from ["## Clauses", ""]
    for group, title in operation.groups.items():
        yield from [f"### {group}: {title}", ""]
        for clause in operation.clauses:
            if clause.group != group:
                continue
            ground = ", ".join(GROUNDS.get(letter, letter) for letter in clause.ground)
            yield from [f"#### {clause.id}", "", _prose(clause.says), ""]
            if clause.formula:
                yield from [*(f"    {line}" for line in clause.formula.splitlines()), ""]
            count = plural(len(_citing(library, clause.id)), "case")
            where = f"[{count}]({cases_page_of(library)}#{clause.id.lower()})"
            yield from [f"*{clause.level}; {ground}* · {where}", ""]


def cases(library: Library) -> str:
    """The cases of every clause as a Markdown page, by topic; each links the line that it is written at."""
    operation = library.operation
    lines = [
        GENERATED,
        "",
        f"# The cases of {operation.operation}",
        "",
        f"The library has {plural(len(library.cases), 'case')}. Below every clause of the "
        f"[contract]({page_of(library)}) stand those that cite it, by topic; "
        "the number behind a case says how many it is expanded into. "
        f"`qsa-conformance cases show 'TOPIC/ID' --operation {operation.operation}` shows one.",
        "",
    ]
    for group, title in operation.groups.items():
        lines += [f"## {group}: {title}", ""]
        for clause in operation.clauses:
            if clause.group == group:
                back = f"{page_of(library)}#{clause.id.lower()}"
                lines += [f"### {clause.id}", "", f"{_prose(clause.says)} [Contract]({back})", ""]
                lines += [*_by_topic(_citing(library, clause.id)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _citing(library: Library, clause: str) -> list[Case]:
    return [case for case in library.cases if clause in case.clauses]


def _by_topic(cases: Sequence[Case]) -> Iterator[str]:
    """A line for every topic, with a link for every written case and the number of cases it was expanded into."""
    written: dict[str, dict[str, list[Case]]] = {}
    for case in cases:
        topic, _, name = case.id.partition("[")[0].rpartition("/")
        written.setdefault(topic, {}).setdefault(name, []).append(case)
    if not cases:
        yield "None."
    for topic, names in written.items():
        links = []
        for name, expanded in names.items():
            path, _, line = expanded[0].place.rpartition(":")
            many = f" ({len(expanded)})" if len(expanded) > 1 else ""
            links.append(f"[{name}](../{path}#L{line}){many}")
        yield f"- **{topic}**: {', '.join(links)}"


def _readings(operation: Operation) -> list[str]:
    rows = [
        (f"`{reading.name}`", reading.says, f"`{reading.default}`",
         "; ".join(f"`{name}`: {says}" for name, says in reading.alternatives.items()))
        for reading in operation.readings
    ]  # fmt: skip
    return [
        "## Readings that can be switched",
        "",
        *_table(["reading", "", "default", "alternatives"], rows),
    ]


def _relations(operation: Operation) -> list[str]:
    rows = [(f"`{r.name}`", r.clause, r.says) for r in operation.relations]
    return ["## Relations between calls", "", *_table(["relation", "clause", ""], rows)] if rows else []


def _refusals(operation: Operation) -> list[str]:
    rows = [
        (f"`{r.id}`", r.clause, r.kind, r.phase, ", ".join(f"`{name}`" for name in r.names), _spoilt(r))
        for r in operation.refusals
    ]
    return [
        "## Refusals",
        "",
        "One broken rule each: the kind, the phase and one of the names are what a refusal has to give. The type "
        "`other` is an element type that the rest of the case does not have.",
        "",
        *_table(["rule", "clause", "kind", "phase", "names", "broken by"], rows),
    ]


def _number(value: Number) -> str:
    """A number, a truth value or an expression, as it is written in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _spoilt(rule: RefusalRule) -> str:
    parts = [f"{name} = {_number(value)}" for name, values in rule.attributes.items() for value in values]
    parts += [
        f"{name} of shape [{', '.join(map(str, shape))}]" for name, shapes in rule.shapes.items() for shape in shapes
    ]
    parts += [f"{name} of type {kind}" for name, kinds in rule.types.items() for kind in kinds]
    parts += [f"{name} of {value}" for name, values in rule.values.items() for value in values]
    parts += [f"without {name}" for name in rule.absent]
    return "; ".join(parts)
