"""The judge: an output against what the reference expects of it.

Pure functions. An element is right when it lies within the bound the reference gives for it, a copy when its bits are
the same; NaN equals NaN, whatever its payload. Elements that are not specified are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes
import msgspec
import numpy as np

from conformance.errors import text_of
from reference.chosen import Repeated
from reference.expected import Expected
from reference.parts import Detail, Part, same_bits

Array = np.ndarray[Any, np.dtype[Any]]

NAMES: Mapping[np.dtype[Any], str] = {
    np.dtype(np.float32): "f32",
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
}


class Worst(msgspec.Struct, frozen=True, omit_defaults=True):
    """The worst element: where it stands, what is there and what should be.

    `error`, `bound` and `ratio` are None where they are not finite; numbers that may be NaN are texts. `ulps` counts
    units in the last place of the element type at the wanted value. `says` is what is wrong, where numbers do not tell;
    `index` is that of a row, where rows are judged as a whole.
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
    says: str = ""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the judge says of one output. `headroom` is the largest error / bound seen, by clause.

    `kind` says what is wrong: the output's value, shape or type.
    """

    output: str
    status: str  # "pass" | "quality-warning" | "fail"
    clause: str = ""
    reason: str = ""
    worst: Worst | None = None
    wrong: int = 0
    compared: int = 0
    headroom: dict[str, float] = {}
    kind: Literal["wrong value", "wrong shape", "wrong type"] = "wrong value"


def type_name(dtype: np.dtype[Any]) -> str:
    """The contract's name of an element type, NumPy's where the contract has none."""
    return NAMES.get(dtype, str(dtype))


def judge(name: str, got: object, expected: Expected, shape_clause: str = "") -> Verdict:
    """The verdict on one output: kind, type and shape first, then every unit that is specified."""
    if not isinstance(got, np.ndarray):
        kind = text_of(type(got).__name__)
        return Verdict(name, "fail", shape_clause, f"{name} is a {kind}, not an array", kind="wrong type")
    if got.dtype != expected.dtype:
        problem = f"{name} is of type {text_of(type_name(got.dtype))}, not {type_name(expected.dtype)}"
        return Verdict(name, "fail", shape_clause, problem, kind="wrong type")
    if got.shape != expected.shape and not (got.size == 0 and expected.shape == (0,)):
        problem = f"{name} has shape {list(got.shape)}, not {list(expected.shape)}"
        return Verdict(name, "fail", shape_clause, problem, kind="wrong shape")
    compared, wrong = 0, 0
    headroom: dict[str, float] = {}
    worst: tuple[float, Worst] | None = None
    remark: Verdict | None = None
    status = "pass"
    for part in expected.parts:
        values = got[part.index]
        if not values.size or (wrong and isinstance(part, Repeated) and part.confirms):
            continue
        found = part.compare(values)
        compared += found.ratio.size
        if not found.ratio.size:
            continue
        flagged, count, top = found.warned, 0, float(found.ratio.max())
        if not top <= 1:  # NaN neither
            flagged = found.wrong
            top = float(np.nanmax(found.ratio)) if not np.isnan(found.ratio).all() else np.inf
            count = int(flagged.sum())
        wrong += count
        noteworthy = bool(count or flagged.any())
        if count:
            status = "fail"
        elif status == "pass" and noteworthy:
            status = "quality-warning"
        if found.measured:
            headroom[part.clause] = max(headroom.get(part.clause, 0.0), top if np.isfinite(top) else 0.0)
        if noteworthy and (worst is None or count):
            score = np.where(flagged, found.ratio, -1.0)
            if worst is None or float(score.max()) > worst[0]:
                at = tuple(map(int, np.unravel_index(int(np.argmax(score)), score.shape)))
                worst = float(score.max()), _describe(name, part, got.dtype, values, at, float(found.ratio[at]))
        if found.remark and remark is None:
            says = f"{name} ({part.region}): {found.remark.says}"
            remark = Verdict(name, "quality-warning", found.remark.clause, says)
    if status == "pass":
        passed = remark or Verdict(name, status)
        return msgspec.structs.replace(passed, compared=compared, headroom=headroom)
    element = worst[1] if worst else None
    blamed = element.clause if element else ""
    return Verdict(name, status, blamed, _sentence(element, wrong), element, wrong, compared, headroom)


def _describe(name: str, part: Part, dtype: np.dtype[Any], values: Array, at: tuple[int, ...], ratio: float) -> Worst:
    detail = part.detail(values, at)
    return Worst(
        output=name,
        region=part.region,
        clause=detail.clause,
        index=_position(part.index, at),
        got=_text(detail.got),
        want=_text(detail.want),
        got_hex=hexadecimal(detail.got) if _is_number(detail.got) else "",
        want_hex=_rounded_hex(detail.want, dtype),
        error=_finite(detail.error),
        bound=_finite(detail.bound),
        ratio=_finite(ratio),
        ulps=_ulps(detail, dtype),
        says=detail.says,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, np.generic) and value.dtype.kind not in "OSUMm"


def _text(value: Any) -> str:
    """A number in decimal, anything else as it says of itself."""
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    if isinstance(value, float) or _is_number(value):
        return f"{float(value):.9g}"
    return text_of(value)


def _rounded_hex(want: Any, dtype: np.dtype[Any]) -> str:
    if not (_is_number(want) or isinstance(want, float | int)):
        return ""
    with np.errstate(all="ignore"):
        return hexadecimal(np.asarray(want).astype(dtype))


def _ulps(detail: Detail, dtype: np.dtype[Any]) -> float | None:
    if dtype.kind in "iub" or detail.error is None or not _is_number(detail.got):
        return None
    with np.errstate(all="ignore"):
        return _finite(detail.error / _ulp(float(detail.want), dtype))


def _position(index: tuple[Any, ...], at: tuple[int, ...]) -> tuple[int, ...]:
    """Index in the whole output of unit `at` of a part: index arrays share one axis, a slice has its own.

    Axes that a unit goes through are left out.
    """
    position, rest = [], list(at[1:])
    for one in index:
        if isinstance(one, slice):
            if rest:
                position.append(rest.pop(0) + (one.start or 0))
        else:
            position.append(int(one[at[0]]))
    return (*position, *rest)


def hexadecimal(value: Any) -> str:
    """The bits of a number."""
    array = np.ascontiguousarray(value)
    size = array.dtype.itemsize
    return f"0x{int(array.view(f'u{size}').reshape(-1)[0]):0{2 * size}X}"


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
    text = f"{worst.output}[{index}] ({worst.region})"
    more = f"; {wrong} elements are wrong" if wrong > 1 else ""
    if worst.says:
        return f"{text} {worst.says}{more}"
    text += f" is {worst.got}, not {worst.want}"
    if worst.bound is None:
        text += " bit for bit"
    elif worst.ratio is not None and worst.error is not None:
        share = f"{worst.ratio:.3g} times the bound" if wrong else f"within the bound ({worst.ratio:.2g} of it)"
        text += f": off by {worst.error:.3g}, {share}" + ("" if wrong else " but beyond the quality tier")
    return text + more


__all__ = ["Verdict", "Worst", "judge", "same_bits", "type_name"]
