"""A case as it is written in a file of the library: the inverse of reading one, with everything usual left out."""

from __future__ import annotations

import textwrap
from typing import Any

from conformance.spec.case import Case, as_plain
from conformance.spec.expression import evaluate
from conformance.spec.operation import Operation
from conformance.spec.resized import symbols, used
from conformance.spec.strict_yaml import flow

WIDTH = 100
# Fields of a case that are written as they are when they are not the usual.
FIELDS = ("level", "length_shape", "element_type", "length_type", "disabled", "data", "poison", "relations", "audits")


def as_written(case: Case, operation: Operation) -> dict[str, Any]:
    """The case as plain data, as the library reads it; the part of the id before the slash is the folder's."""
    plain = as_plain(case)
    expect = {name: plain[name] for name in ("values", "refusal") if plain.get(name)}
    written = {
        "id": case.id.partition("/")[2] or case.id,
        "says": case.says,
        "clauses": list(case.clauses),
        "attributes": {n: v for n, v in case.attributes.items() if repr(v) != repr(operation.attributes[n].default)},
        "dims": _dims(case, operation),
        "past": list(case.past),
        "pad": list(case.pad) if any(case.pad) else [],
        **{field: plain[field] for field in FIELDS if field in plain},
        "seed": case.seed,
        "streams": [list(stream) for stream in case.streams],
        "change": plain.get("change", {}),
        "expect": expect,
    }
    always = ("id", "says", "clauses", "past", "seed", "streams")
    return {name: _lists(value) for name, value in written.items() if name in always or value}


def as_yaml(case: Case, operation: Operation) -> str:
    """The case as an item of a list of cases, without indentation."""
    lines = [f"{name}: {flow(value, WIDTH - len(name))}" for name, value in as_written(case, operation).items()]
    return "- " + textwrap.indent("\n".join(lines), "  ")[2:]


def _dims(case: Case, operation: Operation) -> dict[str, int]:
    """Dimensions that do not follow from others; the number of sequences follows from the history."""
    known = symbols(case, operation)
    needed = used(case, operation)
    dims = {}
    for name, size in case.dims.items():
        if name == operation.batch:
            continue
        default = evaluate(operation.dims[name].default, known)
        follows = isinstance(operation.dims[name].default, str) or name not in needed
        if size != default or not follows:
            dims[name] = size
    return dims


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
