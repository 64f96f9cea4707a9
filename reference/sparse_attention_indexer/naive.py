"""SparseAttentionIndexer over exact fractions, in plain loops: the second oracle.

It shares no code with the staged reference. Every query token is taken by itself: its position, the blocks it sees,
the exact score of each block with what an f32 evaluation may be off by, and the selection. Whether a given selection
is right is decided pair by pair, straight from the rule. It takes valid calls with finite numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

UA = Fraction(1, 2**24)
SMALLEST_NORMAL = Fraction(1, 2**126)


@dataclass(frozen=True)
class Row:
    """The selection of one query token: what it sees, how many blocks it takes, and scores with their errors."""

    v: int
    m: int
    score: tuple[Fraction, ...]  # of the blocks 0 .. v-1
    error: tuple[Fraction, ...]

    def best(self) -> list[int]:
        """The m blocks of largest score, best first, the smaller index of two equals (SEL-2, TIE-1, ORD-1)."""
        return sorted(range(self.v), key=lambda block: (-self.score[block], block))[: self.m]

    def breaks(self, selection: Sequence[int]) -> str:
        """The first clause that m entries break, "" when they are right."""
        holes = [block < 0 for block in selection]
        if any(holes):
            return "SEL-1" if holes == sorted(holes) else "OUT-2"
        if any(block >= self.v for block in selection):
            return "VIS-1"
        if len(set(selection)) < len(selection):
            return "SEL-3"
        outside = [block for block in range(self.v) if block not in selection]
        pairs = [(a, u) for a in selection for u in outside]
        if any(self.score[a] + self.error[a] < self.score[u] - self.error[u] for a, u in pairs):
            return "SEL-2"
        if any(u < a and self.score[a] == self.score[u] and self.error[a] == self.error[u] == 0 for a, u in pairs):
            return "TIE-1"
        return ""

    def in_order(self, selection: Sequence[int]) -> bool:
        """Whether entries stand in descending score, equal ones in ascending index, as far as can be told (ORD-1)."""
        for i, first in enumerate(selection):
            for second in selection[i + 1 :]:
                if self.score[first] + self.error[first] < self.score[second] - self.error[second]:
                    return False
                free = self.error[first] == self.error[second] == 0
                if free and self.score[first] == self.score[second] and first > second:
                    return False
        return True


def rows(
    inputs: Mapping[str, Array], key_block_size: int, num_selection_heads: int, token_budget: int
) -> dict[tuple[int, int, int], Row]:
    """The row of every sequence, selection and query token (n, g, l) of a call; inputs by contract name."""
    query, keys, lengths = inputs["index_query"], inputs["block_index_keys"], inputs["key_length"]
    weights = inputs.get("index_weights")
    N, Hi, L, Di = query.shape
    G = Hi // num_selection_heads
    result = {}
    for n in range(N):
        S = int(lengths[0] if len(lengths) == 1 else lengths[n])
        for token in range(L):
            p = S - L + token
            # A block is visible once its last token is at or before p.
            v = sum(1 for b in range(max(S, 0) // key_block_size + 1) if b * key_block_size + key_block_size - 1 <= p)
            m = min(token_budget // key_block_size, v)
            for g in range(num_selection_heads):
                heads = range(g * G, g * G + G)
                q = [[_exact(query[n, h, token, j]) for j in range(Di)] for h in heads]
                w = [Fraction(1) if weights is None else _exact(weights[n, token, h]) for h in heads]
                scored = [_score(q, [_exact(keys[n, b, j]) for j in range(Di)], w) for b in range(v)]
                result[n, g, token] = Row(v, m, tuple(s for s, _ in scored), tuple(e for _, e in scored))
    return result


def sparse_attention_indexer(
    inputs: Mapping[str, Array], key_block_size: int, token_budget: int, num_selection_heads: int = 1
) -> dict[str, list[Any]]:
    """Both outputs of one call as nested lists, by contract name, best blocks first."""
    N, _, L, _ = inputs["index_query"].shape
    K = token_budget // key_block_size
    found = rows(inputs, key_block_size, num_selection_heads, token_budget)

    def entries(row: Row) -> list[int]:
        best = row.best()
        return best + [-1] * (K - len(best))

    def nested(value: Any) -> list[Any]:
        return [[[value(found[n, g, i]) for i in range(L)] for g in range(num_selection_heads)] for n in range(N)]

    return {"block_indices": nested(entries), "block_count": nested(lambda row: row.m)}


def _exact(number: Any) -> Fraction:
    return Fraction(float(number))


def _score(q: list[list[Fraction]], k: list[Fraction], w: list[Fraction]) -> tuple[Fraction, Fraction]:
    """Score of a block and the worst error of an f32 evaluation, from one query row a head."""
    Di, G = len(k), len(q)
    terms = Di + G + 4
    score = moving = whole = Fraction(0)
    for row, weight in zip(q, w, strict=True):
        dot = sum((a * b for a, b in zip(row, k, strict=True)), Fraction(0))
        size = sum((abs(a * b) for a, b in zip(row, k, strict=True)), Fraction(0))
        score += weight * max(dot, Fraction(0))
        whole += abs(weight) * size
        if dot + terms * UA * size + (2 * Di + 1) * SMALLEST_NORMAL >= 0:
            moving += abs(weight) * size
    if moving == 0 or _rounds_nowhere(q, k, w, whole):
        return score, Fraction(0)
    weights = sum((abs(weight) for weight in w), Fraction(0))
    return score, terms * UA * moving + SMALLEST_NORMAL * ((2 * Di + 1) * weights + G + 1)


def _rounds_nowhere(q: list[list[Fraction]], k: list[Fraction], w: list[Fraction], whole: Fraction) -> bool:
    """Whether all is a small multiple of one unit, whatever is summed first and with a factor of 1/sqrt(Di) or 1/G."""
    Di, G = len(k), len(q)
    root = isqrt(Di)
    if root * root != Di or not _is_power_of_two(root) or not _is_power_of_two(G):
        return False
    pair = _unit([a for row in q for a in row]) * _unit(k)
    unit = pair * _unit(w)
    return pair >= SMALLEST_NORMAL and unit >= SMALLEST_NORMAL and whole < 2**22 * unit


def _is_power_of_two(number: int) -> bool:
    while number > 1 and number % 2 == 0:
        number //= 2
    return number == 1


def _unit(numbers: list[Fraction]) -> Fraction:
    """The largest power of two of which every number is a multiple."""
    unit = Fraction(2) ** 200
    for number in numbers:
        while number % unit:
            unit /= 2
    return unit


__all__ = ["Row", "rows", "sparse_attention_indexer"]
