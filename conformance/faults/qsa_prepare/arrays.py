"""Faults in the caller's own arrays: strides, inputs that are modified, outputs that are reused."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import QSAPrepare

Outputs = dict[str, Array]


@fault(
    "F81",
    "Strides of the raw keys are ignored: they are read as if they were dense.",
    "PLG-1",
    "openvinotoolkit/openvino#37961 openvinotoolkit/openvino#38246 openvinotoolkit/openvino#9334 "
    "ggml-org/llama.cpp#12960 ggml-org/llama.cpp#13031 ggml-org/llama.cpp#19296 vllm-project/vllm#54359",
)
class StridesIgnored(QSAPrepare):
    port = "raw_index_keys"

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        array = inputs[self.port]
        steps = np.zeros(array.shape, dtype=array.dtype).strides
        dense = np.lib.stride_tricks.as_strided(array, array.shape, steps, writeable=False)
        return super().run({**inputs, self.port: dense})


@fault("F81p", "Strides of past_block_index_keys are ignored.", "PLG-1", "vllm-project/vllm#54359")
class PastStridesIgnored(StridesIgnored):
    port = "past_block_index_keys"


@fault(
    "F86",
    "The raw keys are normalized in place.",
    "PLG-2",
    "invergent-ai/surogate#126 openvinotoolkit/openvino#37165 openvinotoolkit/openvino#37103",
)
class KeysModified(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        keys = inputs["raw_index_keys"]
        keys[:] = np.where(np.isfinite(keys), keys / np.asarray(2, keys.dtype), keys)
        return out


@fault("F86s", "The state is updated in the array that came in.", "PLG-2", "microsoft/onnxruntime#31150")
class StateModified(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        state = inputs["past_incomplete_raw_keys"]
        state[:] = out["present_incomplete_raw_keys"]
        return {**out, "present_incomplete_raw_keys": state}


@fault("F86n", "Elements that do not matter are set to zero in the array that came in.", "PLG-2")
class CleanedInPlace(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        call = self.call(inputs)
        beyond = np.arange(call.past_block_index_keys.shape[1])[None, :] >= call.lengths.c[:, None]
        inputs["past_block_index_keys"][beyond] = 0
        unused = np.arange(self.r - 1)[None, :] >= call.lengths.q[:, None]
        inputs["past_incomplete_raw_keys"][unused] = 0
        return super().run(inputs)


@fault("F86c", "cos and sin are negated and back, which turns 0 into -0, in the arrays that came in.", "PLG-2")
class TableModified(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        sin = inputs["rope_sin"]
        sin[:] = -sin
        return out


@fault("F88", "Outputs lie in memory that the next call of the same shape writes to.", "PLG-2",
       "ggml-org/ggml#1519 ikawrakow/ik_llama.cpp#916")  # fmt: skip
class OutputsReused(QSAPrepare):
    def __init__(self, key_block_size: int, epsilon: float = 1e-6) -> None:
        super().__init__(key_block_size, epsilon)
        self.memory: dict[tuple[str, tuple[int, ...]], Array] = {}

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = {}
        for name, array in super().run(inputs).items():
            out[name] = self.memory.setdefault((name, array.shape), array)
            out[name][:] = array
        return out


@fault("F88s", "The state lies in memory that the next call of the same shape writes to.", "PLG-2 STA-4",
       "ikawrakow/ik_llama.cpp#916")  # fmt: skip
class StateReused(OutputsReused):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = QSAPrepare.run(self, inputs)
        for name in ("present_incomplete_raw_keys", "present_incomplete_rope"):
            array = out[name]
            out[name] = self.memory.setdefault((name, array.shape), array)
            out[name][:] = array
        return out


@fault(
    "F87",
    "The bits of bf16 inputs are read as f16.",
    "NUM-2 AVG-1",
    "ROCm/rocm-libraries#4455 keras-team/keras#22567 openvinotoolkit/openvino#35284 openvinotoolkit/openvino#23263",
    types="bf16",
)
class BrainFloatAsHalf(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x.view(np.float16) if x.dtype == ml_dtypes.bfloat16 else x)
