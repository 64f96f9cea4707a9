"""What a part of an output is compared by: one type for each way of being right.

A part is a region of an output with the clause that a wrong unit of it breaks. A unit is what is judged by itself: an
element, or for a selection a whole row. Every type answers the same questions, so that nothing else asks which it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Index = tuple[Any, ...]
P = TypeVar("P", bound="Part")


@dataclass(frozen=True)
class Remark:
    """What is recommended of all units together, by which clause, and how it is not met."""

    clause: str
    says: str


@dataclass(frozen=True)
class Comparison:
    """What comparing a part with an answer found; both arrays have one item for each unit of the part.

    `ratio` is the share used of what is allowed: 0 is exactly right, above 1 (or NaN) wrong, infinite wrong by any
    measure. `warned` marks units that are right, but not as a recommendation has them. `measured`: the ratios are
    shares of an error bound, and the largest is reported as headroom. `remark` is a recommendation that the part as a
    whole does not meet.
    """

    ratio: Array
    warned: Array
    measured: bool = False
    remark: Remark | None = None

    @property
    def wrong(self) -> Array:
        """Mask of the units that are wrong."""
        mask: Array = ~(self.ratio <= 1)
        return mask


@dataclass(frozen=True)
class Detail:
    """One unit of a part, for people. Numbers are None where there are none, or where they are not finite.

    `got` and `want` are values, or texts where a unit is not one number; `clause` is what this unit breaks, and `says`
    what is wrong with it, where numbers do not tell.
    """

    clause: str
    got: Any
    want: Any
    error: float | None = None
    bound: float | None = None
    says: str = ""


class Part(Protocol):
    """What all parts have in common.

    `index` selects the part in the output: index arrays that share the first axis of the part, and slices that add one
    each. `compare` and the rest take the answered values of that region, `output[index]`.
    """

    @property
    def region(self) -> str: ...
    @property
    def clause(self) -> str: ...
    @property
    def index(self) -> Index: ...

    def compare(self, got: Array) -> Comparison:
        """Judge every unit."""
        ...

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        """What is to be said of the unit at this place of the comparison's arrays."""
        ...

    def agrees(self, got: Array) -> bool:
        """Whether all is plainly right and nothing is to be warned of: quick, False leaves it to `compare`."""
        ...

    def filled(self, dtype: np.dtype[Any]) -> Array:
        """Right values, rounded to the output's type."""
        ...

    def pick(self: P, mask: Array) -> P:
        """The rows (of the first axis) that a mask is true for."""
        ...

    def moved(self: P, index: Index) -> P:
        """The same at another place of the output."""
        ...

    def answered(self, got: Array) -> Part:
        """What is due of an equal question, whose numbers may be rounded otherwise, if `got` answered this one."""
        ...

    def repeated(self, got: Array) -> Part:
        """What is due of the same question if `got` answered it: the same bits, wherever the part is judged."""
        ...

    def alike(self, got: Array) -> Part:
        """What is recommended of an equal question if `got` answered this one: the same bits, or the same choice."""
        ...

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        """Mask of the units in which two answers to one question differ by a bit, or by what is recommended."""
        ...

    def scaled(self, copied: float, computed: float) -> Part:
        """What is due when copied inputs change by a power of two and computed values by another."""
        ...

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Part:
        """The part with values written by hand where `known`; what is allowed around them stays."""
        ...


def pick_index(index: Index, mask: Array) -> Index:
    """The index of the rows that a mask is true for."""
    return tuple(one if isinstance(one, slice) else one[mask] for one in index)


def same_bits(a: Array, b: Array) -> Array:
    """Mask of elements with the same bits, or NaN in both; shapes and dtypes are equal."""
    same: Array = _bits(a) == _bits(b)
    if same.all() or a.dtype.kind in "iub":
        return same
    with np.errstate(invalid="ignore"):
        same |= (a != a) & (b != b)
    return same


def _bits(array: Array) -> Array:
    """The bits of every element as an unsigned integer."""
    return np.ascontiguousarray(array).reshape(array.shape).view(np.dtype(f"u{array.dtype.itemsize}"))


