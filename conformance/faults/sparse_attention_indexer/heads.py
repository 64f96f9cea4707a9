"""Faults in how heads are grouped, weighted and summed."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, fault
from reference.sparse_attention_indexer.operation import Call, SparseAttentionIndexer


@fault("I60", "A selection takes every Hs-th head instead of consecutive ones.", "SCO-4",
       "HazyResearch/HipKittens#22 PSAL-POSTECH/ONNXim#33 ekzhang/jax-js#180")  # fmt: skip
class HeadsInterleaved(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        return np.asarray(weighted.reshape(Hi // self.Hs, self.Hs, rows, V).sum(axis=0))


@fault("I61", "Every selection uses all heads.", "SCO-4 SEP-1", "huggingface/transformers#46762")
class AllHeads(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        return np.repeat(weighted.sum(axis=0, keepdims=True), self.Hs, axis=0)


@fault("I62", "The selections of all heads are collapsed into one by their maximum.", "SCO-4 SEP-1",
       "huggingface/transformers#46762")  # fmt: skip
class Collapsed(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        return np.repeat(super().sum_heads(weighted).max(axis=0, keepdims=True), self.Hs, axis=0)


@fault("I63", "A selection uses the first head of its group alone.", "SCO-1 SCO-4")
class FirstHeadOnly(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        return weighted.reshape(self.Hs, Hi // self.Hs, rows, V)[:, 0]


@fault("I64", "The largest head counts instead of the sum over the heads.", "SCO-1", "huggingface/transformers#46762")
class MaximumOverHeads(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        return np.asarray(weighted.reshape(self.Hs, Hi // self.Hs, rows, V).max(axis=1))


@fault("I65", "The last head of a group of an odd number of heads is left out.", "SCO-1 SCO-4",
       "fla-org/flash-linear-attention#1029")  # fmt: skip
class OddHeadLost(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        G = Hi // self.Hs
        kept = G - G % 2 if G > 1 else G
        return np.asarray(weighted.reshape(self.Hs, G, rows, V)[:, :kept].sum(axis=1))


@fault("I66", "Heads beyond the eighth of a group are left out.", "SCO-1 SCO-4")
class EightHeads(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        return np.asarray(weighted.reshape(self.Hs, Hi // self.Hs, rows, V)[:, :8].sum(axis=1))


@fault("I67", "The groups of heads are taken in reverse order.", "SCO-4")
class GroupsReversed(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        return super().sum_heads(weighted)[::-1]


@fault("I68", "Scores of one selection are added to those of the next.", "SCO-4 SEP-1")
class ScoresCarriedOver(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        return np.cumsum(super().sum_heads(weighted), axis=0)


@fault("I70", "Weights are ignored.", "SCO-1 SCO-3")
class NoWeights(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        return None


@fault("I71", "Negative weights count as zero.", "SCO-3")
class NegativeWeightsAreZero(SparseAttentionIndexer):
    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        return rectified if weights is None else rectified * np.maximum(weights, 0)


@fault("I72", "Weights count by their size.", "SCO-3")
class AbsoluteWeights(SparseAttentionIndexer):
    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        return rectified if weights is None else rectified * np.abs(weights)


@fault("I73", "Weights go through a softmax over the heads.", "SCO-1 SCO-3")
class SoftmaxWeights(SparseAttentionIndexer):
    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        if weights is None:
            return rectified
        power = np.exp(weights - weights.max(axis=0, keepdims=True))
        return np.asarray(rectified * (power / power.sum(axis=0, keepdims=True)))


@fault("I74", "The weights of a call's first token are used for all of its tokens.", "SCO-1 SEP-1")
class WeightsOfTheFirstToken(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        if call.index_weights is None:
            return None
        first = call.index_weights[n, :1].astype(np.float64)
        return np.repeat(first, len(call.p[n, rows]), axis=0).T[:, :, None]


@fault("I75", "Weights are laid out as [N, Hi, L] where they are [N, L, Hi].", "SCO-1")
class WeightsTransposed(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        if call.index_weights is None:
            return None
        return np.asarray(call.index_weights[n].reshape(call.Hi, call.L)[:, rows].astype(np.float64)[:, :, None])


@fault("I76", "Weights that are left out count as zero: every block ties.", "SCO-2")
class MissingWeightsAreZero(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        found = super().weights(call, n, rows)
        return np.zeros((call.Hi, 1, 1)) if found is None else found


@fault("I77", "Weights that are left out fall off from head to head.", "SCO-2")
class MissingWeightsDecay(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        found = super().weights(call, n, rows)
        return 1 / np.arange(1, call.Hi + 1)[:, None, None] if found is None else found


@fault("I78", "The weights of the first sequence are used for all.", "SEP-1 SCO-1")
class WeightsOfTheFirstSequence(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        return super().weights(call, 0, rows)


@fault("I79", "A head's weight is that of its place in the group, for every selection the same.", "SCO-1 SCO-4")
class WeightsOfTheFirstGroup(SparseAttentionIndexer):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        found = super().weights(call, n, rows)
        return None if found is None else found[np.arange(call.Hi) % (call.Hi // self.Hs)]


@fault("I80", "Weights count squared.", "SCO-1")
class WeightsTwice(SparseAttentionIndexer):
    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        return rectified if weights is None else rectified * weights * np.abs(weights)


@fault("I81", "A weight of zero counts as one, as one that is missing.", "SCO-3 SCO-2")
class ZeroWeightIsOne(SparseAttentionIndexer):
    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        return rectified if weights is None else rectified * np.where(weights == 0, 1.0, weights)
