"""What a conforming SparseAttention may answer: for every output element a value, a bound on the error, and a hull.

Error analysis of softmax and weighted sum over the attended tokens, in type T with sums in f32 and a rounding to T
wherever NUM-2 allows one. Two tiers: `required` is the worst case, `quality` the statistical sqrt(n) form without
rounded logits, never above it. Where the weights may be off by half of their sum the bound is void, and only the hull
of the attended values is asked for (NUM-4), as it is everywhere else too. A row outside the domain (NUM-5) is not
specified at all.

Weights are perturbed in the exponent, so that a common shift of all logits costs nothing; what the sums round is
scaled by every token's own perturbed weight, which holds beyond the first order and stays finite however wrong the
logit of a token without weight may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from reference.expected import Expected
from reference.hull import Hull
from reference.parts import Bounded, Part
from reference.sparse_attention.operation import Array, Call, Readings, Rows, SparseAttention

UA = 2.0**-24  # unit round-off of the f32 in which sums are accumulated
TINY = 2.0**-126  # smallest normal f32: what flushing can take away
F32_MAX = float(np.finfo(np.float32).max)
F16_DOMAIN = 6e4  # NUM-5
LOG2E = 1.4426950408889634
LAMBDA = 3.0  # of the quality tier
RESCALINGS = 64  # factors by which running sums may be rescaled
EXP = 16 * UA  # relative error of an exponential


@dataclass(frozen=True)
class ElementType:
    """Unit round-off and smallest step of an element type T; `wide` is f32, which needs no rounding to T on the way."""

    unit: float
    eta: float
    domain: float
    wide: bool = False


# eta of f32 and bf16 is what flushing can take away, not their smallest subnormal (NUM-5).
TYPES: Mapping[np.dtype[Any], ElementType] = {
    np.dtype(np.float32): ElementType(2.0**-24, TINY, F32_MAX, wide=True),
    np.dtype(np.float16): ElementType(2.0**-11, 2.0**-24, F16_DOMAIN),
    np.dtype(ml_dtypes.bfloat16): ElementType(2.0**-8, TINY, F32_MAX),
}


@dataclass(frozen=True)
class Limits:
    """Of R rows: values [R, Ev], both bounds, the hull and its slack, and masks of empty rows and of the domain."""

    value: Array
    required: Array
    quality: Array
    low: Array
    high: Array
    slack: Array
    empty: Array
    inside: Array


def expect(op: SparseAttention, inputs: Mapping[str, Array]) -> dict[str, Expected]:
    """Value, bound and hull of the output of one call, by contract name."""
    call = Call(**inputs)
    shape = (call.N, call.H, call.L, call.Ev)
    return {"attention_output": Expected(shape, call.dtype, tuple(_parts(op, call)))}


def _parts(op: SparseAttention, call: Call) -> list[Part]:
    rows = op.rows(call)
    found: list[Limits] = []
    kept: list[Rows] = []
    for piece in rows.cut(op.rows_at_a_time(call)):
        chosen = piece.where(op.specified(call, piece))
        if len(chosen):
            kept.append(chosen)
            found.append(limits(op, call, chosen))
    parts: list[Part] = []
    if kept:
        rows, all_ = _joined_rows(kept), _joined(found)
        regions = [("rows without tokens", "ATT-5", all_.empty)]
        if op.causal:
            ends = (op.open_position(call, rows) + 1) % op.r == 0
            regions += [
                ("rows at a block's end", "ATT-1", ends & ~all_.empty & all_.inside),
                ("rows with an open block", "ATT-1", ~ends & ~all_.empty & all_.inside),
            ]
        else:
            regions.append(("rows", "ATT-1", ~all_.empty & all_.inside))
        for region, clause, mask in regions:
            parts += _region(region, clause, rows, all_, mask)
    if op.readings.padding == "zeros" and op.causal:
        padding = Rows.all_of(call)
        padding = padding.where(op.positions(call, padding) < 0)
        if len(padding):
            zeros = np.zeros((len(padding), call.Ev))
            parts.append(Bounded("padding", "LEN-4", (padding.n, padding.h, padding.l), zeros, zeros, zeros))
    return parts


def _region(region: str, clause: str, rows: Rows, limits: Limits, mask: Array) -> list[Part]:
    if not mask.any() or not limits.value.shape[1]:
        return []
    index = (rows.n[mask], rows.h[mask], rows.l[mask])
    # A zero is right whatever its sign, so that empty rows have a bound of zero and are no copies.
    bounded = Bounded(region, clause, index, limits.value[mask], limits.required[mask], limits.quality[mask])
    if limits.empty[mask].all():
        return [bounded]
    return [bounded, Hull(region, "NUM-4", index, limits.low[mask], limits.high[mask], limits.slack[mask])]


def _joined_rows(pieces: list[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(piece, axis) for piece in pieces]) for axis in ("n", "h", "l")))


def _joined(pieces: list[Limits]) -> Limits:
    if len(pieces) == 1:
        return pieces[0]
    return Limits(**{name: np.concatenate([getattr(p, name) for p in pieces]) for name in Limits.__annotations__})


def limits(op: SparseAttention, call: Call, rows: Rows) -> Limits:
    """Value, bounds and hull of some rows, of which none is padding."""
    T = TYPES[call.dtype]
    tokens, mask = op.attended(call, rows)
    key, value = op.gathered(call, rows, tokens, mask)
    scale, sink = op.scale(call), op.sink(call, rows)
    query = call.query[rows.n, rows.h, rows.l].astype(np.float64)
    n = mask.sum(axis=1)
    with np.errstate(all="ignore"):
        z = op.logits(call, rows, key)
        w = op.weights(z, mask, sink)
        o = op.weighted(w, value)
        products = (np.abs(key) @ np.abs(query)[:, :, None])[:, :, 0]
        size = np.abs(value)
        inside = _inside(T, scale, query, products, size, sink)
        low = np.min(value, axis=1, where=mask[:, :, None], initial=np.inf)
        high = np.max(value, axis=1, where=mask[:, :, None], initial=-np.inf)
        largest = size.max(axis=1, initial=0.0)
        joins = (sink > -np.inf)[:, None]
        low, high = np.where(joins, np.minimum(low, 0), low), np.where(joins, np.maximum(high, 0), high)
        top = op.maximum(z, mask, sink)
        bounds = []
        for growth, rounded in ((_worst, op.readings.logits == "rounded"), (_typical, False)):
            D = _logit_errors(T, growth, rounded, call.E, scale, z, products, key, query, mask, n)
            bounds.append(_value_errors(T, growth, mask, z - top[:, None], D, top, w, sink, value, size, o, n))
        required, quality = bounds
        if op.readings.accumulators == "T" and not T.wide:
            required, quality = np.full_like(required, np.inf), np.full_like(quality, np.inf)
        slack = (2 * T.unit + _worst(n + 8)[:, None]) * largest + T.eta
        if call.dtype == np.float16:
            # Weights below the normal numbers of f16 may all be off by half a step.
            slack += np.where(n > 1 << 14, n * 2.0**-25, 0.0)[:, None] * largest
        if op.readings.accumulators == "T":
            slack += (n * T.unit)[:, None] * largest
    empty = n == 0
    required[empty] = quality[empty] = 0.0
    return Limits(o, required, np.minimum(required, quality), low, high, slack, empty, inside)


def _worst(k: Array | int) -> Array:
    """g(k) of the worst case."""
    return np.asarray(k, dtype=np.float64) * UA


def _typical(k: Array | int) -> Array:
    """g(k) of the quality tier."""
    return LAMBDA * np.sqrt(np.asarray(k, dtype=np.float64)) * UA


def _inside(T: ElementType, scale: float, query: Array, products: Array, size: Array, sink: Array) -> Array:
    """NUM-5: mask [R] of the rows whose numbers all fit: dot products in any order, scaled before or after, values.

    The scaled query may be rounded to T (NUM-2), with the change of base in it: it has to fit as well.
    """
    largest = products.max(axis=1, initial=0.0)
    fits = np.isfinite(scale) & (largest <= T.domain) & (abs(scale) * largest <= T.domain)
    fits &= abs(scale) * LOG2E * np.abs(query).max(axis=1, initial=0.0) <= T.domain  # scaled for either base
    fits &= (size.sum(axis=1) <= F32_MAX).all(axis=1)
    inside: Array = fits & (sink < np.inf)
    return inside


def _logit_errors(
    T: ElementType,
    growth: Any,
    rounded: bool,
    E: int,
    scale: float,
    z: Array,
    products: Array,
    key: Array,
    query: Array,
    mask: Array,
    n: Array,
) -> Array:
    """D [R, M]: how far every logit, less the maximum, may be off; 0 outside A."""
    factor, keys = abs(scale), np.abs(key).sum(axis=2)
    D = growth(E + 4) * factor * products + 4 * UA * np.abs(z)
    if not T.wide:
        D += T.eta * (keys + factor + 1)
        if rounded:
            D += T.unit * (factor * products + 2 * np.abs(z))
    # Flushing of elements, of products and of the scaled query.
    D += TINY * (factor * (keys + np.abs(query).sum(axis=1)[:, None] + E) + keys + 1)
    D += EXP + growth(np.minimum(n, RESCALINGS) + 2)[:, None]
    return np.where(mask, D, 0.0)


def _value_errors(
    T: ElementType,
    growth: Any,
    mask: Array,
    lag: Array,
    D: Array,
    top: Array,
    w: Array,
    sink: Array,
    value: Array,
    size: Array,
    o: Array,
    n: Array,
) -> Array:
    """The bound [R, Ev] from the errors of the logits, which lag behind the maximum; infinite where it is void."""
    lag = np.where(mask, lag, -np.inf)
    total = np.exp(lag).sum(axis=1) + np.exp(sink - top)
    grown = _growths(lag, np.where(mask, D - 2 * UA * lag, 0.0), total[:, None])
    D_sink = np.where(sink > -np.inf, 4 * UA * np.abs(sink) + 2 * UA * (top - sink) + EXP + T.unit, 0.0)
    grown_sink = _growths(sink - top, D_sink, total)
    sigma = (grown.sum(axis=1) + grown_sink)[:, None]
    moved = np.zeros_like(o)
    for d in range(o.shape[1]):  # one column at a time: a difference [R, M, Ev] is never held
        moved[:, d] = (grown * np.abs(value[:, :, d] - o[:, d : d + 1])).sum(axis=1)
    moved += grown_sink[:, None] * np.abs(o)
    sums = ((w + grown)[:, None, :] @ size)[:, 0]
    all_sizes, largest = size.sum(axis=1), size.max(axis=1, initial=0.0)
    g = growth(n + 4)[:, None]
    rounding = 0.0 if T.wide else 2 * T.unit
    e = (moved + (g + rounding) * sums) / (1 - sigma) + g * np.abs(o)
    e += n[:, None] * (2.0**-120 * largest + TINY) + TINY
    if not T.wide:
        e += T.eta * all_sizes + T.unit * (w[:, None, :] @ size)[:, 0]
    if T.domain == F16_DOMAIN:
        small = np.where(w < 2.0**-13, 1.0, 0.0)
        e += 2.0**-24 * (small[:, None, :] @ size)[:, 0]
    e = (e + T.unit * (np.abs(o) + e) + T.eta) * (1 + 8 * T.unit)
    return np.where((sigma < 0.5) & np.isfinite(e), e, np.inf)


def _growths(lag: Array, D: Array, total: Array) -> Array:
    """w * R: by how much a weight exp(lag) / total may be too large when its exponent is off by D."""
    weight = np.exp(lag) / total
    # Of two ways to write it the first is exact where D is small, the second where the weight underflows.
    grown: Array = np.where(D < 1, weight * np.expm1(np.minimum(D, 1)), np.exp(np.minimum(lag + D, 700)) / total)
    return grown


class Oracle:
    """What the harness asks of the reference of an operation: an answer, and what any answer must be like."""

    def __init__(self, attributes: Mapping[str, Any], readings: Mapping[str, str] | None = None) -> None:
        self.op = SparseAttention(
            int(attributes["key_block_size"]),
            int(attributes["query_block_size"]),
            bool(attributes["causal"]),
            Readings(**(readings or {})),
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of one call, in type T, by contract name."""
        return self.op.run(inputs)

    def expect(self, inputs: Mapping[str, Array]) -> dict[str, Expected]:
        """Value, bound and hull of the outputs of one call, by contract name."""
        return expect(self.op, inputs)
