"""Scores of a conforming SparseAttentionIndexer: values in float64, and what an f32 evaluation may be off by.

First-order error analysis of one score: a dot product for each head, the weight, the sum over the heads and a constant
factor, in any order. Two tiers: the worst case, and the statistical sqrt(n) form. A score is exact, with error 0, where
no order of summation rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from reference.sparse_attention_indexer.operation import Array, Call, SparseAttentionIndexer
from reference.sparse_attention_indexer.selection import Scored

UA = 2.0**-24  # unit round-off of the f32 in which sums are accumulated
TINY = 2.0**-126  # smallest normal f32: what flushing can take away
F32_MAX = float(np.finfo(np.float32).max)
LAMBDA = 3.0  # of the quality tier
SLACK = 2.0**-10  # by which a sum of f32 products may exceed its exact value when it must fit into f32
EXACT_UNITS = 22  # bits of the largest sum that rounds in no order

# Unit round-off of the element types: of what scores lose when they are stored in T (reading `scores`).
UNITS: Mapping[np.dtype[Any], float] = {
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}


@dataclass(frozen=True)
class Bounds:
    """Of R rows: the scores with their errors, and the mask [R] of those inside the domain (NUM-3, SEP-2)."""

    scored: Scored
    judged: Array


def score_bounds(op: SparseAttentionIndexer, call: Call, n: int, g: int, rows: Array) -> Bounds:
    """Scores of selection g of query tokens `rows` [R] of sequence n, over the V blocks that any of them sees."""
    G = call.Hi // op.Hs
    heads = slice(g * G, (g + 1) * G)
    v, m = call.v[n, rows], call.m[n, rows]
    V = int(v.max(initial=0))
    q = call.index_query[n, heads][:, rows].astype(np.float64)  # [G, R, Di]
    k = call.block_index_keys[n, :V].astype(np.float64)  # [V, Di]
    w = np.ones((G, len(rows), 1))
    if call.index_weights is not None:
        w = call.index_weights[n, rows][:, heads].astype(np.float64).T[:, :, None]
    with np.errstate(all="ignore"):
        products = op.products(q, k)
        reach = op.products(np.abs(q), np.abs(k))
        size = np.abs(w)
        s = (np.maximum(products, 0) * w).sum(axis=0)
        whole = (size * reach).sum(axis=0)
        # A head that every f32 evaluation rectifies to zero adds no error.
        terms = call.Di + G + 4
        flushed = TINY * (2 * call.Di + 1)
        certain = products + (terms * UA) * reach + flushed < 0
        moving = (size * np.where(certain, 0, reach)).sum(axis=0)
        flush = np.where(moving > 0, flushed * size.sum(axis=0) + TINY * (G + 1), 0)
        exact = _rounds_nowhere(call.Di, q, k, w, whole)
        e, quality = (
            np.where(exact, 0, np.where(moving > 0, growth * moving + flush, 0))
            for growth in (terms * UA, min(LAMBDA * np.sqrt(terms), terms) * UA)
        )
        if op.readings.scores == "rounded":
            unit = UNITS[call.dtype]
            e, quality = (error + unit * (np.abs(s) + error) for error in (e, quality))
        fits = ((reach * (1 + SLACK) <= F32_MAX).all(axis=0)) & (whole * (1 + SLACK) <= F32_MAX)
        fits |= np.arange(V) >= v[:, None]
        judged = fits.all(axis=1) & _usual(call.dtype, q, k, w, v)
    return Bounds(Scored(s, e, quality, v, m), judged)


def _rounds_nowhere(Di: int, q: Array, k: Array, w: Array, whole: Array) -> Array:
    """Mask [R, V] of the scores that round in no order, a factor 1/sqrt(Di) or a mean over the heads included."""
    powers = Di & (Di - 1) == 0 and (Di.bit_length() - 1) % 2 == 0 and len(q) & (len(q) - 1) == 0
    if not powers:
        return np.zeros(whole.shape, dtype=bool)
    pair = _unit(q.transpose(1, 0, 2).reshape(q.shape[1], -1))[:, None] + _unit(k)[None, :]
    unit = pair + _unit(w[:, :, 0].T)[:, None]
    exact: Array = (np.minimum(pair, unit) >= -126) & (whole < np.ldexp(1.0, np.minimum(EXACT_UNITS + unit, 1000)))
    return exact


def _unit(values: Array) -> Array:
    """Exponent of the largest power of two that divides every element of a row [R, X]; large where all are zero."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(values), values, 0))
    whole = (mantissa * 2.0**24).astype(np.int64)  # elements have no more than 24 bits
    lowest = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    result: Array = np.where(whole == 0, 1000, exponent - 24 + lowest).min(axis=1, initial=1000)
    return result


def _usual(dtype: np.dtype[Any], q: Array, k: Array, w: Array, v: Array) -> Array:
    """Mask [R] of the rows that see no subnormal input of f32 or bf16 (NUM-3)."""
    if dtype == np.float16:
        return np.ones(len(v), dtype=bool)

    def subnormal(values: Array) -> Array:
        mask: Array = (values != 0) & (np.abs(values) < TINY)
        return mask

    keys = np.concatenate([[False], np.logical_or.accumulate(subnormal(k).any(axis=1))])
    result: Array = ~(subnormal(q).any(axis=(0, 2)) | subnormal(w).any(axis=(0, 2)) | keys[v])
    return result
