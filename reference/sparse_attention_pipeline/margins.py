"""Which selections follow from the first inputs, whatever a conforming QSAPrepare rounds the block keys to.

A row is decided when its set is the same for every block key within its bound: the smallest score of the set, less all
that it may be off by, is above the largest of the others and all that these may be off by. What a score may be off by
is 1.1 times the error of its evaluation, at the largest keys, and what the keys' own errors can move it by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reference.sparse_attention_indexer.bounds import F32_MAX, SLACK, TINY, UA
from reference.sparse_attention_indexer.operation import CHUNK, Array, Call, SparseAttentionIndexer

SECOND_ORDER = 1.1  # times the error of a score, for what its first-order bound leaves out


@dataclass(frozen=True)
class Decided:
    """Mask [N, Hs, L] of the decided rows, and the set of each [N, Hs, L, K], best first; m entries of a row count."""

    mask: Array
    sets: Array


def decided(op: SparseAttentionIndexer, call: Call, errors: Array) -> Decided:
    """The decided rows of a call whose block keys are values in float64 that may be off by `errors` [N, B, Di]."""
    mask = np.zeros((call.N, op.Hs, call.L), dtype=bool)
    sets = np.full((call.N, op.Hs, call.L, op.K(call)), -1, dtype=np.int64)
    for n, g, rows in _pieces(op, call):
        v, m = call.v[n, rows], call.m[n, rows]
        s, E, fits = _scores(op, call, errors, n, g, rows)
        seen = np.arange(s.shape[1]) < v[:, None]
        # What is not a number comes last of what is seen, and before all that is not, as the sort is stable.
        order = np.argsort(np.where(seen & ~np.isnan(s), -s, np.inf), axis=1, kind="stable")
        width = min(order.shape[1], sets.shape[3])
        inside = np.arange(width) < m[:, None]
        sets[n, g, rows, :width] = np.where(inside, order[:, :width], -1)
        taken = np.zeros(s.shape, dtype=bool)
        np.put_along_axis(taken, order[:, :width], inside, axis=1)
        with np.errstate(invalid="ignore"):
            least = np.where(taken, s - E, np.inf).min(axis=1, initial=np.inf)
            most = np.where(seen & ~taken, s + E, -np.inf).max(axis=1, initial=-np.inf)
            mask[n, g, rows] = ((least > most) & fits) | (m == v)
    return Decided(mask, sets)


def _pieces(op: SparseAttentionIndexer, call: Call) -> Iterator[tuple[int, int, Array]]:
    """Sequence, selection and query rows, a bounded number of products at a time."""
    G = call.Hi // op.Hs
    for n in range(call.N):
        step = max(CHUNK // (G * max(int(call.v[n].max(initial=0)), 1)), 1)
        for g in range(op.Hs):
            for start in range(0, call.L, step):
                yield n, g, np.arange(start, min(start + step, call.L))


def _scores(
    op: SparseAttentionIndexer, call: Call, errors: Array, n: int, g: int, rows: Array
) -> tuple[Array, Array, Array]:
    """Scores [R, V], what they may be off by, and the mask [R] of the rows whose numbers all fit into f32."""
    G = call.Hi // op.Hs
    heads = slice(g * G, (g + 1) * G)
    V = int(call.v[n, rows].max(initial=0))
    q = call.index_query[n, heads][:, rows].astype(np.float64)
    k, ek = call.block_index_keys[n, :V].astype(np.float64), errors[n, :V]
    w = np.ones((G, len(rows), 1))
    if call.index_weights is not None:
        w = call.index_weights[n, rows][:, heads].astype(np.float64).T[:, :, None]
    with np.errstate(all="ignore"):
        products, moved = op.products(q, k), op.products(np.abs(q), ek)
        reach = op.products(np.abs(q), np.abs(k) + ek)
        size = np.abs(w)
        s = (np.maximum(products, 0) * w).sum(axis=0)
        terms = call.Di + G + 4
        flushed = TINY * (2 * call.Di + 1)
        dead = products + moved + (terms * UA) * reach + flushed < 0
        live = np.where(dead, 0.0, 1.0)
        e = (terms * UA) * (size * live * reach).sum(axis=0) + flushed * size.sum(axis=0) + TINY * (G + 1)
        E = SECOND_ORDER * e + (size * live * moved).sum(axis=0)
        fits = (reach * (1 + SLACK) <= F32_MAX).all(axis=0) & ((size * reach).sum(axis=0) * (1 + SLACK) <= F32_MAX)
    hidden = np.arange(V) >= call.v[n, rows][:, None]
    return s, E, (fits | hidden).all(axis=1)
