"""Faults that show only from call to call, between instances, between requests, or in the caller's own arrays."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, Faulty, Inputs, Outputs, fault
from reference.sparse_attention_indexer.operation import Call, SparseAttentionIndexer

OVERLAP = 1e-3  # seconds in which two calls at the same time meet


@fault("I220", "Lengths are read again only when the shapes change.", "PLG-3 PLG-1", "NVIDIA/TensorRT-LLM#18276")
class LengthsOfFirstCall(SparseAttentionIndexer):
    kept: tuple[object, Array] | None = None

    def key_lengths(self, call: Call) -> Array:
        shapes = call.index_query.shape, call.block_index_keys.shape
        if self.kept is None or self.kept[0] != shapes:
            self.kept = shapes, super().key_lengths(call).copy()
        return self.kept[1]


@fault("I221", "Keys are converted once and looked up by the array they came in.", "PLG-1 PLG-3")
class KeysByObject(SparseAttentionIndexer):
    kept: tuple[Any, Array] | None = None

    def run(self, inputs: Inputs) -> Outputs:
        keys = inputs["block_index_keys"]
        if self.kept is None or self.kept[0] != keys.shape:
            self.kept = keys.shape, keys.copy()
        return super().run({**inputs, "block_index_keys": self.kept[1]})


@fault("I222", "Scores of an earlier, longer context stay in the buffer and take part.", "PLG-3 VIS-1",
       "openvinotoolkit/openvino#33814")  # fmt: skip
class BufferNotCleared(SparseAttentionIndexer):
    buffer: Array | None = None

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        V = scores.shape[2]
        best = scores.max(initial=0)
        if self.buffer is not None and self.buffer.shape[2] > V and V:
            scores = scores.copy()
            scores[:, :, V - 1] = self.buffer.max()
        if self.buffer is None or self.buffer.shape[2] <= V:
            self.buffer = np.full_like(scores, best) if V else None
        return super().rank(call, n, rows, scores)


@fault("I223", "The outputs of every call are the same arrays, where the shape allows it.", "PLG-2",
       "microsoft/onnxruntime#23315")  # fmt: skip
class OutputsReused(SparseAttentionIndexer):
    kept: Outputs | None = None

    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        if self.kept is None or any(self.kept[name].shape != array.shape for name, array in out.items()):
            self.kept = out
        else:
            for name, array in out.items():
                self.kept[name][...] = array
        return dict(self.kept)


@fault("I224", "Hidden keys are cleared in the caller's array.", "PLG-2")
class KeysCleared(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        keys = inputs["block_index_keys"]
        if keys.flags.writeable:
            for n, S in enumerate(self.key_lengths(self.call(inputs))):
                keys[n, S // self.r :] = 0
        return out


@fault("I225", "Queries are rectified in place, in the caller's array.", "PLG-2")
class QueriesOverwritten(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        if inputs["index_query"].flags.writeable:
            np.nan_to_num(inputs["index_query"], copy=False)
        return out


@fault("I226", "An instance keeps the budget of the first one of the process.", "PLG-3 OUT-1",
       "tenstorrent/tt-metal#51223 tenstorrent/tt-metal#57364")  # fmt: skip
class BudgetOfTheFirst(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        self.token_budget = self.process.setdefault(f"budget of {self.r}", self.token_budget)
        return super().run(inputs)


@fault("I227", "Plans are kept by block size and budget, without the number of selections.", "PLG-3 SCO-4",
       "tenstorrent/tt-metal#51223 tenstorrent/tt-metal#57364")  # fmt: skip
class SelectionsOfTheFirst(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        first = self.process.setdefault(f"selections of {self.r}, {self.token_budget}", self.Hs)
        if inputs["index_query"].shape[1] % first == 0:
            self.Hs = first
        return super().run(inputs)


@fault("I228", "Two requests at the same time share the scores' buffer.", "PLG-1", "ROCm/aiter#4415")
class SharedScores(Faulty):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        self.process["scores"] = super().scores(call, n, rows)
        if self.process.get("busy", 0) or call.L > 1:
            self.process["busy"] = self.process.get("busy", 0) + 1
            time.sleep(OVERLAP)
            self.process["busy"] -= 1
        shared: Array = self.process["scores"]
        return shared


@fault("I229", "Of equal scores another is taken at every call.", "PLG-1 TIE-1",
       "vllm-project/vllm#55122 jundot/omlx#2243")  # fmt: skip
class TiesChange(SparseAttentionIndexer):
    calls = 0

    def run(self, inputs: Inputs) -> Outputs:
        self.calls += 1
        return super().run(inputs)

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        if self.calls % 2:
            return order
        ranked = np.take_along_axis(scores, order, axis=2)
        seen = np.take_along_axis(
            np.broadcast_to(np.arange(scores.shape[2]) < call.v[n, rows][:, None], scores.shape), order, axis=2
        )
        swap = np.zeros(order.shape, dtype=bool)
        swap[:, :, 1:] = (ranked[:, :, 1:] == ranked[:, :, :-1]) & seen[:, :, 1:]
        out = order.copy()
        for g, row, k in zip(*np.nonzero(swap), strict=True):
            out[g, row, [k - 1, k]] = out[g, row, [k, k - 1]]
        return out


@fault("I230", "Strides are ignored: an input is read as if it were dense.", "PLG-1")
class StridesIgnored(SparseAttentionIndexer):
    def run(self, inputs: Inputs) -> Outputs:
        def dense(array: Array) -> Array:
            base = array.base
            if array.flags.c_contiguous or not isinstance(base, np.ndarray) or base.dtype != array.dtype:
                return array
            flat = base.reshape(-1) if base.flags.c_contiguous else np.ascontiguousarray(base).reshape(-1)
            return flat[: array.size].reshape(array.shape) if flat.size >= array.size else array

        return super().run({**inputs, "block_index_keys": dense(inputs["block_index_keys"])})


@fault("I231", "A call with fewer sequences than the largest before still works on all of them, and fails.", "PLG-3",
       "jundot/omlx#3264")  # fmt: skip
class BatchNeverShrinks(SparseAttentionIndexer):
    most = 0

    def run(self, inputs: Inputs) -> Outputs:
        N = inputs["index_query"].shape[0]
        if self.most > N > 1:
            raise ValueError(f"could not broadcast {N} sequences to {self.most}")
        self.most = max(self.most, N)
        return super().run(inputs)


@fault("I232", "Weights are expected in every call once they came in one of the process.", "PLG-3 SCO-2")
class WeightsRemembered(Faulty):
    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        found = super().weights(call, n, rows)
        if found is not None:
            self.process["weight"] = found[:, :1]
            return found
        kept = self.process.get("weight")
        return kept if kept is not None and len(kept) == call.Hi else None
