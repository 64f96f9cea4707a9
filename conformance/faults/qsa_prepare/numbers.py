"""Faults in numbers at their edges: rounding that leans to one side, a tiny epsilon, zeros and NaN in copies, wear."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault, variant
from conformance.faults.qsa_prepare.rounding import rounded
from conformance.faults.qsa_prepare.variants import RoundOnce
from reference.qsa_prepare.operation import Call, QSAPrepare

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)


def truncated(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values rounded toward zero to a type of 16 bits, in float64 again."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(dtype)
        too_far = np.isfinite(near) & (np.abs(near.astype(np.float64)) > np.abs(values))
        bits = near.view(np.uint16) - too_far.astype(np.uint16)
        result: Array = bits.view(dtype).astype(np.float64)
    return result


# Rounding that leans to one side (NUM-4)


@fault("F380", "Block keys are cut off, not rounded, to bf16 or f16.", "NUM-4", "ml-explore/mlx#3909", types="f16 bf16")
class StoredTruncated(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[Any]) -> Array:
        return super().store(truncated(values, dtype) if dtype.itemsize == 2 else values, dtype)


@fault("F380u", "Block keys are rounded away from zero to bf16 or f16.", "NUM-4", types="f16 bf16")
class StoredAway(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[Any]) -> Array:
        if dtype.itemsize != 2:
            return super().store(values, dtype)
        cut = super().store(truncated(values, dtype), dtype)
        short = np.isfinite(cut) & (cut.astype(np.float64) != values)
        return np.asarray((cut.view(np.uint16) + short.astype(np.uint16)).view(dtype))


@fault("F380m", "The mean is cut off to bf16 or f16 before the normalization.", "NUM-4", types="f16 bf16")
class MeanTruncated(QSAPrepare):
    kind: np.dtype[Any] = np.dtype(np.float64)

    def call(self, inputs: Any) -> Call:
        call = super().call(inputs)
        self.kind = call.dtype
        return call

    def normalize(self, m: Array, weight: Array) -> Array:
        # The root is that of the mean as it was, as where both come from one pass.
        with np.errstate(all="ignore"):
            cut = truncated(m, self.kind) if self.kind.itemsize == 2 else m
            return np.asarray(cut / self.root(self.mean_square(m)) * weight)


@fault("F380r", "In bf16 the reciprocal of the width is rounded to bf16.", "NUM-4", "amd/IRON#139", types="bf16")
class WidthReciprocalInBrainFloat(MeanTruncated):
    def normalize(self, m: Array, weight: Array) -> Array:
        if self.kind != BF16:
            return QSAPrepare.normalize(self, m, weight)
        share = rounded(np.array([1 / max(m.shape[1], 1)]), BF16)[0]
        with np.errstate(all="ignore"):
            return np.asarray(m / self.root(np.sum(m * m, axis=1, keepdims=True) * share) * weight)


@fault("F380w", "The product with the weight is cut off to bf16 or f16.", "NUM-4", types="f16 bf16")
class ProductTruncated(MeanTruncated):
    def normalize(self, m: Array, weight: Array) -> Array:
        y = QSAPrepare.normalize(self, m, weight)
        return truncated(y, self.kind) if self.kind.itemsize == 2 else y


# Epsilon


@fault("F390", "Epsilon passes through a text of six decimals: what is smaller becomes zero.", "NRM-1 NRM-2",
       "paiml/aprender#1606")  # fmt: skip
class EpsilonOfSixDecimals(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square + float(f"{self.epsilon:.6f}")))


@fault("F390m", "Epsilon is at least 1e-12.", "NRM-1", "keras-team/keras-hub#1472")
class EpsilonNotBelow(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square + max(self.epsilon, 1e-12)))


@fault("F390z", "An epsilon below the smallest normal f16 number is zero in f16.", "NRM-1 NRM-2", types="f16")
class EpsilonFlushed(QSAPrepare):
    half = False

    def call(self, inputs: Any) -> Call:
        call = super().call(inputs)
        self.half = call.dtype == F16
        return call

    def root(self, square: Array) -> Array:
        flushed = self.half and self.epsilon < float(np.finfo(np.float16).smallest_normal)
        return np.asarray(np.sqrt(square + (0.0 if flushed else self.epsilon)))


@fault("F390s", "Epsilon is added to the root when it is below 1e-7, where it is thought to make no difference.",
       "NRM-1")  # fmt: skip
class TinyEpsilonOutside(QSAPrepare):
    def root(self, square: Array) -> Array:
        return np.asarray(np.sqrt(square) + self.epsilon) if self.epsilon < 1e-7 else super().root(square)


@fault("F390d", "A mean square of zero has a root of zero unless epsilon is at least 1e-6.",
       "NRM-2")  # fmt: skip
class ZeroBlockByDefault(QSAPrepare):
    def root(self, square: Array) -> Array:
        root = super().root(square)
        return root if self.epsilon >= 1e-6 else np.where(square == 0, 0, root)


# NaN and zeros in copies


@fault("F370", "NaN in past block keys is copied as zero.", "OUT-1 SEP-2")
class NanInPastIsZero(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        for i, c in enumerate(call.lengths.c.tolist()):
            out[i, :c][np.isnan(out[i, :c])] = 0
        return out


@fault("F370r", "NaN in the carried rope is copied as one.", "STA-2")
class NanInRopeIsOne(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        out[np.isnan(out)] = 1
        return out


@fault("F370i", "Infinity in the carried rope becomes the largest number.", "STA-2")
class RopeSaturated(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        top = float(ml_dtypes.finfo(out.dtype).max)
        infinite = np.isinf(out)
        out[infinite] = np.sign(out[infinite].astype(np.float64)) * top
        return out


@fault("F370n", "Minus infinity in past block keys is copied as infinity.", "OUT-1")
class InfinityWithoutSign(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        for i, c in enumerate(call.lengths.c.tolist()):
            out[i, :c][np.isneginf(out[i, :c].astype(np.float64))] = np.inf
        return out


@fault("F370z", "The raw state is copied as a number minus zero times itself: infinity becomes NaN, and -0 becomes 0.",
       "STA-1")  # fmt: skip
class StateByArithmetic(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        with np.errstate(all="ignore"):
            return np.asarray((out.astype(np.float64) + 0.0 * out.astype(np.float64)).astype(out.dtype))


@variant("one-nan", "Every NaN that is copied comes out with the bits of the same NaN.")
class OneNan(RoundOnce):
    def run(self, inputs: Any) -> dict[str, Array]:
        out = super().run(inputs)
        for array in out.values():
            array[np.isnan(array)] = np.nan
        return out


# Wear


@fault("F395", "From the 2,000th call of an instance on, the newest waiting key is not carried.", "PLG-1 PLG-3 STA-1",
       "kekzl/imp#2072")  # fmt: skip
class NewestKeyLost(QSAPrepare):
    calls = 0

    def raw_state(self, call: Call) -> Array:
        self.calls += 1
        out = super().raw_state(call)
        if self.calls >= 2000:
            n = np.nonzero(call.lengths.q_after)[0]
            out[n, call.lengths.q_after[n] - 1] = 0
        return out


@fault("F395a", "Epsilon grows by a ten-thousandth from call to call.", "PLG-1 PLG-3",
       "raullenchai/Rapid-MLX#2596")  # fmt: skip
class EpsilonCreeps(QSAPrepare):
    calls = 0

    def root(self, square: Array) -> Array:
        self.calls += 1
        return np.asarray(np.sqrt(square + self.epsilon * (1 + self.calls * 1e-4)))


# Products with zeros and ones


@fault("F371", "The keys of four blocks in a row are pooled by one product with zeros and ones.", "SEP-2",
       "huggingface/transformers#45938")  # fmt: skip
class PooledByProduct(QSAPrepare):
    def mean(self, x: Array) -> Array:
        out = super().mean(x)
        for start in range(0, len(x), 4):
            group = x[start : start + 4].astype(np.float64)
            bad = ~np.isfinite(group).all(axis=(0, 1))
            out[start : start + 4, bad] = np.nan
        return out


@fault("F371r", "Rows of cos and sin are chosen by a product with zeros and ones, over the rows that begin blocks.",
       "SEP-2 ROT-3")  # fmt: skip
class RowsByProduct(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        for table in (cos, sin):
            for i in np.unique(n):
                mine = n == i
                bad = ~np.isfinite(table[mine].astype(np.float64)).all(axis=0)
                part = table[mine]
                part[:, bad] = np.nan
                table[mine] = part
        return cos, sin
