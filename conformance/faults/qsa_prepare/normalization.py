"""Faults in the normalization: epsilon, the mean square, the weight."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from conformance.faults.qsa_prepare.rounding import accumulated, rounded
from reference.qsa_prepare.operation import Call, QSAPrepare

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)


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
