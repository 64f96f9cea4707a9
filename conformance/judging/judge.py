"""The judge: an output against what the reference expects of it.

Pure functions. An element is right when it lies within the bound the reference gives for it, a copy when its bits are
the same; NaN equals NaN, whatever its payload. Elements that are not specified are never looked at. See NUM-1 to NUM-3
for the bounds, OUT-1, STA-1 and STA-2 for the copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from reference.expected import Expected, Part

Array = np.ndarray[Any, np.dtype[Any]]

NAMES: Mapping[np.dtype[Any], str] = {
    np.dtype(np.float32): "f32",
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
}


class Worst(msgspec.Struct, frozen=True, omit_defaults=True):
    """The element that is furthest off: where it stands, what is there and what should be.

    `error`, `bound` and `ratio` are None where they are not finite; numbers that may be NaN are texts. `ulps` counts
    units in the last place of the element type at the wanted value.
    """

    output: str
    region: str
    clause: str
    index: tuple[int, ...]
    got: str
    want: str
    got_hex: str
    want_hex: str
    error: float | None = None
    bound: float | None = None
    ratio: float | None = None
    ulps: float | None = None


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the judge says of one output. `headroom` is the largest error / bound seen, by clause."""

    output: str
    status: str  # "pass" | "quality-warning" | "fail"
    clause: str = ""
    reason: str = ""
    worst: Worst | None = None
    wrong: int = 0
    compared: int = 0
    headroom: dict[str, float] = {}


def type_name(dtype: np.dtype[Any]) -> str:
    """The contract's name of an element type, NumPy's where the contract has none."""
    return NAMES.get(dtype, str(dtype))


