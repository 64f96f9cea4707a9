"""Tensors of a case: named aims and a seed in, arrays out; every don't-care element is poisoned.

Numbers come from a counter formula (SplitMix64 of port, seed and position), so that the same case is the same bits on
every machine and can be drawn again without this package. `bell` approximates a normal distribution by the sum of four
uniform ones, exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from conformance.spec.case import Case, lengths, prefix_lengths
from conformance.spec.expression import evaluate

if TYPE_CHECKING:
    from conformance.spec.operation import Operation, Port

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype(np.float64),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "i16": np.dtype(np.int16),
    "u8": np.dtype(np.uint8),
}


@cache
def largest(dtype: np.dtype[Any]) -> float:
    """Largest finite number of an element type."""
    return float(ml_dtypes.finfo(dtype).max)


@cache
def smallest_normal(dtype: np.dtype[Any]) -> float:
    """Smallest positive normal number of an element type."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)


# Counter formula


def start_of(seed: int, port: str, stream: int = 0) -> int:
    """Where the counters of a port start."""
    start = (zlib.crc32(port.encode()) << 32) ^ (seed & 0xFFFFFFFF) ^ ((stream & 0xFF) << 56)
    return (start << 20) & 0xFFFFFFFFFFFFFFFF


def counters(seed: int, port: str, count: int, stream: int = 0) -> Array:
    """`count` 64-bit numbers, uint64: SplitMix64 from a start that depends on seed, port and stream."""
    z = np.arange(1, count + 1, dtype=np.uint64)
    z += np.uint64(start_of(seed, port, stream))
    z *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z


