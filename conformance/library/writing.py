"""A case as it is written in a file of the library: the inverse of reading one, with everything usual left out."""

from __future__ import annotations

import textwrap
from typing import Any

from conformance.library.strict_yaml import flow
from conformance.spec.case import Case, as_plain
from conformance.spec.expression import evaluate
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation

WIDTH = 100
# Fields of a case that are written as they are when they are not the usual.
FIELDS = (
    "level", "length_shape", "element_type", "length_type", "types", "forms", "disabled", "data", "poison", "relations",
    "audits",
)  # fmt: skip


def as_written(case: Case, operation: Operation) -> dict[str, Any]:
    """The case as plain data, as the library reads it; the part of the id before the slash is the folder's."""
    plain = as_plain(case)
    expect = {name: plain[name] for name in ("values", "refusal") if plain.get(name)}
    written = {
        "id": case.id.partition("/")[2] or case.id,
        "says": case.says,
        "clauses": list(case.clauses),
        "attributes": _attributes(case, operation),
        "dims": _dims(case, operation),
        **({"past": list(case.past)} if operation.history else {}),
        "pad": list(case.pad) if any(case.pad) else [],
        **{field: plain[field] for field in FIELDS if field in plain},
        "seed": case.seed,
        "streams": [list(stream) for stream in case.streams],
        "change": plain.get("change", {}),
        "expect": expect,
    }
    always = ("id", "says", "clauses", "past", "seed", *(["streams"] if operation.tokens else []))
    return {name: _lists(value) for name, value in written.items() if name in always or value}


def as_yaml(case: Case, operation: Operation) -> str:
    """The case as an item of a list of cases, without indentation."""
    lines = [f"{name}: {flow(value, WIDTH - len(name))}" for name, value in as_written(case, operation).items()]
    return "- " + textwrap.indent("\n".join(lines), "  ")[2:]


def _attributes(case: Case, operation: Operation) -> dict[str, Any]:
    """Attributes that are not at their defaults, which may follow from those before."""
    given: dict[str, Any] = {}
    for name, value in case.attributes.items():
        if repr(value) != repr(operation.attributes_of(given)[name]):
            given[name] = value
    return given


def _dims(case: Case, operation: Operation) -> dict[str, int]:
    """Dimensions that do not follow from others; the number of sequences follows from the history."""
    known, needed = Geometry(case, operation).symbols, Geometry(case, operation).used
    dims = {}
    for name, size in case.dims.items():
        if name == operation.batch and operation.history:
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
