"""SparseAttentionIndexer in float64 NumPy, one short method a stage.

For every query token the visible key blocks are scored, and those of largest score are selected. A variant, faulty or
of another reading, overrides one method. Symbols are those of the contract: N sequences, L query tokens each, Hi index
heads of width Di in Hs selections of G heads; block size r, K = token_budget / r; per sequence S valid tokens; per
query token its position p, the number v of blocks visible to it, and the number m = min(K, v) of blocks to select.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Scores that are held at a time. Never all of N x L x B: a long prefill has billions.
CHUNK = 1 << 20

# What stands in an entry that holds no block (OUT-3).
NO_BLOCK = -1


@dataclass(frozen=True)
class Readings:
    """The choices of the contract that can be switched; the defaults are the contract's."""

    ties: str = "smaller"  # "smaller" | "free"
    order: str = "unspecified"  # "unspecified" (descending score is recommended) | "descending" | "ascending"
    beyond: str = "minus_one"  # entries from m on: "minus_one" | "unspecified"
    width: str = "budget"  # K: "budget" | "keys": no more than B
    output_type: str = "i32"  # "i32" | "i64" | "lengths": that of key_length
    scores: str = "f32"  # before ranking: "f32" | "rounded": to T
    budget: str = "refused"  # token_budget no multiple of r: "refused" | "floor"
    short_length: str = "padding"  # S < L: "padding" | "refused" (the harness withholds such cases)
    padding_rows: str = "empty"  # "empty": count 0, all -1 | "unspecified"
    key_rows: str = "enough"  # B >= max S div r: "enough" | "exact" (the harness withholds such cases)


