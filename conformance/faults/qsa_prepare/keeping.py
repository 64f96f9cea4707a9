"""Faults of what is kept between calls: by object, by address, by a part of the content, in buffers that come round."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, Faulty, fault
from reference.qsa_prepare.operation import Call, QSAPrepare

Outputs = dict[str, Array]


class Keeping(QSAPrepare):
    """Ports of which a copy is kept under a key; the copy is used when the key comes again."""

    ports: tuple[str, ...] = ("k_norm_weight",)

    def __init__(self, key_block_size: int, epsilon: float = 1e-6) -> None:
        super().__init__(key_block_size, epsilon)
        self.kept: dict[Hashable, tuple[Array, Array]] = {}

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        return super().run({**inputs, **{name: self.known(name, inputs[name]) for name in self.ports}})

    def known(self, name: str, array: Array) -> Array:
        key = name, array.dtype, array.shape, self.key(array)
        if key not in self.kept:
            self.kept[key] = self.held(array), array.copy()
        return self.kept[key][1]

    def key(self, array: Array) -> Hashable:
        return id(array)

    def held(self, array: Array) -> Array:
        """The array itself, so that no other one gets its identity."""
        return array


@fault("F320", "The weight is converted once for every array object.", "PLG-1", "openvinotoolkit/openvino#22549")
class WeightByObject(Keeping):
    pass


@fault("F320t", "cos and sin are converted once for every array object.", "PLG-1", "jundot/omlx#3294")
class TableByObject(Keeping):
    ports = ("rope_cos", "rope_sin")


@fault("F320l", "Lengths are read once for every array object.", "PLG-1", "NVIDIA/TensorRT-LLM#18276")
class LengthsByObject(Keeping):
    ports = ("key_length",)


@fault("F320k", "Raw keys are converted once for every array object.", "PLG-1", "openvinotoolkit/openvino#19743")
class KeysByObject(Keeping):
    ports = ("raw_index_keys",)


@fault("F320s", "The carried state is converted once for every array object.", "PLG-1", "intel/onnxruntime#958")
class StateByObject(Keeping):
    ports = ("past_incomplete_raw_keys", "past_incomplete_rope")


@fault("F320p", "Past block keys are converted once for every array object.", "PLG-1", "intel/onnxruntime#958")
class PastByObject(Keeping):
    ports = ("past_block_index_keys",)


@fault("F321", "The weight is converted once for every address, size and type.", "PLG-1",
       "openvinotoolkit/openvino#22806")  # fmt: skip
class WeightByAddress(Keeping):
    def key(self, array: Array) -> Hashable:
        return int(array.__array_interface__["data"][0])

    def held(self, array: Array) -> Array:
        return array[:0].copy()


@fault("F322", "The weight is converted again when its size, its first or its last element changes.", "PLG-1 PLG-3",
       "openvinotoolkit/openvino#22549")  # fmt: skip
class WeightByEnds(Keeping):
    def key(self, array: Array) -> Hashable:
        return array[:1].tobytes() + array[-1:].tobytes()


@fault("F322t", "cos and sin are converted again when their shape, their first or their last element changes.",
       "PLG-1 PLG-3", "jundot/omlx#3294")  # fmt: skip
class TableByEnds(Keeping):
    ports = ("rope_cos", "rope_sin")

    def key(self, array: Array) -> Hashable:
        flat = array.reshape(-1)
        return flat[:1].tobytes() + flat[-1:].tobytes()


@fault("F323", "The weight is known by a digest of its first four elements.", "PLG-1 PLG-3")
class WeightByPrefix(Keeping):
    def key(self, array: Array) -> Hashable:
        return array[:4].tobytes()


@fault("F323t", "A sum over the weight tells whether it has changed.", "PLG-1 PLG-3")
class WeightBySum(Keeping):
    def key(self, array: Array) -> Hashable:
        return float(np.sort(array.astype(np.float64)).sum())


@fault("F324", "Past block keys are read again when their shape or their last row changes.", "PLG-1 OUT-1",
       "ggml-org/llama.cpp#27941")  # fmt: skip
class PastByLastRow(Keeping):
    ports = ("past_block_index_keys",)

    def key(self, array: Array) -> Hashable:
        return array[:, -1:].tobytes()


# Between instances of a process


class SharedPlan(Faulty):
    """A plan that all instances of a process take which agree in `key`."""

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        plans: dict[Hashable, Any] = self.process.setdefault("plans", {})
        self.follow(plans.setdefault(self.plan_key(inputs), self.plan(inputs)))
        return super().run(inputs)

    def plan_key(self, inputs: Mapping[str, Array]) -> Hashable:
        return inputs["raw_index_keys"].dtype, inputs["raw_index_keys"].shape[2]

    def plan(self, inputs: Mapping[str, Array]) -> Any:
        return self.epsilon

    def follow(self, plan: Any) -> None:
        self.epsilon = plan


@fault("F325", "Plans are shared by instances of one type, width and block size, whatever their epsilon.", "PLG-3",
       "openvinotoolkit/openvino#22806")  # fmt: skip
class PlanWithoutEpsilon(SharedPlan):
    def plan_key(self, inputs: Mapping[str, Array]) -> Hashable:
        return self.r, *super().plan_key(inputs)  # type: ignore[misc]


@fault("F325r", "Plans are shared by instances of one type, width and epsilon, whatever their block size.", "PLG-3",
       "hw-native-sys/pypto-lib#641")  # fmt: skip
class PlanWithoutBlockSize(SharedPlan):
    def plan_key(self, inputs: Mapping[str, Array]) -> Hashable:
        return self.epsilon, *super().plan_key(inputs)  # type: ignore[misc]

    def plan(self, inputs: Mapping[str, Array]) -> Any:
        return self.r

    def follow(self, plan: Any) -> None:
        self.r = plan


@fault("F325w", "A weight is converted once for a process: other instances of one width get it, too.", "PLG-3 PLG-1",
       "openvinotoolkit/openvino#22549")  # fmt: skip
class WeightOfProcess(Faulty):
    def weight(self, call: Call) -> Array:
        mine = super().weight(call)
        owner, kept = self.process.setdefault(f"weight {call.Di}", (id(self), mine))
        return mine if owner == id(self) else kept


# Outputs


@fault("F326", "Outputs lie in a ring of 64 buffers of every shape, which the 65th call writes over.", "PLG-2",
       "ggml-org/ggml#1519 ikawrakow/ik_llama.cpp#916")  # fmt: skip
class RingOfOutputs(Faulty):
    size = 64

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        return {name: self.placed(name, array) for name, array in super().run(inputs).items()}

    def ring(self, name: str, array: Array) -> list[Array]:
        rings: dict[Hashable, list[Array]] = self.__dict__.setdefault("rings", {})
        return rings.setdefault((name, array.shape, array.dtype), [])

    def placed(self, name: str, array: Array) -> Array:
        ring = self.ring(name, array)
        ring.append(ring.pop(0) if len(ring) == self.size else np.empty_like(array))
        ring[-1][...] = array
        return ring[-1]


@fault("F326p", "A ring of 100 buffers of every shape is shared by all instances of a process.", "PLG-2 PLG-3",
       "sgl-project/sglang#35494")  # fmt: skip
class RingOfProcess(RingOfOutputs):
    size = 100

    def ring(self, name: str, array: Array) -> list[Array]:
        found: list[Array] = self.process.setdefault(f"{name} {array.shape} {array.dtype}", [])
        return found


@fault("F326s", "The raw state lies in a ring of eight buffers.", "PLG-2 STA-4", "ikawrakow/ik_llama.cpp#916")
class RingOfStates(RingOfOutputs):
    size = 8

    def placed(self, name: str, array: Array) -> Array:
        return super().placed(name, array) if name == "present_incomplete_raw_keys" else array


@fault("F327", "Past block keys are returned as they came, not copied, when no block is completed.", "PLG-2",
       "openvinotoolkit/openvino#21952")  # fmt: skip
class PastHandedBack(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        past, rows = inputs["past_block_index_keys"], out["block_index_keys"].shape[1]
        if not len(self.new_blocks(self.call(inputs))[0]) and past.shape[1] >= rows:
            out["block_index_keys"] = past[:, :rows]
        return out


@fault("F327s", "A call without tokens returns the state that came in, not a copy.", "PLG-2",
       "openvinotoolkit/openvino#6193")  # fmt: skip
class StateHandedBack(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        if not inputs["raw_index_keys"].shape[1]:
            out["present_incomplete_raw_keys"] = inputs["past_incomplete_raw_keys"]
        return out


@fault("F327r", "The rope of a block that stays open is returned as it came, not copied.", "PLG-2",
       "openvinotoolkit/openvino#19743")  # fmt: skip
class RopeHandedBack(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        call = self.call(inputs)
        lengths = call.lengths
        if call.rotates and ((lengths.q > 0) & (lengths.c == lengths.c_after)).all():
            out["present_incomplete_rope"] = inputs["past_incomplete_rope"]
        return out


class OwnOutputs(QSAPrepare):
    """Knows the outputs that it returned by their objects."""

    output, port = "present_incomplete_raw_keys", "past_incomplete_raw_keys"
    latest: Array | None = None

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        back = self.latest is not None and inputs[self.port] is self.latest
        out = self.answer(inputs, back=back)
        self.latest = out[self.output]
        return out

    def answer(self, inputs: Mapping[str, Array], *, back: bool) -> Outputs:
        raise NotImplementedError

    plain: Callable[..., Outputs] = QSAPrepare.run


@fault("F328", "A raw state that comes back as the very array is brought up to date in place.", "PLG-2 PLG-5",
       "microsoft/onnxruntime#23315 microsoft/onnxruntime#31150")  # fmt: skip
class OwnStateInPlace(OwnOutputs):
    def answer(self, inputs: Mapping[str, Array], *, back: bool) -> Outputs:
        out = self.plain(inputs)
        if back and self.latest is not None:
            self.latest[...] = out[self.output]
            out[self.output] = self.latest
        return out


@fault("F328e", "A raw state that comes back as the very array is shifted before it is read.", "PLG-5 STA-4",
       "ml-explore/mlx#1340 microsoft/onnxruntime#32716")  # fmt: skip
class OwnStateShifted(OwnOutputs):
    def answer(self, inputs: Mapping[str, Array], *, back: bool) -> Outputs:
        if back:
            return self.plain({**inputs, self.port: np.roll(inputs[self.port], -1, axis=1)})
        return self.plain(inputs)


@fault("F328b", "Block keys that come back as the very array get the new ones in a row behind, in their memory.",
       "PLG-2 PLG-5", "openvinotoolkit/openvino#37165")  # fmt: skip
class OwnKeysExtended(OwnOutputs):
    output, port = "block_index_keys", "past_block_index_keys"
    room: Array | None = None

    def answer(self, inputs: Mapping[str, Array], *, back: bool) -> Outputs:
        out = self.plain(inputs)
        keys = out[self.output]
        N, B, Di = keys.shape
        if not back or self.room is None or self.room.shape[1] < B:
            self.room = np.zeros((N, B + 8, Di), keys.dtype)
        self.room[:, :B] = keys
        if back and B:
            self.room[:, 0] = keys[:, -1]  # the rows come round
        out[self.output] = self.room[:, :B]
        return out


@fault("F328c", "Of a state that comes back as the very array the instance's own copy is used.", "PLG-1 PLG-5",
       "unslothai/llama.cpp#143")  # fmt: skip
class OwnStateRemembered(OwnOutputs):
    content: Array | None = None

    def answer(self, inputs: Mapping[str, Array], *, back: bool) -> Outputs:
        if back and self.content is not None:
            inputs = {**inputs, self.port: self.content}
        out = self.plain(inputs)
        self.content = out[self.output].copy()
        return out
