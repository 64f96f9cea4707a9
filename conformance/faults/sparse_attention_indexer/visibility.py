"""Faults in which blocks may be chosen by a token, and in how the others are kept out."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, fault
from reference.sparse_attention_indexer.operation import NO_BLOCK, Call, SparseAttentionIndexer


class Clipped(SparseAttentionIndexer):
    """Sees no more blocks than there are rows of keys."""

    def visible(self, call: Call) -> Array:
        return np.minimum(self.seen(call), call.B)

    def seen(self, call: Call) -> Array:
        return super().visible(call)


@fault("I30", "The open block of a token may be selected.", "VIS-1")
class OpenBlockVisible(Clipped):
    def seen(self, call: Call) -> Array:
        return np.asarray(np.maximum(-(-(call.p + 1) // self.r), 0))


@fault("I31", "A block is visible only after its last token, not to that token itself.", "VIS-2")
class EndsBeforeTheToken(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.asarray(np.maximum(call.p // self.r, 0))


@fault("I32", "Every token sees all complete blocks of its sequence, later ones included.", "VIS-1 SEP-1",
       "NVIDIA/TensorRT-LLM#18585")  # fmt: skip
class NotCausal(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.where(call.p >= 0, self.key_lengths(call)[:, None] // self.r, 0)


@fault("I33", "A tile of eight queries sees what its last one sees.", "VIS-1", "NVIDIA/cudnn-frontend#388")
class LastOfTheTile(SparseAttentionIndexer):
    tile = 8

    def visible(self, call: Call) -> Array:
        v = super().visible(call)
        last = np.minimum(np.arange(call.L) // self.tile * self.tile + self.tile - 1, max(call.L - 1, 0))
        return np.where(call.p >= 0, v[:, last], 0)


@fault("I34", "A tile of four queries sees what its first one sees.", "VIS-1 CNT-1", "NVIDIA/cudnn-frontend#388")
class FirstOfTheTile(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return super().visible(call)[:, np.arange(call.L) // 4 * 4]


@fault("I35", "A tile of sixteen queries that begins in one block and ends in the next sees what its last one sees.",
       "VIS-1", "NVIDIA/cudnn-frontend#388")  # fmt: skip
class LongTile(LastOfTheTile):
    tile = 16


class Forced(SparseAttentionIndexer):
    """Selects one block whatever it scores."""

    def forced(self, call: Call, n: int, rows: slice) -> Array:
        """The block of every row, -1 for none."""
        raise NotImplementedError

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        forced = self.forced(call, n, rows)
        one = np.nonzero(forced >= 0)[0]
        scores = scores.copy()
        scores[:, one, forced[one]] = np.inf
        return super().rank(call, n, rows, scores)


@fault("I36", "The first block is always selected, as an attention sink.", "VIS-2 SEL-2")
class FirstForced(Forced):
    def forced(self, call: Call, n: int, rows: slice) -> Array:
        return np.where(call.v[n, rows] > 0, 0, -1)


@fault("I37", "The last visible block is always selected.", "VIS-2 SEL-2", "ggml-org/llama.cpp#27941")
class LocalForced(Forced):
    def forced(self, call: Call, n: int, rows: slice) -> Array:
        return call.v[n, rows] - 1


@fault("I38", "The block that ends with the token itself is always selected.", "VIS-2 SEL-2")
class OwnForced(Forced):
    def forced(self, call: Call, n: int, rows: slice) -> Array:
        ends = (call.p[n, rows] + 1) % self.r == 0
        return np.where(ends, call.v[n, rows] - 1, -1)


@fault("I39", "The block that ends with the token itself cannot be selected, but is counted.", "VIS-2 SEL-2")
class OwnNeverTaken(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        scores = scores.copy()
        ends = ((call.p[n, rows] + 1) % self.r == 0) & (call.v[n, rows] > 0)
        row = np.nonzero(ends)[0]
        scores[:, row, call.v[n, rows][row] - 1] = -np.inf
        return super().rank(call, n, rows, scores)


@fault("I40", "The first block is never selected while there is another.", "SEL-2 VIS-1")
class FirstNeverTaken(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        scores = scores.copy()
        scores[:, :, :1] = -np.inf
        return super().rank(call, n, rows, scores)


class AllRanked(SparseAttentionIndexer):
    """Scores every row of keys, and keeps the hidden ones out in its own way."""

    def keys(self, call: Call, n: int, rows: slice) -> Array:
        return np.asarray(call.block_index_keys[n].astype(np.float64))

    def hidden(self, call: Call, n: int, rows: slice) -> Array:
        return np.asarray(np.arange(call.B) >= call.v[n, rows][:, None])


@fault("I41", "Hidden blocks take part in the ranking and are removed from it afterwards.", "SEL-1 SEL-2",
       "NVIDIA/TensorRT-LLM#18585 youssofal/MTPLX#380 HKUSTDial/flash-sparse-attention#138")  # fmt: skip
class MaskedAfterRanking(AllRanked):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = np.argsort(np.where(np.isnan(scores), np.inf, -scores), axis=2, kind="stable")
        gone = order >= call.v[n, rows][None, :, None]
        return np.where(gone, NO_BLOCK, order)


@fault("I42", "Scores of hidden blocks are multiplied by zero.", "VIS-4 VIS-1", "sgl-project/sglang#33247")
class MaskedByZero(AllRanked):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        masked = scores * ~self.hidden(call, n, rows)
        return np.argsort(np.where(np.isnan(masked), -np.inf, -masked), axis=2, kind="stable")


@fault("I43", "Hidden blocks score zero, more than any visible one with a negative score.", "VIS-1")
class HiddenScoreZero(AllRanked):
    sentinel = 0.0

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        masked = np.where(self.hidden(call, n, rows), self.sentinel, scores)
        return np.argsort(np.where(np.isnan(masked), np.inf, -masked), axis=2, kind="stable")


@fault("I44", "Hidden blocks score -10000, and visible ones may score less.", "VIS-1", "flashinfer-ai/flashinfer#4401")
class FiniteSentinel(HiddenScoreZero):
    sentinel = -1e4


@fault("I45", "Hidden blocks score the most negative number of f16.", "VIS-1", "flashinfer-ai/flashinfer#4401")
class HalfSentinel(HiddenScoreZero):
    sentinel = -65504.0


@fault("I46", "A hidden key is blended out by adding a mask to its products, so that NaN stays.", "VIS-4")
class MaskAdded(AllRanked):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        masked = scores + np.where(self.hidden(call, n, rows), -np.inf, 0.0)
        return np.argsort(np.where(np.isnan(masked), -np.inf, -masked), axis=2, kind="stable")


@fault("I47", "Blocks are limited by the rows of keys rather than by the length where there are fewer than eight rows.",
       "VIS-1 VIS-4 LEN-1")  # fmt: skip
class LimitedByRows(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        v = super().visible(call)
        return np.where((v > 0) & (call.B < 8) & (np.arange(call.L) == call.L - 1), call.B, v)


@fault("I48", "The number of complete blocks limits the ranks that are read, not the blocks.", "VIS-1 SEL-2",
       "flashinfer-ai/flashinfer#4898")  # fmt: skip
class RanksLimited(AllRanked):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        return np.argsort(np.where(np.isnan(scores), np.inf, -scores), axis=2, kind="stable")


@fault("I49", "Sequence lengths that are a multiple of the block size lose their last block.", "VIS-2 LEN-1")
class LastBlockLost(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.asarray(
            np.minimum(super().visible(call), np.maximum(self.key_lengths(call)[:, None] - 1, 0) // self.r)
        )


@fault("I50", "A block size that is not a power of two is rounded up to one.", "VIS-1 CNT-1",
       "sgl-project/sglang-jax#1376")  # fmt: skip
class BlockSizeRounded(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        return np.asarray(np.maximum((call.p + 1) // (1 << (self.r - 1).bit_length()), 0))


@fault("I51", "Blocks of one token see one block less: no token sees its own.", "VIS-2")
class OneTokenBlocks(SparseAttentionIndexer):
    def visible(self, call: Call) -> Array:
        v = super().visible(call)
        return np.maximum(v - 1, 0) if self.r == 1 else v


@fault("I52", "The token budget, not the position, limits what is seen: only the latest blocks compete.", "VIS-1 SEL-2")
class SlidingWindow(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        outside = np.arange(scores.shape[2]) < (call.v[n, rows] - 4 * self.K(call))[:, None]
        return super().rank(call, n, rows, np.where(outside, -np.inf, scores))