@dataclass(frozen=True)
class Call:
    """The inputs of one call, and what follows from them."""

    index_query: Array  # [N, Hi, L, Di]
    block_index_keys: Array  # [N, B, Di]
    key_length: Array  # [N] or [1]
    index_weights: Array | None = None  # [N, L, Hi]
    p: Array = field(init=False)  # int64 [N, L], position of every query token
    v: Array = field(init=False)  # int64 [N, L], blocks visible to it
    m: Array = field(init=False)  # int64 [N, L], blocks to select

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type T."""
        return self.index_query.dtype

    @property
    def N(self) -> int:  # noqa: N802
        return int(self.index_query.shape[0])

    @property
    def Hi(self) -> int:  # noqa: N802
        return int(self.index_query.shape[1])

    @property
    def L(self) -> int:  # noqa: N802
        return int(self.index_query.shape[2])

    @property
    def Di(self) -> int:  # noqa: N802
        return int(self.index_query.shape[3])

    @property
    def B(self) -> int:  # noqa: N802
        return int(self.block_index_keys.shape[1])


class SparseAttentionIndexer:
    """The operation for one block size, budget and number of selections; it keeps no state between calls (PLG-1)."""

    def __init__(
        self,
        key_block_size: int,
        token_budget: int,
        num_selection_heads: int = 1,
        readings: Readings | None = None,
    ) -> None:
        self.r = key_block_size
        self.token_budget = token_budget
        self.Hs = num_selection_heads
        self.readings = readings or Readings()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call: the inputs by contract name in, block_indices [N, Hs, L, K] and block_count [N, Hs, L] out."""
        call = self.call(inputs)
        dtype = self.output_type(call)
        indices = np.full((call.N, self.Hs, call.L, self.K(call)), NO_BLOCK, dtype=dtype)
        for n, rows in self.chunks(call):
            chosen = self.rank(call, n, rows, self.scores(call, n, rows))
            self.write(call, n, rows, chosen, indices)
        return {"block_indices": indices, "block_count": self.counts(call).astype(dtype)}

    def call(self, inputs: Mapping[str, Array]) -> Call:
        call = Call(**inputs)
        object.__setattr__(call, "p", self.positions(call))
        object.__setattr__(call, "v", self.visible(call))
        object.__setattr__(call, "m", self.selected(call))
        return call

    # Positions and visible blocks

    def key_lengths(self, call: Call) -> Array:
        """LEN-2, LEN-3: S as int64 [N], from a key_length of shape [N] or [1]."""
        S = call.key_length.astype(np.int64)
        return S if len(S) == call.N else np.repeat(S, call.N)

    def positions(self, call: Call) -> Array:
        """LEN-1, LEN-4: p [N, L]; the query tokens are the last L, and rows of padding have negative positions."""
        return self.key_lengths(call)[:, None] - call.L + np.arange(call.L)

    def visible(self, call: Call) -> Array:
        """VIS-1 to VIS-3: v [N, L], the blocks whose last token is at or before p."""
        result: Array = np.maximum((call.p + 1) // self.r, 0)
        return result

    def K(self, call: Call) -> int:  # noqa: N802
        """OUT-1: blocks that a selection can hold."""
        held = self.token_budget // self.r
        return min(held, call.B) if self.readings.width == "keys" else held

    def selected(self, call: Call) -> Array:
        """SEL-1: m [N, L]."""
        return np.minimum(call.v, self.K(call))

    def chunks(self, call: Call) -> Iterator[tuple[int, slice]]:
        """Sequence and query rows, a bounded number of scores at a time."""
        for n in range(call.N):
            seen = max(int(call.v[n].max(initial=0)), 1)
            step = max(CHUNK // (call.Hi * seen), 1)
            for start in range(0, call.L, step):
                yield n, slice(start, min(start + step, call.L))

    # Scores

    def scores(self, call: Call, n: int, rows: slice) -> Array:
        """SCO-1: s, float64 [Hs, rows, V], of the V blocks visible to any of these rows of sequence n."""
        with np.errstate(all="ignore"):
            products = self.products(self.queries(call, n, rows), self.keys(call, n, rows))
            weighted = self.weigh(self.rectify(products), self.weights(call, n, rows))
            return self.stored(self.sum_heads(weighted), call.dtype)

    def queries(self, call: Call, n: int, rows: slice) -> Array:
        """The index queries, float64 [Hi, rows, Di]."""
        return np.asarray(call.index_query[n][:, rows], dtype=np.float64)

    def keys(self, call: Call, n: int, rows: slice) -> Array:
        """SCO-5, VIS-4: the keys of the V blocks, float64 [V, Di]; no other key is looked at."""
        return np.asarray(call.block_index_keys[n, : int(call.v[n, rows].max(initial=0))], dtype=np.float64)

    def products(self, queries: Array, keys: Array) -> Array:
        """Every index head with every key: [Hi, rows, V]."""
        Hi, rows, Di = queries.shape
        result: Array = (queries.reshape(Hi * rows, Di) @ keys.T).reshape(Hi, rows, len(keys))
        return result

    def rectify(self, products: Array) -> Array:
        """SCO-1: what is negative becomes zero, head by head."""
        result: Array = np.maximum(products, 0)
        return result

    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        """SCO-2, SCO-3: the weights, float64 [Hi, rows, 1]; None when they are left out."""
        if call.index_weights is None:
            return None
        return call.index_weights[n, rows].astype(np.float64).T[:, :, None]

    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        """SCO-1, SCO-2: the weight stands outside the rectification; left out it is 1."""
        return rectified if weights is None else rectified * weights

    def sum_heads(self, weighted: Array) -> Array:
        """SCO-4: selection g uses the heads g*G .. g*G + G-1; [Hs, rows, V]."""
        Hi, rows, V = weighted.shape
        result: Array = weighted.reshape(self.Hs, Hi // self.Hs, rows, V).sum(axis=1)
        return result

    def stored(self, scores: Array, dtype: np.dtype[Any]) -> Array:
        """NUM-1: scores are ranked as they are; under the reading `scores` they are rounded to T first."""
        if self.readings.scores == "rounded":
            return scores.astype(dtype).astype(np.float64)
        return scores

    # Selection

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        """SEL-1 to SEL-3, TIE-1, ORD-1: the visible blocks [Hs, rows, V], best first, ties to the smaller block.

        Blocks that are not visible come last. NaN is below every number.
        """
        hidden = np.arange(scores.shape[2]) >= call.v[n, rows][:, None]
        return np.argsort(np.where(hidden | np.isnan(scores), np.inf, -scores), axis=2, kind="stable")

    def write(self, call: Call, n: int, rows: slice, chosen: Array, out: Array) -> None:
        """OUT-2, OUT-3: the first m of the ranked blocks into out [N, Hs, L, K]."""
        width = min(chosen.shape[2], out.shape[3])
        chosen = chosen[:, :, :width]
        if self.readings.order == "ascending":
            chosen = ascending(chosen, call.m[n, rows])
        inside = np.arange(width) < call.m[n, rows][:, None]
        out[n, :, rows, :width] = np.where(inside, chosen, NO_BLOCK)

    def counts(self, call: Call) -> Array:
        """CNT-1: m for every selection, [N, Hs, L]."""
        return np.repeat(call.m[:, None], self.Hs, axis=1)

    def output_type(self, call: Call) -> np.dtype[Any]:
        """OUT-1: the element type of both outputs."""
        chosen = self.readings.output_type
        return call.key_length.dtype if chosen == "lengths" else np.dtype(np.int64 if chosen == "i64" else np.int32)


def ascending(chosen: Array, m: Array) -> Array:
    """The first m entries of every row [.., rows, width] in ascending order, the others after them."""
    inside = np.arange(chosen.shape[-1]) < m[:, None]
    result: Array = np.sort(np.where(inside, chosen, np.iinfo(chosen.dtype).max), axis=-1)
    return result
