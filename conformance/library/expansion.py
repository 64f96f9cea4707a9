"""From one written case to many: the points of its matrix, or the rows of its covering array."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from conformance.errors import LibraryError
from conformance.library.written import Cover, Origin, Written, merge
from conformance.spec.expression import ExpressionError, evaluate, symbols_of
from conformance.spec.operation import Operation

MOST = 20_000  # cases that one written case may become
POINTS = 2_000  # of an axis
AXES = 24  # of a covering array
COMBINATIONS = 60_000  # of values, that a covering array may have to hold
CHECKS = 2_000_000  # partial rows that are looked at to see whether the array is complete


def expand(raw: dict[str, Any], here: Origin) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Label, axis variables and patched raw case for every point of the matrix or covering array."""
    case = here.convert(raw)
    base = {key: value for key, value in raw.items() if key not in ("matrix", "cover")}
    axes: dict[str, list[tuple[str, Any]]] = {}
    points: list[dict[str, tuple[str, Any]]]
    if case.cover:
        axes = {name: axis_values(name, spec, here, "cover", "axes") for name, spec in case.cover.axes.items()}
        points = covering(axes, case.cover, here)
    else:
        points = [{}]
    matrix = {name: axis_values(name, spec, here, "matrix") for name, spec in case.matrix.items()}
    count = len(points) * math.prod(map(len, matrix.values()))
    if count > MOST:
        raise here.error(f"it becomes {count:,} cases; at most {MOST:,}", "matrix" if matrix else "cover")
    for point in points:
        for row in itertools.product(*matrix.values()):
            chosen = {**point, **dict(zip(matrix, row, strict=True))}
            patched = base
            variables: dict[str, Any] = {}
            for name, (_, value) in chosen.items():
                patched, variable = apply_axis(patched, name, value, here.operation)
                variables |= variable
            yield ",".join(f"{name}={label}" for name, (label, _) in chosen.items()), variables, patched


def axis_values(name: str, spec: Any, here: Origin, *keys: str) -> list[tuple[str, Any]]:
    """(label, value) of every point of an axis: a list, a range `a..b`, or labelled patches."""
    points: list[tuple[str, Any]] = []
    if isinstance(spec, str) and ".." in spec:
        found = _RANGE.fullmatch(spec)
        low, high = (int(found[1]), int(found[2])) if found else (0, -1)
        if not found or high < low:
            raise here.error(f"axis '{name}': '{spec[:40]}' is not a range of integers such as 0..9", *keys, name)
        if high - low >= POINTS:
            raise here.error(f"axis '{name}' has {high - low + 1:,} values; at most {POINTS:,}", *keys, name)
        points = [(str(i), i) for i in range(low, high + 1)]
    elif isinstance(spec, dict) and all(isinstance(v, dict) for v in spec.values()):
        points = list(spec.items())
    elif isinstance(spec, list):
        points = [(_label(value), value) for value in spec]
    if not 0 < len(points) <= POINTS:
        problem = f"axis '{name}' needs a list, a range a..b, or labelled mappings, of 1 to {POINTS:,} values"
        raise here.error(problem, *keys, name)
    return points


_RANGE = re.compile(r"\s*(-?\d{1,15})\s*\.\.\s*(-?\d{1,15})\s*", re.ASCII)


def _label(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(_label(v) for v in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def apply_axis(
    raw: dict[str, Any], name: str, value: Any, operation: Operation
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case with one axis value put in, and the variables that expressions may use for it."""
    if isinstance(value, dict):
        return merge(raw, value), {}
    variable = {name: value} if isinstance(value, int | float) else {}
    if name in operation.dims:
        return {**raw, "dims": {**raw.get("dims", {}), name: value}}, variable
    attribute = operation.symbol_of.get(name, name if name in operation.attributes else "")
    if attribute:
        return {**raw, "attributes": {**raw.get("attributes", {}), attribute: value}}, variable
    if name in Written.__struct_fields__:
        return {**raw, name: value}, {}
    return raw, variable


def covering(axes: Mapping[str, list[tuple[str, Any]]], cover: Cover, here: Origin) -> list[dict[str, tuple[str, Any]]]:
    """Rows in which every allowed combination of `strength` axes occurs. Raises `LibraryError` when one does not."""
    from covertable import make

    strength = min(cover.strength, len(axes))
    indices = {name: list(range(len(values))) for name, values in axes.items()}

    sizes = [len(values) for values in axes.values()]
    count = (
        sum(math.prod(some) for some in itertools.combinations(sizes, strength))
        if len(sizes) <= AXES
        else COMBINATIONS + 1
    )
    if count > COMBINATIONS:
        raise here.error(f"too many axes and values to cover; at most {COMBINATIONS:,} combinations", "cover")

    looked_at = 0

    def failed(number: int, problem: str) -> LibraryError:
        return here.error(problem, "cover", "except", number)

    excluded: list[tuple[int, str, frozenset[str]]] = []
    for number, text in enumerate(cover.excluded):
        try:
            names = symbols_of(text)
        except ExpressionError as error:
            raise failed(number, str(error)) from None
        if names - axes.keys():
            raise failed(number, f"'{text}' excludes by {', '.join(sorted(names - axes.keys()))}, which is not an axis")
        excluded.append((number, text, names))

    def holds(number: int, text: str, row: Mapping[str, int]) -> bool:
        values = {name: axes[name][i][1] for name, i in row.items()}
        try:
            return bool(evaluate(text, {n: v if isinstance(v, int | float) else row[n] for n, v in values.items()}))
        except ExpressionError as error:
            raise failed(number, str(error)) from None

    def allowed(row: Mapping[str, int]) -> bool:
        nonlocal looked_at
        looked_at += 1
        if looked_at > CHECKS:
            raise here.error("'except' leaves too little to find the rows of the covering array", "cover", "except")
        return not any(names <= row.keys() and holds(number, text, row) for number, text, names in excluded)

    constraints = [
        {
            "operator": "fn",
            "requires": sorted(names),
            "evaluate": lambda row, n=number, text=text: not holds(n, text, row),
        }
        for number, text, names in excluded
    ]
    rows = [dict(row) for row in make(indices, strength=strength, constraints=constraints)]
    missing = missing_combinations(indices, rows, strength, allowed)
    if missing:
        shown = ", ".join(f"{name}={axes[name][i][0]}" for name, i in missing[0].items())
        raise here.error(f"the covering array lacks {len(missing)} combinations, for example {shown}", "cover")
    if not rows:
        raise here.error("'except' leaves no row of the covering array", "cover", "except")
    return [{name: axes[name][i] for name, i in row.items()} for row in rows]


def missing_combinations(
    indices: Mapping[str, list[int]], rows: list[dict[str, int]], strength: int, allowed: Any
) -> list[dict[str, int]]:
    """Combinations of `strength` axes that could stand in an allowed row and stand in none."""
    missing = []
    for names in itertools.combinations(indices, strength):
        there = {tuple(row[name] for name in names) for row in rows}
        for values in itertools.product(*(indices[name] for name in names)):
            part = dict(zip(names, values, strict=True))
            if values not in there and allowed(part) and _extends(part, indices, allowed):
                missing.append(part)
    return missing


def _extends(part: dict[str, int], indices: Mapping[str, list[int]], allowed: Any) -> bool:
    """Whether a partial row can be completed to an allowed one."""
    rest = [name for name in indices if name not in part]
    if not rest:
        return bool(allowed(part))
    return any(
        allowed({**part, rest[0]: i}) and _extends({**part, rest[0]: i}, indices, allowed) for i in indices[rest[0]]
    )
