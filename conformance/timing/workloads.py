"""Workloads that are timed: written as cases are, filled with finite numbers, with the bytes that they must move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance.errors import LibraryError, Place, UsageError, nearest
from conformance.library import strict_yaml
from conformance.library.concrete import concrete
from conformance.library.expansion import expand
from conformance.library.operations import cases_root, located
from conformance.library.written import Origin, merge
from conformance.spec.aims import Draw, fill
from conformance.spec.case import Case
from conformance.spec.expression import ExpressionError, evaluate
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import inputs_of as exact_inputs
from conformance.spec.operation import Operation, Strict
from conformance.spec.streams import calls_of as calls_of_stream
from conformance.spec.types import dtype

Array = np.ndarray[Any, np.dtype[Any]]

FILE = "workloads.yaml"
OWN = ("quick", "growth")  # keys of a workload that no case has
PERIOD = 65521  # numbers after which an array repeats itself; a prime, so that no two rows are alike


class File(Strict, frozen=True):
    """The file of an operation's workloads."""

    workloads: list[dict[str, Any]]
    memory: int
    says: str = ""
    defaults: dict[str, Any] = {}


@dataclass(frozen=True)
class Workload:
    """One timed call, or the calls of one stream. Points of one `series` differ in their `size` alone."""

    id: str
    says: str
    case: Case
    quick: bool
    series: str = ""
    size: int = 0  # what the time of a series is held against: its tokens, or what `growth` names


def has_workloads(operation: Operation) -> bool:
    """Whether anything of an operation is timed by itself."""
    where, name = located(operation.operation)
    return (where / name / FILE).is_file()


def load_workloads(operation: Operation, root: Path | None = None) -> tuple[Workload, ...]:
    """All workloads of an operation, in the order of the file. Raises `LibraryError` with the place of a problem."""
    where, name = located(operation.operation, root)
    path = where / name / FILE
    data, places = strict_yaml.load(path, f"cases/{name}/{FILE}" if where == cases_root() else str(path))
    file = strict_yaml.convert(data, File, places.at)
    found: list[Workload] = []
    for index, raw in enumerate(file.workloads):
        here = Origin(places, ("workloads", index), "timed", operation, file.memory)
        merged = {"clauses": [], "streams": [], **merge(file.defaults, raw)}  # one call, unless told otherwise
        own = {key: merged.pop(key) for key in OWN if key in merged}
        growth = own.get("growth", False)
        if not isinstance(growth, bool | str):
            raise here.error(f"'growth' is true, false or a symbol, not {growth!r}", "growth")
        for label, variables, patched in expand(merged, here):
            case = concrete(patched, variables, label, here)
            if len(case.streams) > 1:
                raise here.error("a workload has one stream or none", "streams")
            series = raw["id"] if growth else ""
            quick = bool(_number(own.get("quick", 0), "quick", case, here))
            against = growth if isinstance(growth, str) else operation.tokens
            size = int(_number(against, "growth", case, here)) if growth else 0
            found.append(Workload(case.id.partition("/")[2], case.says, case, quick, series, size))
    ids = [workload.id for workload in found]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise LibraryError(f"workload ids that appear twice: {', '.join(sorted(twice))}", Place(places.path))
    return tuple(found)


def choose(workloads: Sequence[Workload], patterns: Sequence[str], *, quick: bool = False) -> tuple[Workload, ...]:
    """Those that a pattern names, by id or by the id before the bracket, with * and ?; all without patterns.

    Raises `UsageError` for a pattern that names none.
    """
    for pattern in patterns:
        if not any(_named(workload, pattern) for workload in workloads):
            known = list(dict.fromkeys(base(workload.id) for workload in workloads))
            hint = nearest(pattern, [*known, *(workload.id for workload in workloads)])
            raise UsageError(f"no workload '{pattern}'{hint}; known: {', '.join(known)}")
    chosen = [w for w in workloads if not patterns or any(_named(w, pattern) for pattern in patterns)]
    chosen = [w for w in chosen if w.quick or not quick]
    if not chosen:
        raise UsageError("none of these workloads belongs to a quick run; leave out --quick")
    return tuple(chosen)


def base(name: str) -> str:
    """The id as it is written, without the point of the matrix."""
    return name.partition("[")[0]


def _named(workload: Workload, pattern: str) -> bool:
    # A bracket is part of an id, not a choice of letters.
    escaped = pattern.replace("[", "[[]")
    return fnmatchcase(workload.id, escaped) or fnmatchcase(base(workload.id), escaped)


