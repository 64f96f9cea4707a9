"""The report as one static page that opens from disk: no script is needed to read it, nothing is loaded.

Cases are listed once for all logs, by the case they were written as: what its instances have in common once, then what
sets each apart. Failures are drilled down into; when there are very many, the smallest ones of each kind are.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import Any
from urllib.parse import quote

import jinja2
import msgspec
from markupsafe import Markup

from conformance.judging.engine import Outcome
from conformance.record.log import Log, PerfRecord, ResultRecord, count
from conformance.reporting import groups, plots, table
from conformance.reporting.documents import GROUNDS
from conformance.reporting.plain import presentable
from conformance.spec.case import Case, as_plain
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Clause, Operation

LARGEST = 950_000  # bytes that a page should stay below
# Failures that are drilled down into, failures that get a line, in all logs together, and whether cases that passed are
# shown with what sets them apart; the first that fits is taken.
ROOM = ((120, 600, True), (60, 300, True), (30, 100, True), (30, 100, False), (10, 30, False))
SIGNS = {"pass": "✓", "quality-warning": "≈", "fail": "✗", "error": "‼", "unsupported": "○", "not-run": "·"}
CAUSES = 12  # of the failures of a backend, above the matrix
LONGEST = 300  # characters of one fact of a case
Described = Mapping[str, Mapping[str, str]]  # case id to its facts


@cache
def templates() -> jinja2.Environment:
    """The templates of this package, escaping everything."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def page(logs: Sequence[Log], operation: Operation) -> str:
    """The whole page over one or more logs. Fewer failures are drilled down into when it would grow too large."""
    text = ""
    logs = [presentable(log) for log in logs]
    cases = {name: record.case for log in reversed(logs) for name, record in log.cases.items() if name in log.results}
    described = {name: facts(case, operation) for name, case in cases.items()}
    for details, lines, apart in ROOM:
        text = _page(logs, operation, described, details // len(logs), lines // len(logs), apart)
        if len(text.encode()) <= LARGEST:
            break
    return text


def _page(
    logs: Sequence[Log], operation: Operation, described: Described, details: int, lines: int, apart: bool
) -> str:
    columns = [
        column(index, log, title, operation)
        for index, (log, title) in enumerate(zip(logs, table.titles(logs), strict=True))
    ]
    wrong = [failures(c, operation, max(details, 1), max(lines, 1)) for c in columns]
    return (
        templates()
        .get_template("report.html")
        .render(
            operation=operation,
            columns=columns,
            clauses=clause_groups(columns, operation),
            rooms=rooms(columns),
            wrong=wrong,
            unsupported=unsupported(columns),
            performance=performance(columns),
            environment=environment(columns),
            topics=topics(columns, described, {f.id for one in wrong for f in one.details}),
            apart=apart,
            signs=SIGNS,
            key=plots.key([c.title for c in columns]),
            heads=HEADS,
        )
    )


# Columns


@dataclass(frozen=True)
class Column:
    """One log, and how it is called on the page."""

    index: int
    title: str
    log: Log
    verdict: str
    counts: Mapping[str, int]
    remarks: tuple[str, ...]  # why it is not the whole truth
    overview: str = ""  # groups of clauses that fail and that pass
    causes: tuple[groups.Group, ...] = ()  # of failures


def column(index: int, log: Log, title: str, operation: Operation) -> Column:
    """The column of a log."""
    return Column(
        index,
        title,
        log,
        table.verdict_of(log),
        count(log.outcomes),
        tuple(remarks(log)),
        groups.overview(log, operation),
        tuple(groups.groups(log)[:CAUSES]),
    )


def remarks(log: Log) -> Iterator[str]:
    """What a reader must know before the numbers: interrupted, filtered, other readings, not as expected."""
    head = log.header
    if log.interrupted:
        yield f"Interrupted: {len(log.results)} of {head.cases} cases were run."
    if not head.complete:
        chosen = " ".join(f"{name} {value}" for name, value in head.filters.items())
        yield f"Not the whole library: {chosen or 'a selection of cases'}."
    for name, choice in head.readings.items():
        yield f"Reading of the contract: {name} = {choice}."
    yield from table.omissions(log)
    yield from table.expectation_lines(log)


# Clauses by backends


@dataclass(frozen=True)
class Cell:
    """Cases of one clause on one backend."""

    text: str
    good: bool
    room: str = ""
    href: str = ""


@dataclass(frozen=True)
class Row:
    """One clause of the matrix."""

    clause: Clause
    ground: str
    written: tuple[str, ...]  # ids of the cases that cite it, without their points
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ClauseGroup:
    """Clauses under one heading."""

    id: str
    says: str
    rows: tuple[Row, ...]


def clause_groups(columns: Sequence[Column], operation: Operation) -> list[ClauseGroup]:
    """The matrix: every clause of the contract, and those that only the logs know."""
    cited = [_by_clause(column.log) for column in columns]
    known = list(operation.clauses)
    foreign = sorted({clause for by_clause in cited for clause in by_clause} - operation.clause.keys())
    known += [Clause(id=c, level="required", ground="", says="not in this version of the contract") for c in foreign]
    groups: dict[str, list[Row]] = {group: [] for group in operation.groups}
    for clause in known:
        written = dict.fromkeys(o.case.partition("[")[0] for by_clause in cited for o in by_clause.get(clause.id, ()))
        row = Row(
            clause,
            ", ".join(GROUNDS.get(letter, letter) for letter in clause.ground),
            tuple(written),
            tuple(
                _cell(c, by_clause.get(clause.id, []), clause.id) for c, by_clause in zip(columns, cited, strict=True)
            ),
        )
        groups.setdefault(clause.group, []).append(row)
    return [ClauseGroup(id, operation.groups.get(id, ""), tuple(rows)) for id, rows in groups.items() if rows]


def _by_clause(log: Log) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in log.outcomes:
        for clause in log.cases[outcome.case].case.clauses:
            found[clause].append(outcome)
    return found


def _cell(column: Column, outcomes: Sequence[Outcome], clause: str) -> Cell:
    if not outcomes:
        return Cell("-", True)
    counts = count(outcomes)
    top = max((used[clause] for o in outcomes if clause in (used := table.used(o))), default=None)
    wrong = counts["fail"] + counts["error"] + counts["quality-warning"]
    return Cell(
        table.cell(counts),
        not counts["fail"] and not counts["error"],
        "" if top is None else f"{top:.2f}",
        f"#failures-{column.index + 1}" if wrong else "",
    )


# Headroom


def rooms(columns: Sequence[Column]) -> list[tuple[str, Markup]]:
    """For every clause that bounds an error, the picture of how much of the bound was used."""
    clauses = sorted({clause for c in columns for o in c.log.outcomes for clause in o.headroom})
    return [(clause, plots.headroom(clause, [_room(c, clause) for c in columns])) for clause in clauses]


def _room(column: Column, clause: str) -> plots.Room:
    outcomes = column.log.outcomes
    good = sorted(used[clause] for o in outcomes if clause in (used := table.used(o)))
    bad = [o.worst for o in outcomes if o.status == "fail" and o.clause == clause and o.worst and o.worst.bound]
    failed = max((w.ratio if w.ratio is not None else float("inf") for w in bad), default=None)
    if not good:
        return plots.Room(column.title, failed=failed)
    return plots.Room(column.title, good[len(good) // 2], good[-1], failed)


# Failures


@dataclass(frozen=True)
class Failure:
    """One case that did not pass, drilled down into."""

    id: str
    sign: str
    outcome: Outcome
    says: str
    summary: str
    clause_says: str
    shapes: tuple[tuple[str, str], ...]
    streams: str
    worst: tuple[tuple[str, str], ...]
    diagnosis: str
    expected: str
    printed: tuple[str, ...]
    repeat: str
    case: str


@dataclass(frozen=True)
class Failures:
    """What did not pass on one backend: in detail, in a line each, and how many more there are."""

    column: Column
    details: tuple[Failure, ...] = ()
    lines: tuple[Outcome, ...] = ()
    more: int = 0


def failures(column: Column, operation: Operation, details: int, lines: int) -> Failures:
    """Failures of a backend: in turn the smallest of every kind that is left."""
    log = column.log
    wrong = [o for o in log.outcomes if o.status in ("fail", "error", "quality-warning")]
    kinds: dict[Any, list[Outcome]] = defaultdict(list)
    for outcome in sorted(wrong, key=lambda o: (o.status == "quality-warning", table.size(log, o), o.case)):
        kinds[outcome.status == "quality-warning", outcome.signature].append(outcome)
    ordered = [o for turn in zip_longest(*kinds.values()) for o in turn if o is not None]
    chosen = sorted(ordered[:details], key=lambda o: (o.status == "quality-warning", o.clause, table.size(log, o)))
    return Failures(
        column,
        tuple(failure(column, log.results[o.case], operation) for o in chosen),
        tuple(ordered[details : details + lines]),
        max(len(ordered) - details - lines, 0),
    )


def failure(column: Column, result: ResultRecord, operation: Operation) -> Failure:
    """One failure with all that the log knows of it."""
    log, outcome = column.log, result.outcome
    record = log.cases[outcome.case]
    clause = operation.clause.get(outcome.clause)
    return Failure(
        id=anchor(column, outcome.case),
        sign=SIGNS[outcome.status],
        outcome=outcome,
        says=record.case.says,
        summary=record.summary,
        clause_says=clause.says if clause else "",
        shapes=tuple(shapes(record.case, operation).items()),
        streams=_streams(record.case, 200),
        worst=tuple(_worst(outcome)),
        diagnosis=result.diagnosis,
        expected=log.expected.get(outcome.case, ""),
        printed=tuple(table.excerpt(outcome.stderr)),
        repeat=table.repeat_of(log, outcome),
        case=expanded(record.case),
    )


def anchor(column: Column, case: str) -> str:
    """The id of a failure on the page."""
    return f"{column.index + 1}:{case}"


def _worst(outcome: Outcome) -> Iterator[tuple[str, str]]:
    worst = outcome.worst
    if worst is None:
        return
    yield "element", f"{worst.output}[{', '.join(map(str, worst.index))}], {worst.region}"
    yield "got", f"{worst.got} ({worst.got_hex})"
    yield "wanted", f"{worst.want} ({worst.want_hex})" + ("" if worst.bound is not None else ", bit for bit")
    for name, value in (("error", worst.error), ("bound", worst.bound), ("error / bound", worst.ratio)):
        if value is not None and (worst.bound is not None or name == "error"):
            yield name, f"{value:.4g}"
    if worst.ulps is not None:
        yield "units in the last place", f"{worst.ulps:.3g}"


def shapes(case: Case, operation: Operation) -> dict[str, str]:
    """Shape and type of every port of the single call; empty when the log's case does not fit this operation."""
    try:
        known = Geometry(case, operation)
        found = {}
        for port in operation.ports:
            shape: Sequence[Any] = known.shape(port)
            kind = known.type_of(port)
            change = case.change.get(port.name)
            if port.name == operation.lengths and case.length_shape == "one":
                shape = [1]
            if change and change.shape is not None:
                shape = change.shape
            if change and change.type:
                kind = change.type
            if known.is_on(port) or not port.optional:
                found[port.name] = f"[{', '.join(map(str, shape))}] {kind}"
    except (KeyError, ValueError):
        return {}
    return found


def expanded(case: Case, most: int = 2500) -> str:
    """The case as YAML with everything worked out, cut where literal numbers make it very long."""
    import yaml

    plain = {name: value for name, value in as_plain(case).items() if name not in ("id", "says", "kills")}
    text = yaml.dump(plain, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=100, default_flow_style=None)
    return text if len(text) <= most else text[:most] + f"\n... {len(text) - most} characters more are in the log\n"


# What cannot be run, and on what it was run


def unsupported(columns: Sequence[Column]) -> list[tuple[str, str, str, int]]:
    """Backend, feature, reason and number of cases, for everything that was not asked for."""
    rows = []
    for c in columns:
        reasons: dict[tuple[str, str], int] = defaultdict(int)
        for outcome in c.log.outcomes:
            if outcome.status in ("unsupported", "not-run"):
                reasons[outcome.feature or outcome.status, outcome.reason] += 1
        rows += [(c.title, feature, reason, number) for (feature, reason), number in reasons.items()]
    return rows


def environment(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Rows of what each log was made on: backend, suite, library, machine, packages."""
    facts = []
    for c in columns:
        head, backend = c.log.header, c.log.header.backend
        facts.append(
            {
                "backend": f"{backend.name} {backend.version}",
                "vendor": backend.vendor,
                "device": backend.device,
                "issues": backend.url,
                "element types": ", ".join(backend.element_types),
                "outputs": ", ".join(backend.outputs),
                "features": ", ".join(backend.features),
                "started": head.started,
                "suite": head.suite,
                "contract": str(head.contract),
                "library": head.library,
                "command": " ".join(head.argv),
                **head.environment,
            }
        )
    names = dict.fromkeys(name for one in facts for name in one)
    return [(name, values) for name in names if any(values := [one.get(name, "") for one in facts])]


# Cases


@dataclass(frozen=True)
class Instance:
    """One case of a written one: what sets it apart, and how it fared, a sign for each log."""

    id: str
    label: str
    facts: str
    signs: tuple[tuple[str, str], ...]  # sign, and a link to the failure
    only: str = ""  # logs that hold it, where not all do


@dataclass(frozen=True)
class WrittenCase:
    """The cases that were written as one."""

    id: str
    says: str
    clauses: tuple[str, ...]
    level: str
    place: str
    common: str
    instances: tuple[Instance, ...]
    result: str
    uniform: bool  # all passed, in all logs that hold them


@dataclass(frozen=True)
class Topic:
    """A folder of the library."""

    name: str
    cases: tuple[WrittenCase, ...]
    number: int = field(default=0)


def topics(columns: Sequence[Column], described: Described, detailed: Collection[str]) -> list[Topic]:
    """All cases that occur in a log, by topic and written case; `detailed` are the ids of the failures on the page."""
    records: dict[str, Case] = {}
    for c in columns:
        for name, record in c.log.cases.items():
            if name in c.log.results:
                records.setdefault(name, record.case)
    groups: dict[str, dict[str, list[Case]]] = {}
    for name, case in records.items():
        groups.setdefault(case.topic, {}).setdefault(name.partition("[")[0], []).append(case)
    return [
        Topic(
            topic,
            tuple(_written(name, cases, columns, described, detailed) for name, cases in written.items()),
            sum(map(len, written.values())),
        )
        for topic, written in groups.items()
    ]


def _written(
    name: str, cases: Sequence[Case], columns: Sequence[Column], described: Described, detailed: Collection[str]
) -> WrittenCase:
    told = [described[case.id] for case in cases]
    keys = dict.fromkeys(key for one in told for key in one)
    common = [key for key in keys if len({one.get(key, "") for one in told}) == 1]
    instances = []
    for case, one in zip(cases, told, strict=True):
        apart = {key: text for key, text in one.items() if key not in common}
        instances.append(_instance(case, apart, columns, detailed))
    held = [sign for instance in instances for sign, _ in instance.signs if sign]
    passed = held.count(SIGNS["pass"])
    first = cases[0]
    return WrittenCase(
        name,
        first.says,
        first.clauses,
        first.level,
        first.place.removeprefix("cases/").partition("/")[2],
        " ".join(told[0][key] for key in common if told[0].get(key)),
        tuple(instances),
        f"✓ {len(cases)}" if passed == len(held) else f"{passed} of {len(held)} ✓",
        passed == len(held),
    )


def _instance(case: Case, apart: Mapping[str, str], columns: Sequence[Column], detailed: Collection[str]) -> Instance:
    label = case.id.partition("[")[2].removesuffix("]")
    said = set(label.split(","))  # what the label says already
    rest = [text for key, text in apart.items() if not {text, f"{key}={text}"} & said]
    signs = tuple(_sign(column, case.id, detailed) for column in columns)
    holding = [column.title for column, (sign, _) in zip(columns, signs, strict=True) if sign]
    return Instance(case.id, label, " ".join(rest), signs, ", ".join(holding) * (len(holding) < len(columns)))


def _sign(column: Column, case: str, detailed: Collection[str]) -> tuple[str, str]:
    record = column.log.results.get(case)
    if record is None:
        return "", ""
    sign = SIGNS[record.outcome.status]
    link = "#" + quote(name, safe="/:=,") if (name := anchor(column, case)) in detailed else ""
    return (f"({sign})" if case in column.log.expected else sign), link


def facts(case: Case, operation: Operation) -> dict[str, str]:
    """Everything that decides what is run, as short texts by kind, in the contract's symbols."""
    known = operation.attributes
    scalars = {known[name].symbol if name in known else name: value for name, value in case.attributes.items()}
    found = {name: f"{name}={value:g}" for name, value in (scalars | case.dims).items()}
    found["element_type"], found["length_type"] = case.element_type, case.length_type
    for name in ("past", "pad"):
        if any(getattr(case, name)):
            found[name] = f"{name}={','.join(map(str, getattr(case, name)))}"
    found["disabled"] = " ".join(f"no {feature}" for feature in case.disabled)
    if case.length_shape == "one":
        found["length_shape"] = f"{operation.lengths}[1]"
    if case.poison != "mixed":
        found["poison"] = f"poison={case.poison}"
    if case.streams:
        found["streams"] = f"streams {_streams(case, 60)}"
    for port, spec in case.data.items():
        found[f"data {port}"] = f"{port}: {_flow(spec)};"
    for port, change in case.change.items():
        found[f"change {port}"] = f"{port} changed to {_flow(msgspec.to_builtins(change))};"
    if case.values:
        found["values"] = "expected by hand: " + ", ".join(case.values) + ";"
    if case.refusal:
        refusal = case.refusal
        found["refusal"] = f"refused: {refusal.kind} at {refusal.phase}, {', '.join(refusal.names)};"
    for name in ("relations", "audits"):
        if getattr(case, name):
            found[name] = f"{name}: {', '.join(getattr(case, name))};"
    if case.seed != zlib.crc32(case.id.encode()):  # the default
        found["seed"] = f"seed={case.seed}"
    return {name: text for name, text in found.items() if text}


def _streams(case: Case, most: int) -> str:
    return _cut(" ".join("+".join(map(str, stream)) for stream in case.streams), most)


def _flow(value: Any) -> str:
    import yaml

    text = yaml.dump(value, Dumper=_dumper(), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return _cut(text.removesuffix("...\n").strip(), LONGEST)


@cache
def _dumper() -> Any:
    """The dumper in C where PyYAML has it: a page dumps thousands of values."""
    import yaml

    return getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + " …"


# Performance


@dataclass(frozen=True)
class Performance:
    """Timed workloads: pictures, and the numbers behind them."""

    latency: tuple[tuple[str, Markup], ...] = ()
    ratios: Markup | None = None
    shares: Markup | None = None
    key: Markup | None = None
    rows: tuple[tuple[str, ...], ...] = ()


HEADS = (
    "workload", "backend", "tokens", "sequences", "type", "block", "median", "interval", "moved", "of a copy", "ratio",
    "peak", "growth", "",
)  # fmt: skip


def performance(columns: Sequence[Column]) -> Performance | None:
    """All perf records, None when there is none. A record is of the backend it names, else of its log's."""
    timed = [(column.title, record) for column in columns for record in column.log.perf]
    if not timed:
        return None
    names = list(dict.fromkeys(_backend(title, record) for title, record in timed))
    return Performance(
        tuple(_latency(timed, names)),
        _bars("Time over that of the first backend", timed, names, "ratio", 1.0),
        _bars("Share of the copy's bandwidth", timed, names, "share", 1.0),
        plots.key(names),
        tuple(_numbers(title, record) for title, record in timed),
    )


def _backend(title: str, record: PerfRecord) -> str:
    return str(record.numbers.get("backend") or title)


def number(record: PerfRecord, name: str) -> float | None:
    """A number of a record, None where it has none."""
    value = record.numbers.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _latency(timed: Sequence[tuple[str, PerfRecord]], names: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """One picture for all calls of a workload that differ in their tokens alone, where there are at least two."""
    kinds: dict[tuple[str, ...], list[tuple[str, PerfRecord]]] = defaultdict(list)
    for title, record in timed:
        if (number(record, "tokens") or 0) > 0 and (number(record, "median_s") or 0) > 0:
            which = ("sequences", "element_type", "block_size", "width")
            kind = (record.workload.partition("[")[0], *(_plain(record.numbers.get(name)) for name in which))
            kinds[kind].append((title, record))
    for (workload, sequences, element_type, block_size, width), records in kinds.items():
        series: dict[str, list[plots.Point]] = {name: [] for name in names}
        copy: dict[float, plots.Point] = {}
        for title, record in records:
            tokens, median = number(record, "tokens") or 0.0, number(record, "median_s") or 0.0
            point = plots.Point(tokens, median, number(record, "low_s"), number(record, "high_s"))
            series[_backend(title, record)].append(point)
            moved, speed = number(record, "bytes"), number(record, "copy_bytes_per_s")
            if moved and speed:
                copy[tokens] = plots.Point(tokens, moved / speed)
        if len({point.tokens for points in series.values() for point in points}) > 1:
            title = f"{workload}: {sequences} sequences, {element_type}, blocks of {block_size}, width {width}"
            yield title, plots.latency(title, series, list(copy.values()))


def _bars(
    title: str, timed: Sequence[tuple[str, PerfRecord]], names: Sequence[str], what: str, mark: float
) -> Markup | None:
    """A picture of one number, workload by workload; the first backend's ratio to itself is left out."""
    groups: dict[str, list[plots.Bar]] = defaultdict(list)
    for column, record in timed:
        value, says = number(record, what), _plain(record.numbers.get("ratio_says"))
        if value is None or value < 0 or (what == "ratio" and not says):
            continue
        backend = _backend(column, record)
        text = f"{value:.3g} {says}" if what == "ratio" else f"{value:.3g}"
        groups[record.workload].append(plots.Bar(backend, value, text, names.index(backend)))
    return plots.bars(title, groups, mark=mark) if groups else None


def _numbers(title: str, record: PerfRecord) -> tuple[str, ...]:
    def shown(name: str, unit: str = "", size: float = 1.0, form: str = ".3g") -> str:
        value = number(record, name)
        return "" if value is None else f"{value / size:{form}}{unit}"

    def time(name: str) -> str:
        value = number(record, name)
        return "" if value is None else plots.duration(value)

    tokens, low, high = number(record, "tokens"), time("low_s"), time("high_s")
    slope, least, most = shown("growth"), shown("growth_low"), shown("growth_high")
    return (
        record.workload,
        _backend(title, record),
        "" if tokens is None else plots.tokens_text(tokens),
        shown("sequences"),
        _plain(record.numbers.get("element_type")),
        shown("block_size"),
        time("median_s"),
        f"{low} to {high}" if low and high else "",
        shown("bytes_per_s", " GB/s", 1e9),
        shown("share"),
        _ratio(record),
        shown("peak_bytes", " MiB", 2**20),
        f"{slope} ({least} to {most})" if slope and least and most else slope,
        record.says,
    )


def _ratio(record: PerfRecord) -> str:
    """Time over that of the first backend, what the test says of it, and how likely it would be by chance."""
    value, p = number(record, "ratio"), number(record, "ratio_p")
    says = _plain(record.numbers.get("ratio_says"))
    parts = ["" if value is None else f"{value:.3g}", says, "" if p is None else f"(p {p:.2g})"]
    return " ".join(part for part in parts if part)


def _plain(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
