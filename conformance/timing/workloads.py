"""Workloads that are timed: written as cases are, filled with finite numbers, with the bytes that they must move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance.errors import LibraryError, Place, UsageError, nearest
from conformance.judging.engine import spans
from conformance.library.reading import Origin, concrete, expand, merge
from conformance.spec import strict_yaml, tensors
from conformance.spec.case import Case, lengths, prefix_lengths
from conformance.spec.expression import ExpressionError, evaluate
from conformance.spec.operation import Operation, Strict, cases_root, located

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
    """One timed call, or the calls of one stream. Points of one `series` differ in their tokens alone."""

    id: str
    says: str
    case: Case
    quick: bool
    series: str = ""


def load_workloads(operation: Operation, name: str = "qsa_prepare", root: Path | None = None) -> tuple[Workload, ...]:
    """All workloads of an operation, in the order of the file. Raises `LibraryError` with the place of a problem."""
    path = (root or cases_root()) / name / FILE
    data, places = strict_yaml.load(path, f"cases/{name}/{FILE}")
    try:
        file = msgspec.convert(data, File)
    except msgspec.ValidationError as error:
        raise located(error, places) from None
    found: list[Workload] = []
    for index, raw in enumerate(file.workloads):
        here = Origin(places, ("workloads", index), "timed", operation)
        merged = {"clauses": [], **merge(file.defaults, raw)}
        own = {key: merged.pop(key) for key in OWN if key in merged}
        growth = own.get("growth", False)
        if not isinstance(growth, bool):
            raise here.error(f"'growth' is true or false, not {growth!r}", "growth")
        for label, variables, patched in expand(merged, here):
            case = concrete(patched, variables, label, here)
            if len(case.streams) > 1:
                raise here.error("a workload has one stream or none", "streams")
            size = _size(case, operation)
            if size > file.memory:
                raise here.error(f"{case.id} has {size:,} bytes of inputs and outputs, more than {file.memory:,}")
            series = raw["id"] if growth else ""
            quick = _quick(own.get("quick", 0), case, operation, here)
            found.append(Workload(case.id.partition("/")[2], case.says, case, quick, series))
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


def _quick(text: Any, case: Case, operation: Operation, here: Origin) -> bool:
    symbols = operation.scalars(case.attributes, case.dims)
    first = next(iter(operation.per_sequence(symbols, lengths(case, operation))), symbols)
    try:
        return bool(evaluate(text, first))
    except ExpressionError as error:
        raise here.error(str(error), "quick") from None


# Tensors


@dataclass(frozen=True)
class Shapes:
    """One call's symbols: those of the whole call, and those of every sequence as columns."""

    scalars: Mapping[str, Any]
    columns: Mapping[str, list[int]]

    def of(self, shape: Sequence[Any]) -> tuple[int, ...]:
        return tuple(int(evaluate(size, self.scalars)) for size in shape)

    def rows_read(self, mask: str, count: int) -> int:
        """Rows, over all sequences, that an expression over (sequence, row) selects among `count` a sequence."""
        grid = {name: np.array(values, np.int64).reshape(-1, 1) for name, values in self.columns.items()}
        chosen = evaluate(mask, {**self.scalars, **grid, "row": np.arange(count)[None, :]})
        sequences = len(next(iter(self.columns.values())))
        return int(np.broadcast_to(chosen, (sequences, count)).sum())


def shapes_of(case: Case, operation: Operation) -> Shapes:
    """The symbols of a case's single call."""
    scalars = operation.scalars(case.attributes, case.dims)
    columns = operation.columns(operation.per_sequence(scalars, lengths(case, operation)))
    return Shapes({**scalars, **operation.totals_of(scalars, columns)}, columns)


def calls_of(case: Case, operation: Operation) -> list[Case]:
    """The calls of the case's stream as cases of their own, the case itself when it has none."""
    if not case.streams:
        return [case]
    new, total = case.dims[operation.tokens], lengths(case, operation)
    calls = []
    for start, end in spans(case.streams[0]):
        S = prefix_lengths(total, new, end)
        dims = {**case.dims, operation.tokens: end - start}
        past = tuple(max(length - (end - start), 0) for length in S)
        pad = tuple(max(end - start - length, 0) for length in S)
        call = msgspec.structs.replace(case, dims=dims, past=past, pad=pad, streams=())
        symbols = shapes_of(call, operation)
        for name, free in operation.dims.items():
            if isinstance(free.default, str):
                dims[name] = int(evaluate(free.default, {**symbols.scalars, **symbols.columns}))
        calls.append(call)
    return calls


def inputs_of(case: Case, operation: Operation) -> dict[str, Array]:
    """All ports of the single call, by contract name, every element finite.

    Ports are filled as their aims say, with `PERIOD` numbers that repeat: drawing all of them takes far longer than
    any call.
    """
    shapes = shapes_of(case, operation)
    period = int(next(iter(case.attributes.values())))
    arrays: dict[str, Array] = {}
    for port in operation.ports:
        dtype = tensors.DTYPES[case.element_type]
        if port.name == operation.lengths:
            arrays[port.name] = np.array(lengths(case, operation), dtype=tensors.DTYPES[case.length_type])
        elif port.feature in case.disabled:
            arrays[port.name] = np.zeros((0,), dtype=dtype)
        else:
            draw = tensors.Draw(case.seed, port.name, (PERIOD,), dtype, period, None)
            values, _ = tensors.fill(port.aim, draw)
            arrays[port.name] = repeated(values.astype(dtype), shapes.of(port.shape))
    return arrays


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
    """
    return sum(_bytes_of_call(call, operation) for call in calls_of(case, operation))


def _bytes_of_call(case: Case, operation: Operation) -> int:
    element = tensors.DTYPES[case.element_type].itemsize
    before = shapes_of(case, operation)
    seen = lengths(case, operation)
    later = {**case.dims, operation.tokens: 0}
    idle = msgspec.structs.replace(case, dims=later, past=seen, pad=(0,) * len(seen))
    after = shapes_of(idle, operation)
    moved = len(seen) * tensors.DTYPES[case.length_type].itemsize
    for port in operation.ports:
        if port.name != operation.lengths and port.feature not in case.disabled:
            moved += _moved(before, before.of(port.shape), port.reads) * element
    for output in operation.outputs:
        if output.feature not in case.disabled:
            moved += _moved(after, before.of(output.shape), operation.port[output.feeds].reads) * element
    return moved


def _moved(shapes: Shapes, shape: tuple[int, ...], mask: str) -> int:
    """Elements that a mask over (sequence, row) selects. An array of rank 2 has one row a sequence."""
    if not mask or 0 in shape:
        return int(np.prod(shape))
    rows, width = (1, shape[1]) if len(shape) == 2 else (shape[1], int(np.prod(shape[2:])))
    return shapes.rows_read(mask, rows) * width


def _size(case: Case, operation: Operation) -> int:
    """Bytes of the single call's inputs and outputs."""
    shapes = shapes_of(case, operation)
    ports = [p.shape for p in operation.ports if p.type == "T" and p.feature not in case.disabled]
    ports += [o.shape for o in operation.outputs if o.feature not in case.disabled]
    return sum(int(np.prod(shapes.of(s))) for s in ports) * tensors.DTYPES[case.element_type].itemsize