def same_bits(a: Array, b: Array) -> Array:
    """Mask of elements with the same bits, or NaN in both; shapes and dtypes are equal."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    same: Array = np.ascontiguousarray(a).view(unsigned) == np.ascontiguousarray(b).view(unsigned)
    if same.all():
        return same
    with np.errstate(invalid="ignore"):
        same |= (a != a) & (b != b)
    return same


def judge(name: str, got: object, expected: Expected, shape_clause: str = "") -> Verdict:
    """The verdict on one output: kind, type and shape first, then every specified element."""
    if not isinstance(got, np.ndarray):
        return _failed(name, shape_clause, f"{name} is a {type(got).__name__}, not an array")
    if got.dtype != expected.dtype:
        problem = f"{name} is of type {type_name(got.dtype)}, not {type_name(expected.dtype)}"
        return _failed(name, shape_clause, problem)
    if got.shape != expected.shape and not (got.size == 0 and expected.shape == (0,)):
        return _failed(name, shape_clause, f"{name} has shape {list(got.shape)}, not {list(expected.shape)}")
    compared, wrong = 0, 0
    headroom: dict[str, float] = {}
    worst: tuple[float, Worst] | None = None
    status, blamed = "pass", ""
    for part in expected.parts:
        values = got[part.index]
        compared += values.size
        if not values.size or (part.bound is None and same_bits(values, part.value).all()):
            continue
        ratio, flagged = _ratios(values, part)
        count, top = 0, float(ratio.max())
        if not top <= 1:  # NaN neither
            flagged, top = ~(ratio <= 1), float(np.nanmax(ratio))
            count = int(flagged.sum())
        wrong += count
        noteworthy = bool(count or flagged.any())
        if count:
            status, blamed = "fail", blamed or part.clause
        elif status == "pass" and noteworthy:
            status, blamed = "quality-warning", part.clause
        if part.bound is not None:
            headroom[part.clause] = max(headroom.get(part.clause, 0.0), top if np.isfinite(top) else 0.0)
        if noteworthy and (worst is None or count):
            score = np.where(flagged, ratio, -1.0)
            if worst is None or float(score.max()) > worst[0]:
                worst = float(score.max()), _describe(name, part, got, values, int(np.argmax(score)), ratio)
    if status == "pass":
        return Verdict(name, status, compared=compared, headroom=headroom)
    element = worst[1] if worst else None
    if element:
        blamed = element.clause
    return Verdict(name, status, blamed, _sentence(element, wrong), element, wrong, compared, headroom)


def _failed(name: str, clause: str, reason: str) -> Verdict:
    return Verdict(name, "fail", clause, reason)


def _ratios(got: Array, part: Part) -> tuple[Array, Array]:
    """Error over bound of every element, infinite for plain errors, and the mask of those beyond the quality tier."""
    if part.bound is None:
        same = same_bits(got, part.value)
        return np.where(same, 0.0, np.inf), np.zeros(got.shape, dtype=bool)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        value = got.astype(np.float64)
        error = np.abs(value - part.value)
        ratio = np.where(error == 0, 0.0, error / part.bound)
        beyond_quality = error > part.quality
        finite = np.isfinite(part.value) & np.isfinite(value)
        if not finite.all():
            top = float(ml_dtypes.finfo(got.dtype).max)
            overflow = np.isinf(value) & (np.abs(part.value) + part.bound > top) & (value * part.value > 0)
            as_wanted = np.where(np.isnan(part.value), np.isnan(value), value == part.value) | overflow
            ratio = np.where(finite, ratio, np.where(as_wanted, 0.0, np.inf))
            beyond_quality &= finite
        unjudged = np.isinf(part.bound)
        ratio[unjudged] = 0.0
        beyond_quality[unjudged] = False
    return ratio, beyond_quality


def _describe(name: str, part: Part, got: Array, values: Array, flat: int, ratio: Array) -> Worst:
    at = np.unravel_index(flat, values.shape)
    value, want = values[at], part.value[at]
    bound = None if part.bound is None else float(part.bound[at])
    with np.errstate(all="ignore"):
        rounded = np.asarray(want).astype(got.dtype)
        error = abs(float(value) - float(want))
    return Worst(
        output=name,
        region=part.region,
        clause=part.clause,
        index=_position(part.index, at),
        got=f"{float(value):.9g}",
        want=f"{float(want):.9g}",
        got_hex=_hex(np.asarray(value)),
        want_hex=_hex(rounded),
        error=_finite(error),
        bound=_finite(bound),
        ratio=_finite(float(ratio[at])),
        ulps=_finite(error / _ulp(float(want), got.dtype)),
    )


def _position(index: tuple[Any, ...], at: tuple[Any, ...]) -> tuple[int, ...]:
    """Index in the whole output of element `at` of a part: index arrays share one axis, a slice has its own."""
    position, rest = [], list(at[1:])
    for one in index:
        if isinstance(one, slice):
            position.append(int(rest.pop(0)) + (one.start or 0))
        else:
            position.append(int(one[at[0]]))
    return (*position, *map(int, rest))


def _hex(value: Array) -> str:
    size = value.dtype.itemsize
    return f"0x{int(np.ascontiguousarray(value).view(f'u{size}').reshape(-1)[0]):0{2 * size}X}"


def _ulp(value: float, dtype: np.dtype[Any]) -> float:
    info = ml_dtypes.finfo(dtype)
    size = max(abs(value), float(info.smallest_normal)) if np.isfinite(value) else float(info.max)
    return float(2.0 ** np.floor(np.log2(size))) * float(info.eps)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def _sentence(worst: Worst | None, wrong: int) -> str:
    if worst is None:
        return "an element is wrong"
    index = ", ".join(map(str, worst.index))
    text = f"{worst.output}[{index}] ({worst.region}) is {worst.got}, not {worst.want}"
    if worst.bound is None:
        text += " bit for bit"
    elif worst.ratio is not None and worst.error is not None:
        share = f"{worst.ratio:.3g} times the bound" if wrong else f"within the bound ({worst.ratio:.2g} of it)"
        text += f": off by {worst.error:.3g}, {share}" + ("" if wrong else " but beyond the quality tier")
    return text + (f"; {wrong} elements are wrong" if wrong > 1 else "")
