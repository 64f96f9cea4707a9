"""Faults in how the selection is read: counts, entries, rows, heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.backends.protocol import OperationConfig, Rejected
from conformance.faults.sparse_attention.planting import Admission, Array, Faulty, fault
from reference.sparse_attention.operation import Call, Rows, SparseAttention

Marked = tuple[Array, Array]


class OtherCounts(Faulty):
    """Takes other counts than those given."""

    def counts(self, call: Call) -> Array:
        raise NotImplementedError

    def listed(self, call: Call, rows: Rows) -> Marked:
        K = call.block_indices.shape[3]
        counts = np.clip(np.broadcast_to(self.counts(call), call.counts.shape), 0, K).astype(call.block_count.dtype)
        return SparseAttention.listed(self, replace(call, block_count=counts), rows)

    def rows_at_a_time(self, call: Call) -> int:
        return max(1, super().rows_at_a_time(call) // 8)


# Counts


@fault("A40", "All entries count, whatever block_count says.", "SEL-1", "NVIDIA/cudnn-frontend#676")
class CountIgnored(OtherCounts):
    def counts(self, call: Call) -> Array:
        return np.full_like(call.counts, call.block_indices.shape[3])


@fault("A41", "Entries count up to the first negative one, whatever block_count says.", "SEL-1")
class CountedByMinusOne(OtherCounts):
    def counts(self, call: Call) -> Array:
        negative = call.block_indices < 0
        K = call.block_indices.shape[3]
        return np.where(negative.any(axis=3), negative.argmax(axis=3) if K else 0, K)


@fault("A42", "The last entry that counts is left out.", "SEL-1")
class OneTooFew(OtherCounts):
    def counts(self, call: Call) -> Array:
        return call.counts - 1


@fault("A43", "One entry more than counted is read.", "SEL-1")
class OneTooMany(OtherCounts):
    def counts(self, call: Call) -> Array:
        return call.counts + 1


@fault("A44", "The count of the first query token holds for all.", "SEL-1", "vllm-project/vllm#47238")
class CountOfTheFirstRow(OtherCounts):
    def counts(self, call: Call) -> Array:
        return call.counts[:, :, :1]


@fault("A45", "The count of the first selection holds for all.", "SEL-1 SEL-2")
class CountOfTheFirstHead(OtherCounts):
    def counts(self, call: Call) -> Array:
        return call.counts[:, :1]


@fault("A46", "The count of the first sequence holds for all.", "SEL-1 SEP-2")
class CountOfTheFirstSequence(OtherCounts):
    def counts(self, call: Call) -> Array:
        return call.counts[:1]


@fault("A47", "The largest count of a call holds for all rows.", "SEL-1")
class LargestCount(OtherCounts):
    def counts(self, call: Call) -> Array:
        return np.full_like(call.counts, call.counts.max(initial=0))


@fault("A48", "Of more than eight entries the rest is left out.", "SEL-1")
class EightEntries(OtherCounts):
    def counts(self, call: Call) -> Array:
        return np.minimum(call.counts, 8)


@fault("A49", "Entries are read in fours; what is left over is not.", "SEL-1")
class EntriesInFours(OtherCounts):
    def counts(self, call: Call) -> Array:
        return np.where(call.counts > 4, call.counts // 4 * 4, call.counts)


@fault("A50", "A count of zero is taken for all entries.", "SEL-1")
class NoneIsAll(OtherCounts):
    def counts(self, call: Call) -> Array:
        return np.where(call.counts == 0, call.block_indices.shape[3], call.counts)


@fault("A51", "Where a row counts no entry, its open block is left out too.", "OPN-1 SEL-1", "radixark/miles#2079")
class NothingListedNothingAttended(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().attended(call, rows)
        return tokens, mask & self.listed(call, rows)[1].any(axis=1, keepdims=True)


@fault("A52", "Without any room for entries the open block is left out.", "SEP-3 OPN-1")
class NoRoomNothingAttended(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().attended(call, rows)
        return tokens, mask & (call.block_indices.shape[3] > 0)


# Entries


@fault("A53", "Reading stops at the first entry that is smaller than the one before.", "SEL-4",
       "tile-ai/tilelang-ascend#934")  # fmt: skip
class AscendingOnly(Faulty):
    def listed(self, call: Call, rows: Rows) -> Marked:
        blocks, counted = super().listed(call, rows)
        falls = np.zeros(blocks.shape, dtype=bool)
        falls[:, 1:] = blocks[:, 1:] < blocks[:, :-1]
        return blocks, counted & ~np.logical_or.accumulate(falls, axis=1)


@fault("A54", "Block 0 is skipped as if it were padding.", "SEL-1 BLK-1")
class ZeroIsPadding(Faulty):
    def listed(self, call: Call, rows: Rows) -> Marked:
        blocks, counted = super().listed(call, rows)
        return blocks, counted & (blocks != 0)


@fault("A55", "The first entry is taken for the open block and skipped.", "SEL-1")
class FirstEntrySkipped(Faulty):
    def listed(self, call: Call, rows: Rows) -> Marked:
        blocks, counted = super().listed(call, rows)
        counted[:, :1] = False
        return blocks, counted


@fault("A56", "Entries are counted from 1.", "BLK-1")
class FromOne(Faulty):
    def listed(self, call: Call, rows: Rows) -> Marked:
        blocks, counted = super().listed(call, rows)
        return blocks - 1, counted


@fault("A57", "Every block that some query of the sequence lists is attended to by all.", "SEL-3 SEL-1",
       "tile-ai/tilelang-ascend#934")  # fmt: skip
class UnionOfQueries(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        everything = np.broadcast_to(np.arange(call.S), (len(rows), call.S))
        belongs = np.zeros((call.N, call.Hs, call.S + 1), dtype=bool)
        tokens, mask = super().attended(call, rows)
        chosen = self.selection_head(call, rows.h)
        belongs[rows.n[:, None], chosen[:, None], np.where(mask, tokens, call.S)] = True
        last = self.positions(call, rows) if self.causal else np.full(len(rows), call.S)
        return everything, belongs[rows.n, chosen, : call.S] & (everything <= last[:, None])


@fault("A58", "Entries are read as unsigned 16-bit numbers.", "BLK-1")
class SixteenBits(Faulty):
    def listed(self, call: Call, rows: Rows) -> Marked:
        blocks, counted = super().listed(call, rows)
        return blocks & 0x3F, counted


# Rows of the selection


@fault("A60", "Row l serves query token l, whatever query_block_size is.", "SEL-3", "mit-han-lab/radial-attention#54")
class RowOfToken(Faulty):
    def group(self, call: Call, rows: Rows) -> Array:
        return np.minimum(rows.l, max(call.Lq - 1, 0))


@fault("A61", "The last, short group is served by the row before.", "SEL-3")
class ShortGroupForgotten(Faulty):
    def group(self, call: Call, rows: Rows) -> Array:
        return np.asarray(np.minimum(rows.l // self.qb, max(call.L // self.qb - 1, 0)))


@fault("A62", "Groups end with the call's last query token: the first one is short.", "SEL-3")
class GroupsFromTheEnd(Faulty):
    def group(self, call: Call, rows: Rows) -> Array:
        row: Array = call.Lq - 1 - (call.L - 1 - rows.l) // self.qb
        return row


@fault("A63", "Every query token is served by the row of the one before.", "SEL-3", "NVIDIA/TensorRT-LLM#19138")
class RowBefore(Faulty):
    def group(self, call: Call, rows: Rows) -> Array:
        return np.asarray(np.maximum(super().group(call, rows) - 1, 0))


@fault("A64", "The first row serves all query tokens.", "SEL-3")
class FirstRowForAll(Faulty):
    def group(self, call: Call, rows: Rows) -> Array:
        return np.zeros_like(rows.l)


@fault("A65", "Groups are two tokens longer than query_block_size says.", "SEL-3")
class GroupsTooLong(Faulty):
    def group(self, call: Call, rows: Rows) -> Array:
        row: Array = rows.l // (self.qb + 2 if self.qb > 1 else 1)
        return row


# Heads of the selection


@fault("A66", "Heads take the selections in turn: h mod Hs.", "SEL-2", "HazyResearch/HipKittens#22 ekzhang/jax-js#180")
class SelectionsInTurn(Faulty):
    def selection_head(self, call: Call, h: Array) -> Array:
        return h % call.Hs


@fault("A67", "All heads take the first selection.", "SEL-2", "huggingface/transformers#46762")
class FirstSelection(Faulty):
    def selection_head(self, call: Call, h: Array) -> Array:
        return np.zeros_like(h)


@fault("A68", "The selection follows the key-value head.", "SEL-2", "LMCache/LMCache#3092")
class SelectionOfKeyHead(Faulty):
    def selection_head(self, call: Call, h: Array) -> Array:
        return np.asarray(np.minimum(h // (call.H // call.Hkv), call.Hs - 1))


@fault("A69", "The key-value head follows the selection.", "ATT-3", "LMCache/LMCache#3092")
class KeyHeadOfSelection(Faulty):
    def key_head(self, call: Call, h: Array) -> Array:
        return np.asarray(np.minimum(h // (call.H // call.Hs), call.Hkv - 1))


@fault("A70", "Heads take the key-value heads in turn: h mod Hkv.", "ATT-3",
       "HazyResearch/HipKittens#22 PSAL-POSTECH/ONNXim#33")  # fmt: skip
class KeyHeadsInTurn(Faulty):
    def key_head(self, call: Call, h: Array) -> Array:
        return h % call.Hkv


@fault("A71", "All heads take the first key-value head.", "ATT-3")
class FirstKeyHead(Faulty):
    def key_head(self, call: Call, h: Array) -> Array:
        return np.zeros_like(h)


@fault("A72", "Values are taken from the key-value heads in turn, keys from the right one.", "ATT-3")
class ValueHeadsInTurn(Faulty):
    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> Marked:
        other = replace(call, value=call.value[:, self.order(call)])
        return super().gathered(other, rows, tokens, mask)

    def order(self, call: Call) -> Array:
        return np.roll(np.arange(call.Hkv), 1)


@fault("A73", "Heads beyond the eighth are left out.", "ATT-3", "fla-org/flash-linear-attention#1029")
class EightHeads(Faulty):
    def rows(self, call: Call) -> Rows:
        rows = super().rows(call)
        return rows.where(rows.h < 8)


@fault("A74", "Every query attends to the keys of the sequence before.", "SEP-2", "NVIDIA/cudnn-frontend#550")
class NeighbouringKeys(Faulty):
    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> Marked:
        return super().gathered(replace(call, key=np.roll(call.key, 1, axis=0)), rows, tokens, mask)


@fault("A75", "The selection of the first sequence holds for all.", "SEP-2 SEL-1")
class FirstSelectionForAll(Faulty):
    def listed(self, call: Call, rows: Rows) -> Marked:
        return super().listed(call, Rows(np.zeros_like(rows.n), rows.h, rows.l))


# Entries that are refused though they do not count


class Refusing(Admission):
    """Refuses valid calls."""

    def wrong(self, config: OperationConfig, inputs: Any) -> str:
        """The port to name, empty when the call is taken."""
        raise NotImplementedError

    def call(self, config: OperationConfig, inputs: Any) -> Any:
        inputs = super().call(config, inputs)
        name = self.wrong(config, inputs)
        if name:
            raise Rejected("value", "call", (name,))
        return inputs


@fault("A76", "Negative entries beyond the count are refused.", "SEL-1", "vllm-project/vllm#58058")
class NegativeRefused(Refusing):
    def wrong(self, config: OperationConfig, inputs: Any) -> str:
        return "block_indices" if (inputs["block_indices"] < 0).any() else ""


@fault("A77", "Large entries beyond the count are refused.", "SEL-1")
class LargeRefused(Refusing):
    def wrong(self, config: OperationConfig, inputs: Any) -> str:
        largest = inputs["key"].shape[2] // int(config.attributes["key_block_size"])
        return "block_indices" if (inputs["block_indices"] > largest).any() else ""


@fault("A78", "Entries that are not in ascending order are refused.", "SEL-4")
class UnorderedRefused(Refusing):
    def wrong(self, config: OperationConfig, inputs: Any) -> str:
        entries, K = inputs["block_indices"].astype(np.int64), inputs["block_indices"].shape[3]
        counted = np.arange(1, K) < inputs["block_count"][..., None]
        return "block_indices" if (counted & (np.diff(entries, axis=3) < 0)).any() else ""


@fault("A79", "A row that counts no entry is refused.", "SEL-1 OPN-1", "radixark/miles#2079")
class EmptyRowRefused(Refusing):
    def wrong(self, config: OperationConfig, inputs: Any) -> str:
        return "block_count" if (inputs["block_count"] == 0).any() else ""
