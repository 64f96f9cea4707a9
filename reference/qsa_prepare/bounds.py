"""What a conforming QSAPrepare may answer: for every output element a value and a bound on the error.

First-order error analysis over the stages of one block key, in type T with sums in f32 and a rounding to T wherever
NUM-2 allows one. Two tiers: `required` is the worst case, `quality` the statistical sqrt(n) form, never above it.
Copies have no bound: they are compared bit for bit. An infinite bound means that the element is not judged.

Beyond the published formulas three things are unjudged or widened, each so that no conforming implementation can fail:
f32 and bf16 subnormals may be flushed anywhere (NUM-3); an element is outside the domain when some of its factors have
a product, or its terms a partial sum, beyond f32, in whatever order they are taken (NUM-3); and a rotated element whose
operands or products overflow T on the way may come out as anything (NUM-2).

The factors of an element are its keys or their mean, 1/r, the reciprocal root, the weight, cos or sin. The largest
product of any of them is that of those above 1; a product may lose no more to flushing than the smallest normal number
times the factors that it has not met yet, which that product bounds as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from reference.expected import Expected
from reference.parts import Bounded, Copy, Part
from reference.qsa_prepare.operation import CHUNK, Array, Call, QSAPrepare, Readings

UA = 2.0**-24  # unit round-off of the f32 in which sums are accumulated
TINY = 2.0**-126  # smallest normal f32: what flushing can take away
F32_MAX = float(np.finfo(np.float32).max)
LAMBDA = 3.0  # of the quality tier
UNBIASED = "NUM-4"  # roundings to T are to nearest; in f32 the error of the sums is as large as they are
SLACK = 2.0**-16  # by which a factor may be off when it decides whether a product fits into f32


@dataclass(frozen=True)
class ElementType:
    """Unit round-off, smallest step and largest finite number of an element type T."""

    unit: float
    eta: float
    largest: float


# eta of f32 and bf16 is what flushing can take away, not their smallest subnormal (NUM-3).
TYPES: Mapping[np.dtype[Any], ElementType] = {
    np.dtype(np.float32): ElementType(2.0**-24, TINY, F32_MAX),
    np.dtype(np.float16): ElementType(2.0**-11, 2.0**-24, float(np.finfo(np.float16).max)),
    np.dtype(ml_dtypes.bfloat16): ElementType(2.0**-8, TINY, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),
}


def expect(op: QSAPrepare, inputs: Mapping[str, Array]) -> dict[str, Expected]:
    """Value and bound of every output of one call, by contract name."""
    call = op.call(inputs)
    outputs = {
        "block_index_keys": Expected(
            (call.N, op.row_count(call), call.Di), call.dtype, tuple(_block_key_parts(op, call))
        ),
        "present_incomplete_raw_keys": Expected(
            (call.N, op.r - 1, call.Di), call.dtype, tuple(_raw_state_parts(op, call))
        ),
    }
    shape = (call.N, 2 * call.Dr) if call.rotates else (0,)
    outputs["present_incomplete_rope"] = Expected(shape, call.dtype, tuple(_rope_state_parts(op, call)))
    return outputs


def _block_key_parts(op: QSAPrepare, call: Call) -> list[Part]:
    parts: list[Part] = []
    n, b = op.history(call)
    if len(n):
        parts.append(Copy("history", "OUT-1", (n, b), call.past_block_index_keys[n, b]))
    n, b = op.new_blocks(call)
    if len(n):
        chunks = [
            block_key_bounds(op, call, n[start : start + CHUNK], b[start : start + CHUNK])
            for start in range(0, len(n), CHUNK)
        ]
        value, bound, quality = (np.concatenate(x) if len(x) > 1 else x[0] for x in zip(*chunks, strict=True))
        width = call.Dr * (2 if op.readings.rope_width == "half" else 1)
        passed = "NRM-1" if op.normalizes(call) else "AVG-1"
        for region, clause, d in (
            ("rotated", "ROT-1", slice(width)),
            ("not rotated", passed, slice(width, None)),
        ):
            if value[:, d].shape[1]:
                lean = UNBIASED if region == "not rotated" and TYPES[call.dtype].unit > UA else ""
                parts.append(Bounded(region, clause, (n, b, d), value[:, d], bound[:, d], quality[:, d], lean))
    rest = op.unused_rows(call)
    if rest and len(rest[0][0]):
        parts.append(Copy("unused rows", "OUT-3", *rest))
    return parts


def _raw_state_parts(op: QSAPrepare, call: Call) -> list[Part]:
    n, t, row = op.open_rows(call)
    parts: list[Part] = [Copy("open block", "STA-1", (n, row), op.raw_keys(call, n, t))] if len(n) else []
    if op.readings.unused != "unspecified":
        used = np.zeros((call.N, op.r - 1), dtype=bool)
        used[n, row] = True
        index = np.nonzero(~used)
        parts.append(Copy("unused rows", "STA-1", index, op.raw_state(call)[index]))
    return parts


def _rope_state_parts(op: QSAPrepare, call: Call) -> list[Part]:
    if not call.rotates:
        return []
    is_open = call.lengths.q_after > 0
    state, n = op.rope_state(call), np.nonzero(is_open)[0]
    parts: list[Part] = [Copy("open block", "STA-2", (n,), state[n])] if len(n) else []
    if op.readings.unused != "unspecified":
        n = np.nonzero(~is_open)[0]
        parts.append(Copy("unused rope", "STA-2", (n,), state[n]))
    return parts


def block_key_bounds(op: QSAPrepare, call: Call, n: Array, b: Array) -> tuple[Array, Array, Array]:
    """Value, required bound and quality bound, each float64 [K, Di], of blocks b of sequences n.

    The stages and their formulas are those of the contract's error bound; `e*` are absolute errors with a leading
    axis of two tiers.
    """
    T = TYPES[call.dtype]
    r = op.r
    x = op.members(call, n, b).astype(np.float64)
    with np.errstate(all="ignore"):
        m = op.mean(x)
        size = np.abs(x).sum(axis=1)
        # Flushing may take from every key, and from its share when it is divided before the sum.
        em = _growth(r + 1) * (size / r) + T.unit * np.abs(m) + T.eta + r * TINY
        finite = size if np.isfinite(size).all() else np.abs(np.where(np.isfinite(x), x, 0)).sum(axis=1)
        overflow = finite > F32_MAX
        products = np.maximum(size, 1)
        outside = ~(products <= F32_MAX)
        if op.normalizes(call):
            y, ey, products, outside = _normalization(op, op.weight(call), m, em, size, T)
        else:
            y, ey = m, em
        if call.rotates:
            cos, sin = (a.astype(np.float64) for a in op.rope(call, n, b))
            o, eo, outside = _rotation(op, y, ey, products, outside, cos, sin, T)
        else:
            o, eo = y, ey
        e = (eo + T.unit * (np.abs(o) + eo) + T.eta) * (1 + 8 * T.unit)
        e[np.isnan(e) | outside] = np.inf
        if not op.normalizes(call):
            # NaN and infinity of a key reach an element that is not rotated without any product (NUM-3).
            arrived = ~np.isfinite(m) & ~overflow
            arrived[:, : len(op.pairs(call.Dr)[0]) * 2] = False
            e[:, arrived] = 0.0
    required = e[0]
    return o, required, np.minimum(required, e[1])


def _growth(k: int) -> Array:
    """g(k), one row a tier: worst case, then sqrt form; shape [2, 1, 1]."""
    return np.array([k * UA, LAMBDA * np.sqrt(k) * UA]).reshape(2, 1, 1)


def _normalization(
    op: QSAPrepare, weight: Array, m: Array, em: Array, size: Array, T: ElementType
) -> tuple[Array, Array, Array, Array]:
    """Values, errors, the largest product of factors of each element, and the mask of what is outside the domain."""
    y = op.normalize(m, weight)
    ms = np.mean(m * m, axis=1, keepdims=True)
    v = ms + op.epsilon
    # The mean of a block of zeros is exact, and there is no square that flushing could take anything from.
    empty = (size == 0).all(axis=1, keepdims=True)
    em, taken = np.where(empty, 0.0, em), np.where(empty, 0.0, TINY)
    ev = np.mean(2 * np.abs(m) * em + em * em, axis=2, keepdims=True) + _growth(m.shape[1] + 2) * ms + UA * v + taken
    rho = ev / v
    root = np.sqrt(v)
    inverse = 1 / root
    rel = np.where(rho < 1, 1 / np.sqrt(np.maximum(1 - rho, 0)) - 1 + 4 * UA, np.inf)
    w = np.abs(weight)
    ey = w / root * em * (1 + rel) + np.abs(y) * (rel + 2 * UA + 2 * T.unit) + 2 * T.eta * (1 + w)
    products = np.maximum(size, 1) * np.maximum(inverse, 1) * np.maximum(w, 1) * (1 + SLACK)
    ey = ey + TINY * products
    # The squares may be those of the sums, and are added before the division by Di.
    squares = (np.mean(size * size, axis=1, keepdims=True) * m.shape[1] + op.epsilon * op.r**2) * (1 + SLACK)
    outside = ~(products <= F32_MAX) | ~(squares <= F32_MAX)
    return y, ey, products, outside


def _rotation(
    op: QSAPrepare, y: Array, ey: Array, products: Array, outside: Array, cos: Array, sin: Array, T: ElementType
) -> tuple[Array, Array, Array]:
    """Values, errors, and the mask of what is outside the domain: both elements of a pair or none."""
    o, eo, outside = op.rotate(y, cos, sin), ey.copy(), outside.copy()
    first, second, at_first, at_second = op.pairs(cos.shape[1])
    far = np.zeros((len(y), len(first)), dtype=bool)
    for here, there, column in ((first, second, at_first), (second, first, at_second)):
        c, s = np.abs(cos[:, column]), np.abs(sin[:, column])
        turned = np.abs(y[:, here]) * c + np.abs(y[:, there]) * s
        # The reciprocal root and the weight may be multiplied before the rotation, into the tables, or after it.
        straight, across = products[:, here] * np.maximum(c, 1), products[:, there] * np.maximum(s, 1)
        lost = TINY * (straight + across)
        eo[:, :, here] = c * ey[:, :, here] + s * ey[:, :, there] + 2 * T.unit * turned + 3 * T.eta + lost
        total = np.maximum(np.maximum(straight, across), products[:, here] * c + products[:, there] * s)
        most = np.maximum(np.abs(y[:, here]) + ey[0][:, here], turned)
        far |= outside[:, here] | ~(total <= F32_MAX) | ~(most <= T.largest)
    outside[:, first] = outside[:, second] = far
    return o, eo, outside


class Oracle:
    """What the harness asks of the reference of an operation: an answer, and what any answer must be like."""

    def __init__(self, attributes: Mapping[str, int | float], readings: Mapping[str, str] | None = None) -> None:
        self.op = QSAPrepare(
            int(attributes["key_block_size"]), float(attributes["epsilon"]), Readings(**(readings or {}))
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of one call, in type T, by contract name."""
        return self.op.run(inputs)

    def expect(self, inputs: Mapping[str, Array]) -> dict[str, Expected]:
        """Value and bound of the outputs of one call, by contract name."""
        return expect(self.op, inputs)
