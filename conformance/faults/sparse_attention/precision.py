"""Faults in the precision of the arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.faults.sparse_attention.planting import Array, Faulty, fault
from conformance.faults.sparse_attention.variants import F32, SinglePrecision, Type
from reference.sparse_attention.operation import Call, Rows

Marked = tuple[Array, Array]


@fault("A123", "Exponentials have a relative error of 1e-4.", "NUM-1", types="f32")
class CoarseExponential(SinglePrecision, Faulty):
    def exp(self, x: Array) -> Array:
        return np.asarray(np.exp(x) * (np.float32(1) + np.float32(1e-4) * np.sin(x * np.float32(57)).astype(F32)))


def narrowed(values: Array, bits: int) -> Array:
    """f32 numbers rounded to this many bits of mantissa."""
    low = np.uint32((1 << bits) - 1)
    whole = (values.astype(F32).view(np.uint32) + (low >> np.uint32(1))) & ~low
    return whole.view(F32)


@fault("A124", "Exponentials are taken in bf16.", "NUM-1", types="f32")
class NarrowExponential(SinglePrecision, Faulty):
    def exp(self, x: Array) -> Array:
        return narrowed(np.exp(x), 16)


@fault("A125", "The query is rounded to tf32.", "NUM-1", types="f32")
class QueryInTF32(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        if call.dtype != np.float32:
            return super().attend(call, rows)
        return super().attend(replace(call, query=narrowed(call.query, 13)), rows)


@fault("A126", "Keys are rounded to tf32.", "NUM-1", types="f32")
class KeysInTF32(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        if call.dtype != np.float32:
            return super().attend(call, rows)
        return super().attend(replace(call, key=narrowed(call.key, 13)), rows)


@fault("A127", "Values are rounded to tf32.", "NUM-1", types="f32")
class ValuesInTF32(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        if call.dtype != np.float32:
            return super().attend(call, rows)
        return super().attend(replace(call, value=narrowed(call.value, 13)), rows)


@fault("A128", "Weights are rounded to f16 in f32 too.", "NUM-1", "openvinotoolkit/openvino#37858", types="f32")
class WeightsInHalf(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        weights = super().weights(z, mask, sink)
        return weights.astype(np.float16).astype(np.float64)


@fault("A129", "Logits are rounded to f16 in f32 too.", "NUM-1", types="f32")
class LogitsInHalf(Faulty):
    def logits(self, call: Call, rows: Rows, key: Array) -> Array:
        with np.errstate(over="ignore"):
            return super().logits(call, rows, key).astype(np.float16).astype(np.float64)


class Accumulated(SinglePrecision, Faulty):
    """Sums in T, first to last."""

    def attend(self, call: Call, rows: Rows) -> Array:
        self.type = call.dtype
        return super().attend(call, rows)

    def narrow(self, values: Array) -> Array:
        return values.astype(self.type).astype(F32)


@fault("A130", "Dot products are accumulated in T.", "NUM-1", types="f16 bf16", reading="accumulators=T")
class DotInT(Accumulated):
    def dot(self, query: Array, key: Array) -> Array:
        terms = query * key
        total = np.zeros(terms.shape[:-1], dtype=F32)
        for j in range(terms.shape[-1]):
            total = self.narrow(total + terms[..., j])
        return total


@fault("A131", "The weighted sum and the denominator are accumulated in T.", "NUM-1", types="f16 bf16",
       reading="accumulators=T")  # fmt: skip
class SumsInT(Accumulated):
    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        top = np.max(z, axis=1, where=mask, initial=np.float32(-np.inf))
        safe = np.where(top == -np.inf, np.float32(0), top)
        total = np.zeros(len(z), dtype=F32)
        result = np.zeros((len(z), value.shape[2]), dtype=F32)
        weights = np.where(mask, self.exp(z - safe[:, None]), np.float32(0))
        for j in range(z.shape[1]):
            total = self.narrow(total + weights[:, j])
            result = self.narrow(result + weights[:, j, None] * value[:, j])
        return top, total, result


@fault("A132", "The sum of the weights is taken over tokens in f16, whatever T is.", "NUM-1")
class TotalInHalf(SinglePrecision, Faulty):
    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        top, total, result = super().partial(z, mask, value, T)
        return top, total.astype(np.float16).astype(F32), result


@fault("A133", "Outputs are computed in bf16 and widened.", "NUM-1", types="f32 f16")
class OutputInBf16(Faulty):
    def store(self, values: Array, dtype: Any) -> Array:
        return super().store(narrowed(values, 16), dtype)


@fault("A134", "Values beyond the largest number of f16 become infinite on the way.", "NUM-4 NUM-1", types="f32 bf16")
class ValuesInHalf(Faulty):
    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> Marked:
        key, value = super().gathered(call, rows, tokens, mask)
        with np.errstate(over="ignore"):
            return key, np.where(np.abs(value) > 65504, np.sign(value) * np.inf, value)


@fault("A135", "Logits saturate at the largest number of f16.", "ATT-1 NUM-4", types="f32 bf16")
class LogitsSaturate(Faulty):
    def logits(self, call: Call, rows: Rows, key: Array) -> Array:
        return np.clip(super().logits(call, rows, key), -1e4, 1e4)
