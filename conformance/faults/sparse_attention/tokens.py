"""Faults in which tokens are attended to: lengths, positions, blocks, counts, the open block."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.faults.sparse_attention.planting import Array, Faulty, fault
from reference.sparse_attention.operation import Call, Rows

Marked = tuple[Array, Array]


def added(call: Call, found: Marked, tokens: Array, mask: Array) -> Marked:
    """A candidate set with some tokens more, each of which still comes in once."""
    mask = mask & (tokens >= 0) & (tokens < call.S)
    mask &= ~((tokens[:, :, None] == found[0][:, None, :]) & found[1][:, None, :]).any(axis=2)
    return np.concatenate((found[0], tokens), axis=1), np.concatenate((found[1], mask), axis=1)


# Lengths and positions


@fault("A01", "Positions start at 0: the query tokens are taken for the first tokens of the sequence.", "LEN-1",
       "onnx/onnx#8054")  # fmt: skip
class PositionsFromZero(Faulty):
    def positions(self, call: Call, rows: Rows) -> Array:
        return rows.l


@fault(
    "A02", "The last query token is taken for the token after the last one.", "LEN-1", "flashinfer-ai/flashinfer#348"
)
class PositionsOneLate(Faulty):
    def positions(self, call: Call, rows: Rows) -> Array:
        return super().positions(call, rows) + 1


@fault("A03", "The last query token is taken for the token before the last one.", "LEN-1")
class PositionsOneEarly(Faulty):
    def positions(self, call: Call, rows: Rows) -> Array:
        return super().positions(call, rows) - 1


@fault("A04", "Positions follow from the number of key rows, not from key_length.", "LEN-1 LEN-3")
class LengthIsRows(Faulty):
    def positions(self, call: Call, rows: Rows) -> Array:
        p: Array = call.S - call.L + rows.l
        return p


@fault("A05", "The length of the first sequence holds for all.", "LEN-2 SEP-2", "jundot/omlx#3293 jundot/omlx#3264")
class FirstLength(Faulty):
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = inputs.get("key_length")
        if given is not None and len(given):
            inputs = {**inputs, "key_length": np.full_like(given, given[0])}
        return super().run(inputs)


@fault("A06", "A key_length of one element holds for the first sequence only; the others have all rows.", "LEN-2")
class SharedLengthIsFirst(Faulty):
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given, N = inputs.get("key_length"), inputs["query"].shape[0]
        if given is not None and len(given) == 1 and N > 1:
            lengths = np.full(N, inputs["key"].shape[2], dtype=given.dtype)
            lengths[0] = given[0]
            inputs = {**inputs, "key_length": lengths}
        return super().run(inputs)


@fault("A07", "Every sequence has the length of the one before.", "LEN-2 SEP-2")
class NeighbouringLength(Faulty):
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = inputs.get("key_length")
        if given is not None:
            inputs = {**inputs, "key_length": np.roll(given, 1)}
        return super().run(inputs)


@fault("A08", "The valid rows of key and value are taken to be the first ones.", "LEN-3", reading="valid_rows=first")
class FirstRowsAreValid(Faulty):
    def key_row(self, call: Call, n: Array, t: Array) -> Array:
        return t


@fault("A09", "Listed blocks are counted from the first row, whatever the length; the open block from the end.",
       "LEN-3", "ggml-org/llama.cpp#27879")  # fmt: skip
class BlocksOfRows(Faulty):
    def key_row(self, call: Call, n: Array, t: Array) -> Array:
        row = super().key_row(call, n, t)
        first = call.lengths[n] - call.L
        return np.where(t < first, t, row)


@fault("A10", "A sequence shorter than the call's tokens is taken to begin with its first query.", "LEN-4")
class PaddingIgnored(Faulty):
    def positions(self, call: Call, rows: Rows) -> Array:
        p: Array = np.maximum(call.lengths[rows.n] - call.L, 0) + rows.l
        return np.asarray(np.minimum(p, np.maximum(call.lengths[rows.n] - 1, 0)))


@fault("A11", "Where key_length is left out, the sequence is taken to be as long as the call.", "LEN-2")
class NoLengthIsNoPast(Faulty):
    def positions(self, call: Call, rows: Rows) -> Array:
        return rows.l if call.key_length is None else super().positions(call, rows)


# Blocks


@fault("A12", "Of a listed block the last token is left out.", "BLK-1")
class BlocksTooShort(Faulty):
    def selected(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().selected(call, rows)
        return tokens, mask & ((tokens % self.r < self.r - 1) if self.r > 1 else mask)


@fault("A13", "A listed block begins one token late.", "BLK-1")
class BlocksShifted(Faulty):
    def selected(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().selected(call, rows)
        tokens = tokens + 1
        return tokens, mask & (tokens < call.lengths[rows.n][:, None])


@fault("A14", "Entries are taken for token numbers, not for blocks.", "BLK-1")
class EntriesAreTokens(Faulty):
    def selected(self, call: Call, rows: Rows) -> Marked:
        blocks, counted = self.listed(call, rows)
        return np.where(counted, blocks, 0), counted & (blocks < call.lengths[rows.n][:, None])


@fault("A15", "The last block is filled up with keys of zeros, which get the weight exp(0).", "BLK-1",
       "flashinfer-ai/flashinfer#5090 NVIDIA/cudnn-frontend#861")  # fmt: skip
class LastBlockFilledUp(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        if self.causal:
            return super().attend(call, rows)
        tokens, mask = self.attended(call, rows)
        key, value = self.gathered(call, rows, tokens, mask)
        last = call.lengths[rows.n] // self.r
        blocks, counted = self.listed(call, rows)
        missing = -call.lengths[rows.n] % self.r * (counted & (blocks == last[:, None])).any(axis=1)
        z = np.concatenate((self.logits(call, rows, key), np.zeros((len(rows), min(self.r, 64)))), axis=1)
        more = np.arange(min(self.r, 64)) < missing[:, None]
        weights = self.weights(z, np.concatenate((mask, more), axis=1), self.sink(call, rows))
        return self.weighted(weights[:, : value.shape[1]], value)


@fault("A16", "A last block that is not complete is left out.", "BLK-1")
class LastBlockLeftOut(Faulty):
    def selected(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().selected(call, rows)
        return tokens, mask & (tokens < (call.lengths[rows.n] // self.r * self.r)[:, None])


@fault("A17", "The first block is always attended to.", "SEL-1")
class FirstBlockAlways(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens = np.broadcast_to(np.arange(min(self.r, call.S)), (len(rows), min(self.r, call.S)))
        seen = (tokens <= self.positions(call, rows)[:, None]) if self.causal else tokens < call.S
        return added(call, super().attended(call, rows), tokens, seen)


@fault("A18", "The latest complete block is always attended to.", "SEL-1 OPN-2")
class LatestBlockAlways(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        end = call.lengths[rows.n] if not self.causal else self.positions(call, rows) + 1
        tokens = (end // self.r * self.r)[:, None] - 1 - np.arange(min(self.r, call.S))
        return added(call, super().attended(call, rows), tokens, tokens >= 0)


@fault("A19", "The selection is not looked at: every query attends to all tokens up to its own.", "SEL-1",
       "tenstorrent/tt-metal#51223")  # fmt: skip
class Dense(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens = np.broadcast_to(np.arange(call.S), (len(rows), call.S))
        last = self.positions(call, rows) if self.causal else call.lengths[rows.n] - 1
        return tokens, tokens <= last[:, None]


@fault("A20", "Where the budget reaches the number of keys, every query attends to everything.", "SEL-1",
       "kekzl/imp#2072")  # fmt: skip
class DenseWithinBudget(Dense):
    def attended(self, call: Call, rows: Rows) -> Marked:
        if call.block_indices.shape[3] * self.r >= call.S:
            return super().attended(call, rows)
        return Faulty.attended(self, call, rows)


@fault("A21", "Of the open block the tokens after the query's own are attended to as well.", "OPN-1",
       "gittensor-ai-lab/sparkinfer#616")  # fmt: skip
class OpenBlockWhole(Faulty):
    def opened(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().opened(call, rows)
        if not self.causal or not tokens.shape[1]:
            return tokens, mask
        is_open = (self.positions(call, rows) + 1) % self.r != 0
        tokens = tokens[:, :1] + np.arange(min(self.r, call.S))
        return tokens, is_open[:, None] & (tokens < call.lengths[rows.n][:, None])


# The open block


@fault("A22", "The open block is left out.", "OPN-1", "ggml-org/llama.cpp#27941")
class NoOpenBlock(Faulty):
    def opened(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().opened(call, rows)
        return tokens, mask & False


@fault("A23", "A query does not attend to itself.", "OPN-1", "gittensor-ai-lab/sparkinfer#14")
class NotItself(Faulty):
    def opened(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().opened(call, rows)
        return tokens, mask & (tokens < self.positions(call, rows)[:, None])


@fault("A24", "Of the open block only the query itself is attended to.", "OPN-1")
class OnlyItself(Faulty):
    def opened(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().opened(call, rows)
        return tokens, mask & (tokens == self.positions(call, rows)[:, None])


@fault("A25", "At the end of a block the block that ends there is taken for the open one.", "OPN-2")
class OpenAtTheEnd(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        found = super().attended(call, rows)
        if not self.causal:
            return found
        p = self.positions(call, rows)
        tokens = p[:, None] - np.arange(min(self.r, call.S))
        return added(call, found, tokens, ((p + 1) % self.r == 0)[:, None] & (tokens >= 0))


@fault("A26", "A query attends to itself at the end of a block too.", "OPN-2")
class AlwaysItself(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        found = super().attended(call, rows)
        p = self.positions(call, rows)[:, None]
        return added(call, found, p, p >= 0) if self.causal else found


@fault("A27", "There is an open block without causality as well.", "OPN-3")
class OpenWithoutCausality(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        found = super().attended(call, rows)
        if self.causal:
            return found
        p = self.positions(call, rows)[:, None]
        tokens = (p + 1) // self.r * self.r + np.arange(min(self.r - 1, call.S))
        return added(call, found, tokens, tokens <= p)


@fault("A28", "Without causality tokens after the query's position are left out.", "OPN-3")
class MaskedWithoutCausality(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().attended(call, rows)
        return tokens, mask & (tokens <= self.positions(call, rows)[:, None])


@fault("A29", "Causality is always on.", "OPN-3")
class AlwaysCausal(MaskedWithoutCausality):
    def opened(self, call: Call, rows: Rows) -> Marked:
        p = self.positions(call, rows)[:, None]
        tokens = (p + 1) // self.r * self.r + np.arange(min(self.r - 1, call.S))
        return tokens, tokens <= p


@fault("A30", "Causality is always off.", "OPN-1")
class NeverCausal(NoOpenBlock):
    def positions(self, call: Call, rows: Rows) -> Array:
        return np.maximum(super().positions(call, rows), 0)


@fault("A31", "The open block is that of the first query of the group.", "OPN-1 SEL-3", reading="position=first")
class OpenOfTheFirst(Faulty):
    def open_position(self, call: Call, rows: Rows) -> Array:
        return self.group_start(call, rows)


@fault("A32", "The open block is that of the last query of the group.", "OPN-1 SEL-3", "NVIDIA/cudnn-frontend#388",
       reading="position=last")  # fmt: skip
class OpenOfTheLast(Faulty):
    def open_position(self, call: Call, rows: Rows) -> Array:
        first = self.positions(call, rows) - rows.l % self.qb
        last: Array = np.minimum(first + self.qb, call.lengths[rows.n]) - 1
        return last


@fault("A33", "A block that is listed and open counts twice.", "SEL-4", "NVIDIA/cudnn-frontend#385")
class TwiceWhenOpen(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        listed, counts = self.selected(call, rows)
        opened, belongs = self.opened(call, rows)
        return np.concatenate((listed, opened), axis=1), np.concatenate((counts, belongs), axis=1)


@fault("A34", "The open block is looked for among the key rows from the first one.", "OPN-1 LEN-3")
class OpenFromTheFirstRow(Faulty):
    def key_row(self, call: Call, n: Array, t: Array) -> Array:
        row = super().key_row(call, n, t)
        return np.where(t >= call.lengths[n] // self.r * self.r, t, row)


@fault("A35", "A query group at a block's limit is masked by the block of its last query.", "OPN-2 SEL-3",
       "NVIDIA/cudnn-frontend#388")  # fmt: skip
class TileOfEight(Faulty):
    def opened(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().opened(call, rows)
        p = self.positions(call, rows)
        last = p + np.minimum(7 - rows.l % 8, call.L - 1 - rows.l)
        return tokens, mask & (tokens >= ((last + 1) // self.r * self.r - self.r)[:, None])
