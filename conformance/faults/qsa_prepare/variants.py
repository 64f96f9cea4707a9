"""Implementations that differ from the reference in ways the contract leaves open; none of them may be failed."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, variant
from reference.qsa_prepare.operation import Call, QSAPrepare, Readings

F32 = np.dtype(np.float32)
Type = np.dtype[Any]


class SinglePrecision(QSAPrepare):
    """All arithmetic in f32, in steps that a variant replaces; `step` is where a result may be rounded to T."""

    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        T = call.dtype
        with np.errstate(all="ignore"):
            y = self.step("mean", self.average(self.members(call, n, b).astype(F32)), T)
            if self.normalizes(call):
                y = self.step("norm", self.scaled(y, self.inverse_root(y), self.weight(call).astype(F32), T), T)
            if call.rotates:
                cos, sin = self.rope(call, n, b)
                y = self.turned(y, cos.astype(F32), sin.astype(F32), T)
        return y

    def step(self, name: str, values: Array, T: Type) -> Array:
        """NUM-2: a result of the mean, of the norm, of the products or of the sums of the rotation; f32 in and out."""
        return values

    def average(self, x: Array) -> Array:
        """[K, r, Di] to [K, Di]."""
        total = x[:, 0]
        for j in range(1, self.r):
            total = total + x[:, j]
        result: Array = total / np.float32(self.r)
        return result

    def inverse_root(self, m: Array) -> Array:
        """[K, Di] to [K, 1]."""
        return np.asarray(np.float32(1) / np.sqrt(self.mean_of_squares(m) + np.float32(self.epsilon)))

    def mean_of_squares(self, m: Array) -> Array:
        """[K, Di] to [K, 1]."""
        return np.asarray(np.sum(m * m, axis=1, keepdims=True, dtype=F32) / np.float32(max(m.shape[1], 1)))

    def scaled(self, m: Array, inverse: Array, weight: Array, T: Type) -> Array:
        result: Array = m * inverse * weight
        return result

    def turned(self, y: Array, cos: Array, sin: Array, T: Type) -> Array:
        first, second, at_first, at_second = self.pairs(cos.shape[1])
        out = y.copy()
        for here, other, at, sign in ((first, second, at_first, -1), (second, first, at_second, 1)):
            straight = self.step("product", y[:, here] * cos[:, at], T)
            across = self.step("product", y[:, other] * sin[:, at], T)
            out[:, here] = self.step("sum", straight + np.float32(sign) * across, T)
        return out


def to(values: Array, T: Type) -> Array:
    """f32 values as they are in T."""
    return values.astype(T).astype(F32)


# Families of rounding


@variant("round-once", "f32 throughout, rounded once at the end.", rounding="once, at the end")
class RoundOnce(SinglePrecision):
    pass


@variant(
    "round-every-step",
    "Rounded to T after the mean, the norm, and every product and sum of the rotation.",
    rounding="after every step",
)
class RoundEveryStep(SinglePrecision):
    def step(self, name: str, values: Array, T: Type) -> Array:
        return to(values, T)


@variant(
    "round-mean-and-norm",
    "Rounded to T after the mean and the norm; the rotation is in f32.",
    rounding="after mean and norm; rotation in f32",
)
class RoundMeanAndNorm(SinglePrecision):
    def step(self, name: str, values: Array, T: Type) -> Array:
        return to(values, T) if name in ("mean", "norm") else values


@variant("round-mean", "Rounded to T after the mean, and once at the end.", rounding="after the mean")
class RoundMean(SinglePrecision):
    def step(self, name: str, values: Array, T: Type) -> Array:
        return to(values, T) if name == "mean" else values


@variant(
    "round-before-weight",
    "Rounded to T before the multiplication by the weight, and after every step.",
    rounding="after every step, and before the weight",
)
class RoundBeforeWeight(RoundEveryStep):
    def scaled(self, m: Array, inverse: Array, weight: Array, T: Type) -> Array:
        result: Array = to(m * inverse, T) * weight
        return result


@variant("float64", "float64 throughout, rounded once at the end.")
class Double(QSAPrepare):
    pass


@variant("float64-exact-sum", "float64 with the keys summed without any rounding.")
class ExactSum(QSAPrepare):
    def mean(self, x: Array) -> Array:
        high, low = np.zeros((x.shape[0], x.shape[2])), np.zeros((x.shape[0], x.shape[2]))
        with np.errstate(invalid="ignore"):
            for j in range(x.shape[1]):
                added = x[:, j].astype(np.float64)
                total = high + added
                part = total - high
                error = (high - (total - part)) + (added - part)
                high, low = total, low + np.where(np.isfinite(total), error, 0)
        result: Array = (high + low) / self.r
        return result


# Order of the sums


@variant("reversed-sum", "Keys are added from the last to the first, and squares from the last element to the first.")
class ReversedSum(SinglePrecision):
    def average(self, x: Array) -> Array:
        return super().average(x[:, ::-1])

    def mean_of_squares(self, m: Array) -> Array:
        total = np.zeros((len(m), 1), dtype=F32)
        for j in reversed(range(m.shape[1])):
            total = total + m[:, j : j + 1] * m[:, j : j + 1]
        result: Array = total / np.float32(max(m.shape[1], 1))
        return result


@variant("pairwise-sum", "Keys and squares are added in pairs, then the pairs, and so on.")
class PairwiseSum(SinglePrecision):
    def average(self, x: Array) -> Array:
        return pairwise(x) / np.float32(self.r)

    def mean_of_squares(self, m: Array) -> Array:
        return pairwise((m * m)[..., None]) / np.float32(max(m.shape[1], 1))


def pairwise(x: Array) -> Array:
    """Sum over axis 1 by a tree: [A, R, W] to [A, W]."""
    if x.shape[1] == 0:
        return np.zeros((x.shape[0], x.shape[2]), dtype=x.dtype)
    while x.shape[1] > 1:
        even = x.shape[1] // 2 * 2
        x = np.concatenate((x[:, :even:2] + x[:, 1:even:2], x[:, even:]), axis=1)
    return x[:, 0]


@variant("lanes", "Squares are added in eight lanes, which are added at the end.")
class EightLanes(SinglePrecision):
    def mean_of_squares(self, m: Array) -> Array:
        width = -(-max(m.shape[1], 1) // 8) * 8
        padded = np.zeros((len(m), width), dtype=F32)
        padded[:, : m.shape[1]] = m * m
        lanes = np.zeros((len(m), 8), dtype=F32)
        for start in range(0, width, 8):
            lanes = lanes + padded[:, start : start + 8]
        result: Array = lanes.sum(axis=1, keepdims=True, dtype=F32) / np.float32(max(m.shape[1], 1))
        return result


@variant("order-by-lengths", "The order of the sums depends on whether all sequences are of one length.")
class OrderByLengths(ReversedSum):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        uneven = (call.lengths.S[:1] != call.lengths.S).any()
        return super().block_keys(call, n, b) if uneven else SinglePrecision.block_keys(RoundOnce(self.r, self.epsilon),
                                                                                       call, n, b)  # fmt: skip


# Division and root


@variant("times-reciprocal", "The sum is multiplied by 1/r, and the sum of squares by 1/Di.")
class TimesReciprocal(SinglePrecision):
    def average(self, x: Array) -> Array:
        result: Array = x.sum(axis=1, dtype=F32) * (np.float32(1) / np.float32(self.r))
        return result

    def mean_of_squares(self, m: Array) -> Array:
        reciprocal = np.float32(1) / np.float32(max(m.shape[1], 1))
        return np.asarray(np.sum(m * m, axis=1, keepdims=True, dtype=F32) * reciprocal)


@variant("share-before-sum", "Every key is multiplied by 1/r before the sum, as in a product with a constant matrix.")
class ShareBeforeSum(SinglePrecision):
    def average(self, x: Array) -> Array:
        share = np.float32(1) / np.float32(self.r)
        total: Array = x[:, 0] * share
        for j in range(1, self.r):
            total = total + x[:, j] * share
        return total


@variant("newton-root", "The reciprocal root is an estimate of 12 bits with one Newton step.")
class NewtonRoot(SinglePrecision):
    def inverse_root(self, m: Array) -> Array:
        v = self.mean_of_squares(m) + np.float32(self.epsilon)
        exact = 1 / np.sqrt(v.astype(np.float64))
        bits = exact.astype(F32).view(np.uint32) & np.uint32(0xFFFFF000)
        estimate = np.where(np.isfinite(exact), bits.view(F32), exact.astype(F32))
        half = np.float32(0.5) * estimate
        refined: Array = estimate + half * (np.float32(1) - v * estimate * estimate)
        return np.where(np.isfinite(refined), refined, estimate)


@variant("divide-by-root", "The mean is divided by the root instead of multiplied by its reciprocal.")
class DivideByRoot(SinglePrecision):
    def scaled(self, m: Array, inverse: Array, weight: Array, T: Type) -> Array:
        root = np.sqrt(self.mean_of_squares(m) + np.float32(self.epsilon))
        result: Array = m / root * weight
        return result


@variant("weight-first", "The weight is multiplied by the reciprocal root, and the mean by the product.")
class WeightFirst(SinglePrecision):
    def scaled(self, m: Array, inverse: Array, weight: Array, T: Type) -> Array:
        result: Array = m * (inverse * weight)
        return result


@variant("weight-on-mean", "The mean is multiplied by the weight, and the product by the reciprocal root.")
class WeightOnMean(SinglePrecision):
    def scaled(self, m: Array, inverse: Array, weight: Array, T: Type) -> Array:
        result: Array = m * weight * inverse
        return result


@variant("fused", "Squares and the products of the rotation are added by fused multiply-add.")
class Fused(SinglePrecision):
    def mean_of_squares(self, m: Array) -> Array:
        total = np.zeros((len(m), 1), dtype=F32)
        for j in range(m.shape[1]):
            total = fused(m[:, j : j + 1], m[:, j : j + 1], total)
        result: Array = total / np.float32(max(m.shape[1], 1))
        return result

    def turned(self, y: Array, cos: Array, sin: Array, T: Type) -> Array:
        first, second, at_first, at_second = self.pairs(cos.shape[1])
        out = y.copy()
        for here, other, at, sign in ((first, second, at_first, -1), (second, first, at_second, 1)):
            out[:, here] = fused(y[:, here], cos[:, at], np.float32(sign) * y[:, other] * sin[:, at])
        return out


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding to f32; the product of two f32 numbers is exact in float64."""
    result: Array = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(F32)
    return result


