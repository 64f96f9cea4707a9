"""SparseAttention in float64 NumPy, one short method a stage.

Every query token attends to the tokens of its selected key blocks and, in the causal mode, to its own open block. A
variant, faulty or of another reading, overrides one method. Symbols are those of the contract: N sequences, H query
heads, Hkv key-value heads, Hs selections, L query tokens, S key rows, widths E and Ev, block size r, qb query tokens
to a selection row. A *row* is one query row (n, h, l); R of them are computed at a time, with M candidate tokens each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Numbers that are gathered at a time: bounds the memory, and is enough to amortize NumPy's overhead.
CHUNK = 1 << 20


@dataclass(frozen=True)
class Readings:
    """The choices of the contract that can be switched; the defaults are the contract's."""

    valid_rows: str = "last"  # of the S rows, causal: "last" | "first"
    bidirectional_rows: str = "unjudged"  # not causal, Sn < S: "unjudged" | "last" | "first"
    beyond: str = "undefined"  # listed block beyond the visible ones: "undefined" | "ignored" | "attended" (up to p)
    reaching: str = "undefined"  # listed block reaching past p, qb > 1: "undefined" | "masked" | "attended"
    groups: str = "aligned"  # "aligned": (Sn - L) mod qb = 0 | "call": from the first query | "token": from token 0
    position: str = "own"  # of a query in a group: "own" | "first" | "last"
    out_of_range: str = "undefined"  # entries below the count: "undefined" | "ignored"
    duplicates: str = "undefined"  # "undefined" | "once" | "twice"
    empty: str = "zeros"  # A without tokens: "zeros" | "unspecified"
    padding: str = "unspecified"  # rows of padding: "unspecified" | "zeros"
    sink: str = "unscaled"  # "unscaled" | "scaled"
    last_block: str = "cut"  # not causal: "cut" | "refused" (the harness withholds such cases)
    open_length: str = "required"  # scale without key_length: "required" | "open"
    logits: str = "rounded"  # in f16 and bf16: "rounded" | "f32"
    accumulators: str = "f32"  # in f16 and bf16: "f32" | "T"
    short_group: str = "allowed"  # L no multiple of qb: "allowed" | "refused" (the harness withholds such cases)


@dataclass(frozen=True)
class Call:
    """The inputs of one call, and what follows from their shapes; a port that is left out is None."""

    query: Array  # [N, H, L, E]
    key: Array  # [N, Hkv, S, E]
    value: Array  # [N, Hkv, S, Ev]
    block_indices: Array  # [N, Hs, Lq, KB]
    block_count: Array  # [N, Hs, Lq]
    key_length: Array | None = None  # [N] or [1]
    scale: Array | None = None  # [] or [1]
    sinks: Array | None = None  # [H]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type T."""
        return self.query.dtype

    @property
    def N(self) -> int:  # noqa: N802
        return int(self.query.shape[0])

    @property
    def H(self) -> int:  # noqa: N802
        return int(self.query.shape[1])

    @property
    def L(self) -> int:  # noqa: N802
        return int(self.query.shape[2])

    @property
    def E(self) -> int:  # noqa: N802
        return int(self.query.shape[3])

    @property
    def S(self) -> int:  # noqa: N802
        return int(self.key.shape[2])

    @property
    def Ev(self) -> int:  # noqa: N802
        return int(self.value.shape[3])

    @property
    def Hkv(self) -> int:  # noqa: N802
        return int(self.key.shape[1])

    @property
    def Hs(self) -> int:  # noqa: N802
        return int(self.block_indices.shape[1])

    @property
    def Lq(self) -> int:  # noqa: N802
        return int(self.block_indices.shape[2])

    @cached_property
    def lengths(self) -> Array:
        """LEN-2: Sn as int64 [N]; S where key_length is left out."""
        if self.key_length is None:
            return np.full(self.N, self.S, dtype=np.int64)
        Sn = self.key_length.astype(np.int64)
        return Sn if len(Sn) == self.N else np.repeat(Sn, self.N)

    @cached_property
    def counts(self) -> Array:
        """SEL-1: how many entries of every row of block_indices count, int64 [N, Hs, Lq]."""
        return np.clip(self.block_count.astype(np.int64), 0, self.block_indices.shape[3])


