"""Aims: named ways to fill a port with numbers that follow from a seed, on every machine the same.

Numbers come from a counter formula (SplitMix64 of port, seed and position), so that the same case is the same bits on
every machine and can be drawn again without this package. `bell` approximates a normal distribution by the sum of four
uniform ones, exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.spec.expression import evaluate
from conformance.spec.types import is_integer, largest, smallest_normal

Array = np.ndarray[Any, np.dtype[Any]]
Of = Callable[[str], Any]  # the value of an expression over the axes of a port


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
    period: int  # tokens after which an aim's pattern starts again: the block size
    tokens: Array | None  # token number of every row, int64, over the leading axes
    of: Of | None = None

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

    def number(self, text: int | float | str) -> Any:
        """A parameter that may be an expression over the axes of the port, broadcastable to the shape."""
        if not isinstance(text, str):
            return text
        value = np.asarray(self.of(text) if self.of else evaluate(text, {}))
        return value.reshape(*value.shape, *(1,) * (len(self.shape) - value.ndim))

    def rows(self) -> Array:
        """Token number of every row, broadcastable to the shape; the row index where tokens have no number."""
        if self.tokens is not None:
            return self.tokens.reshape(*self.tokens.shape, *(1,) * (len(self.shape) - self.tokens.ndim))
        if not self.shape:
            return np.zeros((), dtype=np.int64)
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


def counts(draw: Draw, most: int | str = 4, least: int | str = 0) -> Array:
    """Whole numbers from `least` to `most`, expressions over the axes of the port."""
    low = np.broadcast_to(draw.number(least), draw.shape)
    high = np.maximum(np.broadcast_to(draw.number(most), draw.shape), low)
    values: Array = np.floor(low + draw.unit() * (high - low + 1))
    return values


def distinct(
    draw: Draw, below: int | str = 8, count: int | str | None = None, pick: str = "random", order: str = "random"
) -> Array:
    """Different whole numbers from 0 to `below` - 1 along the last axis: `count` of them, all that fit by default.

    `pick` says which ones (`random`, `first`, `last`), `order` how they are ordered (`random`, `ascending`,
    `descending`). What does not fit is -1.
    """
    if pick not in ("random", "first", "last") or order not in ("random", "ascending", "descending"):
        raise ValueError(
            f"aim 'distinct' for {draw.port}: pick is random, first or last; order random, ascending, descending"
        )
    *lead, width = draw.shape
    limit = _per_row(draw.number(below), lead)
    taken = np.minimum(limit, width) if count is None else np.minimum(_per_row(draw.number(count), lead), limit)
    taken = np.clip(taken, 0, width)
    out = np.full((len(limit), width), -1.0)
    most = int(limit.max(initial=0))
    step = max(1, (1 << 22) // max(most, 1))
    for start in range(0, len(limit) if width else 0, step):
        rows = slice(start, start + step)
        every, last = np.arange(most)[None, :], np.iinfo(np.int64).max
        hidden = every >= limit[rows, None]
        drawn = [
            (counters(draw.seed, f"{draw.port}/{start}", hidden.size, n) >> np.uint64(1)).astype(np.int64)
            for n in range(2)
        ]
        picks = {"random": drawn[0].reshape(hidden.shape), "first": every, "last": -every}
        chosen = np.argsort(np.where(hidden, last, picks[pick]), axis=1, kind="stable")[:, :width]
        beyond = np.arange(chosen.shape[1])[None, :] >= taken[rows, None]
        mixed = np.take_along_axis(drawn[1].reshape(hidden.shape), chosen, 1)
        orders = {"random": mixed, "ascending": chosen, "descending": -chosen}
        within = np.argsort(np.where(beyond, last, orders[order]), axis=1, kind="stable")
        out[rows, : chosen.shape[1]] = np.where(beyond, -1, np.take_along_axis(chosen, within, 1))
    return out.reshape(draw.shape)


def _per_row(value: Any, lead: Sequence[int]) -> Array:
    """A number for every row: one for each element of the leading axes, in one line."""
    numbers = np.asarray(value)
    numbers = numbers[..., 0] if numbers.ndim > len(lead) else numbers
    return np.broadcast_to(numbers, tuple(lead)).reshape(-1).astype(np.int64)


def either(draw: Draw, where: int | str = 1, then: Any = 1, otherwise: Any = 0) -> Array:
    """`then` where an expression over the axes of the port holds, else `otherwise`; both are numbers or aims."""
    chosen = np.broadcast_to(np.asarray(draw.number(where), dtype=bool), draw.shape)
    return np.where(chosen, *(fill(spec, draw)[0] for spec in (then, otherwise)))


def _table(angle: Array, part: str) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    parts = {"cos": (cos, cos), "sin": (sin, sin), "both": (cos, cos, sin, sin)}
    return np.concatenate(parts[part], axis=-1)


AIMS: Mapping[str, Callable[..., Array]] = {
    f.__name__: f
    for f in (
        bell, uniform, integers, constant, ramp, choice, cancelling, split_cancelling, magnitudes, steps, subnormal,
        near_largest, spikes, circle, rotary, counts, distinct, either,
    )
}  # fmt: skip


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
            with np.errstate(all="ignore"):
                values = aim(draw, **parameters)
        except (TypeError, ArithmeticError, LookupError) as error:
            told = str(error).partition("() ")[2] or f"its parameters do not fit ({error})"
            raise ValueError(f"aim '{name}' for {draw.port}: {told}") from None
        return _injected(values, inject, draw.port) if inject else values, None
    literal = np.array(spec, dtype=object)
    if literal.size == 0 and 0 in draw.shape:
        return np.zeros(draw.shape), None
    if literal.shape == draw.shape[len(draw.shape) - literal.ndim :]:
        literal = np.broadcast_to(literal, draw.shape)
    if literal.shape != draw.shape:
        raise ValueError(f"{draw.port} needs values of shape {list(draw.shape)}, not {list(literal.shape)}")
    given = np.array([value is not None for value in literal.flat], dtype=bool).reshape(literal.shape)
    try:
        values = np.where(given, literal, 0).astype(np.int64 if is_integer(draw.dtype) else np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{draw.port} needs numbers of its type") from None
    return values, None if given.all() else given


def _injected(values: Array, inject: Any, port: str) -> Array:
    """The values with single ones replaced."""
    problem = (
        f"'inject' for {port} is a list of {{at: [index, ...], value: number}} within the shape {list(values.shape)}"
    )
    values = np.array(values)
    try:
        for item in inject:
            if set(item) != {"at", "value"}:
                raise ValueError(problem)
            values[tuple(int(i) for i in item["at"])] = item["value"]
    except (TypeError, ValueError, IndexError):
        raise ValueError(problem) from None
    return values
