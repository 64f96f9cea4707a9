"""Faults that show between calls, sessions and threads, at sizes of zero, and in how memory is read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.faults.sparse_attention.planting import Array, Faulty, fault
from reference.sparse_attention.operation import Call

Inputs = Mapping[str, Array]
Outputs = dict[str, Array]


# State


@fault("A140", "The scale of the first call is kept for all later ones.", "PLG-1")
class ScaleKept(Faulty):
    kept: float | None = None

    def scale(self, call: Call) -> float:
        if self.kept is None:
            self.kept = super().scale(call)
        return self.kept


@fault("A141", "The selection of the call before is used where its shape is the same.", "PLG-1",
       "NVIDIA/TensorRT-LLM#19138")  # fmt: skip
class SelectionKept(Faulty):
    kept: tuple[Array, Array] | None = None

    def run(self, inputs: Inputs) -> Outputs:
        now = inputs["block_indices"], inputs["block_count"]
        if self.kept is not None and self.kept[0].shape == now[0].shape and self.kept[0].dtype == now[0].dtype:
            lengths = inputs.get("key_length", np.zeros(1))
            if (lengths == getattr(self, "lengths", None)).all() and not np.array_equal(self.kept[0], now[0]):
                inputs = {**inputs, "block_indices": self.kept[0], "block_count": self.kept[1]}
        else:
            self.kept = now[0].copy(), now[1].copy()
            self.lengths = inputs.get("key_length", np.zeros(1)).copy()
        return super().run(inputs)


@fault("A142", "Plans are kept by the shape of the query alone, with the number of key rows in them.", "PLG-3",
       "tenstorrent/tt-metal#57364")  # fmt: skip
class PlanByQuery(Faulty):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plans: dict[Any, int] = {}

    def run(self, inputs: Inputs) -> Outputs:
        rows = self.plans.setdefault(inputs["query"].shape, inputs["key"].shape[2])
        outputs = super().run(inputs)
        if rows != inputs["key"].shape[2]:
            outputs["attention_output"] = outputs["attention_output"] * np.array(0.5).astype(inputs["query"].dtype)
        return outputs


@fault("A143", "All sessions of a process use the query_block_size and the causality of the latest.", "PLG-3",
       "tenstorrent/tt-metal#57364")  # fmt: skip
class SharedAttributes(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        known = self.process.setdefault("blocks", {})
        mine = self.r
        self.r = known.setdefault(inputs["query"].dtype, mine)
        try:
            return super().run(inputs)
        finally:
            self.r = mine


@fault("A144", "Outputs are views of one buffer that the next call writes into.", "PLG-2")
class OneBuffer(Faulty):
    buffer: Array | None = None

    def run(self, inputs: Inputs) -> Outputs:
        answer = super().run(inputs)["attention_output"]
        if self.buffer is None or self.buffer.shape != answer.shape or self.buffer.dtype != answer.dtype:
            self.buffer = np.empty_like(answer)
        self.buffer[...] = answer
        return {"attention_output": self.buffer}


@fault("A145", "The query is scaled in place.", "PLG-2")
class QueryScaledInPlace(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        outputs = super().run(inputs)
        if inputs["query"].flags.writeable and inputs["query"].size:
            inputs["query"][...] = inputs["query"] * np.array(0.5).astype(inputs["query"].dtype)
        return outputs


@fault("A146", "block_indices are sorted in place.", "PLG-2")
class SortedInPlace(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        outputs = super().run(inputs)
        entries = inputs["block_indices"]
        if entries.flags.writeable and entries.size:
            entries.sort(axis=3)
        return outputs


@fault(
    "A147",
    "The sum over the tokens is in another order in every call.",
    "PLG-1",
    "vllm-project/vllm#55122",
    types="f32",
)
class OrderOfTheCall(Faulty):
    calls = 0

    def run(self, inputs: Inputs) -> Outputs:
        self.calls += 1
        return super().run(inputs)

    def weighted(self, weights: Array, value: Array) -> Array:
        weights, value = weights.astype(np.float32), value.astype(np.float32)
        if self.calls % 2:
            weights, value = weights[:, ::-1], value[:, ::-1]
        total = np.zeros((len(weights), value.shape[2]), dtype=np.float32)
        for j in range(weights.shape[1]):
            total = total + weights[:, j, None] * value[:, j]
        return total.astype(np.float64)


@fault("A148", "Two calls at the same time share one workspace.", "PLG-1")
class SharedWorkspace(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        users = self.process.setdefault("users", set())
        users.add(threading.get_ident())
        try:
            import time

            time.sleep(0.0005 if threading.current_thread() is not threading.main_thread() else 0)
            outputs = super().run(inputs)
            if len(users) > 1:
                outputs["attention_output"] = np.zeros_like(outputs["attention_output"])
            return outputs
        finally:
            users.discard(threading.get_ident())


@fault("A149", "Inputs are read as if they were dense, whatever their strides are.", "PLG-1")
class StridesIgnored(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        key = inputs["key"]
        if not key.flags.c_contiguous and key.size:
            base = key if key.base is None else np.asarray(key.base)
            flat = base.reshape(-1) if base.flags.c_contiguous else key.reshape(-1)
            inputs = {**inputs, "key": np.resize(flat, key.shape).astype(key.dtype)}
        return super().run(inputs)


@fault("A150", "From the hundredth call on the first row is zero.", "PLG-1")
class WornOut(Faulty):
    calls = 0

    def run(self, inputs: Inputs) -> Outputs:
        self.calls += 1
        outputs = super().run(inputs)
        if self.calls > 6:
            outputs["attention_output"][:1, :1, :1] = 0
        return outputs


# Sizes of zero


class NoZeros(Faulty):
    """Does not cope with a dimension of zero."""

    port, axis = "", 0

    def run(self, inputs: Inputs) -> Outputs:
        if inputs[self.port].shape[self.axis] == 0:
            raise ValueError("zero-size array to reduction operation")
        return super().run(inputs)


@fault("A151", "A batch without sequences raises.", "SEP-3")
class NoSequences(NoZeros):
    port, axis = "query", 0


@fault("A152", "A call without query tokens raises.", "SEP-3")
class NoQueries(NoZeros):
    port, axis = "query", 2


@fault("A153", "Without room for entries the call raises.", "SEP-3")
class NoEntries(NoZeros):
    port, axis = "block_indices", 3


@fault("A154", "Without key rows the call raises.", "SEP-3")
class NoKeys(NoZeros):
    port, axis = "key", 2


# Output


@fault("A155", "The output has the width of the keys.", "ATT-1")
class WidthOfKeys(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        outputs = super().run(inputs)["attention_output"]
        E = inputs["query"].shape[3]
        wide = np.zeros((*outputs.shape[:3], E), dtype=outputs.dtype)
        common = min(E, outputs.shape[3])
        wide[..., :common] = outputs[..., :common]
        return {"attention_output": wide}


@fault("A156", "The output is token first: [N, L, H, Ev].", "ATT-1")
class TokensFirst(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        return {"attention_output": np.moveaxis(super().run(inputs)["attention_output"], 2, 1)}


@fault("A157", "The output is f32, whatever T is.", "ATT-1", types="f16 bf16")
class AlwaysF32(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        return {"attention_output": super().run(inputs)["attention_output"].astype(np.float32)}


@fault("A158", "A batch is computed with the queries of the first sequence.", "SEP-2")
class QueriesOfTheFirst(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        query = inputs["query"]
        return super().run({**inputs, "query": np.broadcast_to(query[:1], query.shape) if len(query) else query})


@fault("A159", "Rows of padding spoil the row after them.", "LEN-4 SEP-2")
class PaddingSpills(Faulty):
    def run(self, inputs: Inputs) -> Outputs:
        outputs = super().run(inputs)
        call = Call(**inputs)
        if self.causal:
            for n, length in enumerate(call.lengths.tolist()):
                if 0 < length < call.L:
                    outputs["attention_output"][n, :, call.L - length] = np.nan
        return outputs