def _unit(numbers: Array) -> Array:
    """Uniform in [0, 1), float64, multiples of 2^-53."""
    result: Array = (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return result


@dataclass(frozen=True)
class Draw:
    """What an aim may use: where the numbers come from, and which token each row belongs to."""

    seed: int
    port: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    period: int  # tokens after which an aim's pattern starts again: the first attribute's value
    tokens: Array | None  # token number of every row, int64 [N, rows]

    def unit(self, stream: int = 0) -> Array:
        """Uniform in [0, 1), float64, multiples of 2^-53."""
        count = int(np.prod(self.shape))
        return _unit(counters(self.seed, self.port, count, stream)).reshape(self.shape)

    def bell(self) -> Array:
        """About N(0, 1), float64, within +-3.47: four 16-bit uniforms of one counter."""
        z = counters(self.seed, self.port, int(np.prod(self.shape)))
        parts = z.view(np.uint16).reshape(-1, 4)
        total = parts[:, 0].astype(np.uint32)
        for column in (1, 2, 3):
            total += parts[:, column]
        # Four uniforms on 0..65535 have the mean 131070 and the standard deviation 65536/sqrt(3), up to 2^-33.
        values: Array = (total - 131070.0) * (1.7320508075688772 / 65536.0)
        return values.reshape(self.shape)

    def rows(self) -> Array:
        """Token number of every row, broadcastable to the shape; the row index where tokens have no number."""
        if self.tokens is not None and len(self.shape) >= 2:
            return self.tokens.reshape(*self.tokens.shape, *(1,) * (len(self.shape) - 2))
        axis = min(1, len(self.shape) - 1)
        return np.arange(self.shape[axis]).reshape(-1, *(1,) * (len(self.shape) - 1 - axis))


# Aims: each takes a Draw and its parameters, and gives float64 of the draw's shape.


def bell(draw: Draw, scale: float = 1.0, offset: float = 0.0) -> Array:
    """About normal, times `scale`, plus `offset`."""
    values: Array = draw.bell() * scale + offset
    return values


def uniform(draw: Draw, low: float = -1.0, high: float = 1.0) -> Array:
    """Uniform between `low` and `high`."""
    values: Array = low + draw.unit() * (high - low)
    return values


def integers(draw: Draw, low: int = -4, high: int = 4) -> Array:
    """Whole numbers from `low` to `high`: results that need no rounding."""
    values: Array = np.floor(low + draw.unit() * (high - low + 1))
    return values


def constant(draw: Draw, value: float = 1.0) -> Array:
    """The same number everywhere."""
    return np.full(draw.shape, float(value))


def ramp(draw: Draw, start: float = 0.0, step: float = 1.0) -> Array:
    """`start` plus `step` times the token number."""
    return np.broadcast_to(start + step * draw.rows(), draw.shape).astype(np.float64)


def choice(draw: Draw, values: Sequence[float] = (0.0, 1.0)) -> Array:
    """One of `values` in every element."""
    chosen: Array = np.asarray(values, dtype=np.float64)[np.floor(draw.unit() * len(values)).astype(np.int64)]
    return chosen


def cancelling(draw: Draw, size: float = 256.0, rest: float = 1.0) -> Array:
    """Large numbers that cancel within every block, and a small `rest` that stays: the sum needs wide accumulation."""
    k, r = draw.rows() % draw.period, draw.period
    # +, -, +, - ...; the odd one out of an odd block is 0.
    sign = np.where((k == r - 1) & (r % 2 == 1), 0.0, 1.0 - 2.0 * (k % 2))
    return size * sign + draw.bell() * rest


def split_cancelling(draw: Draw, size: float = 256.0, rest: float = 1.0) -> Array:
    """`size` first, -`size` last in a block, small numbers between: a narrow running sum loses them."""
    k = np.broadcast_to(draw.rows() % draw.period, draw.shape)
    small = np.round(draw.bell() * 2) * 0.5 * rest
    return np.where(k == 0, size, np.where(k == draw.period - 1, -size, small))


def magnitudes(draw: Draw, low: float = 1e-4, high: float = 3e4) -> Array:
    """About normal, every row at a scale of its own between `low` and `high`, log-uniform."""
    values: Array = draw.bell() * low * (high / low) ** draw.unit(1)[..., :1]
    return values


def steps(draw: Draw, low: float = 1e-4, high: float = 3e4) -> Array:
    """About normal, every block at a scale of its own between `low` and `high`, in eight steps that repeat."""
    block = draw.rows() // draw.period % 8
    return draw.bell() * low * (high / low) ** (block / 7.0)


def subnormal(draw: Draw, scale: float = 1.0) -> Array:
    """Numbers below the smallest normal number of the type, times `scale`."""
    return (draw.unit() * 2 - 1) * smallest_normal(draw.dtype) * scale


def near_largest(draw: Draw, share: float = 1.0) -> Array:
    """Numbers of `share` times the largest finite one, of either sign."""
    return np.where(draw.unit() < 0.5, -1.0, 1.0) * largest(draw.dtype) * share


def spikes(draw: Draw, every: int = 7, size: float = 100.0) -> Array:
    """Zero but for about one element in `every`, which is about normal times `size`."""
    with np.errstate(invalid="ignore"):  # the size may be infinite
        return np.where(draw.unit(1) < 1.0 / every, draw.bell() * size, 0.0)


def circle(draw: Draw, part: str = "cos") -> Array:
    """cos or sin of random angles, equal in both halves; parts of one seed belong together. `both`: cos then sin."""
    width = draw.shape[-1] // (4 if part == "both" else 2)
    count = int(np.prod(draw.shape[:-1])) * width
    turn = _unit(counters(draw.seed, "circle", count)).reshape(*draw.shape[:-1], width)
    return _table(2 * np.pi * turn, part)


def rotary(
    draw: Draw, part: str = "cos", theta: float = 1e4, sections: Sequence[int] = (), spread: Sequence[float] = (1, 1, 1)
) -> Array:
    """cos or sin of a rotary embedding at the token's position, equal in both halves.

    With `sections` it is multi-axis and interleaved: pair i takes axis i mod 3 while that axis still has pairs left
    (section times three), else axis 0; axis a stands at position times spread[a].
    """
    width = draw.shape[-1] // (4 if part == "both" else 2)
    pair = np.arange(width)
    axis = np.zeros(width, dtype=np.int64)
    for a in (1, 2):
        if len(sections) > a:
            axis[(pair % 3 == a) & (pair < 3 * sections[a])] = a
    rate = np.asarray(spread, dtype=np.float64)[axis] * theta ** (-pair / max(width, 1))
    position = draw.rows() if draw.tokens is not None else np.zeros((draw.shape[0], 1))
    return np.broadcast_to(_table(position * rate, part), draw.shape)


def _table(angle: Array, part: str) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    parts = {"cos": (cos, cos), "sin": (sin, sin), "both": (cos, cos, sin, sin)}
    return np.concatenate(parts[part], axis=-1)


AIMS: Mapping[str, Callable[..., Array]] = {
    f.__name__: f
    for f in (
        bell, uniform, integers, constant, ramp, choice, cancelling, split_cancelling, magnitudes, steps, subnormal,
        near_largest, spikes, circle, rotary,
    )
}  # fmt: skip


# Arrays of a case


@dataclass(frozen=True)
class Poison:
    """What stands in don't-care elements."""

    kind: str

    def values(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """NaN, huge numbers of either sign, or both in turn."""
        top = largest(dtype)
        pattern = {"nan": [np.nan], "huge": [top, -top], "zero": [0.0], "mixed": [np.nan, top, -top]}[self.kind]
        out = np.empty(shape, dtype=dtype)
        for place, value in enumerate(np.array(pattern).astype(dtype)):
            out.reshape(-1)[place :: len(pattern)] = value
        return out


def inputs_of(case: Case, operation: Operation) -> dict[str, Array]:
    """All ports of the single call, by contract name, fresh writable arrays in their types."""
    total = lengths(case, operation)
    attributes = operation.usable(case.attributes)
    scalars = operation.scalars(attributes, case.dims)
    rows = operation.per_sequence(scalars, total)
    columns = operation.columns(rows)
    symbols = {**scalars, **operation.totals_of(scalars, columns)}
    period = int(next(iter(attributes.values())))
    # Per-sequence symbols as columns against `row` along axis 1.
    grid = symbols | {name: np.array(values, dtype=np.int64).reshape(-1, 1) for name, values in columns.items()}
    arrays = {}
    for port in operation.ports:
        if port.name == operation.lengths:
            arrays[port.name] = _length_array(case, total, case.dims[operation.tokens])
        elif port.feature in case.disabled:
            arrays[port.name] = np.zeros((0,), dtype=DTYPES[case.element_type])
        else:
            arrays[port.name] = _element_array(case, port, symbols, grid, period)
    for name, change in case.change.items():
        arrays[name] = _changed(arrays[name], change, case)
    return arrays


def _length_array(case: Case, total: tuple[int, ...], new: int) -> Array:
    if case.length_shape == "one":
        total = total[:1] or (new,)
    return np.array(total, dtype=DTYPES[case.length_type])


def _element_array(case: Case, port: Port, symbols: Mapping[str, Any], grid: Mapping[str, Any], period: int) -> Array:
    dtype = DTYPES[case.element_type]
    shape = tuple(int(evaluate(s, symbols)) for s in port.shape)
    if port.token or port.reads:
        grid = {**grid, "row": np.arange(shape[1])[None, :]}
    tokens = evaluate(port.token, grid) if port.token else None
    spec = case.data.get(port.name, port.aim)
    values, given = fill(spec, Draw(case.seed, port.name, shape, dtype, period, tokens))
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.ascontiguousarray(values).astype(dtype)
    if port.reads:
        _poison(array, ~np.broadcast_to(evaluate(port.reads, grid), shape[:2]), case.poison)
    if given is not None:
        _poison(array, ~given, case.poison)
    return array


def _poison(array: Array, where: Array, kind: str) -> None:
    count = int(np.count_nonzero(where))
    if count:
        array[where] = Poison(kind).values((count, *array.shape[where.ndim :]), array.dtype)


def fill(spec: Any, draw: Draw) -> tuple[Array, Array | None]:
    """Values of an aim or of literal numbers, float64; for literals with nulls also the mask of what is given.

    Literals may leave out leading axes: one number stands everywhere, one row for every token.

    Raises `ValueError` with a sentence for an unknown aim, wrong parameters, or literals of another shape.
    """
    if isinstance(spec, Mapping):
        parameters = dict(spec)
        name, inject = parameters.pop("aim", "bell"), parameters.pop("inject", ())
        aim = AIMS.get(name)
        if aim is None:
            raise ValueError(f"unknown aim '{name}' for {draw.port}; known: {', '.join(AIMS)}")
        try:
            values = aim(draw, **parameters)
        except TypeError as error:
            raise ValueError(f"aim '{name}' for {draw.port}: {str(error).partition('() ')[2] or error}") from None
        if inject:
            values = np.array(values)
            for item in inject:
                values[tuple(item["at"])] = item["value"]
        return values, None
    literal = np.array(spec, dtype=object)
    if literal.size == 0 and 0 in draw.shape:
        return np.zeros(draw.shape), None
    if literal.shape == draw.shape[len(draw.shape) - literal.ndim :]:
        literal = np.broadcast_to(literal, draw.shape)
    if literal.shape != draw.shape:
        raise ValueError(f"{draw.port} needs values of shape {list(draw.shape)}, not {list(literal.shape)}")
    given = np.array([value is not None for value in literal.flat], dtype=bool).reshape(literal.shape)
    return np.where(given, literal, 0.0).astype(np.float64), None if given.all() else given


def _changed(array: Array, change: Any, case: Case) -> Array:
    if change.values is not None:
        array = np.array(change.values, dtype=array.dtype)
    if change.shape is not None:
        array = np.resize(array, change.shape) if array.size else np.zeros(change.shape, dtype=array.dtype)
    if change.type:
        kind = change.type
        if kind == "other":
            kind = "f16" if case.element_type == "f32" else "f32"
        with np.errstate(all="ignore"):
            array = np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0).clip(-100, 100).astype(DTYPES[kind])
    return array


# Streams


def call_inputs(
    whole: Mapping[str, Array], case: Case, operation: Operation, start: int, end: int, carried: Mapping[str, Array]
) -> dict[str, Array]:
    """Inputs of the call that brings tokens start..end-1; `carried` replaces the ports that outputs feed."""
    new = case.dims[operation.tokens]
    inputs = {}
    for port in operation.ports:
        array = whole[port.name]
        if port.name == operation.lengths:
            array = _length_array(case, prefix_lengths(lengths(case, operation), new, end), end - start)
        elif port.name in carried:
            array = carried[port.name]
        elif operation.tokens in port.shape and port.feature not in case.disabled:
            axis = port.shape.index(operation.tokens)
            array = np.ascontiguousarray(array[(slice(None),) * axis + (slice(start, end),)])
        inputs[port.name] = array
    return inputs
