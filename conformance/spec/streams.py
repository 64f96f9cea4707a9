"""Streams: partitions of the new tokens into calls, and the inputs of every call."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.spec.case import Case, lengths, prefix_lengths
from conformance.spec.expression import whole
from conformance.spec.geometry import Geometry, spare, with_defaults
from conformance.spec.operation import Operation

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


def spans(stream: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of every call of a partition."""
    start = 0
    for step in stream:
        yield start, start + step
        start += step


def all_partitions(L: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut L tokens into calls of at least one token."""
    for count in range(max(L, 1)):
        for cuts in itertools.combinations(range(1, L), count):
            edges = (0, *cuts, L)
            yield tuple(b - a for a, b in itertools.pairwise(edges))


def random_partition(L: int, cuts: int, seed: int) -> tuple[int, ...]:
    """L tokens cut at `cuts` places; calls without tokens may occur."""
    # random() alone is promised to stay the same across Python versions.
    rng = random.Random(seed)
    edges = [0, *sorted(int(rng.random() * (L + 1)) for _ in range(cuts)), L]
    return tuple(b - a for a, b in itertools.pairwise(edges))


def step_of(case: Case, operation: Operation) -> int:
    """Tokens of which every call but the last needs a multiple, so that no row of several tokens is cut."""
    known = Geometry(case, operation).scalars
    step = 1
    for total in operation.totals.values():
        if total.tokens:
            step = max(step, whole(total.tokens, known))
    return step


def aligned(stream: Sequence[int], step: int) -> tuple[int, ...]:
    """The partition with every cut moved down to a multiple of `step`."""
    if step == 1:
        return tuple(stream)
    edges = [0, *(end // step * step for _, end in list(spans(stream))[:-1]), sum(stream)]
    return tuple(b - a for a, b in itertools.pairwise(edges))


def can_split(case: Case, operation: Operation) -> bool:
    """Whether the tokens of a case can come in several calls."""
    return bool(operation.tokens) and Geometry(case, operation).holds(operation.splits)


def call_inputs(
    single: Mapping[str, Array],
    case: Case,
    operation: Operation,
    start: int,
    end: int,
    carried: Mapping[str, Array],
) -> dict[str, Array]:
    """Inputs of the call that brings tokens start..end-1; `carried` replaces the ports that outputs feed."""
    from conformance.spec.inputs import length_array

    known = Geometry(case, operation)
    inputs = {}
    for port in operation.ports:
        if port.name not in single:
            continue
        array = single[port.name]
        if port.name == operation.lengths:
            array = length_array(case, prefix_lengths(known.lengths, known.new, end), end - start)
        elif port.name in carried:
            array = carried[port.name]
        elif known.is_on(port):
            array = part_of(array, port.shape, known, start, end)
            array = _grown(array, port.shape, known, start, end)
        inputs[port.name] = array
    return inputs


def _grown(array: Array, shape: Sequence[Any], known: Geometry, start: int, end: int) -> Array:
    """Only the rows that are there at this call, along dimensions that follow from the lengths."""
    follow = [axis for axis, size in enumerate(shape) if size in known.operation.dims and _follows(size, known)]
    if not follow:
        return array
    import numpy as np

    cuts, call = [slice(None)] * array.ndim, _call(known.case, known.operation, start, end)
    for axis in follow:
        exact = known.operation.dims[shape[axis]].exact
        more = spare(known.case, known.operation, shape[axis])
        rows = Geometry(call, known.operation).of([exact])[0] if exact else max(call.dims[shape[axis]] + more, 0)
        cuts[axis] = slice(0, rows)
    return np.ascontiguousarray(array[tuple(cuts)])


def _follows(dim: str, known: Geometry) -> bool:
    return known.operation.dims[dim].follows


def part_of(array: Array, shape: Sequence[Any], known: Geometry, start: int, end: int) -> Array:
    """The part of a port or an output that belongs to the call of tokens start..end-1."""
    import numpy as np

    operation, cuts = known.operation, [slice(None)] * array.ndim
    for axis, size in enumerate(shape):
        if size == operation.tokens and size:
            cuts[axis] = slice(start, end)
        elif size in operation.totals and operation.totals[size].tokens:
            each = whole(operation.totals[size].tokens, known.scalars)
            cuts[axis] = slice(start // each, -(-end // each))
        elif size in operation.dims and operation.dims[size].grows:
            cuts[axis] = slice(0, max(array.shape[axis] - (known.new - end), 0))
    if all(cut == slice(None) for cut in cuts):
        return array
    return np.ascontiguousarray(array[tuple(cuts)])


def calls_of(case: Case, operation: Operation, stream: Sequence[int]) -> list[Case]:
    """The calls of a stream as cases of their own."""
    return [_call(case, operation, start, end) for start, end in spans(stream)]


def _call(case: Case, operation: Operation, start: int, end: int) -> Case:
    """The call that brings tokens start..end-1."""
    new = Geometry(case, operation).new
    after = prefix_lengths(lengths(case, operation), new, end)
    past = tuple(max(length - (end - start), 0) for length in after)
    pad = tuple(max(end - start - length, 0) for length in after)
    dims = {**case.dims, operation.tokens: end - start}
    call = with_defaults(msgspec.structs.replace(case, dims=dims, past=past, pad=pad, streams=()), operation)
    grown = {n: max(case.dims[n] - (new - end), 0) for n, dim in operation.dims.items() if dim.grows}
    return msgspec.structs.replace(call, dims={**call.dims, **grown})


def joined(pieces: Sequence[Mapping[str, Array]], operation: Operation) -> dict[str, Array] | None:
    """The outputs of a stream: rows of tokens from all of its calls, and whatever else is there after the last one.

    None where the calls' outputs do not fit together, as under a reading by which their shapes follow from the call.
    """
    import numpy as np

    outputs = dict(pieces[-1])
    for name in outputs:
        axis = tokens_axis(operation.output[name].shape, operation)
        if axis is None:
            continue
        others = {(*piece[name].shape[:axis], *piece[name].shape[axis + 1 :]) for piece in pieces}
        if len(others) > 1:
            return None
        outputs[name] = np.concatenate([piece[name] for piece in pieces], axis=axis)
    return outputs


def tokens_axis(shape: Sequence[Any], operation: Operation) -> int | None:
    """The axis along which a port or an output has rows of tokens; None where it has none."""
    rows = {operation.tokens} | {name for name, total in operation.totals.items() if total.tokens}
    return next((axis for axis, size in enumerate(shape) if size and size in rows), None)