def _number(text: Any, key: str, case: Case, here: Origin) -> Any:
    """The value of an expression of the first sequence's symbols."""
    known = Geometry(case, here.operation)
    try:
        return evaluate(text, next(iter(known.rows), known.scalars))
    except ExpressionError as error:
        raise here.error(str(error), key) from None


# Tensors


def calls_of(case: Case, operation: Operation) -> list[Case]:
    """The calls of the case's stream as cases of their own, the case itself when it has none."""
    return calls_of_stream(case, operation, case.streams[0]) if case.streams else [case]


def inputs_of(case: Case, operation: Operation) -> dict[str, Array]:
    """All ports of the single call, by contract name, every element finite.

    Ports of elements are filled as their aims say, with `PERIOD` numbers that repeat: drawing all of them takes far
    longer than any call. Ports of whole numbers are filled as in any case.
    """
    known = Geometry(case, operation)
    plain = exact_inputs(msgspec.structs.replace(case, poison="zero"), operation, _whole_numbers(operation))
    arrays: dict[str, Array] = {}
    for port in operation.ports:
        if port.name in plain:
            arrays[port.name] = plain[port.name]
        elif known.is_on(port):
            kind = dtype(known.type_of(port))
            draw = Draw(case.seed, port.name, (PERIOD,), kind, known.period, None)
            values, _ = fill(_free(case.data.get(port.name, port.aim)), draw)
            arrays[port.name] = repeated(values.astype(kind), known.shape(port))
        elif not port.optional:
            arrays[port.name] = np.zeros((0,), dtype=dtype(known.type_of(port)))
    return arrays


def _free(aim: Any) -> Any:
    """The aim without what ties it to a token's position: numbers that repeat have none."""
    if isinstance(aim, Mapping) and aim.get("aim") == "rotary":
        return {"aim": "circle", "part": aim.get("part", "cos")}
    return aim


def _whole_numbers(operation: Operation) -> set[str]:
    """Ports that hold whole numbers, the lengths among them."""
    return {*operation.counted, operation.lengths}


def repeated(values: Array, shape: tuple[int, ...]) -> Array:
    """An array of this shape, filled with the values over and over."""
    array = np.empty(shape, values.dtype)
    flat = array.reshape(-1)
    done = min(len(values), len(flat))
    flat[:done] = values[:done]
    while done < len(flat):
        # Whole periods are doubled, so that every position keeps its place within the period.
        more = min(done, len(flat) - done)
        flat[done : done + more] = flat[:more]
        done += more
    return array


def bytes_to_move(case: Case, operation: Operation) -> int:
    """Bytes that any implementation must read and write for the calls of a workload.

    Read are the elements that can have an effect, each once. Written are those elements of an output which the next
    call can read: after the call every sequence has seen S tokens, so a call without new tokens tells which they are.
    0 for a pipeline: how much of an input a stage reads is up to what the stage before it hands over.
    """
    if any(stage.operation for stage in operation.stages):
        return 0
    return sum(_bytes_of_call(call, operation) for call in calls_of(case, operation))


def _bytes_of_call(case: Case, operation: Operation) -> int:
    before = Geometry(case, operation)
    values = exact_inputs(case, operation, operation.counted)
    idle: Geometry | None = None
    if operation.tokens:
        later = {**case.dims, operation.tokens: 0}
        seen = before.lengths
        idle = Geometry(msgspec.structs.replace(case, dims=later, past=seen, pad=(0,) * len(seen)), operation)
    moved = 0
    for port in operation.ports:
        if port.name == operation.lengths and before.is_on(port):
            moved += len(before.lengths) * dtype(before.type_of(port)).itemsize
        elif before.is_on(port):
            shape = before.shape(port)
            moved += _elements(before.read(port, shape, values), shape) * dtype(before.type_of(port)).itemsize
    for output in operation.outputs:
        if before.is_on(output):
            shape = before.shape(output)
            mask = idle.read(operation.port[output.feeds], shape) if idle and output.feeds else None
            moved += _elements(mask, shape) * dtype(before.type_of(output)).itemsize
    return moved


def _elements(mask: Array | None, shape: tuple[int, ...]) -> int:
    """Elements of an array that a mask over its leading axes selects, all of them without one."""
    if mask is None or 0 in shape:
        return math.prod(shape)
    return int(np.count_nonzero(mask)) * math.prod(shape[mask.ndim :])