# Elements that are not specified


@variant("rest-zeros", "Rows and state that are not specified are zero.")
class RestZeros(RoundOnce):
    def __init__(self, key_block_size: int, epsilon: float = 1e-6) -> None:
        super().__init__(key_block_size, epsilon, Readings(unused="zeros"))


@variant("rest-carried", "Rows and state that are not specified are what the inputs had there.")
class RestCarried(RoundOnce):
    def __init__(self, key_block_size: int, epsilon: float = 1e-6) -> None:
        super().__init__(key_block_size, epsilon, Readings(unused="carried"))


@variant("rest-garbage", "Rows and state that are not specified are NaN and huge numbers.")
class RestGarbage(RoundOnce):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        out[np.arange(out.shape[1])[None, :] >= call.lengths.c_after[:, None]] = np.nan
        return out

    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        unused = np.arange(self.r - 1)[None, :] >= call.lengths.q_after[:, None]
        out[unused] = np.resize(np.array([np.nan, 6e4, -6e4]).astype(call.dtype), out[unused].shape)
        return out

    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates:
            out[call.lengths.q_after == 0] = np.nan
        return out


# Subnormal numbers


@variant("flush-subnormals", "Subnormal f32 numbers are zero, as inputs and after every operation.")
class FlushSubnormals(RoundMeanAndNorm):
    def step(self, name: str, values: Array, T: Type) -> Array:
        return flush(super().step(name, flush(values), T))

    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        return x if x.dtype == np.float16 else flush(x.astype(F32)).astype(x.dtype)

    def mean_of_squares(self, m: Array) -> Array:
        total = np.sum(flush(m * m), axis=1, keepdims=True, dtype=F32)
        return flush(np.asarray(total / np.float32(max(m.shape[1], 1))))


def flush(values: Array) -> Array:
    """f32 values with subnormal numbers replaced by zero."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) < np.float32(2.0**-126), np.float32(0) * values, values)
