"""The judge of the selections of one call: the scores behind them, worked out only where an answer differs.

An answer that is the reference's own needs no score. For the other rows scores and errors are computed some rows at a
time, and the pure functions of `selection` decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reference.chosen import listed
from reference.parts import Comparison, Detail
from reference.sparse_attention_indexer import selection
from reference.sparse_attention_indexer.bounds import F32_MAX, SLACK, TINY, Bounds, score_bounds
from reference.sparse_attention_indexer.operation import CHUNK, Array, Call, SparseAttentionIndexer
from reference.sparse_attention_indexer.selection import Pairs, Scored

# Share of what is allowed that a broken tie or order counts as: wrong, but less so than a set of other scores.
MINOR = 1.5


@dataclass(frozen=True)
class Scores:
    """The scores behind the selections of a call. Row number i is the i-th of [N, Hs, L]."""

    op: SparseAttentionIndexer
    call: Call

    def judge(self, rows: Array, got: Array, instead: Array | None) -> Comparison:
        ratio, warned = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        for at, bounds, _ in self._bounds(rows):
            other = None if instead is None else instead[at]
            ratio[at], warned[at] = self._compare(bounds, got[at], other, self._n(rows[at[0]]))
        return Comparison(ratio, warned, measured=True)

    def judged(self, rows: Array) -> Array:
        mask = np.ones(len(rows), dtype=bool)
        if not self._plain:
            for at, bounds, _ in self._bounds(rows):
                mask[at] = bounds.judged
        return mask

    def scores(self, row: int) -> tuple[Array, Array, bool]:
        ((_, bounds, _),) = self._bounds(np.array([row]))
        v = int(bounds.scored.v[0])
        return bounds.scored.s[0, :v], bounds.scored.e[0, :v], self.op.readings.ties == "smaller"

    def detail(self, row: int, got: Array, instead: Array | None) -> Detail:
        ((_, bounds, place),) = self._bounds(np.array([row]))
        other = None if instead is None else instead[None]
        return _Row(self, bounds, got[None], other, place[0]).detail()

    def duplicates(self, n: int, V: int) -> Array:
        """For each of the first V blocks of sequence n the smallest with a bit-equal key (PLG-5)."""
        keys = np.ascontiguousarray(self.call.block_index_keys[n, :V])
        _, first, number = np.unique(
            keys.view(np.dtype((np.void, keys.itemsize * keys.shape[1]))).ravel(),
            return_index=True,
            return_inverse=True,
        )
        result: Array = first[number.ravel()]
        return result

    def _n(self, row: int) -> int:
        return int(row) // (self.op.Hs * self.call.L)

    @cached_property
    def _plain(self) -> bool:
        """Whether no row can be outside the domain: a quick look at the largest numbers."""
        call = self.call
        largest = float(call.Di * (call.Hi // self.op.Hs))
        for array in (call.index_query, call.block_index_keys, call.index_weights):
            if array is not None and array.size:
                size = np.abs(array.astype(np.float64))
                if not size.max() <= F32_MAX or ((size < TINY) & (size > 0)).any():
                    return False
                largest *= max(float(size.max()), 1.0)
        return largest * (1 + SLACK) <= F32_MAX

    def _bounds(self, rows: Array) -> Iterator[tuple[Array, Bounds, list[tuple[int, int, int]]]]:
        """Places in `rows`, their bounds, and (n, g, l) of each, some rows of one sequence and selection at a time."""
        n, g, token = np.unravel_index(rows, (self.call.N, self.op.Hs, self.call.L))
        pair = n * self.op.Hs + g
        G = self.call.Hi // self.op.Hs
        for one in np.unique(pair):
            at = np.nonzero(pair == one)[0]
            seen = max(int(self.call.v[n[at], token[at]].max()), 1)
            step = max(CHUNK // (G * seen), 1)
            for start in range(0, len(at), step):
                some = at[start : start + step]
                places = [(int(n[i]), int(g[i]), int(token[i])) for i in some]
                yield some, score_bounds(self.op, self.call, *places[0][:2], token[some]), places

    def _compare(self, bounds: Bounds, got: Array, instead: Array | None, n: int) -> tuple[Array, Array]:
        """Share of what is allowed, infinite for plain errors, and what is right but not as recommended; both [R]."""
        scored, readings = bounds.scored, self.op.readings
        valid = _is_set(got, scored)
        if instead is not None:
            valid &= _is_set(instead, scored)  # to another wrong answer only the same one is alike
        ratio = np.where(valid | ~bounds.judged, 0.0, np.inf)
        warned = ~valid & ~bounds.judged
        at = np.nonzero(valid & bounds.judged)[0]
        if not len(at):
            return ratio, warned
        some = _pick(scored, at)
        taken = selection.taken_blocks(got[at], some.m, some.s.shape[1])
        share, _ = self._share(some, taken, None if instead is None else instead[at], some.e)
        better, _ = self._share(some, taken, None if instead is None else instead[at], some.q)
        right = share <= 1
        warn = right & (better > 1)
        if readings.ties == "smaller" and instead is None:
            tied = right & (selection.broken_ties(some, taken).taken >= 0)
            share = np.where(tied, MINOR, share)
            twice = selection.broken_duplicates(taken, some.seen, self._firsts(n, some)).taken >= 0
            warn |= right & twice
        order = self._disordered(got[at], some) & right
        if readings.order == "unspecified":
            warn |= order
        else:
            share = np.where(order, MINOR, share)
        ratio[at], warned[at] = share, warn
        return ratio, warned

    def _share(self, scored: Scored, taken: Array, instead: Array | None, error: Array) -> tuple[Array, Pairs]:
        if instead is None:
            return selection.worst_pairs(scored, taken, scored.seen & ~taken, error)
        before = selection.taken_blocks(instead, scored.m, scored.s.shape[1])
        new, gone = taken & ~before, before & ~taken
        share, pairs = selection.worst_pairs(scored, new, gone, error)
        back, _ = selection.worst_pairs(scored, gone, new, error)
        return np.maximum(share, back), pairs

    def _firsts(self, n: int, scored: Scored) -> Array:
        V = scored.s.shape[1]
        return np.broadcast_to(self.duplicates(n, V), (len(scored.s), V))

    def first_disordered(self, got: Array, scored: Scored) -> Array:
        """ORD-1: the first place [R] that is out of descending order, -1 where none is."""
        return selection.broken_order(got, scored, ties=self.op.readings.ties == "smaller")

    def _disordered(self, got: Array, scored: Scored) -> Array:
        if self.op.readings.order == "ascending":
            inside = np.arange(got.shape[1]) < scored.m[:, None]
            falls = (got[:, 1:] < got[:, :-1]) & inside[:, 1:]
            return np.asarray(falls.any(axis=1))
        return np.asarray(self.first_disordered(got, scored) >= 0)


def _is_set(entries: Array, scored: Scored) -> Array:
    """Mask [R] of the rows that hold m different visible blocks."""
    return selection.in_range(entries, scored.m, scored.v) & selection.distinct(entries, scored.m)


def _pick(scored: Scored, at: Array) -> Scored:
    return Scored(scored.s[at], scored.e[at], scored.q[at], scored.v[at], scored.m[at])


@dataclass(frozen=True)
class _Row:
    """One row, to say what is wrong with it; `got` and `instead` are [1, K]."""

    scores: Scores
    bounds: Bounds
    got: Array
    instead: Array | None
    place: tuple[int, int, int]

    def detail(self) -> Detail:
        scored, m, v = self.bounds.scored, int(self.bounds.scored.m[0]), int(self.bounds.scored.v[0])
        entries = self.got[0, :m]
        hole = int(selection.missing(self.got, scored.m)[0])
        if hole >= 0:
            clause = "OUT-2" if (entries[hole:] >= 0).any() else "SEL-1"
            return self._of(clause, f"entry {hole} holds no block, of {m} that are due")
        if not selection.in_range(self.got, scored.m, scored.v)[0]:
            bad = int(entries[(entries < 0) | (entries >= v)][0])
            return self._of("VIS-1", f"block {bad} is selected; visible are {f'0 to {v - 1}' if v else 'none'}")
        if not selection.distinct(self.got, scored.m)[0]:
            values, times = np.unique(entries, return_counts=True)
            block = int(values[times > 1][0])
            return self._of("SEL-3", f"block {block} is selected {int(times.max())} times")
        if not self.bounds.judged[0]:
            return self._of("SEP-2", "nothing is wrong")
        taken = selection.taken_blocks(self.got, scored.m, scored.s.shape[1])
        share, pairs = self.scores._share(scored, taken, self.instead, scored.e)
        if share[0] > 1:
            return self._pair("SEL-2", pairs, "is left out for")
        ties = selection.broken_ties(scored, taken)
        if self.scores.op.readings.ties == "smaller" and self.instead is None and ties.taken[0] >= 0:
            return self._pair("TIE-1", ties, "scores the same, is smaller, and is left out for")
        readings = self.scores.op.readings
        if self.scores._disordered(self.got, scored)[0]:
            if readings.order == "ascending":
                return self._of("ORD-1", "the blocks are not in ascending order")
            k = int(self.scores.first_disordered(self.got, scored)[0])
            block = int(entries[k])
            text = (
                f"block {block} at place {k} scores {scored.s[0, block]:.9g}, less than, or as much as and larger than"
            )
            return self._of("ORD-1", f"{text} one that stands later")
        duplicates = selection.broken_duplicates(taken, scored.seen, self.scores._firsts(self.place[0], scored))
        if duplicates.taken[0] >= 0:
            return self._pair("PLG-5", duplicates, "has a bit-equal key, is smaller, and is left out for")
        share, pairs = self.scores._share(scored, taken, self.instead, scored.q)
        return self._pair("SEL-2", pairs, "is left out for")

    def _of(self, clause: str, says: str) -> Detail:
        m = int(self.bounds.scored.m[0])
        return Detail(clause, listed(self.got[0, :m]), listed(self._wanted()), says=says)

    def _pair(self, clause: str, pairs: Pairs, verb: str) -> Detail:
        """The block left out and the one taken for it: scores, gap, what is allowed, and how far off the set is."""
        scored, a, u = self.bounds.scored, int(pairs.taken[0]), int(pairs.left[0])
        if a < 0 or u < 0:
            return self._of(clause, "nothing is wrong")
        (sa, su), allowed = scored.s[0, [a, u]], float(scored.e[0, a] + scored.e[0, u])
        gap = float(su - sa)
        text = f"block {u}, which scores {su:.9g}, {verb} block {a}, which scores {sa:.9g}"
        text += f": a gap of {gap:.3g}, {allowed:.3g} allowed; {self._distance()}"
        m = int(scored.m[0])
        finite = np.isfinite(gap) and np.isfinite(allowed)
        return Detail(
            clause,
            listed(self.got[0, :m]),
            listed(self._wanted()),
            error=gap if finite else None,
            bound=allowed if finite else None,
            says=text,
        )

    def _wanted(self) -> Array:
        m = int(self.bounds.scored.m[0])
        if self.instead is not None:
            return self.instead[0, :m]
        order = np.argsort(-self.bounds.scored.s[0, : int(self.bounds.scored.v[0])], kind="stable")[:m]
        return np.sort(order) if self.scores.op.readings.order == "ascending" else order

    def _distance(self) -> str:
        """Whether the set is a neighbour of the right one, or has little to do with it."""
        m = self.bounds.scored.m
        wrong = int(np.setdiff1d(self.got[0, : m[0]], self._wanted()).size)
        return f"{wrong} of {int(m[0])} blocks {'differs' if wrong == 1 else 'differ'} from the right choice"
