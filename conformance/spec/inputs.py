"""The input tensors of a case: aims or literal numbers in, arrays out; every don't-care element is poisoned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from conformance.spec.aims import Array, Draw, fill
from conformance.spec.case import Case, Change
from conformance.spec.expression import ExpressionError, symbols_of
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation, Port
from conformance.spec.types import dtype, is_integer, largest

LOUD = 1000.0  # much larger than what stands in elements that are read, and far from the largest number


@dataclass(frozen=True)
class Poison:
    """What stands in don't-care elements; `finite`, of a port in which only finite numbers have no effect."""

    kind: str
    finite: bool = False

    def values(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """NaN, huge numbers of either sign, or both in turn; whole numbers that are no index, or one of another row."""
        if is_integer(kind):
            least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
            off = -1 if least else most
            mixed = [off, most, 0, least, 1]
            pattern: list[Any] = {"nan": [off], "huge": [most, least], "zero": [0], "mixed": mixed}[self.kind]
        else:
            top = largest(kind)
            pattern = {"nan": [np.nan], "huge": [top, -top], "zero": [0.0], "mixed": [np.nan, top, -top]}[self.kind]
            if self.finite and self.kind in ("nan", "mixed"):
                pattern = [LOUD, -LOUD]
        out = np.empty(shape, dtype=kind)
        for place, value in enumerate(np.array(pattern).astype(kind)):
            out.reshape(-1)[place :: len(pattern)] = value
        return out


def inputs_of(case: Case, operation: Operation, only: Collection[str] | None = None) -> dict[str, Array]:
    """The ports of the single call, by contract name, fresh writable arrays in their types; all, or `only` some.

    An optional port whose feature is off is missing; any other port that is switched off has the shape (0,). Raises
    `ValueError` with a sentence when the case's data do not fit.
    """
    known = Geometry(case, operation)
    arrays: dict[str, Array] = {}
    for port in _in_order(case, operation):
        if only is not None and port.name not in only:
            continue
        if port.name == operation.lengths and known.is_on(port):
            arrays[port.name] = length_array(case, known.lengths, known.new)
        elif known.is_on(port):
            arrays[port.name] = exactly(_filled(port, known, arrays), port, known)
        elif not port.optional:
            arrays[port.name] = np.zeros((0,), dtype=dtype(known.type_of(port)))
    arrays = {port.name: arrays[port.name] for port in operation.ports if port.name in arrays}
    for name, change in case.change.items():
        if change.absent:
            arrays.pop(name, None)
        elif name in arrays:
            arrays[name] = _changed(arrays[name], change, case)
    return arrays


def exactly(array: Array, port: Port, known: Geometry) -> Array:
    """No more rows than a reading lets a caller hand over."""
    for axis, size in enumerate(port.shape):
        dim = known.operation.dims.get(str(size))
        if dim and dim.exact:
            array = np.ascontiguousarray(array[(slice(None),) * axis + (slice(0, known.of([dim.exact])[0]),)])
    return array


def length_array(case: Case, total: tuple[int, ...], new: int) -> Array:
    """The lengths port: a length for every sequence, or one for all."""
    if case.length_shape == "one":
        total = total[:1] or (new,)
    return np.array(total, dtype=dtype(case.length_type))


def _in_order(case: Case, operation: Operation) -> Iterator[Port]:
    """The ports, each after those whose values it uses."""
    counted = operation.counted
    if not counted:
        yield from operation.ports
        return
    waiting = {port.name: set(_texts(port, case)) & counted - {port.name} for port in operation.ports}
    while waiting:
        ready = [name for name, needs in waiting.items() if not needs & waiting.keys()]
        if not ready:
            raise ExpressionError(f"the values of {', '.join(waiting)} depend on each other")
        for name in ready:
            del waiting[name]
            yield operation.port[name]


def _texts(port: Port, case: Case) -> Iterator[str]:
    """The symbols in everything that decides what a port holds."""
    for text in (port.reads, port.token, *_strings(case.data.get(port.name, port.aim))):
        if text:
            try:
                yield from symbols_of(text)
            except ExpressionError:
                continue  # a word, such as the name of an aim


def _strings(spec: Any) -> Iterator[str]:
    if isinstance(spec, str):
        yield spec
    elif isinstance(spec, Mapping):
        for key, value in spec.items():
            if key not in ("aim", "inject"):
                yield from _strings(value)


def _filled(port: Port, known: Geometry, others: Mapping[str, Array]) -> Array:
    case, shape = known.case, known.shape(port)
    kind = dtype(known.type_of(port))
    values = {name: others[name] for name in known.operation.counted if name in others}
    of = partial(known.along, port, shape, values=values)
    draw = Draw(case.seed, port.name, shape, kind, known.period, known.token(port, shape, values), of)
    numbers, given = fill(case.data.get(port.name, port.aim), draw)
    if is_integer(kind) and not np.isfinite(numbers).all():
        raise ValueError(f"{port.name} holds whole numbers, not NaN or infinity")
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.ascontiguousarray(numbers).astype(kind)
    array = array.reshape(shape)  # a contiguous array has an axis at least
    read = known.read(port, shape, values)
    if read is not None:
        _poison(array, ~read, Poison(case.poison, port.finite))
    if given is not None:
        _poison(array, ~given, Poison(case.poison, port.finite))
    return array


def _poison(array: Array, where: Array, poison: Poison) -> None:
    count = int(np.count_nonzero(where))
    if count:
        array[where] = poison.values((count, *array.shape[where.ndim :]), array.dtype)


def _changed(array: Array, change: Change, case: Case) -> Array:
    if change.values is not None:
        array = np.array(change.values, dtype=array.dtype)
    for item in change.inject:
        array[item.at] = item.value
    if change.shape is not None:
        array = np.resize(array, change.shape) if array.size else np.zeros(change.shape, dtype=array.dtype)
    if change.type:
        kind = change.type
        if kind == "other":
            kind = "f16" if case.element_type == "f32" else "f32"
        with np.errstate(all="ignore"):
            array = np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0).clip(-100, 100).astype(dtype(kind))
    return array
