"""Faults in what is written: counts, entries, widths, types, layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, Inputs, Outputs, fault
from reference.sparse_attention_indexer.operation import NO_BLOCK, Call, SparseAttentionIndexer


class Rewritten(SparseAttentionIndexer):
    """Computes the right entries and writes something else."""

    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        return {**out, "block_indices": self.entries(self.call(inputs), out["block_indices"].copy())}

    def entries(self, call: Call, out: Array) -> Array:
        raise NotImplementedError

    def beyond(self, call: Call, out: Array) -> Array:
        """Mask of the entries from m on."""
        count = np.broadcast_to(call.m[:, None, :, None], (*out.shape[:3], 1))
        return np.asarray(np.arange(out.shape[3]) >= count)


@fault("I170", "Entries beyond the count are 0.", "OUT-3", "NVIDIA/cudnn-frontend#676", reading="beyond=unspecified")
class ZeroBeyond(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return np.where(self.beyond(call, out), 0, out).astype(out.dtype)


@fault("I171", "Entries beyond the count hold the number of blocks.", "OUT-3", reading="beyond=unspecified")
class BlocksBeyond(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return np.where(self.beyond(call, out), call.B, out).astype(out.dtype)


@fault("I172", "Entries beyond the count repeat the last valid one.", "OUT-3", reading="beyond=unspecified")
class LastRepeated(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        last = np.maximum(call.m - 1, 0)[:, None, :, None]
        repeated = np.take_along_axis(out, np.broadcast_to(last, (*out.shape[:3], 1)), axis=3) if out.shape[3] else out
        return np.where(self.beyond(call, out), repeated, out).astype(out.dtype)


@fault("I173", "Rows without a visible block are not written.", "OUT-3 VIS-3", "openvinotoolkit/openvino#33814",
       reading="beyond=unspecified")  # fmt: skip
class EmptyRowsUnwritten(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return np.where((call.v == 0)[:, None, :, None], 0x7F7F7F7F, out).astype(out.dtype)


@fault("I174", "The entry right after the last valid one is 0.", "OUT-3", reading="beyond=unspecified")
class TerminatedByZero(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        first = np.arange(out.shape[3]) == call.m[:, None, :, None]
        return np.where(first, 0, out).astype(out.dtype)


@fault("I175", "Valid entries stand at the end of the row, after those that hold no block.", "OUT-2 OUT-3")
class RightAligned(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        order = np.argsort(out != NO_BLOCK, axis=3, kind="stable")
        return np.take_along_axis(out, order, axis=3)


@fault("I176", "A hole is left after the first entry where not all entries are used.", "OUT-2",
       "ROCm/aiter#4415 vllm-project/vllm#58058")  # fmt: skip
class Hole(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        partly = ((call.m > 1) & (call.m < out.shape[3]))[:, None, :, None]
        if out.shape[3] < 3:
            return out
        moved = np.concatenate([out[..., :1], np.full_like(out[..., :1], NO_BLOCK), out[..., 1:-1]], axis=3)
        return np.where(partly, moved, out)


@fault("I177", "The last entry repeats the one before it.", "SEL-3 SEL-2", "ROCm/aiter#4376")
class LastTwice(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        for n, g, row in np.ndindex(*out.shape[:3]):
            if call.m[n, row] > 1:
                out[n, g, row, call.m[n, row] - 1] = out[n, g, row, call.m[n, row] - 2]
        return out


@fault("I178", "Entries are tokens: a block is given by its first one.", "OUT-1 VIS-1",
       "sgl-project/sglang-jax#1376")  # fmt: skip
class FirstTokens(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return np.where(out == NO_BLOCK, out, out * self.r).astype(out.dtype)


@fault("I179", "Blocks are counted from one.", "VIS-1 SEL-2")
class CountedFromOne(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return np.where(out == NO_BLOCK, out, out + 1).astype(out.dtype)


@fault("I180", "Blocks are counted in a row over all sequences.", "VIS-1 SEP-1", "NVIDIA/cudnn-frontend#550")
class CountedOverTheBatch(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        base = (np.arange(call.N) * call.B)[:, None, None, None]
        return np.where(out == NO_BLOCK, out, out + base).astype(out.dtype)


@fault("I181", "A block beyond the 32,767th is written with sixteen bits.", "VIS-1 SEL-2")
class SixteenBitEntries(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return out.astype(np.int16).astype(out.dtype)


@fault("I182", "A block beyond the 255th is written with eight bits.", "VIS-1 SEL-2 SEL-3")
class EightBitEntries(Rewritten):
    def entries(self, call: Call, out: Array) -> Array:
        return np.where(out == NO_BLOCK, out, out & 0xFF).astype(out.dtype)


@fault("I183", "Both outputs are i64.", "OUT-1", reading="output_type=i64")
class WideOutputs(SparseAttentionIndexer):
    def output_type(self, call: Call) -> np.dtype[Any]:
        return np.dtype(np.int64)


@fault("I184", "Both outputs have the type of key_length.", "OUT-1", reading="output_type=lengths")
class TypeOfLengths(SparseAttentionIndexer):
    def output_type(self, call: Call) -> np.dtype[Any]:
        return call.key_length.dtype


@fault("I185", "The row is no wider than there are keys.", "OUT-1", reading="width=keys")
class WidthOfKeys(SparseAttentionIndexer):
    def K(self, call: Call) -> int:  # noqa: N802
        return min(super().K(call), call.B)


@fault("I186", "The row has one place more, for the open block.", "OUT-1")
class OnePlaceMore(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        indices = out["block_indices"]
        return {**out, "block_indices": np.concatenate([indices, np.full_like(indices[..., :1], NO_BLOCK)], axis=3)}


@fault("I187", "The row has a place for every token of the budget.", "OUT-1", "sgl-project/sglang-jax#1376")
class PlaceForEveryToken(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        indices = out["block_indices"]
        more = np.full((*indices.shape[:3], self.token_budget - indices.shape[3]), NO_BLOCK, dtype=indices.dtype)
        return {**out, "block_indices": np.concatenate([indices, more], axis=3)}


@fault("I188", "Selections stand after the tokens: [N, L, Hs, K].", "OUT-1")
class SelectionsLast(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        return {
            "block_indices": np.ascontiguousarray(out["block_indices"].transpose(0, 2, 1, 3)),
            "block_count": np.ascontiguousarray(out["block_count"].transpose(0, 2, 1)),
        }


@fault("I189", "Tokens and selections are laid out as [N, L, Hs, K] under the shape [N, Hs, L, K].", "OUT-1 SEP-1")
class LayoutMixed(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        indices = out["block_indices"]
        return {**out, "block_indices": np.ascontiguousarray(indices.transpose(0, 2, 1, 3)).reshape(indices.shape)}


class Counted(SparseAttentionIndexer):
    """Counts in its own way."""

    def counts(self, call: Call) -> Array:
        return np.repeat(self.of(call)[:, None], self.Hs, axis=1)

    def of(self, call: Call) -> Array:
        """The count of every token, [N, L]."""
        raise NotImplementedError


@fault("I190", "The count is the number of places, whatever is visible.", "CNT-1 VIS-3", "microsoft/MInference#108")
class CountIsWidth(Counted):
    def of(self, call: Call) -> Array:
        return np.full_like(call.m, self.K(call))


@fault("I191", "The count is the number of visible blocks, whatever the budget.", "CNT-1 SEL-1")
class CountIsVisible(Counted):
    def of(self, call: Call) -> Array:
        return call.v


@fault("I192", "The count is in tokens.", "CNT-1")
class CountInTokens(Counted):
    def of(self, call: Call) -> Array:
        return call.m * self.r


@fault("I193", "The open block is counted.", "CNT-1")
class OpenBlockCounted(Counted):
    def of(self, call: Call) -> Array:
        return np.where((call.p >= 0) & ((call.p + 1) % self.r > 0), call.m + 1, call.m)


@fault("I194", "All tokens of a sequence have the count of the last.", "CNT-1", "microsoft/MInference#108")
class CountOfTheLast(Counted):
    def of(self, call: Call) -> Array:
        return np.broadcast_to(call.m[:, -1:], call.m.shape)


@fault("I195", "The count is given for the first selection alone.", "CNT-1")
class CountOfTheFirstSelection(SparseAttentionIndexer):
    def counts(self, call: Call) -> Array:
        counts = super().counts(call)
        counts[:, 1:] = 0
        return counts


@fault("I196", "A token has the count of the one before it.", "CNT-1", "NVIDIA/TensorRT-LLM#19138")
class CountOfTheTokenBefore(Counted):
    def of(self, call: Call) -> Array:
        return np.concatenate([call.m[:, :1], call.m[:, :-1]], axis=1)


@fault("I197", "The number of blocks is worked out as a share of the budget in f32, one too few where it comes to one.",
       "CNT-1", "tile-ai/tilelang-mlir-ascend#77")  # fmt: skip
class OneBlockIsNone(SparseAttentionIndexer):
    def selected(self, call: Call) -> Array:
        m = super().selected(call)
        return np.where(self.K(call) == 1, 0, m)


@fault("I198", "The count of a sequence is that of the sequence before it.", "CNT-1 SEP-1")
class CountOfTheSequenceBefore(Counted):
    def of(self, call: Call) -> Array:
        return np.roll(call.m, 1, axis=0)
