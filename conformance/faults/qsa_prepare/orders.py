"""Conforming implementations that take the factors of a block key in another order, or its sums in another way.

NUM-3 states the domain for all of them: the keys or their mean, 1/r, the reciprocal root, the weight, cos and sin may
be multiplied in any order, and the terms of a sum may be added in any.
"""

from __future__ import annotations

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, variant
from conformance.faults.qsa_prepare.variants import F32, RoundOnce, SinglePrecision, Type, fused
from reference.qsa_prepare.operation import Call, QSAPrepare


class Factors(QSAPrepare):
    """A block key in f32 as a sum over its keys, of factors that a variant arranges; nothing is rounded to T but once.

    Each key is multiplied by `share`, the sum by `common`, and the tables by `turning`, all [K, 1] or [K, Di]; between
    them they make up 1/r, the reciprocal root and the weight. `after` is what is left for the end.
    """

    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            x = self.members(call, n, b).astype(F32)
            weight = self.weight(call).astype(F32)[None, :] if self.normalizes(call) else np.ones((1, call.Di), F32)
            inverse = self.inverse(x) if self.normalizes(call) else np.ones((len(n), 1), F32)
            share, common, turning, after = self.arranged(np.float32(1) / np.float32(self.r), inverse, weight)
            y = self.summed(x * share[:, None]) * common
            if call.rotates:
                cos, sin = (a.astype(F32) for a in self.rope(call, n, b))
                y = self.turned(y, cos, sin, np.broadcast_to(turning, y.shape))
            else:
                y = y * turning
            return np.asarray(y * after)

    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        """The factors of the keys, their sum, the tables and the end, each [K or 1, Di or 1]."""
        raise NotImplementedError

    def inverse(self, x: Array) -> Array:
        """The reciprocal root [K, 1] of keys [K, r, Di]."""
        m = self.summed(x) / np.float32(self.r)
        mean = np.sum(m * m, axis=1, keepdims=True, dtype=F32) / np.float32(max(m.shape[1], 1))
        return np.asarray(np.float32(1) / np.sqrt(mean + np.float32(self.epsilon)))

    def summed(self, x: Array) -> Array:
        """[K, r, Di] to [K, Di]."""
        return np.asarray(x.sum(axis=1, dtype=F32))

    def turned(self, y: Array, cos: Array, sin: Array, factor: Array) -> Array:
        """The rotation by tables that are multiplied by the factor of the element that they meet."""
        first, second, at_first, at_second = self.pairs(cos.shape[1])
        out = y * factor
        for here, other, at, sign in ((first, second, at_first, -1), (second, first, at_second, 1)):
            straight = y[:, here] * (factor[:, here] * cos[:, at])
            out[:, here] = straight + np.float32(sign) * (y[:, other] * (factor[:, other] * sin[:, at]))
        return np.asarray(out)


ONE = np.ones((1, 1), F32)


def column(value: np.float32) -> Array:
    """A number as [1, 1]."""
    return np.full((1, 1), value, F32)


