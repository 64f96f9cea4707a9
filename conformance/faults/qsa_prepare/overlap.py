"""Faults that show only while several requests run at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, Faulty, fault
from reference.qsa_prepare.operation import Call

Outputs = dict[str, Array]

OVERLAP = 1e-3  # seconds in which two calls at the same time meet


class Overlapping(Faulty):
    """Counts the requests that are under way in the process."""

    @contextmanager
    def under_way(self) -> Iterator[int]:
        """The number of this request among those under way, from 0; waits for others where there are threads."""
        lock = self.process.setdefault("lock", threading.Lock())
        busy: set[int] = self.process.setdefault("busy", set())
        with lock:
            number = next(i for i in range(len(busy) + 1) if i not in busy)
            busy.add(number)
        try:
            if threading.active_count() > 1:
                time.sleep(OVERLAP)
            yield number
        finally:
            with lock:
                busy.discard(number)

    def meet(self) -> None:
        """Time for other requests to go on."""
        if threading.active_count() > 1:
            time.sleep(OVERLAP)


class SharedScratch(Overlapping):
    """Gathers the keys in memory that requests with the same `slot` share."""

    def members(self, call: Call, n: Array, b: Array) -> Array:
        own = super().members(call, n, b)
        scratch: dict[Hashable, Array] = self.process.setdefault("scratch", {})
        with self.under_way() as number:
            key = self.slot(number, own)
            scratch[key] = own
            self.meet()
            found = scratch[key]
        if found is own:
            return own
        rows = min(len(own), len(found))
        if found.shape[1:] == own.shape[1:]:
            own = own.copy()
            own[:rows] = found[:rows]
        return own

    def slot(self, number: int, own: Array) -> Hashable:
        raise NotImplementedError


@fault("F330", "There is scratch memory for two requests; a third one shares that of the first.", "PLG-1",
       "sgl-project/sglang#35494")  # fmt: skip
class ScratchForTwo(SharedScratch):
    def slot(self, number: int, own: Array) -> Hashable:
        return number % 2


@fault("F330f", "There is scratch memory for four requests; a fifth one shares that of the first.", "PLG-1",
       "sgl-project/sglang#35494")  # fmt: skip
class ScratchForFour(SharedScratch):
    def slot(self, number: int, own: Array) -> Hashable:
        return number % 4


@fault("F331", "Instances of one block size and epsilon share their scratch memory.", "PLG-1",
       "ggml-org/ggml#1519")  # fmt: skip
class ScratchByConfiguration(SharedScratch):
    def slot(self, number: int, own: Array) -> Hashable:
        return self.r, self.epsilon


@fault("F332", "The block size is kept in a global while a request runs.", "PLG-1 PLG-3",
       "hw-native-sys/pypto-lib#641")  # fmt: skip
class GlobalBlockSize(Overlapping):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        with self.under_way():
            self.process["r"] = self.r
            self.meet()
            if self.process["r"] != self.r:
                raise IndexError(f"index {self.process['r']} is out of bounds for axis 1 with size {self.r}")
            return super().run(inputs)


@fault("F332e", "Epsilon is kept in a global while a request runs.", "PLG-1 PLG-3", "openvinotoolkit/openvino#22806")
class GlobalEpsilon(Overlapping):
    def root(self, square: Array) -> Array:
        with self.under_way():
            self.process["epsilon"] = self.epsilon
            self.meet()
            return np.asarray(np.sqrt(square + self.process["epsilon"]))


@fault("F333", "A request that finds four others under way is turned away.", "PLG-5", "sgl-project/sglang#35848")
class FourAtATime(Overlapping):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        with self.under_way() as number:
            self.meet()
            if number >= 4:
                raise RuntimeError("all infer requests are busy")
            return super().run(inputs)


@fault("F333w", "The weight of one request is used by all that run at the same time.", "PLG-1",
       "sgl-project/sglang#35494")  # fmt: skip
class GlobalWeight(Overlapping):
    def weight(self, call: Call) -> Array:
        mine = super().weight(call)
        with self.under_way():
            self.process[f"weight {call.Di}"] = mine
            self.meet()
            shared: Array = self.process[f"weight {call.Di}"]
        return shared
