"""Parts of an output that are choices: rows of indices, each right as a whole or wrong as a whole.

A row holds `count` indices and then entries that are no part of it. Several rows may be right where scores are nearly
equal, so that a row is judged by the scores it was chosen by, which only the operation knows: its `Ranking`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from reference.parts import Array, Comparison, Detail, Index, Part, pick_index


class Ranking(Protocol):
    """What an operation knows of the scores behind a choice. `rows` are numbers that the operation gave the rows."""

    def judge(self, rows: Array, got: Array, instead: Array | None) -> Comparison:
        """Judge rows, got [R, K]. `instead`: answers to an equal question, from which they may differ by rounding."""
        ...

    def detail(self, row: int, got: Array, instead: Array | None) -> Detail:
        """What is to be said of one row, got [K]."""
        ...

    def scores(self, row: int) -> tuple[Array, Array, bool]:
        """Scores of all that a row could choose from, their errors, and whether the smaller of equal ones is due."""
        ...

    def judged(self, rows: Array) -> Array:
        """Mask of the rows whose indices are specified: not of those outside the operation's domain."""
        ...


@dataclass(frozen=True)
class Chosen:
    """Rows of chosen indices. A unit is a row; `index` selects rows of shape [K].

    `value` [R, K] is a right choice, the first `count` [R] entries of each row; `rows` [R] are the rows' numbers for
    the `ranking`. With `instead` [R, K] a row must be an answer to the same question as that one.
    """

    region: str
    clause: str
    index: Index
    value: Array
    count: Array
    rows: Array
    ranking: Ranking
    instead: Array | None = None

    def compare(self, got: Array) -> Comparison:
        same = same_entries(got, self.value, self.count)
        ratio, warned = np.zeros(len(got)), np.zeros(len(got), dtype=bool)
        if not same.all():
            rest = ~same
            instead = None if self.instead is None else self.instead[rest]
            found = self.ranking.judge(self.rows[rest], got[rest], instead)
            ratio[rest], warned[rest] = found.ratio, found.warned
        return Comparison(ratio, warned, measured=True)

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        row = at[0]
        instead = None if self.instead is None else self.instead[row]
        return self.ranking.detail(int(self.rows[row]), got[row], instead)

    def agrees(self, got: Array) -> bool:
        return bool(same_entries(got, self.value, self.count).all())

    def filled(self, dtype: np.dtype[Any]) -> Array:
        return self.value.astype(dtype)

    def pick(self, mask: Array) -> Chosen:
        return replace(
            self,
            index=pick_index(self.index, mask),
            value=self.value[mask],
            count=self.count[mask],
            rows=self.rows[mask],
            instead=None if self.instead is None else self.instead[mask],
        )

    def moved(self, index: Index) -> Chosen:
        return replace(self, index=index)

    def answered(self, got: Array) -> Chosen:
        return replace(self, value=got, instead=got)

    def repeated(self, got: Array) -> Part:
        return self._judged(Repeated(self.region, self.clause, self.index, got, self.count, ordered=True))

    def alike(self, got: Array) -> Part:
        return self._judged(Repeated(self.region, self.clause, self.index, got, self.count, ordered=False))

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        if not recommended:
            return ~same_entries(got, other, self.count)
        return ~same_entries(sets(got, self.count), sets(other, self.count), self.count) & self.ranking.judged(
            self.rows
        )

    def _judged(self, part: Repeated) -> Repeated:
        judged = self.ranking.judged(self.rows)
        return part if judged.all() else part.pick(judged)

    def scaled(self, copied: float, computed: float) -> Chosen:
        """A positive factor changes no choice."""
        return self

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Chosen:
        return replace(self, value=np.where(known, values, self.value).astype(dtype))


@dataclass(frozen=True)
class Repeated:
    """Rows that must hold the indices of `value` [R, K], in its order or, unless `ordered`, in any.

    One that `confirms` is looked at where nothing else of the output is wrong: what another part tells of a row says
    more of what is wrong with it.
    """

    region: str
    clause: str
    index: Index
    value: Array
    count: Array
    ordered: bool
    confirms: bool = False

    def compare(self, got: Array) -> Comparison:
        same = self._same(got)
        return Comparison(np.where(same, 0.0, np.inf), np.zeros(len(got), dtype=bool))

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        row, count = at[0], int(self.count[at[0]])
        says = "is another choice than the one that is due" if self.confirms else "another choice than before"
        return Detail(self.clause, listed(got[row][:count]), listed(self.value[row][:count]), says=says)

    def agrees(self, got: Array) -> bool:
        return bool(self._same(got).all())

    def filled(self, dtype: np.dtype[Any]) -> Array:
        return self.value.astype(dtype)

    def pick(self, mask: Array) -> Repeated:
        return replace(self, index=pick_index(self.index, mask), value=self.value[mask], count=self.count[mask])

    def moved(self, index: Index) -> Repeated:
        return replace(self, index=index)

    def answered(self, got: Array) -> Repeated:
        return replace(self, value=got)

    def repeated(self, got: Array) -> Repeated:
        return replace(self, value=got, ordered=True)

    def alike(self, got: Array) -> Repeated:
        return replace(self, value=got, ordered=False)

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        if not recommended:
            return ~same_entries(got, other, self.count)
        return ~same_entries(sets(got, self.count), sets(other, self.count), self.count)

    def scaled(self, copied: float, computed: float) -> Repeated:
        return self

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Repeated:
        return replace(self, value=np.where(known, values, self.value).astype(dtype))

    def _same(self, got: Array) -> Array:
        if self.ordered:
            return same_entries(got, self.value, self.count)
        return same_entries(sets(got, self.count), sets(self.value, self.count), self.count)


def same_entries(got: Array, value: Array, count: Array) -> Array:
    """Mask of the rows [R] whose first `count` entries are the same."""
    same = got == value
    if same.all():
        return np.ones(len(got), dtype=bool)
    beyond = np.arange(got.shape[1]) >= count[:, None]
    result: Array = (same | beyond).all(axis=1)
    return result


def sets(rows: Array, count: Array) -> Array:
    """The rows [R, K] with their first `count` entries in ascending order, and one number in all others."""
    beyond = np.arange(rows.shape[1]) >= count[:, None]
    return np.sort(np.where(beyond, np.iinfo(rows.dtype).max, rows), axis=1)


def listed(entries: Array, most: int = 8) -> str:
    """The first of some indices, for people."""
    shown = " ".join(str(int(entry)) for entry in entries[:most])
    return f"[{shown}{' ...' if len(entries) > most else ''}]"


__all__ = ["Chosen", "Ranking", "Repeated", "listed", "same_entries", "sets"]