@dataclass(frozen=True)
class Copy:
    """Elements that must have given bits: copies, counts, fixed entries.

    A NaN must stay one; that it keeps its bits is recommended where `payload` is set (version 2 of the contract).
    """

    region: str
    clause: str
    index: Index
    value: Array
    payload: bool = True

    def compare(self, got: Array) -> Comparison:
        equal = _bits(got) == _bits(self.value)
        warned = np.zeros(got.shape, dtype=bool)
        if equal.all():
            return Comparison(np.zeros(got.shape), warned)
        same = same_bits(got, self.value)
        return Comparison(np.where(same, 0.0, np.inf), same & ~equal if self.payload else warned)

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        says = "is a NaN with other bits than the one it is a copy of" if got[at] != got[at] else ""
        want = self.value[at]
        return Detail(self.clause, got[at], want, _error(got[at], want), says=says if want != want else "")

    def agrees(self, got: Array) -> bool:
        return got.tobytes() == self.value.tobytes()

    def filled(self, dtype: np.dtype[Any]) -> Array:
        return self.value.astype(dtype)

    def pick(self, mask: Array) -> Copy:
        return replace(self, index=pick_index(self.index, mask), value=self.value[mask])

    def moved(self, index: Index) -> Copy:
        return replace(self, index=index)

    def answered(self, got: Array) -> Copy:
        return replace(self, value=got)

    def repeated(self, got: Array) -> Copy:
        return replace(self, value=got)

    def alike(self, got: Array) -> Part:
        return self.repeated(got)

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        return ~same_bits(got, other)

    def scaled(self, copied: float, computed: float) -> Copy:
        if copied == 1:
            return self
        return replace(self, value=(self.value.astype(np.float64) * copied).astype(self.value.dtype))

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Copy:
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = np.where(known, values, self.value).astype(np.float64).astype(dtype)
        return replace(self, value=numbers)


@dataclass(frozen=True)
class Bounded:
    """Computed elements: values in float64, and how far a conforming implementation may be off.

    `bound` is the worst case, `quality` the statistical tier, both of the values' shape. An infinite bound: not judged.
    `unbiased` names the clause that recommends rounding to nearest, where that is looked at.
    """

    region: str
    clause: str
    index: Index
    value: Array
    bound: Array
    quality: Array
    unbiased: str = ""

    def compare(self, got: Array) -> Comparison:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            value = got.astype(np.float64)
            error = np.abs(value - self.value)
            ratio = np.where(error == 0, 0.0, error / self.bound)
            warned = error > self.quality
            finite = np.isfinite(self.value) & np.isfinite(value)
            if not finite.all():
                top = float(ml_dtypes.finfo(got.dtype).max)
                overflow = np.isinf(value) & (np.abs(self.value) + self.bound > top) & (value * self.value > 0)
                as_wanted = np.where(np.isnan(self.value), np.isnan(value), value == self.value) | overflow
                ratio = np.where(finite, ratio, np.where(as_wanted, 0.0, np.inf))
                warned &= finite
            unjudged = np.isinf(self.bound)
            ratio[unjudged] = 0.0
            warned[unjudged] = False
        return Comparison(ratio, warned, measured=True, remark=self._leaning(got) if self.unbiased else None)

    def _leaning(self, got: Array) -> Remark | None:
        """A remark when the errors of many elements lean to one side, as truncation makes them."""
        if got.size < MANY:
            return None
        mean, count = bias(got, self.value, self.bound)
        if count < MANY or abs(mean) <= LEAN:
            return None
        says = f"the errors of {count:,} elements are {mean:+.2f} units in the last place on average"
        return Remark(self.unbiased, f"{says} (away from zero is +); rounded to nearest they are at most {LEAN:g}")

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        return Detail(self.clause, got[at], self.value[at], _error(got[at], self.value[at]), float(self.bound[at]))

    def agrees(self, got: Array) -> bool:
        with np.errstate(all="ignore"):
            return bool((np.abs(got.astype(np.float64) - self.value) <= self.quality).all())

    def filled(self, dtype: np.dtype[Any]) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return self.value.astype(dtype)

    def pick(self, mask: Array) -> Bounded:
        return replace(
            self,
            index=pick_index(self.index, mask),
            value=self.value[mask],
            bound=self.bound[mask],
            quality=self.quality[mask],
        )

    def moved(self, index: Index) -> Bounded:
        return replace(self, index=index)

    def answered(self, got: Array) -> Bounded:
        """Both answers may be off by the bound. An infinity may be one of overflow, and is not compared."""
        numbers = got.astype(np.float64)
        bound = np.where(np.isinf(numbers), np.inf, 2 * self.bound)
        return replace(self, value=numbers, bound=bound, quality=bound, unbiased="")

    def repeated(self, got: Array) -> Part:
        """Rows with an element outside the domain are left out."""
        judged = np.asarray(np.isfinite(self.bound).all(axis=tuple(range(1, self.bound.ndim))))
        bits = Copy(self.region, self.clause, self.index, got, payload=False)
        return bits if judged.all() else bits.pick(judged)

    def alike(self, got: Array) -> Part:
        return self.repeated(got)

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        return ~same_bits(got, other)

    def scaled(self, copied: float, computed: float) -> Bounded:
        return replace(self, value=self.value * computed)

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Bounded:
        return replace(self, value=np.where(known, values, self.value).astype(np.float64))