@dataclass(frozen=True)
class Rows:
    """Query rows that are computed together: sequence, head and query token of each, [R]."""

    n: Array
    h: Array
    l: Array  # noqa: E741  the contract's symbol

    @classmethod
    def all_of(cls, call: Call) -> Rows:
        """All query rows of a call, rows of padding too."""
        return cls(*(axis.reshape(-1) for axis in np.indices((call.N, call.H, call.L))))

    def __len__(self) -> int:
        return len(self.n)

    def cut(self, size: int) -> Iterator[Rows]:
        """The rows in pieces of at most `size`."""
        for start in range(0, len(self), size):
            piece = slice(start, start + size)
            yield Rows(self.n[piece], self.h[piece], self.l[piece])

    def where(self, mask: Array) -> Rows:
        """The rows that a mask [R] is true for."""
        return Rows(self.n[mask], self.h[mask], self.l[mask])


class SparseAttention:
    """The operation for one set of attributes; it keeps no state between calls (PLG-1)."""

    def __init__(
        self, key_block_size: int, query_block_size: int = 1, causal: bool = True, readings: Readings | None = None
    ) -> None:
        self.r = key_block_size
        self.qb = query_block_size
        self.causal = causal
        self.readings = readings or Readings()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call: the ports by contract name in, attention_output [N, H, L, Ev] of type T out."""
        call = Call(**inputs)
        out = np.zeros((call.N, call.H, call.L, call.Ev), dtype=call.dtype)
        for rows in self.rows(call).cut(self.rows_at_a_time(call)):
            out[rows.n, rows.h, rows.l] = self.store(self.attend(call, rows), call.dtype)
        return {"attention_output": out}

    def rows(self, call: Call) -> Rows:
        """The query rows that are computed; rows of padding are left at zero (LEN-4)."""
        rows = Rows.all_of(call)
        return rows.where(self.positions(call, rows) >= 0) if self.causal else rows

    def rows_at_a_time(self, call: Call) -> int:
        listed = int(call.counts.max(initial=0)) * min(self.r, call.S)
        return max(1, CHUNK // max(1, (listed + min(self.r, call.S)) * max(call.E, call.Ev)))

    # Positions

    def positions(self, call: Call, rows: Rows) -> Array:
        """LEN-1: token number p [R] of every query; negative for rows of padding."""
        p: Array = call.lengths[rows.n] - call.L + rows.l
        return p

    def group(self, call: Call, rows: Rows) -> Array:
        """SEL-3: row [R] of block_indices that serves the query."""
        row: Array = rows.l // self.qb
        if self.readings.groups != "token" or not self.causal:
            return row
        first = call.lengths[rows.n] - call.L
        cut: Array = (first + rows.l) // self.qb - first // self.qb
        return np.clip(cut, 0, max(call.Lq - 1, 0))

    def group_start(self, call: Call, rows: Rows) -> Array:
        """SEL-3: position [R] of the first query of the query's group that is not padding."""
        p = self.positions(call, rows)
        if self.readings.groups == "token":
            start = np.maximum(p // self.qb * self.qb, p - rows.l)
        else:
            start = p - rows.l % self.qb
        first: Array = np.maximum(start, 0)
        return first

    def open_position(self, call: Call, rows: Rows) -> Array:
        """OPN-1: the position [R] that the open block ends with."""
        if self.readings.position == "own":
            return self.positions(call, rows)
        if self.readings.position == "first":
            return self.group_start(call, rows)
        p = self.positions(call, rows)
        start = p // self.qb * self.qb if self.readings.groups == "token" else p - rows.l % self.qb
        last: Array = np.minimum(start + self.qb, call.lengths[rows.n]) - 1
        return last

    def key_row(self, call: Call, n: Array, t: Array) -> Array:
        """LEN-3: row of key and value that holds token t of sequence n."""
        chosen = self.readings.valid_rows if self.causal else self.readings.bidirectional_rows
        row: Array = t if chosen == "first" else t + call.S - call.lengths[n]
        return row

    # Heads

    def selection_head(self, call: Call, h: Array) -> Array:
        """SEL-2: the selection of query head h."""
        chosen: Array = h // (call.H // call.Hs)
        return chosen

    def key_head(self, call: Call, h: Array) -> Array:
        """ATT-3: the key-value head of query head h."""
        chosen: Array = h // (call.H // call.Hkv)
        return chosen

    # The attended set

    def listed(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        """SEL-1: the entries [R, K] of every row, int64, and a mask of those that count."""
        place = (rows.n, self.selection_head(call, rows.h), self.group(call, rows))
        counts = call.counts[place]
        K = int(counts.max(initial=0))
        return call.block_indices[place][:, :K].astype(np.int64), np.arange(K) < counts[:, None]

    def selected(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        """BLK-1: the tokens [R, M] of the listed blocks, and a mask of those that belong to A."""
        blocks, counted = self.listed(call, rows)
        Sn, p = call.lengths[rows.n][:, None], self.positions(call, rows)[:, None]
        counted = counted & (blocks >= 0) & (blocks < -(-Sn // self.r))
        if self.causal and self.qb == 1 and self.readings.beyond != "attended":
            counted &= blocks < (p + 1) // self.r
        if self.readings.duplicates != "twice":
            counted &= ~repeats(blocks, counted)
        blocks = np.where(counted, blocks, 0)
        tokens = (blocks * self.r)[:, :, None] + np.arange(min(self.r, call.S))
        tokens = tokens.reshape(len(rows), -1)
        mask = np.repeat(counted, min(self.r, call.S), axis=1) & (tokens < Sn)
        if self.causal and (self.qb == 1 or self.readings.reaching != "attended"):
            mask &= tokens <= p
        return tokens, mask

    def opened(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        """OPN-1 to OPN-3: the tokens [R, r-1] of the open block, and a mask of those that belong to A."""
        width = min(self.r - 1, call.S) if self.causal else 0
        p = self.open_position(call, rows)[:, None]
        tokens = (p + 1) // self.r * self.r + np.arange(width)
        return tokens, tokens <= p

    def attended(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        """SEL-4: candidate tokens [R, M], and a mask of A, in which no token comes in twice."""
        listed, counts = self.selected(call, rows)
        opened, belongs = self.opened(call, rows)
        if opened.shape[1]:
            p = self.open_position(call, rows)[:, None]
            counts = counts & ((listed < opened[:, :1]) | (listed > p))
        return np.concatenate((listed, opened), axis=1), np.concatenate((counts, belongs), axis=1)

    # Arithmetic of one query row

    def attend(self, call: Call, rows: Rows) -> Array:
        """ATT-1, ATT-5: float64 results [R, Ev]."""
        tokens, mask = self.attended(call, rows)
        key, value = self.gathered(call, rows, tokens, mask)
        z = self.logits(call, rows, key)
        return self.weighted(self.weights(z, mask, self.sink(call, rows)), value)

    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> tuple[Array, Array]:
        """Key [R, M, E] and value [R, M, Ev] of the candidate tokens, float64; zeros outside A (SEP-1, SEP-4)."""
        if not call.S:
            return np.zeros((*tokens.shape, call.E)), np.zeros((*tokens.shape, call.Ev))
        n, head = rows.n[:, None], self.key_head(call, rows.h)[:, None]
        row = np.where(mask, self.key_row(call, n, tokens), 0)
        key, value = call.key[n, head, row].astype(np.float64), call.value[n, head, row].astype(np.float64)
        key[~mask] = 0
        value[~mask] = 0
        return key, value

    def logits(self, call: Call, rows: Rows, key: Array) -> Array:
        """ATT-1: z [R, M]."""
        query = call.query[rows.n, rows.h, rows.l].astype(np.float64)
        with np.errstate(all="ignore"):
            z: Array = (key @ query[:, :, None])[:, :, 0] * self.scale(call)
        return z

    def scale(self, call: Call) -> float:
        """ATT-2: the given factor, or 1 / sqrt(E)."""
        return float(call.scale.reshape(-1)[0]) if call.scale is not None else 1 / float(np.sqrt(call.E))

    def sink(self, call: Call, rows: Rows) -> Array:
        """ATT-4: the sink of every row [R]; minus infinity where there is none."""
        if call.sinks is None:
            return np.full(len(rows), -np.inf)
        sink = call.sinks[rows.h].astype(np.float64)
        return sink * self.scale(call) if self.readings.sink == "scaled" else sink

    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        """ATT-1, ATT-4, ATT-5: softmax over A with the sink in the denominator; [R, M], zeros where A is empty."""
        with np.errstate(all="ignore"):
            top = self.maximum(z, mask, sink)[:, None]
            e = np.where(mask, np.exp(z - top), 0.0)
            total = e.sum(axis=1) + np.exp(sink - top[:, 0])
            result: Array = np.where(total > 0, 1 / total, np.where(np.isnan(total), total, 0.0))[:, None] * e
        return result

    def maximum(self, z: Array, mask: Array, sink: Array) -> Array:
        """The largest logit of A or sink [R], 0 where there is neither: exponentials never overflow."""
        top = np.maximum(np.max(z, axis=1, where=mask, initial=-np.inf), sink)
        return np.where(top == -np.inf, 0.0, top)

    def weighted(self, weights: Array, value: Array) -> Array:
        """ATT-1: the weighted sum [R, Ev]."""
        with np.errstate(all="ignore"):
            result: Array = (weights[:, None, :] @ value)[:, 0]
        return result

    def store(self, values: Array, dtype: np.dtype[Any]) -> Array:
        """NUM-2: one rounding to T."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded: Array = values.astype(dtype)
        return rounded

    # What is specified

    def specified(self, call: Call, rows: Rows) -> Array:
        """Mask [R] of the rows whose result follows from the contract and the chosen readings."""
        readings, n = self.readings, rows.n
        Sn, p = call.lengths[n], self.positions(call, rows)
        result = np.ones(len(rows), dtype=bool)
        if self.causal:
            result &= p >= 0
        elif readings.bidirectional_rows == "unjudged":
            result &= Sn == call.S
        if self.causal and self.qb > 1 and readings.groups == "aligned":
            result &= (Sn - call.L) % self.qb == 0
        if readings.empty == "unspecified":
            result &= self.attended(call, rows)[1].any(axis=1)
        blocks, counted = self.listed(call, rows)
        there = (blocks >= 0) & (blocks < -(-Sn // self.r)[:, None])
        if readings.out_of_range == "undefined":
            result &= (there | ~counted).all(axis=1)
        counted = counted & there
        if readings.duplicates == "undefined":
            result &= ~repeats(blocks, counted).any(axis=1)
        if self.causal and self.qb == 1 and readings.beyond == "undefined":
            result &= ~(counted & (blocks >= ((p + 1) // self.r)[:, None])).any(axis=1)
        if self.causal and self.qb > 1 and readings.reaching == "undefined":
            last = np.minimum(np.where(counted, blocks, 0) * self.r + self.r, Sn[:, None]) - 1
            result &= ~(counted & (last > self.group_start(call, rows)[:, None])).any(axis=1)
        return result


def repeats(blocks: Array, counted: Array) -> Array:
    """Mask [R, K] of counted entries that stand further left in their row already."""
    if blocks.shape[1] < 2:
        return np.zeros(blocks.shape, dtype=bool)
    # Entries that do not count come last, each with a value of its own, so that they equal nothing.
    keys = np.where(counted, blocks, np.iinfo(np.int64).max)
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, axis=1)
    again = np.zeros(blocks.shape, dtype=bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    result = np.zeros(blocks.shape, dtype=bool)
    np.put_along_axis(result, order, again, axis=1)
    return result & counted
