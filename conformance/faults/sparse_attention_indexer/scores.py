"""Faults in the score of a block: products, rectification, precision, which rows are read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, fault
from reference.sparse_attention_indexer.operation import Call, SparseAttentionIndexer

F32 = np.dtype(np.float32)
F16 = np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)


def cut(values: Array, bits: int) -> Array:
    """f32 values with no more than this number of bits after the leading one, rounded to nearest."""
    whole = np.ascontiguousarray(values, dtype=F32).view(np.uint32).astype(np.uint64)
    drop = 23 - bits
    half = np.uint64(1 << (drop - 1))
    rounded = (whole + half) >> np.uint64(drop) << np.uint64(drop)
    result = rounded.astype(np.uint32).view(F32)
    return np.where(np.isfinite(values), result, values).astype(np.float64)


# Rectification


@fault("I90", "Products are not rectified.", "SCO-1", "meta-pytorch/attention-gym#449")
class NotRectified(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return products


@fault("I91", "The sum over the heads is rectified, not every head.", "SCO-1")
class RectifiedAfterTheSum(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return products

    def sum_heads(self, weighted: Array) -> Array:
        return np.maximum(super().sum_heads(weighted), 0)


@fault("I92", "The weight stands inside the rectification, so that a head with a negative weight counts wrongly.",
       "SCO-1 SCO-3")  # fmt: skip
class WeightedBeforeRectifying(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return products

    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        return np.maximum(super().weigh(rectified, weights), 0)


@fault("I93", "Products count by their size instead of being rectified.", "SCO-1")
class AbsoluteProducts(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return np.abs(products)


@fault("I94", "The rectifier leaks: a hundredth of what is negative passes.", "SCO-1")
class LeakyRectifier(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return np.where(products < 0, products / 100, products)


@fault("I95", "The rectifier is smooth.", "SCO-1")
class SmoothRectifier(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return np.logaddexp(products, 0)


@fault("I96", "Products are capped at six.", "SCO-1")
class CappedRectifier(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return np.clip(products, 0, 6)


@fault("I97", "A softmax over the blocks takes the place of the rectifier.", "SCO-1")
class SoftmaxOverBlocks(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        power = np.exp(products - products.max(axis=2, keepdims=True, initial=0))
        return np.asarray(power / power.sum(axis=2, keepdims=True))


@fault("I98", "NaN becomes zero in the rectifier, and so does a product below 2^-10.", "SCO-1")
class SmallProductsLost(SparseAttentionIndexer):
    def rectify(self, products: Array) -> Array:
        return np.where(products > 2.0**-10, products, 0)


# Products


@fault("I99", "Keys are normalized: only their direction counts.", "SCO-1")
class KeysNormalized(SparseAttentionIndexer):
    def keys(self, call: Call, n: int, rows: slice) -> Array:
        keys = super().keys(call, n, rows)
        size = np.sqrt((keys * keys).sum(axis=1, keepdims=True))
        return np.where(size > 0, keys / size, keys)


@fault("I100", "Every head's query is normalized, so that all heads count alike.", "SCO-1")
class QueriesNormalized(SparseAttentionIndexer):
    def queries(self, call: Call, n: int, rows: slice) -> Array:
        queries = super().queries(call, n, rows)
        size = np.sqrt((queries * queries).sum(axis=2, keepdims=True))
        return np.where(size > 0, queries / size, queries)


@fault("I101", "Elements beyond the last full four of a key are left out.", "SCO-1")
class WidthTailLost(SparseAttentionIndexer):
    def products(self, queries: Array, keys: Array) -> Array:
        width = queries.shape[2] // 4 * 4 or queries.shape[2]
        return super().products(queries[:, :, :width], keys[:, :width])


@fault("I102", "Elements beyond the last full sixteen of a key are left out, from a width of 16 on.", "SCO-1")
class LanesTailLost(SparseAttentionIndexer):
    def products(self, queries: Array, keys: Array) -> Array:
        width = queries.shape[2] // 16 * 16 or queries.shape[2]
        return super().products(queries[:, :, :width], keys[:, :width])


@fault("I103", "Elements beyond the 128th of a key are left out.", "SCO-1")
class WidthLimited(SparseAttentionIndexer):
    def products(self, queries: Array, keys: Array) -> Array:
        return super().products(queries[:, :, :128], keys[:, :128])


@fault("I104", "The negative distance of key and query counts instead of their product.", "SCO-1")
class Distance(SparseAttentionIndexer):
    def products(self, queries: Array, keys: Array) -> Array:
        own = (keys * keys).sum(axis=1) / 2
        return np.asarray(super().products(queries, keys) - own)


@fault("I105", "The key of the block before is taken.", "SCO-1 SCO-5")
class KeyOfTheBlockBefore(SparseAttentionIndexer):
    def keys(self, call: Call, n: int, rows: slice) -> Array:
        keys = super().keys(call, n, rows)
        return np.concatenate([keys[:1], keys[:-1]])


@fault("I106", "The keys of the first sequence are used for all.", "SEP-1 SCO-5")
class KeysOfTheFirstSequence(SparseAttentionIndexer):
    def keys(self, call: Call, n: int, rows: slice) -> Array:
        return call.block_index_keys[0, : int(call.v[n, rows].max(initial=0))].astype(np.float64)


@fault("I107", "Queries are laid out as [N, L, Hi, Di] where they are [N, Hi, L, Di].", "SCO-1 SCO-4")
class QueriesTransposed(SparseAttentionIndexer):
    def queries(self, call: Call, n: int, rows: slice) -> Array:
        turned = call.index_query[n].reshape(call.L, call.Hi, call.Di).transpose(1, 0, 2)
        return np.asarray(turned[:, rows].astype(np.float64))


@fault("I108", "Every head uses the query of the first.", "SCO-1 SCO-4", "LMCache/LMCache#3092")
class QueryOfTheFirstHead(SparseAttentionIndexer):
    def queries(self, call: Call, n: int, rows: slice) -> Array:
        return np.repeat(super().queries(call, n, rows)[:1], call.Hi, axis=0)


@fault("I109", "Keys are read as if every head had its own share of their elements.", "SCO-5")
class KeysSplitOverHeads(SparseAttentionIndexer):
    def products(self, queries: Array, keys: Array) -> Array:
        Hi, _, Di = queries.shape
        share = max(Di // Hi, 1)
        mask = (np.arange(Di)[None, :] // share % Hi == np.arange(Hi)[:, None])[:, None, :]
        return super().products(queries * mask, keys)


@fault("I110", "The blocks of smallest score are selected.", "SEL-2")
class Smallest(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        return -super().sum_heads(weighted)


@fault("I111", "A block is favoured the later it is, by a thousandth of its number.", "SCO-1 SCO-6")
class RecencyBonus(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        scores = super().sum_heads(weighted)
        return scores + np.arange(scores.shape[2]) * 1e-3


@fault("I112", "A millionth is added to the score of every other block.", "SCO-6 SCO-1")
class EpsilonAdded(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        scores = super().sum_heads(weighted)
        return scores + 1e-6 * (np.arange(scores.shape[2]) % 2)


@fault("I113", "Scores below a thousandth count as zero.", "SCO-1 SCO-6")
class BelowThreshold(SparseAttentionIndexer):
    def sum_heads(self, weighted: Array) -> Array:
        scores = super().sum_heads(weighted)
        return np.where(np.abs(scores) < 1e-3, 0.0, scores)


# Precision


@fault("I120", "Products of f32 are taken with ten bits (tf32).", "NUM-1", types="f32")
class TensorFloat(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        self.reduced = call.dtype == F32
        return super().scores(call, n, rows)

    def products(self, queries: Array, keys: Array) -> Array:
        return super().products(cut(queries, 10), cut(keys, 10)) if self.reduced else super().products(queries, keys)


@fault("I121", "Products of f32 are taken in bf16.", "NUM-1", types="f32")
class BrainProducts(TensorFloat):
    def products(self, queries: Array, keys: Array) -> Array:
        if not self.reduced:
            return super().products(queries, keys)
        return SparseAttentionIndexer.products(self, cut(queries, 7), cut(keys, 7))


@fault("I122", "Products of f32 are taken as three products of bf16 pairs.", "NUM-1", types="f32")
class ThreeBrainProducts(TensorFloat):
    def products(self, queries: Array, keys: Array) -> Array:
        if not self.reduced:
            return SparseAttentionIndexer.products(self, queries, keys)
        high, low = cut(queries, 7), cut(keys, 7)
        rest, other = cut(queries - high, 7), cut(keys - low, 7)
        product = super(TensorFloat, self).products
        return product(high, low) + product(rest, low) + product(high, other)


@fault("I123", "Scores are rounded to T before they are ranked.", "NUM-1", "jundot/omlx#2243", types="f16 bf16",
       reading="scores=rounded")  # fmt: skip
class ScoresInT(SparseAttentionIndexer):
    def stored(self, scores: Array, dtype: np.dtype[Any]) -> Array:
        return np.asarray(scores.astype(dtype).astype(np.float64))


@fault("I124", "Scores are stored in f16, whatever T is.", "NUM-1 NUM-3", "XPU-Forces/mojo_opset#434")
class ScoresInHalf(SparseAttentionIndexer):
    def stored(self, scores: Array, dtype: np.dtype[Any]) -> Array:
        return np.asarray(scores.astype(F16).astype(np.float64))


@fault("I125", "Scores are stored in bf16, whatever T is.", "NUM-1", "jundot/omlx#2243")
class ScoresInBrain(SparseAttentionIndexer):
    def stored(self, scores: Array, dtype: np.dtype[Any]) -> Array:
        return np.asarray(scores.astype(BF16).astype(np.float64))


@fault("I126", "Every product is stored in f16, where those above 65504 are infinite.", "NUM-1 NUM-3",
       "XPU-Forces/mojo_opset#434", types="f16")  # fmt: skip
class ProductsInHalf(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        self.reduced = call.dtype == F16
        return super().scores(call, n, rows)

    def products(self, queries: Array, keys: Array) -> Array:
        products = super().products(queries, keys)
        return products.astype(F16).astype(np.float64) if self.reduced else products


@fault("I127", "Products are summed in T.", "NUM-1", types="f16 bf16")
class AccumulatedInT(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        self.type = call.dtype
        return super().scores(call, n, rows)

    def products(self, queries: Array, keys: Array) -> Array:
        if self.type == F32 or queries.shape[1] * len(keys) > 1 << 16:
            return super().products(queries, keys)
        total = np.zeros((*queries.shape[:2], len(keys)), dtype=self.type)
        for j in range(queries.shape[2]):
            step = queries[:, :, j, None] * keys[None, None, :, j]
            total = (total.astype(np.float64) + step).astype(self.type)
        return total.astype(np.float64)


@fault("I128", "Heads are summed in T.", "NUM-1", types="f16 bf16")
class HeadsSummedInT(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        self.type = call.dtype
        return super().scores(call, n, rows)

    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        groups = weighted.reshape(self.Hs, Hi // self.Hs, rows, V)
        total = groups[:, 0].astype(self.type)
        for h in range(1, groups.shape[1]):
            total = (total.astype(np.float64) + groups[:, h].astype(self.type).astype(np.float64)).astype(self.type)
        return total.astype(np.float64)


@fault("I129", "The query is multiplied by 1/sqrt(Di) and rounded to T.", "NUM-1 SCO-6", types="f16 bf16")
class ScaledQueryInT(SparseAttentionIndexer):
    def queries(self, call: Call, n: int, rows: slice) -> Array:
        scaled = super().queries(call, n, rows) / np.sqrt(max(call.Di, 1))
        return np.asarray(scaled.astype(call.dtype).astype(np.float64) if call.dtype != F32 else scaled)


@fault("I130", "Weights and queries are multiplied in T before the product.", "NUM-1 SCO-3", types="f16 bf16")
class WeightedQueryInT(SparseAttentionIndexer):
    def scores(self, call: Call, n: int, rows: slice) -> Array:
        self.type = call.dtype
        return super().scores(call, n, rows)

    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        if weights is None or self.type == F32:
            return super().weigh(rectified, weights)
        return rectified.astype(self.type).astype(np.float64) * weights


@fault("I131", "Keys are quantized to eight bits, each by its largest element.", "NUM-1")
class QuantizedKeys(SparseAttentionIndexer):
    def keys(self, call: Call, n: int, rows: slice) -> Array:
        keys = super().keys(call, n, rows)
        step = np.abs(keys).max(axis=1, keepdims=True, initial=0) / 127
        return np.where(step > 0, np.round(keys / np.where(step > 0, step, 1)) * step, keys)