@dataclass(frozen=True)
class Fed:
    """A part that is judged on what an earlier stage produced in the same call.

    It says nothing of another call: there the earlier stage may have rounded otherwise, and a choice made by it may be
    another one.
    """

    part: Part

    @property
    def region(self) -> str:
        return self.part.region

    @property
    def clause(self) -> str:
        return self.part.clause

    @property
    def index(self) -> Index:
        return self.part.index

    def compare(self, got: Array) -> Comparison:
        return self.part.compare(got)

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        return self.part.detail(got, at)

    def agrees(self, got: Array) -> bool:
        return self.part.agrees(got)

    def filled(self, dtype: np.dtype[Any]) -> Array:
        return self.part.filled(dtype)

    def pick(self, mask: Array) -> Fed:
        return Fed(self.part.pick(mask))

    def moved(self, index: Index) -> Fed:
        return Fed(self.part.moved(index))

    def answered(self, got: Array) -> Part:
        return self._none()

    def repeated(self, got: Array) -> Part:
        return self.part.repeated(got)

    def alike(self, got: Array) -> Part:
        return self._none()

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        mask = self.part.differing(got, other, recommended=recommended)
        return np.zeros_like(mask) if recommended else mask

    def scaled(self, copied: float, computed: float) -> Fed:
        return Fed(self.part.scaled(copied, computed))

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Fed:
        return Fed(self.part.written(values, known, dtype))

    def _none(self) -> Part:
        return self.part.pick(np.zeros(len(self.index[0]), dtype=bool))


def lasting(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts that hold for every call that asks the same question."""
    return tuple(part for part in parts if not isinstance(part, Fed))


MANY = 4000  # elements over which errors are averaged
LEAN = 0.05  # units in the last place that they may be off on average


def bias(got: Array, want: Array, bound: Array) -> tuple[float, int]:
    """The mean error in units in the last place, away from zero positive, and over how many elements it is taken.

    Left out is what is not finite, not judged, or below the normal numbers of the type.
    """
    info = ml_dtypes.finfo(got.dtype)
    with np.errstate(all="ignore"):
        value, size = got.astype(np.float64), np.abs(want)
        counts = np.isfinite(value) & np.isfinite(size) & np.isfinite(bound)
        counts &= (size >= 2 * float(info.smallest_normal)) & (size < float(info.max) / 2)
        if not counts.any():
            return 0.0, 0
        unit = 2.0 ** np.floor(np.log2(size[counts])) * float(info.eps)
        errors = (value[counts] - want[counts]) * np.sign(want[counts]) / unit
    return float(errors.mean()), int(counts.sum())


def elements(part: Part, *, recommended: bool = False) -> tuple[Array, Array] | None:
    """Values and largest errors of a part that is judged element by element, float64; None for any other.

    The largest error is 0 where bits must be the same, and infinite where nothing is judged.
    """
    if isinstance(part, Fed):
        return elements(part.part, recommended=recommended)
    if isinstance(part, Bounded):
        return part.value, part.quality if recommended else part.bound
    if isinstance(part, Copy):
        with np.errstate(invalid="ignore"):
            return part.value.astype(np.float64), np.zeros(part.value.shape)
    return part.interval() if isinstance(part, Interval) else None


@runtime_checkable
class Interval(Protocol):
    """A part whose elements lie in a range: its middle, and how far an element may be from there."""

    def interval(self) -> tuple[Array, Array]: ...


def finite(part: Part) -> Part:
    """The part with computed elements compared only where they are finite."""
    if not isinstance(part, Bounded):
        return part
    bound = np.where(np.isfinite(part.value), part.bound, np.inf)
    return replace(part, bound=bound, quality=bound)


def together(answered: Part, due: Part, change: float) -> Part | None:
    """Values that were answered, times a power of two, with what another call may be off by added; None for copies.

    `answered` is what `Part.answered` gave, whose bound is twice the one of a single answer.
    """
    if not isinstance(answered, Bounded) or not isinstance(due, Bounded):
        return None
    bound = answered.bound / 2 * change + due.bound
    bound[~np.isfinite(answered.value)] = np.inf
    return replace(answered, value=answered.value * change, bound=bound, quality=bound)


def _error(got: Any, want: Any) -> float | None:
    with np.errstate(all="ignore"):
        error = abs(float(got) - float(want))
    return error if np.isfinite(error) else None


__all__ = [
    "Array", "Bounded", "Comparison", "Copy", "Detail", "Fed", "Index", "Part", "Remark", "bias", "elements", "finite",
    "lasting", "pick_index", "same_bits", "together",
]  # fmt: skip
