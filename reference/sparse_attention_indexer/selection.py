"""The judge of a selection: pure functions over rows, O(v) for each row.

A row is the selection of one query token. `got` [R, K] holds its entries, m [R] how many of them count, v [R] the
number of visible blocks, and `Scored` the blocks' scores with what an f32 evaluation may be off by. A set A is right if
and only if s[a] + e[a] >= s[u] - e[u] for every a in A and every visible u outside: exactly when there are scores
within the errors that make A a set of largest ones (SEL-2). Comparing every block with the m-th score refuses
rankings that are legitimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Scored:
    """Scores of the blocks of R rows: s and the errors e (worst case) and q (quality tier), float64 [R, V].

    v and m [R] are the blocks visible to a row and those it selects; what stands beyond v is never looked at.
    """

    s: Array
    e: Array
    q: Array
    v: Array
    m: Array

    @property
    def seen(self) -> Array:
        """Mask [R, V] of the visible blocks."""
        return np.asarray(np.arange(self.s.shape[1]) < self.v[:, None])


@dataclass(frozen=True)
class Pairs:
    """For every row one block that was taken and one that was left out, -1 where there is none, [R]."""

    taken: Array
    left: Array


def missing(got: Array, m: Array) -> Array:
    """The first of the m entries [R] that is negative and so holds no block, -1 where all do."""
    return _first((got < 0) & (np.arange(got.shape[1]) < m[:, None]))


def in_range(got: Array, m: Array, v: Array) -> Array:
    """VIS-1: mask of the rows whose first m entries are all visible blocks."""
    beyond = np.arange(got.shape[1]) >= m[:, None]
    return np.asarray((((got >= 0) & (got < v[:, None])) | beyond).all(axis=1))


def distinct(got: Array, m: Array) -> Array:
    """SEL-3: mask of the rows whose first m entries are all different."""
    width = got.shape[1]
    # Entries that do not count get numbers of their own, below all others.
    entries = np.where(np.arange(width) < m[:, None], got.astype(np.int64), np.iinfo(np.int64).min + np.arange(width))
    ordered = np.sort(entries, axis=1)
    result: Array = (ordered[:, 1:] != ordered[:, :-1]).all(axis=1)
    return result


def taken_blocks(got: Array, m: Array, V: int) -> Array:
    """Mask [R, V] of the selected blocks; the rows are in range."""
    mask = np.zeros((len(got), V), dtype=bool)
    row, k = np.nonzero(np.arange(got.shape[1]) < m[:, None])
    mask[row, got[row, k]] = True
    return mask


def worst_pairs(scored: Scored, taken: Array, others: Array, error: Array) -> tuple[Array, Pairs]:
    """SEL-2: for each row the taken block that reaches least, the other that reaches furthest, and the gap's share.

    The share is (s[u] - s[a]) / (e[a] + e[u]), 0 where nothing is out of order; above 1 the row is wrong. `taken` and
    `others` are masks [R, V].
    """
    with np.errstate(invalid="ignore"):  # what is not visible may be anything
        high, low = scored.s + error, scored.s - error
    a = np.argmin(np.where(taken, high, np.inf), axis=1)
    u = np.argmax(np.where(others, low, -np.inf), axis=1)
    both = taken.any(axis=1) & others.any(axis=1)
    row = np.arange(len(a))
    gap = scored.s[row, u] - scored.s[row, a]
    allowed = error[row, u] + error[row, a]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(both & (gap > 0), gap / allowed, 0.0)
    return share, Pairs(np.where(both, a, -1), np.where(both, u, -1))


def broken_ties(scored: Scored, taken: Array) -> Pairs:
    """TIE-1: a taken block and a smaller one that was left out with the same score, both free of rounding.

    Only for rows that are right by SEL-2: there no taken block has less than one that was left out.
    """
    exact = scored.seen & (scored.e == 0)
    ours, theirs = exact & taken, exact & ~taken
    least = np.where(ours, scored.s, np.inf).min(axis=1, initial=np.inf)[:, None]
    last = _last(ours & (scored.s == least))
    first = _first(theirs & (scored.s == least))
    broken = (first >= 0) & (first < last)
    return Pairs(np.where(broken, last, -1), np.where(broken, first, -1))


def broken_order(got: Array, scored: Scored, *, ties: bool = True) -> Array:
    """ORD-1: the first place [R] whose block scores less than a later one, or as much as a later, smaller one; else -1.

    Scores are compared within their errors, and as equal only where they are free of rounding; not at all without
    `ties`.
    """
    width = min(got.shape[1], int(scored.m.max(initial=0)))
    if width < 2:
        return np.full(len(got), -1)
    inside = np.arange(width) < scored.m[:, None]
    row = np.arange(len(got))[:, None]
    blocks = np.where(inside, got[:, :width], 0)
    s, e = scored.s[row, blocks], scored.e[row, blocks]
    later = np.where(inside, s - e, -np.inf)
    reach = np.maximum.accumulate(later[:, ::-1], axis=1)[:, ::-1]
    broken = np.zeros(blocks.shape, dtype=bool)
    broken[:, :-1] = (s + e)[:, :-1] < reach[:, 1:]
    # Of equal scores without errors the larger block must not stand before the smaller one. In a row that is in order
    # otherwise they follow each other among the exact scores.
    for r in np.nonzero(((e == 0) & inside).sum(axis=1) > 1)[0] if ties else ():
        at = np.nonzero((e[r] == 0) & inside[r])[0]
        same = s[r, at][1:] == s[r, at][:-1]
        broken[r, at[:-1]] |= same & (blocks[r, at][1:] < blocks[r, at][:-1])
    return _first(broken & inside)


def broken_duplicates(taken: Array, seen: Array, first: Array) -> Pairs:
    """PLG-5: a taken block, and a smaller one with the same bits in its key that was left out.

    `first` [R, V] is for every block the smallest one with the same key.
    """
    if (first == np.arange(first.shape[1])).all():
        none = np.full(len(taken), -1)
        return Pairs(none, none)
    row = np.arange(len(taken))[:, None]
    # With duplicates b1 < b2 < b3 the taken ones must be the first ones: left-out ones, counted from the first on.
    out = np.zeros(taken.shape, dtype=np.int64)
    np.minimum.at(_big(out), (row, first), np.where(seen & ~taken, np.arange(taken.shape[1]), taken.shape[1]))
    smallest_left = out[row, first]
    wrong = taken & (smallest_left < np.arange(taken.shape[1]))
    last = _last(wrong)
    return Pairs(last, np.where(last >= 0, smallest_left[row[:, 0], np.maximum(last, 0)], -1))


def _big(numbers: Array) -> Array:
    numbers[...] = np.iinfo(numbers.dtype).max
    return numbers


def _first(mask: Array) -> Array:
    """The first true place of every row, -1 where there is none."""
    if not mask.shape[1]:
        return np.full(len(mask), -1)
    return np.where(mask.any(axis=1), mask.argmax(axis=1), -1)


def _last(mask: Array) -> Array:
    """The last true place of every row, -1 where there is none."""
    if not mask.shape[1]:
        return np.full(len(mask), -1)
    return np.where(mask.any(axis=1), mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1), -1)
