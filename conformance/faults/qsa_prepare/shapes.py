"""Faults with empty inputs, with widths that are no multiple of a vector, and in the shape of what is returned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import Call, QSAPrepare

Outputs = dict[str, Array]


# Empty


@fault(
    "F70",
    "A call without tokens returns before it writes the state.",
    "SEP-3 STA-4",
    "openvinotoolkit/openvino#37965 openvinotoolkit/openvino#37963 sgl-project/sglang#35848 sgl-project/sglang#22688",
)
class StateNotWrittenWithoutTokens(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        out = super().run(inputs)
        if inputs["raw_index_keys"].shape[1] == 0:
            for name in ("present_incomplete_raw_keys", "present_incomplete_rope"):
                out[name] = np.zeros_like(out[name])
        return out


@fault("F70b", "A call without tokens returns no block keys.", "SEP-3 OUT-1 OUT-3", "openvinotoolkit/openvino#37963")
class NoRowsWithoutTokens(QSAPrepare):
    def row_count(self, call: Call) -> int:
        return super().row_count(call) if call.L else 0

    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        return super().place(call, n, b, keys) if call.L else np.zeros((call.N, 0, call.Di), dtype=call.dtype)


@fault(
    "F70n",
    "An input with a dimension of zero raises an error.",
    "SEP-3",
    "openvinotoolkit/openvino#17014 openvinotoolkit/openvino#17479 openvinotoolkit/openvino#15428 "
    "openvinotoolkit/openvino#19774 openvinotoolkit/openvino#14262 openvinotoolkit/openvino#14307",
)
class ZeroSequencesRaise(QSAPrepare):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        if 0 in inputs["raw_index_keys"].shape:
            raise ValueError("zero-size array")
        return super().call(inputs)


@fault("F70p", "An input without past rows raises an error when some are due.", "SEP-3", "NervanaSystems/ngraph#1120")
class NoPastRowsRaise(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        past = call.past_block_index_keys
        if past.shape[1] == 0 and len(n):
            raise ValueError("cannot concatenate to an empty array")
        return super().place(call, n, b, keys)


@fault("F70s", "A call that completes nothing returns one row of zeros for none.", "OUT-3 SEP-3",
       "openvinotoolkit/openvino#37963")  # fmt: skip
class OneRowForNone(QSAPrepare):
    def row_count(self, call: Call) -> int:
        return max(super().row_count(call), 1)


@fault(
    "F71",
    "The bytes of the weight are read as f32 whatever its type.",
    "NRM-1",
    "openvinotoolkit/openvino#33425 openvinotoolkit/openvino.genai#3865 openvinotoolkit/openvino#36501",
    types="f16 bf16",
)
class WeightReadAsSingle(QSAPrepare):
    def weight(self, call: Call) -> Array:
        weight = call.k_norm_weight
        if weight.size == 0 or weight.dtype == np.float32:
            return super().weight(call)
        content = weight.tobytes() + bytes(weight.nbytes)
        return np.frombuffer(content, dtype=np.float32).astype(np.float64)


@fault("F71b", "The rotation is off when cos has no elements.", "OFF-3 SEP-3")
class OffWhenEmpty(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        return super().rope_state(call) if call.rope_cos.size else np.zeros((0,), dtype=call.dtype)


@fault("F71s", "The rotation is off when sin and cos are zero everywhere.", "ROT-1 ROT-5")
class OffWhenZero(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, cos, sin) if (cos != 0).any() or (sin != 0).any() else y


@fault("F71t", "With the rotation off output 2 is a row of zeros, not empty.", "OFF-1")
class RopeStateNotEmpty(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        return super().rope_state(call) if call.rotates else np.zeros((call.N, 2 * call.Di), dtype=call.dtype)


# Outputs that the next call cannot take


@fault(
    "F72",
    "The state of a batch of one sequence comes without its first dimension.",
    "STA-4 STA-1",
    "jundot/omlx#3286 ggml-org/llama.cpp#26063",
)
class StateSqueezed(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        return out[0] if call.N == 1 else out


@fault(
    "F72t",
    "The state comes in f32 whatever the element type.",
    "STA-4 STA-1",
    "openvinotoolkit/openvino#31393 openvinotoolkit/openvino#21235 intel/onnxruntime#958",
    types="f16 bf16",
)
class StateInSingle(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        with np.errstate(invalid="ignore"):
            return super().raw_state(call).astype(np.float32)


@fault("F72q", "The state has as many rows as keys wait.", "STA-4 STA-1", "jundot/omlx#3286")
class StateWithoutUnusedRows(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        return super().raw_state(call)[:, : int(call.lengths.q_after.max(initial=0))]


@fault("F72k", "The state has r rows.", "STA-1", "sgl-project/sglang#40337")
class StateOfFullBlock(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        return np.concatenate((out, np.zeros((call.N, 1, call.Di), dtype=call.dtype)), axis=1)


@fault("F72r", "The carried rope is half as wide: one number a pair.", "STA-2")
class HalfWideRopeState(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        half = call.Dr // 2
        return np.concatenate((out[:, :half], out[:, call.Dr : call.Dr + half]), axis=1) if call.rotates else out


@fault(
    "F72b",
    "There are as many rows as the shapes alone allow.",
    "OUT-3",
    reading="rows=bound",
)
class RowsFromShapes(QSAPrepare):
    def row_count(self, call: Call) -> int:
        return int(call.past_block_index_keys.shape[1]) + (call.L + self.r - 1) // self.r


@fault("F72p", "There are never fewer rows than past_block_index_keys has.", "OUT-3 OUT-1")
class AllPastRowsKept(QSAPrepare):
    def row_count(self, call: Call) -> int:
        return max(super().row_count(call), int(call.past_block_index_keys.shape[1]))


# Vectors


@fault(
    "F74",
    "Elements behind the last whole group of eight are not computed.",
    "AVG-1",
    "ggml-org/llama.cpp#26708 microsoft/onnxruntime#24980",
)
class TailNotComputed(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        if call.Di > 8:
            out[:, call.Di // 8 * 8 :] = 0
        return out


@fault("F74h", "Beyond 16 elements, those behind the last whole group of 16 do not count in the mean square.", "NRM-1",
       "ggml-org/llama.cpp#26708")  # fmt: skip
class TailNotSquared(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        width = m.shape[1]
        return super().mean_square(m[:, : width // 16 * 16] if width > 16 else m) * (
            width // 16 * 16 / width if width > 16 else 1
        )


@fault("F74r", "Pairs behind the last whole group of four are not rotated.", "ROT-1", "microsoft/onnxruntime#24980")
class TailNotRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out, half = super().rotate(y, cos, sin), cos.shape[1] // 2
        if half > 4:
            for start in (0, half):
                tail = slice(start + half // 4 * 4, start + half)
                out[:, tail] = y[:, tail]
        return out


@fault("F74u", "The element behind the last whole group of 64 is that of the group's start.", "AVG-1",
       "ggml-org/llama.cpp#26708")  # fmt: skip
class GroupOfSixtyFourWraps(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        if call.Di > 64 and call.Di % 64:
            x[..., call.Di // 64 * 64] = x[..., 0]
        return x


@fault("F74w", "A key wider than 128 elements is cut off there.", "NRM-1 AVG-1")
class WideKeysCutOff(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        out[:, 128:] = 0
        return out


@fault("F74x", "Of a key wider than 256 elements the mean square is that of the first 256.", "NRM-1")
class WideKeysSquaredInPart(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return super().mean_square(m[:, :256])


@fault("F74y", "At most 64 elements are rotated.", "ROT-1")
class SixtyFourRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out, half = super().rotate(y, cos, sin), cos.shape[1] // 2
        for start in (0, half):
            out[:, start + 32 : start + half] = y[:, start + 32 : start + half]
        return out


@fault("F74o", "A key of one element is taken as it is.", "NRM-1")
class OneElementNotNormalized(QSAPrepare):
    def normalize(self, m: Array, weight: Array) -> Array:
        return m if m.shape[1] == 1 else super().normalize(m, weight)
