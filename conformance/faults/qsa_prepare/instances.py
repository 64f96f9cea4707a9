"""Faults that show between instances, between requests at the same time, or when a call is repeated."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, Faulty, fault
from reference.qsa_prepare.operation import Call, QSAPrepare

Outputs = dict[str, Array]

OVERLAP = 1e-3  # seconds in which two calls at the same time meet


@fault("F83", "All instances of a process use the epsilon of the first.", "PLG-3", "openvinotoolkit/openvino#22806")
class EpsilonOfFirstInstance(Faulty):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        self.epsilon = self.process.setdefault("epsilon", self.epsilon)
        return super().run(inputs)


@fault("F83l", "All instances of a process use the epsilon of the one that was called last before.", "PLG-3",
       "openvinotoolkit/openvino#22806")  # fmt: skip
class EpsilonOfLastInstance(Faulty):
    def root(self, square: Array) -> Array:
        result = np.sqrt(square + self.process.get("epsilon", self.epsilon))
        self.process["epsilon"] = self.epsilon
        return np.asarray(result)


@fault("F83r", "All instances of a process use the block size of the first.", "PLG-3", "hw-native-sys/pypto-lib#641")
class BlockSizeOfFirstInstance(Faulty):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        self.r = self.process.setdefault("r", self.r)
        return super().run(inputs)


@fault("F83s", "Scratch memory is shared by all instances of a process, and a call leaves sums in it.", "PLG-3 PLG-1",
       "sgl-project/sglang#35494")  # fmt: skip
class SharedSums(Faulty):
    def mean(self, x: Array) -> Array:
        key = f"{x.shape[0]}, {x.shape[2]}"
        left = self.process.get(key)
        own = super().mean(x)
        self.process[key] = own
        return own if left is None else (own + left) / 2


@fault(
    "F85",
    "Blocks are handed out by a counter that requests at the same time share.",
    "PLG-1",
    "Luce-Org/lucebox#739 ml-explore/mlx-lm#1719 tile-ai/tilelang#2699 sgl-project/sglang#35494",
)
class SharedCounter(Faulty):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        self.process["running"] = self.process.get("running", 0) + 1
        time.sleep(OVERLAP)
        if self.process["running"] > 1:
            out[1::2] = 0  # what the other request took
        time.sleep(OVERLAP)
        self.process["running"] -= 1
        return out


@fault("F85s", "Requests at the same time share the memory in which the keys are gathered.", "PLG-1",
       "sgl-project/sglang#35494 ggml-org/ggml#1519")  # fmt: skip
class SharedGather(Faulty):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        self.process[str(x.shape)] = x
        time.sleep(OVERLAP)
        shared: Array = self.process[str(x.shape)]
        return shared.copy()


@fault("F85n", "Results change in the last bit from one call to the next.", "PLG-1", "ggml-org/ggml#1519")
class LastBitAlternates(QSAPrepare):
    calls = 0

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        self.calls += 1
        new = self.new_blocks(self.call(inputs))
        keys = out["block_index_keys"]
        bits = keys[new].view(np.dtype(f"u{keys.dtype.itemsize}"))
        keys[new] = (bits ^ (self.calls & 1)).astype(bits.dtype).view(keys.dtype)
        return out


@fault("F85t", "The order of the sums, and so the last bit, depends on how many calls there were.", "PLG-1",
       "Blaizzy/mlx-vlm#2126")  # fmt: skip
class OrderAlternates(QSAPrepare):
    calls = 0

    def mean(self, x: Array) -> Array:
        self.calls += 1
        total = x[:, 0].astype(np.float32) if self.calls % 2 else x[:, -1].astype(np.float32)
        rest = x[:, 1:] if self.calls % 2 else x[:, -2::-1]
        with np.errstate(all="ignore"):
            for j in range(rest.shape[1]):
                total = total + rest[:, j].astype(np.float32)
        return total.astype(np.float64) / self.r