@variant("weight-in-tables", "The weight is multiplied into cos and sin beforehand.")
class WeightInTables(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, column(part) * inverse, weight, ONE


@variant("weight-in-keys", "Every key is multiplied by the weight before the sum; the root is that of the plain keys.")
class WeightInKeys(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return weight, column(part), inverse, ONE


@variant("weight-in-root", "The weight is multiplied by the reciprocal root and by 1/r, and the sum by the product.")
class WeightInRoot(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, inverse * part * weight, ONE, ONE


@variant("root-in-tables", "The reciprocal root is multiplied into cos and sin.")
class RootInTables(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, column(part) * weight, inverse, ONE


@variant("all-in-tables", "The sum of the keys meets one table that holds 1/r, reciprocal root, weight, cos and sin.")
class AllInTables(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, ONE, inverse * part * weight, ONE


@variant("all-in-keys", "Every key is multiplied by weight, reciprocal root and 1/r before the sum.")
class AllInKeys(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return weight * inverse * part, ONE, ONE, ONE


@variant("root-after-rotation", "The weighted mean is rotated, and the result multiplied by the reciprocal root.")
class RootAfterRotation(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, weight * part, ONE, inverse


@variant("share-after-rotation", "The sum of the keys is divided by r at the very end.")
class ShareAfterRotation(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return weight, inverse, ONE, column(part)


@variant("share-in-tables", "cos and sin are divided by r.")
class ShareInTables(Factors):
    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, inverse * weight, column(part), ONE


@variant("root-of-sums", "The root is that of the sums, with epsilon times the square of r, and divides them.")
class RootOfSums(Factors):
    def inverse(self, x: Array) -> Array:
        total, r = self.summed(x), np.float32(self.r)
        mean = np.sum(total * total, axis=1, keepdims=True, dtype=F32) / np.float32(max(total.shape[1], 1))
        return np.asarray(r / np.sqrt(mean + np.float32(self.epsilon) * r * r))

    def arranged(self, part: np.float32, inverse: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        return ONE, inverse * part, weight, ONE


@variant("rotation-before-mean", "Every key is rotated by the block's row, and the rotated keys are added.")
class RotationBeforeMean(SinglePrecision):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        with np.errstate(all="ignore"):
            x = self.members(call, n, b).astype(F32)
            if self.normalizes(call):
                x = x * (self.inverse_root(self.average(x)) * self.weight(call).astype(F32))[:, None]
            if call.rotates:
                cos, sin = (a.astype(F32) for a in self.rope(call, n, b))
                rows = [self.turned(x[:, j], cos, sin, call.dtype) for j in range(self.r)]
                x = np.stack(rows, axis=1)
            return np.asarray(self.average(x))


@variant("sums-in-double", "Keys and squares are added in f64; all else is f32.")
class SumsInDouble(SinglePrecision):
    def average(self, x: Array) -> Array:
        return np.asarray((x.astype(np.float64).sum(axis=1) / self.r).astype(F32))

    def mean_of_squares(self, m: Array) -> Array:
        total = np.sum(m.astype(np.float64) ** 2, axis=1, keepdims=True)
        return np.asarray((total / max(m.shape[1], 1)).astype(F32))


@variant("compensated-sum", "The keys are added with Kahan's compensation.")
class CompensatedSum(SinglePrecision):
    def average(self, x: Array) -> Array:
        total, lost = x[:, 0], np.zeros_like(x[:, 0])
        for j in range(1, self.r):
            added = x[:, j] - lost
            new = total + added
            lost = np.where(np.isfinite(new), (new - total) - added, np.float32(0))
            total = new
        return np.asarray(total / np.float32(self.r))


@variant("tiles", "Keys are added in tiles of four and squares in tiles of sixteen, and the tiles one after another.")
class Tiles(SinglePrecision):
    def average(self, x: Array) -> Array:
        return np.asarray(tiled(x, 4) / np.float32(self.r))

    def mean_of_squares(self, m: Array) -> Array:
        return np.asarray(tiled((m * m)[..., None], 16) / np.float32(max(m.shape[1], 1)))


def tiled(x: Array, size: int) -> Array:
    """Sum over axis 1 in tiles: [A, R, W] to [A, W]."""
    total = np.zeros((x.shape[0], x.shape[2]), F32)
    for start in range(0, x.shape[1], size):
        total = total + x[:, start : start + size].sum(axis=1, dtype=F32)
    return total


@variant("fused-throughout", "Every key enters by a fused multiply-add of 1/r, and so do squares and rotation.")
class FusedThroughout(RoundOnce):
    def average(self, x: Array) -> Array:
        part = np.full_like(x[:, 0], np.float32(1) / np.float32(self.r))
        total = np.zeros_like(x[:, 0])
        for j in range(self.r):
            total = fused(x[:, j], part, total)
        return total

    def mean_of_squares(self, m: Array) -> Array:
        total = np.full((len(m), 1), np.float32(0))
        part = np.float32(1) / np.float32(max(m.shape[1], 1))
        for j in range(m.shape[1]):
            total = fused(m[:, j : j + 1], m[:, j : j + 1], total)
        return np.asarray(total * part)

    def turned(self, y: Array, cos: Array, sin: Array, T: Type) -> Array:
        first, second, at_first, at_second = self.pairs(cos.shape[1])
        out = y.copy()
        for here, other, at, sign in ((first, second, at_first, -1), (second, first, at_second, 1)):
            out[:, here] = fused(np.float32(sign) * y[:, other], sin[:, at], y[:, here] * cos[:, at])
        return out


@variant("newton-reciprocals", "1/r, 1/Di and the reciprocal root are estimates of 14 bits with two Newton steps.")
class NewtonReciprocals(SinglePrecision):
    def average(self, x: Array) -> Array:
        return np.asarray(x.sum(axis=1, dtype=F32) * newton(np.float32(self.r)))

    def mean_of_squares(self, m: Array) -> Array:
        total = np.sum(m * m, axis=1, keepdims=True, dtype=F32)
        return np.asarray(total * newton(np.float32(max(m.shape[1], 1))))

    def inverse_root(self, m: Array) -> Array:
        v = self.mean_of_squares(m) + np.float32(self.epsilon)
        exact = (1 / np.sqrt(v.astype(np.float64))).astype(F32)
        estimate = (exact.view(np.uint32) & np.uint32(0xFFFFFC00)).view(F32)
        for _ in range(2):
            estimate = estimate * (np.float32(1.5) - np.float32(0.5) * (v * estimate) * estimate)
        return np.where(np.isfinite(exact), estimate, exact)


def newton(value: np.float32) -> np.float32:
    """The reciprocal of a whole number by two Newton steps from 14 bits."""
    estimate = np.float32(np.frombuffer((np.array(1 / value, F32).view(np.uint32) & 0xFFFFFC00).tobytes(), F32)[0])
    for _ in range(2):
        estimate = estimate * (np.float32(2) - value * estimate)
    return np.float32(estimate)
