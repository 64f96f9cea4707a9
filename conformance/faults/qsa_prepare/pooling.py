"""Faults in the mean: what enters it, how it is taken, in which precision."""

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
