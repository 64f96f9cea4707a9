"""Faults that show with several sequences, with many tokens or blocks, or with none."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, Inputs, Outputs, fault
from reference.sparse_attention_indexer.operation import Call, SparseAttentionIndexer


class Written(SparseAttentionIndexer):
    """Leaves some rows of the output as another row has them."""

    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        return {name: self.rows(array) for name, array in out.items()}

    def rows(self, array: Array) -> Array:
        """An output [N, Hs, L, ...]."""
        raise NotImplementedError


@fault("I200", "Only the first sequence is computed.", "SEP-1")
class FirstSequenceOnly(Written):
    def rows(self, array: Array) -> Array:
        return array[np.zeros(len(array), dtype=np.int64)]


@fault("I201", "Sequences from the 33rd on are those of the first 32.", "SEP-1", "jundot/omlx#3293")
class ThirtyTwoSequences(Written):
    def rows(self, array: Array) -> Array:
        return array[np.arange(len(array)) % 32]


@fault("I202", "With an odd number of sequences above one the last is that before it.", "SEP-1")
class OddSequence(Written):
    def rows(self, array: Array) -> Array:
        order = np.arange(len(array))
        if len(array) > 1 and len(array) % 2:
            order[-1] -= 1
        return array[order]


@fault("I203", "Tokens beyond the last full sixteen are those of the tile before.", "SEP-1")
class TokensTail(Written):
    tile = 16

    def rows(self, array: Array) -> Array:
        L = array.shape[2]
        order = np.arange(L)
        if self.tile < L:
            full = L // self.tile * self.tile
            order[full:] = order[full:] - self.tile
        return array[:, :, order]


@fault("I204", "Tokens beyond the last full 128 are those of the tile before.", "SEP-1")
class TokensLongTail(TokensTail):
    tile = 128


@fault("I205", "Tokens beyond the 1,024th are those of 1,024 before.", "SEP-1")
class ThousandTokens(Written):
    def rows(self, array: Array) -> Array:
        return array[:, :, np.arange(array.shape[2]) % 1024]


@fault("I206", "The last selection of more than two is that before it.", "SCO-4 SEP-1")
class ThirdSelectionLost(Written):
    def rows(self, array: Array) -> Array:
        order = np.arange(array.shape[1])
        if array.shape[1] > 2:
            order[-1] -= 1
        return array[:, order]


@fault("I207", "A call without tokens fails.", "SEP-3")
class NoTokens(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        if not inputs["index_query"].shape[2]:
            raise ValueError("zero-size array")
        return super().run(inputs)


@fault("I208", "A call without sequences fails.", "SEP-3")
class NoSequences(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        if not inputs["index_query"].shape[0]:
            raise ValueError("zero-size array")
        return super().run(inputs)


@fault("I209", "A call without keys fails.", "SEP-3", "lucidrains/native-sparse-attention-pytorch#18")
class NoKeys(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        if not inputs["block_index_keys"].shape[1]:
            raise ValueError("zero-size array")
        return super().run(inputs)


@fault("I210", "Fewer keys than the budget holds fail.", "SEL-1 OUT-1", "lucidrains/native-sparse-attention-pytorch#18")
class FewKeys(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        if 0 < inputs["block_index_keys"].shape[1] < self.token_budget // self.r:
            raise ValueError("selected index k out of range")
        return super().run(inputs)


@fault("I211", "A sequence of padding alone fails.", "VIS-3 SEP-3", "NVIDIA/cudnn-frontend#676")
class PaddingAlone(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        if inputs["index_query"].size and (inputs["key_length"] == 0).any():
            raise ValueError("empty sequence")
        return super().run(inputs)


@fault("I212", "A key with NaN makes every row of its sequence select the first blocks.", "SEP-2 SEP-1",
       "vllm-project/vllm#48364")  # fmt: skip
class NanSpreads(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        scores = super().scores(call, n, rows)
        keys = call.block_index_keys[n, : int(call.v[n].max(initial=0))].astype(np.float64)
        return np.zeros_like(scores) if np.isnan(keys).any() else scores


@fault("I213", "A query with NaN makes every token of its sequence select the first blocks.", "SEP-2 SEP-1")
class NanQuerySpreads(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        scores = super().scores(call, n, rows)
        seen = call.index_query[n][:, call.v[n] > 0].astype(np.float64)
        return np.zeros_like(scores) if np.isnan(seen).any() else scores


@fault("I214", "Where a row sees NaN its count is zero.", "SEP-2 CNT-1", "vllm-project/vllm#49896")
class NanCountsNothing(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        call = self.call(inputs)
        for n, rows in self.chunks(call):
            scores = self.scores(call, n, rows)
            hidden = np.arange(scores.shape[2]) >= call.v[n, rows][:, None]
            lost = (np.isnan(scores) & ~hidden).any(axis=2)
            out["block_count"][n, :, rows] = np.where(lost, 0, out["block_count"][n, :, rows])
        return out


@fault("I215", "Weights of rows of padding are read: NaN there spreads over the call.", "VIS-4 SEP-1",
       "openvinotoolkit/openvino#33814")  # fmt: skip
class NanWeightSpreads(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        scores = super().scores(call, n, rows)
        weights = call.index_weights
        if weights is not None and np.isnan(weights[n].astype(np.float64)).any():
            return np.zeros_like(scores)
        return scores


@fault("I216", "A block's score is compared with those of the same row of the sequence before.", "SEP-1")
class MixedSequences(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        scores = super().scores(call, n, rows)
        if n == 0:
            return scores
        other = super().scores(call, n - 1, rows)
        shared = min(other.shape[2], scores.shape[2], 1)
        scores[:, :, :shared] = other[:, :, :shared]
        return scores
