"""Faults in the rotation itself: pairs, signs, widths, the precision of cos and sin."""

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
