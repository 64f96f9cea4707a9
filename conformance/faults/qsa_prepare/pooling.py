"""Faults in the mean and in the normalization."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from conformance.faults.qsa_prepare.rounding import accumulated, rounded
from reference.qsa_prepare.operation import Call, QSAPrepare

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)


# What enters the mean


@fault(
    "F16",
    "Waiting rows that are not in use enter the begun block times zero.",
    "STA-3 SEP-2",
    "Dao-AILab/flash-attention#1745 Dao-AILab/flash-attention#2374 Dao-AILab/flash-attention#1395 "
    "vllm-project/vllm#936 vllm-project/vllm#37442 NVIDIA/cudnn-frontend#624 huggingface/transformers#46765 "
    "huggingface/transformers#45938",
)
class WaitingMaskedByProduct(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        begun = np.nonzero((b == call.lengths.c[n]) & (call.lengths.q[n] > 0))[0]
        unused = np.arange(self.r - 1)[None, :] >= call.lengths.q[n[begun], None]
        x[begun, 0] += times_zero(call.past_incomplete_raw_keys[n[begun]], unused)
        return x


@fault(
    "F16n",
    "Keys behind the last complete block enter it times zero.",
    "SEP-2 BLK-4",
    "fla-org/flash-linear-attention#1142 fla-org/flash-linear-attention#1143 vllm-project/vllm-ascend#13391",
)
class OpenKeysMaskedByProduct(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        last = np.nonzero(b == call.lengths.c_after[n] - 1)[0]
        open_key = np.arange(call.L)[None, :] >= call.L - call.lengths.q_after[n[last], None]
        x[last, 0] += times_zero(call.raw_index_keys[n[last]], open_key)
        return x


@fault(
    "F16p",
    "Padding rows enter the first block times zero.",
    "LEN-3",
    "huggingface/transformers#45938 deepbeepmeep/Wan2GP#1628",
)
class PaddingMaskedByProduct(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        first = np.nonzero(b == call.lengths.c[n])[0]
        padding = np.arange(call.L)[None, :] < call.lengths.pad[n[first], None]
        x[first, 0] += times_zero(call.raw_index_keys[n[first]], padding)
        return x


@fault("F16b", "All blocks of a call are pooled by one product with a matrix of zeros and ones.", "SEP-2")
class PooledByMatrix(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        if len(n):
            new = np.arange(call.L)[None, :] >= call.lengths.pad[:, None]
            x[:, 0] += times_zero(call.raw_index_keys, new)[n]
        return x


def times_zero(rows: Array, mask: Array) -> Array:
    """Sum over the masked rows, each times zero: NaN where one of them is not finite; [A, R, Di] to [A, Di]."""
    with np.errstate(invalid="ignore"):
        chosen = np.where(mask[..., None], rows.astype(np.float64), 0) * 0.0
    result: Array = chosen.sum(axis=1).astype(rows.dtype)
    return result


# The mean


@fault("F30r", "The sum of the keys is not divided by r.", "AVG-1")
class SumForMean(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x) * self.r


@fault("F30d", "The sum of the keys is divided by r-1.", "AVG-1")
class DividedByOneLess(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x) * self.r / (self.r - 1)


@fault("F31", "The sum of the keys is divided by four, whatever r.", "AVG-1", "sgl-project/sglang#40337")
class DividedByFour(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x) * self.r / 4


@fault("F31s", "The mean is a shift: the divisor is the largest power of two up to r.", "AVG-1")
class DividedByPowerOfTwo(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x) * self.r / (1 << (self.r.bit_length() - 1))


@fault("F31o", "Keys are added in pairs, and with odd r the last one is left out.", "AVG-1")
class OddKeyLeftOut(QSAPrepare):
    def mean(self, x: Array) -> Array:
        even = self.r // 2 * 2
        result: Array = x[:, :even].astype(np.float64).sum(axis=1) / self.r
        return result


@fault("F31t", "At most 32 keys of a block are added.", "AVG-1")
class ThirtyTwoKeys(QSAPrepare):
    def mean(self, x: Array) -> Array:
        result: Array = x[:, :32].astype(np.float64).sum(axis=1) / self.r
        return result


@fault("F31e", "The keys enter as a running average with a factor of one half.", "AVG-1")
class RunningAverage(QSAPrepare):
    def mean(self, x: Array) -> Array:
        m = x[:, 0].astype(np.float64)
        for j in range(1, self.r):
            m = (m + x[:, j].astype(np.float64)) / 2
        return m


@fault("F32", "The last key stands for the mean.", "AVG-1")
class LastKey(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return x[:, -1].astype(np.float64)


@fault("F32f", "The first key stands for the mean.", "AVG-1")
class FirstKey(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return x[:, 0].astype(np.float64)


@fault("F33", "The largest key element stands for the mean.", "AVG-1")
class LargestKey(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return np.asarray(x.astype(np.float64).max(axis=1))


@fault(
    "F34",
    "The running sum of the keys is kept in bf16.",
    "NUM-1 AVG-1",
    "ml-explore/mlx#3909 ml-explore/mlx#4387 huggingface/candle#3717 huggingface/candle#3719 ROCm/MIOpen#2109 "
    "NVIDIA/Megatron-LM#6400 openvinotoolkit/openvino#36718",
)
class SumInBrainFloat(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return accumulated(x, BF16) / self.r


@fault("F34p", "The keys are added in pairs, and the partial sums are kept in bf16.", "NUM-1 AVG-1")
class PairSumsInBrainFloat(QSAPrepare):
    def mean(self, x: Array) -> Array:
        parts = x.astype(np.float64)
        while parts.shape[1] > 1:
            even = parts.shape[1] // 2 * 2
            rest = parts[:, even:]
            parts = np.concatenate((rounded(parts[:, :even:2] + parts[:, 1:even:2], BF16), rest), axis=1)
        return parts[:, 0] / self.r


@fault(
    "F35",
    "The running sum of f16 keys is kept in f16.",
    "NUM-1 AVG-1",
    "openvinotoolkit/openvino#36504 openvinotoolkit/openvino#36888 openvinotoolkit/openvino#36892 "
    "openvinotoolkit/openvino#32414 openvinotoolkit/openvino#29744 openvinotoolkit/openvino#33491 "
    "openvinotoolkit/openvino#38062",
    types="f16",
)
class SumInHalf(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return (accumulated(x, F16) if x.dtype == F16 else x.astype(np.float64).sum(axis=1)) / self.r


@fault("F35q", "Each key is divided by r in its own type before the sum.", "NUM-1 AVG-1", types="f16 bf16")
class DividedFirst(QSAPrepare):
    def mean(self, x: Array) -> Array:
        result: Array = rounded(x.astype(np.float64) / self.r, x.dtype).sum(axis=1)
        return result


@fault(
    "F38",
    "Subnormal f16 keys count as zero.",
    "NUM-3",
    "openvinotoolkit/openvino#11883 openvinotoolkit/openvino#15929 openvinotoolkit/openvino#19360 "
    "microsoft/onnxruntime#5117",
    types="f16",
)
class HalfSubnormalsFlushed(QSAPrepare):
    def mean(self, x: Array) -> Array:
        if x.dtype == F16:
            x = np.where(np.abs(x) < np.float16(2.0**-14), np.float16(0), x)
        return super().mean(x)


@fault("F38r", "Subnormal f16 results become zero.", "NUM-3", types="f16")
class HalfResultsFlushed(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        out = super().store(values, dtype)
        return np.where(np.abs(out) < np.float16(2.0**-14), np.float16(0), out) if dtype == F16 else out


@fault(
    "F94",
    "Where a block is square, the mean is taken over the wrong axis.",
    "AVG-1",
    "huggingface/transformers#46762",
)
class WrongAxis(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x.swapaxes(1, 2) if x.shape[1] == x.shape[2] else x)


# The normalization


@fault("F19", "The normalization is missing.", "NRM-1", "vllm-project/vllm-metal#660 vllm-project/vllm-metal#659")
class NotNormalized(QSAPrepare):
    def normalize(self, m: Array, weight: Array) -> Array:
        return m


@fault("F19w", "Of the normalization only the weight is applied.", "NRM-1")
class WeightOnly(QSAPrepare):
    def normalize(self, m: Array, weight: Array) -> Array:
        return m * weight


@fault("F20", "Every key is normalized before the mean.", "AVG-1 NRM-1")
class EachKeyNormalized(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        x = self.members(call, n, b).astype(np.float64)
        y = x.mean(axis=1)
        if self.normalizes(call):
            each = self.normalize(x.reshape(-1, call.Di), self.weight(call))
            y = each.reshape(x.shape).mean(axis=1)
        return self.rotate(y, *(a.astype(np.float64) for a in self.rope(call, n, b))) if call.rotates else y


@fault(
    "F22",
    "The weight is applied after the rotation.",
    "NRM-1 ROT-1",
    "karpathy/nanochat#743 vllm-project/vllm-metal#660 vllm-project/vllm-metal#659",
)
class WeightAfterRotation(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        return super().block_keys(call, n, b) * self.weight(call)

    def normalize(self, m: Array, weight: Array) -> Array:
        return super().normalize(m, np.ones_like(weight))


@fault("F22n", "The key is normalized after the rotation.", "NRM-1 ROT-1", "karpathy/nanochat#743")
class NormalizedAfterRotation(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        y = self.mean(self.members(call, n, b))
        if call.rotates:
            y = self.rotate(y, *(a.astype(np.float64) for a in self.rope(call, n, b)))
        return self.normalize(y, self.weight(call)) if self.normalizes(call) else y


@fault(
    "F23",
    "Epsilon is added to the root, not under it.",
    "NRM-1",
    "NVIDIA/TransformerEngine#364 tile-ai/tilelang#1243 EleutherAI/gpt-neox#1342 EleutherAI/gpt-neox#1337 "
    "keras-team/keras#8726",
)
class EpsilonOutsideTheRoot(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square) + self.epsilon)


@fault(
    "F24",
    "Epsilon is 1e-6 whatever the attribute says.",
    "NRM-1",
    "apache/tvm#15856 NVIDIA/cutlass#1112 intel/ipex-llm#9529 ggml-org/llama.cpp#14545 paiml/aprender#1606 "
    "keras-team/keras-hub#1472 PaddlePaddle/FastDeploy#2804",
)
class EpsilonFixed(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square + 1e-6))


@fault("F24z", "An epsilon of zero is taken for the default.", "NRM-1", "keras-team/keras-hub#1472")
class ZeroEpsilonIsDefault(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square + (self.epsilon or 1e-6)))


@fault("F25", "There is no epsilon.", "NRM-1 NRM-2", "NVIDIA/apex#1295")
class NoEpsilon(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square))


@fault("F25m", "The mean square is not less than epsilon, instead of having it added.", "NRM-1")
class EpsilonAsFloor(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(np.maximum(square, self.epsilon)))


@fault("F25d", "Epsilon is added to the sum of squares instead of their mean.", "NRM-1")
class EpsilonUnderTheSum(QSAPrepare):
    def normalize(self, m: Array, weight: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(m / np.sqrt(self.mean_square(m) + self.epsilon / max(m.shape[1], 1)) * weight)


@fault("F25s", "The square of epsilon is added under the root.", "NRM-1")
class EpsilonSquared(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square + self.epsilon**2))


@fault("F25t", "Epsilon is rounded to the element type.", "NRM-1", types="f16")
class EpsilonRounded(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        narrow = QSAPrepare(self.r, float(np.asarray(self.epsilon).astype(call.dtype)))
        return narrow.block_keys(call, n, b)


@fault(
    "F26",
    "One is added to the weight.",
    "NRM-1",
    "Blaizzy/mlx-vlm#2041 Blaizzy/mlx-vlm#2114 Blaizzy/mlx-vlm#2111 jundot/omlx#3181 ml-explore/mlx-lm#1788 "
    "pytorch/executorch#22444",
)
class OnePlusWeight(QSAPrepare):
    def weight(self, call: Call) -> Array:
        return super().weight(call) + 1


@fault(
    "F26b",
    "The weight is rounded to bf16.",
    "NRM-1 NUM-1",
    "linkedin/Liger-Kernel#1462",
    types="f32 f16",
)
class WeightInBrainFloat(QSAPrepare):
    def weight(self, call: Call) -> Array:
        return rounded(super().weight(call), BF16)


@fault("F27", "The weight is ignored.", "NRM-1")
class WeightIgnored(QSAPrepare):
    def normalize(self, m: Array, weight: Array) -> Array:
        return super().normalize(m, np.ones_like(weight))


@fault("F27a", "The weight loses its sign.", "NRM-1")
class WeightUnsigned(QSAPrepare):
    def weight(self, call: Call) -> Array:
        return np.asarray(np.abs(super().weight(call)))


@fault("F27r", "The weight is applied to the rotated elements only.", "NRM-1 ROT-2")
class WeightOnRotatedOnly(QSAPrepare):
    def weight(self, call: Call) -> Array:
        weight = super().weight(call).copy()
        if call.rotates:
            weight[call.Dr :] = 1
        return weight


@fault("F27o", "With the rotation off the weight is not applied.", "NRM-1 OFF-1")
class WeightNeedsRope(QSAPrepare):
    def weight(self, call: Call) -> Array:
        weight = super().weight(call)
        return weight if call.rotates else np.ones_like(weight)


@fault("F27t", "Behind the last whole group of eight elements the weight is taken as one.", "NRM-1")
class WeightInGroupsOfEight(QSAPrepare):
    def weight(self, call: Call) -> Array:
        weight = super().weight(call).copy()
        weight[call.Di // 8 * 8 :] = 1
        return weight


@fault("F27l", "Beyond 64 elements the weight starts again from its first element.", "NRM-1")
class WeightRepeats(QSAPrepare):
    def weight(self, call: Call) -> Array:
        return super().weight(call)[np.arange(call.Di) % 64]


@fault(
    "F28",
    "An empty weight is taken for zeros.",
    "OFF-2",
    "openvinotoolkit/openvino#36718",
)
class EmptyWeightIsZero(QSAPrepare):
    def normalizes(self, call: Call) -> bool:
        return True

    def weight(self, call: Call) -> Array:
        return super().weight(call) if call.k_norm_weight.size else np.zeros(call.Di)


@fault("F28b", "An empty weight is taken for ones: the keys are normalized.", "OFF-2", reading="empty_weight=unit")
class EmptyWeightIsOne(QSAPrepare):
    def normalizes(self, call: Call) -> bool:
        return True


@fault("F28o", "A weight of ones is taken for an empty one: the keys are not normalized.", "NRM-1")
class UnitWeightIsEmpty(QSAPrepare):
    def normalizes(self, call: Call) -> bool:
        return super().normalizes(call) and not bool((self.weight(call) == 1).all())


@fault("F29", "The mean is subtracted before the normalization.", "NRM-1")
class LayerNorm(QSAPrepare):
    def normalize(self, m: Array, weight: Array) -> Array:
        return super().normalize(m - m.mean(axis=1, keepdims=True), weight) if m.size else m


@fault("F30", "The sum of squares is not divided by Di.", "NRM-1")
class SumOfSquares(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray(super().mean_square(m) * m.shape[1])


@fault("F30u", "The sum of squares is divided by Di-1.", "NRM-1")
class UnbiasedSquares(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray(super().mean_square(m) * m.shape[1] / max(m.shape[1] - 1, 1))


@fault("F30w", "The sum of squares is divided by the width rounded up to 16.", "NRM-1")
class PaddedWidth(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray(super().mean_square(m) * m.shape[1] / max(-(-m.shape[1] // 16) * 16, 1))


@fault("F30h", "The squares of at most 64 elements are added.", "NRM-1")
class SquaresOfSixtyFour(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray((m[:, :64] ** 2).sum(axis=1, keepdims=True) / max(m.shape[1], 1))


@fault("F30c", "The mean square is that of the rotated elements only.", "NRM-1")
class SquaresOfRotatedOnly(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        if not (self.normalizes(call) and call.rotates):
            return super().block_keys(call, n, b)
        m = self.mean(self.members(call, n, b))
        y = m / self.root(self.mean_square(m[:, : call.Dr])) * self.weight(call)
        return self.rotate(y, *(a.astype(np.float64) for a in self.rope(call, n, b)))


@fault("F30k", "The mean square of the call's first block is used for all its blocks.", "NRM-1 SEP-1")
class OneScaleACall(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        square = super().mean_square(m)
        return np.broadcast_to(square[:1], square.shape)


@fault("F36", "The squares are taken and added in f16.", "NUM-1", "openvinotoolkit/openvino#36504")
class SquaresInHalf(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray(accumulated(rounded(m * m, F16)[..., None], F16) / max(m.shape[1], 1))


@fault("F36b", "The squares are added in bf16.", "NUM-1", "openvinotoolkit/openvino#36718")
class SquaresInBrainFloat(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray(accumulated((m * m)[..., None], BF16) / max(m.shape[1], 1))


@fault("F39", "The reciprocal root has 12 bits.", "NUM-1", "Tencent/ncnn#6903", types="f32")
class CoarseRoot(QSAPrepare):
    def root(self, square: Array) -> Array:
        return super().root(square) / (1 + 3e-4)


@fault(
    "F39b",
    "The reciprocal root is rounded to bf16.",
    "NUM-1",
    "amd/IRON#139",
    types="f32 f16",
)
class RootInBrainFloat(QSAPrepare):
    def root(self, square: Array) -> Array:
        with np.errstate(divide="ignore"):
            return 1 / rounded(1 / super().root(square), BF16)


@fault("F39h", "The reciprocal root is rounded to f16.", "NUM-1")
class RootInHalf(QSAPrepare):
    def root(self, square: Array) -> Array:
        with np.errstate(divide="ignore"):
            return 1 / rounded(1 / super().root(square), F16)


# Storing the result


@fault("F37s", "Results beyond the type's largest number become that number, not infinity.", "NUM-3")
class Saturated(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        top = float(ml_dtypes.finfo(dtype).max)
        return super().store(np.clip(values, -top, top), dtype)


@fault("F37h", "Block keys are rounded to f16 on the way out.", "NUM-2 NUM-3", types="f32 bf16")
class StoredThroughHalf(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        return super().store(rounded(values, F16), dtype)


@fault("F37b", "Block keys are rounded to bf16 on the way out.", "NUM-2", types="f32 f16")
class StoredThroughBrainFloat(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        return super().store(rounded(values, BF16), dtype)


@fault("F37n", "NaN in a result is replaced by zero.", "SEP-2 NUM-3")
class NanReplaced(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        return super().store(np.where(np.isnan(values), 0, values), dtype)
