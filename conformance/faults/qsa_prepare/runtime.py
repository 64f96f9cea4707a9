"""Faults that show only from call to call: state that an instance keeps, and should not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import Call, QSAPrepare

Outputs = dict[str, Array]


@fault(
    "F80",
    "The new state is written over the old one before that was read.",
    "STA-4 BLK-3",
    "ml-explore/mlx#1340 openvinotoolkit/openvino#37165 openvinotoolkit/openvino#6193 openvinotoolkit/openvino#21952 "
    "openvinotoolkit/openvino#19743 microsoft/onnxruntime#23315 microsoft/onnxruntime#31150 "
    "microsoft/onnxruntime#32716",
)
class StateOverwrittenEarly(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        state = self.raw_state(self.call(inputs))
        out = super().run({**inputs, "past_incomplete_raw_keys": state})
        return {**out, "present_incomplete_raw_keys": state}


@fault("F80r", "The new rope state is written over the old one before that was read.", "STA-4 ROT-4",
       "microsoft/onnxruntime#23315")  # fmt: skip
class RopeOverwrittenEarly(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        state = self.rope_state(self.call(inputs))
        out = super().run({**inputs, "past_incomplete_rope": state})
        return {**out, "present_incomplete_rope": state}


class Remembering(QSAPrepare):
    """An instance that remembers something of its first call."""

    first: Mapping[str, Array] | None = None

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        if self.first is None:
            self.first = {name: array.copy() for name, array in inputs.items()}
        return super().run(inputs)


@fault(
    "F82",
    "The past of the first call's sequences is used in all calls.",
    "PLG-3 LEN-1",
    "NVIDIA/TensorRT-LLM#18276 hw-native-sys/pypto-lib#243 hw-native-sys/pypto-lib#641 raullenchai/Rapid-MLX#2596",
)
class PastOfFirstCall(Remembering):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        if self.first is None or self.first["raw_index_keys"].shape[0] != call.N:
            return S
        return np.asarray(S - np.maximum(S - call.L, 0) + np.maximum(self.first["key_length"] - self.first_L, 0))

    @property
    def first_L(self) -> int:  # noqa: N802
        return 0 if self.first is None else int(self.first["raw_index_keys"].shape[1])


@fault("F82l", "Lengths are read again only when the shapes change.", "PLG-3 PLG-1", "NVIDIA/TensorRT-LLM#18276")
class LengthsOfFirstCall(QSAPrepare):
    kept: tuple[object, Array] | None = None

    def key_lengths(self, call: Call) -> Array:
        shapes = call.raw_index_keys.shape, call.past_block_index_keys.shape
        if self.kept is None or self.kept[0] != shapes:
            self.kept = shapes, super().key_lengths(call).copy()
        return self.kept[1]


@fault(
    "F82b",
    "Room for the block keys is made by the first call; later ones complete no more blocks than it did.",
    "PLG-3 BLK-2",
    "openvinotoolkit/openvino#21051 openvinotoolkit/openvino#22806 openvinotoolkit/openvino#22549 "
    "openvinotoolkit/openvino#9334",
)
class RoomOfFirstCall(QSAPrepare):
    room: int | None = None

    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        if self.room is None:
            self.room = len(n)
        return n[: self.room], b[: self.room]


@fault("F82g", "The block keys never have fewer rows than in an earlier call.", "PLG-3 OUT-3",
       "openvinotoolkit/openvino#21051")  # fmt: skip
class RowsNeverShrink(QSAPrepare):
    most = 0

    def row_count(self, call: Call) -> int:
        self.most = max(self.most, super().row_count(call))
        return self.most


@fault("F82t", "A call of one token works on the number of sequences of the call before.", "PLG-3 SEP-1",
       "raullenchai/Rapid-MLX#2596")  # fmt: skip
class BatchOfEarlierCall(QSAPrepare):
    before: int | None = None

    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        if call.L == 1 and self.before is not None:
            n, b = n[n < self.before], b[n < self.before]
        self.before = call.N
        return n, b


@fault("F82z", "After a call without tokens no block is completed any more.", "PLG-3 SEP-3")
class StuckAfterEmptyCall(QSAPrepare):
    stuck = False

    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        self.stuck |= call.L == 0
        return (n[:0], b[:0]) if self.stuck else (n, b)


@fault("F82h", "From the 64th call of an instance on, waiting keys are not carried.", "PLG-3 STA-1", "kekzl/imp#2072")
class StateRunsOut(QSAPrepare):
    calls = 0

    def raw_state(self, call: Call) -> Array:
        self.calls += 1
        out = super().raw_state(call)
        return out if self.calls < 64 else np.zeros_like(out)


@fault("F82w", "The weight of the first call is used in all calls.", "PLG-1 PLG-3", "openvinotoolkit/openvino#22549")
class WeightOfFirstCall(QSAPrepare):
    kept: Array | None = None

    def weight(self, call: Call) -> Array:
        if self.kept is None or len(self.kept) != call.Di:
            self.kept = super().weight(call)
        return self.kept


@fault("F82c", "cos and sin are read again only when their shape changes.", "PLG-1 PLG-3", "jundot/omlx#3294")
class TableOfFirstCall(QSAPrepare):
    kept: tuple[Array, Array] | None = None

    def call(self, inputs: Mapping[str, Array]) -> Call:
        if self.kept is None or self.kept[0].shape != inputs["rope_cos"].shape:
            self.kept = inputs["rope_cos"].copy(), inputs["rope_sin"].copy()
        return super().call({**inputs, "rope_cos": self.kept[0], "rope_sin": self.kept[1]})


@fault("F82m", "Results are remembered by the shapes of the inputs.", "PLG-1 PLG-3")
class RememberedByShapes(QSAPrepare):
    def __init__(self, key_block_size: int, epsilon: float = 1e-6) -> None:
        super().__init__(key_block_size, epsilon)
        self.known: dict[object, Outputs] = {}

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        key = tuple(array.shape for array in inputs.values()), inputs["key_length"].tobytes()
        if key not in self.known:
            self.known[key] = super().run(inputs)
        return {name: array.copy() for name, array in self.known[key].items()}


@fault("F82s", "From the second call of an instance on the rope state is not written.", "PLG-1 STA-2")
class RopeStateWrittenOnce(QSAPrepare):
    calls = 0

    def rope_state(self, call: Call) -> Array:
        self.calls += 1
        out = super().rope_state(call)
        return out if self.calls == 1 else np.zeros_like(out)


@fault(
    "F84",
    "Waiting keys are kept in the instance and used instead of the input when a sequence has a past.",
    "PLG-1 STA-3",
    "unslothai/llama.cpp#143 ggml-org/llama.cpp#27941 ggml-org/llama.cpp#25588 ggml-org/llama.cpp#25521 kekzl/imp#2072 "
    "raullenchai/Rapid-MLX#2596 sgl-project/sglang#35494 ml-explore/mlx-lm#1189 exo-explore/exo#2158",
)
class HiddenWaitingKeys(QSAPrepare):
    hidden: Array | None = None

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        given = inputs["past_incomplete_raw_keys"]
        if self.hidden is not None and self.hidden.shape == given.shape:
            inputs = {**inputs, "past_incomplete_raw_keys": self.hidden}
        out = super().run(inputs)
        self.hidden = out["present_incomplete_raw_keys"].copy()
        return out


@fault("F84d", "Calls of one token use the waiting keys of the instance's call before.", "PLG-1 STA-3",
       "kekzl/imp#2072")  # fmt: skip
class HiddenWhileDecoding(QSAPrepare):
    hidden: Array | None = None

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        given = inputs["past_incomplete_raw_keys"]
        if inputs["raw_index_keys"].shape[1] == 1 and self.hidden is not None and self.hidden.shape == given.shape:
            inputs = {**inputs, "past_incomplete_raw_keys": self.hidden}
        out = super().run(inputs)
        self.hidden = out["present_incomplete_raw_keys"].copy()
        return out


@fault("F84r", "The rope of the open block is kept in the instance and used instead of the input.", "PLG-1 ROT-4",
       "unslothai/llama.cpp#143")  # fmt: skip
class HiddenRope(QSAPrepare):
    hidden: Array | None = None

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        if self.hidden is not None and self.hidden.shape == inputs["past_incomplete_rope"].shape:
            inputs = {**inputs, "past_incomplete_rope": self.hidden}
        out = super().run(inputs)
        self.hidden = out["present_incomplete_rope"].copy()
        return out


@fault("F84p", "Past block keys are kept in the instance and used instead of the input.", "PLG-1 OUT-1",
       "ggml-org/llama.cpp#25521 exo-explore/exo#2158")  # fmt: skip
class HiddenPast(QSAPrepare):
    hidden: Array | None = None

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        if self.hidden is not None and self.hidden.shape == inputs["past_block_index_keys"].shape:
            inputs = {**inputs, "past_block_index_keys": self.hidden}
        out = super().run(inputs)
        self.hidden = out["block_index_keys"].copy()
        return out


@fault("F84c", "The instance counts the tokens itself once it has seen a call.", "PLG-1 LEN-1", "exo-explore/exo#2158")
class OwnTokenCount(QSAPrepare):
    seen: Array | None = None

    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        if self.seen is not None and len(self.seen) == call.N and (S > call.L).any():
            S = self.seen + call.L
        return S

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        self.seen = self.call(inputs).lengths.S
        return out
