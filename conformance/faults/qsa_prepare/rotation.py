"""Faults in the rotation, and in which row of cos and sin it takes and carries."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from conformance.faults.qsa_prepare.rounding import rounded
from reference.qsa_prepare.operation import Call, QSAPrepare

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)


# The rotation itself


@fault("F21", "Every key is rotated with its own row before the mean.", "AVG-1 ROT-3")
class EachKeyRotated(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        x = self.members(call, n, b).astype(np.float64)
        if call.rotates:
            for j in range(self.r):
                x[:, j] = self.rotate(x[:, j], *self.row_of_token(call, n, b, j))
        m = self.mean(x)
        return self.normalize(m, self.weight(call)) if self.normalizes(call) else m

    def row_of_token(self, call: Call, n: Array, b: Array, j: int) -> tuple[Array, Array]:
        # A waiting key was rotated by the carried row, as the rows of earlier tokens are gone.
        cos, sin = (a.astype(np.float64) for a in self.rope(call, n, b))
        row = self.new_row(call, n, b * self.r + j)
        new = row >= 0
        cos[new], sin[new] = call.rope_cos[n[new], row[new]], call.rope_sin[n[new], row[new]]
        return cos, sin


@fault(
    "F21h",
    "The mean is rotated in f16 before it is normalized.",
    "NUM-1 NRM-1 ROT-1",
    "hw-native-sys/pypto-lib#792",
)
class RotatedInHalfFirst(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        m = rounded(self.mean(self.members(call, n, b)), F16)
        if call.rotates:
            m = rounded(self.rotate(m, *(a.astype(np.float64) for a in self.rope(call, n, b))), F16)
        return self.normalize(m, self.weight(call)) if self.normalizes(call) else m


@fault(
    "F40",
    "Neighbouring elements 2i and 2i+1 are rotated together.",
    "ROT-1",
    "xLLM-AI/xllm#853 sgl-project/sglang#13530 sgl-project/sglang#13531 hw-native-sys/pypto-lib#575 "
    "openvinotoolkit/openvino#37248 openvinotoolkit/openvino#27719 openvinotoolkit/openvino#36165",
    reading="pairing=interleaved",
)
class Interleaved(QSAPrepare):
    def pairs(self, width: int) -> tuple[Array, Array, Array, Array]:
        even = 2 * np.arange(width // 2)
        return even, even + 1, even, even + 1


@fault("F40t", "The table is read as interleaved although the elements are paired by halves.", "ROT-1 ROT-5")
class TableInterleaved(QSAPrepare):
    def pairs(self, width: int) -> tuple[Array, Array, Array, Array]:
        first, second, _, _ = super().pairs(width)
        return first, second, 2 * first, 2 * first + 1


@fault("F40d", "Element j is rotated with j + Di/2.", "ROT-1 ROT-2")
class PairedAcrossTheKey(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        half, far = cos.shape[1] // 2, max(y.shape[1] // 2, cos.shape[1] // 2)
        out = y.copy()
        a, b = y[:, :half], y[:, far : far + half]
        out[:, :half] = a * cos[:, :half] - b * sin[:, :half]
        out[:, far : far + half] = b * cos[:, half:] + a * sin[:, half:]
        return out


@fault("F41", "The rotation turns the other way.", "ROT-1", "openvinotoolkit/openvino#37248")
class OtherSign(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, cos, -sin)


@fault("F41s", "The second half is rotated with the wrong sign.", "ROT-1")
class SecondSign(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out = super().rotate(y, cos, sin)
        half = cos.shape[1] // 2
        out[:, half : 2 * half] -= 2 * y[:, :half] * sin[:, half:]
        return out


@fault("F41p", "The second half is computed from the first half as it is after the rotation.", "ROT-1")
class RotatedInPlace(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out, half = super().rotate(y, cos, sin), cos.shape[1] // 2
        out[:, half : 2 * half] = y[:, half : 2 * half] * cos[:, half:] + out[:, :half] * sin[:, half:]
        return out


@fault(
    "F42",
    "All Di elements are rotated, the table starting again where it ends.",
    "ROT-2",
    "vllm-project/vllm#43676 microsoft/onnxruntime#22417",
)
class AllRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        column = np.arange(y.shape[1] // 2 * 2) % cos.shape[1]
        return super().rotate(y, cos[:, column], sin[:, column])


@fault("F43", "The last Dr elements are rotated instead of the first.", "ROT-1 ROT-2")
class LastRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        start = y.shape[1] - cos.shape[1]
        return np.concatenate((y[:, :start], super().rotate(y[:, start:], cos, sin)), axis=1)


@fault("F44", "Elements from Dr on are zero.", "ROT-2", "microsoft/onnxruntime#22417")
class RestZeroed(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out = super().rotate(y, cos, sin)
        out[:, cos.shape[1] :] = 0
        return out


@fault("F44m", "Elements from Dr on pass through as they were before the normalization.", "ROT-2 NRM-1")
class RestNotNormalized(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        if call.rotates:
            out[:, call.Dr :] = self.mean(self.members(call, n, b))[:, call.Dr :]
        return out


@fault("F44p", "With a rotary width below Di nothing is rotated.", "ROT-1")
class PartialNotRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, cos, sin) if cos.shape[1] == y.shape[1] else y


@fault("F46", "At most 32 elements are rotated.", "ROT-1")
class ThirtyTwoRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out, half = super().rotate(y, cos, sin), cos.shape[1] // 2
        for start in (0, half):
            out[:, start + 16 : start + half] = y[:, start + 16 : start + half]
        return out


@fault("F46o", "With an odd number of pairs the last one is not rotated.", "ROT-1")
class OddPairLeftOut(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out, half = super().rotate(y, cos, sin), cos.shape[1] // 2
        if half % 2:
            last = [half - 1, 2 * half - 1]
            out[:, last] = y[:, last]
        return out


@fault(
    "F48",
    "The first half of cos and of sin is used for both halves.",
    "ROT-5",
    "sgl-project/sglang#34446 sgl-project/sglang#35345 sgl-project/sglang#35744 HabanaAI/vllm-gaudi#1437 "
    "baidu/ERNIE-Image#6 linkedin/Liger-Kernel#844 huggingface/transformers#40462 ggml-org/llama.cpp#27879",
)
class EqualHalves(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, *(np.tile(a[:, : a.shape[1] // 2], 2) for a in (cos, sin)))


@fault("F48s", "The first half of sin is used for both halves.", "ROT-5", "ggml-org/llama.cpp#27879")
class EqualSineHalves(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, cos, np.tile(sin[:, : sin.shape[1] // 2], 2))


@fault("F48c", "The first half of cos is used for both halves.", "ROT-5")
class EqualCosineHalves(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, np.tile(cos[:, : cos.shape[1] // 2], 2), sin)


@fault("F48u", "cos and sin are scaled to the unit circle.", "ROT-5")
class OnTheCircle(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        with np.errstate(all="ignore"):
            size = np.hypot(cos, sin)
            size[size == 0] = 1
            return super().rotate(y, cos / size, sin / size)


@fault("F48n", "sin is computed from cos, without its sign.", "ROT-5 ROT-3")
class SineFromCosine(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, cos, np.sqrt(np.abs(1 - cos**2)))


@fault("F52r", "The rotation is skipped.", "ROT-1", "ml-explore/mlx-lm#1189")
class NotRotated(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return y


@fault(
    "F56",
    "cos and sin are rounded to bf16.",
    "NUM-1",
    "huggingface/transformers#29285 EleutherAI/gpt-neox#1003 huggingface/candle#3520 kekzl/imp#1325",
    types="f32 f16",
)
class TableInBrainFloat(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, rounded(cos, BF16), rounded(sin, BF16))


@fault("F56h", "cos and sin are rounded to f16.", "NUM-1", "huggingface/transformers#29285", types="f32 bf16")
class TableInHalf(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, rounded(cos, F16), rounded(sin, F16))


@fault("F56c", "cos and sin are limited to the range -1 to 1.", "ROT-5")
class TableClipped(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        return super().rotate(y, np.clip(cos, -1, 1), np.clip(sin, -1, 1))


@fault("F57", "cos and sin are exchanged.", "ROT-1")
class CosineAndSineExchanged(QSAPrepare):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        return super().call({**inputs, "rope_cos": inputs["rope_sin"], "rope_sin": inputs["rope_cos"]})


# Which row


@fault("F45", "A block is rotated with the row of its last token.", "ROT-3")
class RowOfLastToken(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        row = np.minimum(self.new_row(call, n, b * self.r + self.r - 1), call.L - 1)
        return (call.rope_cos[n, row], call.rope_sin[n, row]) if call.L else super().rope(call, n, b)


@fault(
    "F47",
    "All blocks of a call are rotated with its first row.",
    "ROT-3",
    "hw-native-sys/pypto-lib#462",
)
class FirstRowOfTheCall(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        row = call.lengths.pad[n]
        right = super().rope(call, n, b)
        return (call.rope_cos[n, row % call.L], call.rope_sin[n, row % call.L]) if call.L else right


@fault("F47c", "A begun block is rotated with the first row of the call instead of the carried one.", "ROT-4")
class CarriedRowIgnored(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        begun = b * self.r < call.lengths.past[n]
        if call.L:
            cos[begun], sin[begun] = call.rope_cos[n[begun], 0], call.rope_sin[n[begun], 0]
        return cos, sin


@fault("F47g", "The first block of a sequence is rotated with a row of the call, also when it began before.", "ROT-4")
class CarriedRowIgnoredInFirstBlock(CarriedRowIgnored):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        right, wrong = QSAPrepare.rope(self, call, n, b), super().rope(call, n, b)
        first = (b == 0)[:, None]
        return np.where(first, wrong[0], right[0]), np.where(first, wrong[1], right[1])


@fault("F47l", "A call of one token rotates with that token's row, not with the carried one.", "ROT-4 STA-4")
class OwnRowOfOneToken(CarriedRowIgnored):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        return super().rope(call, n, b) if call.L == 1 else QSAPrepare.rope(self, call, n, b)


@fault(
    "F47a", "All blocks that a call completes after a begun one are rotated with the carried row too.", "ROT-3 ROT-4"
)
class CarriedRowForAll(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        begun = np.where(call.lengths.q[n] > 0, call.lengths.c[n], b)
        return super().rope(call, n, begun)


@fault(
    "F48p",
    "The angles are computed from the number of the block's first token, with base 10,000.",
    "ROT-3 ROT-5",
    "ggml-org/llama.cpp#27879 tetherto/qvac-fabric-llm.cpp#218",
)
class AnglesRecomputed(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        half = call.Dr // 2
        angle = (b * self.r)[:, None] * 1e4 ** (-np.arange(half) / half)
        with np.errstate(over="ignore"):
            cos, sin = (np.tile(f(angle), 2).astype(call.dtype) for f in (np.cos, np.sin))
        return cos, sin


@fault(
    "F48q",
    "Blocks of a sequence with equal rows of cos and sin are taken for one block.",
    "ROT-3 BLK-1",
    "unslothai/llama.cpp#143 ggml-org/llama.cpp#27941",
)
class MergedByRow(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        if call.rotates and len(n) > 1:
            cos, sin = self.rope(call, n, b)
            same = (n[1:] == n[:-1]) & (cos[1:] == cos[:-1]).all(axis=1) & (sin[1:] == sin[:-1]).all(axis=1)
            for k in np.nonzero(same)[0].tolist():
                out[k + 1] = out[k]
        return out


@fault("F49", "past_incomplete_rope is read as sin, then cos.", "ROT-4")
class CarriedHalvesExchanged(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        begun = b * self.r < call.lengths.past[n]
        cos[begun], sin[begun] = sin[begun], cos[begun]
        return cos, sin


@fault("F49b", "The rope is carried as sin, then cos, and read back so.", "STA-2 ROT-4")
class CarriedSineFirst(CarriedHalvesExchanged):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        return np.concatenate((out[:, call.Dr :], out[:, : call.Dr]), axis=1) if call.rotates else out


@fault("F49i", "The rope is carried as pairs of a cos and a sin.", "STA-2 ROT-4")
class CarriedInPairs(QSAPrepare):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        carried = inputs["past_incomplete_rope"]
        if carried.ndim == 2:
            carried = np.concatenate((carried[:, ::2], carried[:, 1::2]), axis=1)
        return super().call({**inputs, "past_incomplete_rope": carried})

    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        return out.reshape(call.N, 2, call.Dr).swapaxes(1, 2).reshape(out.shape) if call.rotates else out


@fault(
    "F50",
    "The i-th block of a call is rotated with the i-th row of the call.",
    "ROT-3",
    "tetherto/qvac-fabric-llm.cpp#218",
)
class RowIsBlockIndex(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        new = np.nonzero(b * self.r >= call.lengths.past[n])[0]
        if call.L and len(new):
            row = np.minimum((b - call.lengths.c[n])[new], call.L - 1)
            cos[new], sin[new] = call.rope_cos[n[new], row], call.rope_sin[n[new], row]
        return cos, sin


@fault("F52", "With the rotation off the block keys are zero.", "OFF-1")
class ZeroWithoutRope(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        return out if call.rotates else np.zeros_like(out)


@fault("F52m", "With the rotation off the keys are not normalized either.", "OFF-1 NRM-1")
class NormNeedsRope(QSAPrepare):
    def normalizes(self, call: Call) -> bool:
        return super().normalizes(call) and call.rotates


@fault("F52n", "With the normalization off the keys are not rotated either.", "OFF-2 ROT-1")
class RopeNeedsNorm(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        return super().block_keys(call, n, b) if self.normalizes(call) else self.mean(self.members(call, n, b))


# The carried row


@fault("F53", "The row of the call's last token is carried.", "STA-2")
class LastRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates and call.L:
            out[:] = np.concatenate((call.rope_cos[:, -1], call.rope_sin[:, -1]), axis=1)
        return out


@fault("F54", "After a completion the old rope is still carried.", "STA-2")
class StaleRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates:
            stale = call.lengths.q > 0
            out[stale] = call.past_incomplete_rope[stale]
        return out


@fault("F55", "The row of the call's first token is carried.", "STA-2")
class FirstRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates and call.L:
            n = np.arange(call.N)
            row = np.minimum(call.lengths.pad, call.L - 1)
            out[:] = np.concatenate((call.rope_cos[n, row], call.rope_sin[n, row]), axis=1)
        return out


@fault("F55b", "The row of the block completed last is carried.", "STA-2")
class LastBlockRowCarried(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        n = np.nonzero(call.lengths.c_after > call.lengths.c)[0]
        if call.rotates:
            out[n] = np.concatenate(self.rope(call, n, call.lengths.c_after[n] - 1), axis=1)
        return out


@fault("F55f", "The carried rope passes through f16.", "STA-2", types="f32 bf16")
class CarriedRowThroughHalf(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return super().rope_state(call).astype(np.float16).astype(call.dtype)


@fault("F55z", "A call that completes nothing drops the carried rope.", "STA-2 STA-4")
class CarriedRowDropped(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates:
            out[(call.lengths.c_after == call.lengths.c) & (call.lengths.q > 0)] = 0
        return out
