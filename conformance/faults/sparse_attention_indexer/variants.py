"""Implementations that differ from the reference in ways the contract leaves open; none of them may be failed."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, Inputs, Outputs, variant
from reference.sparse_attention_indexer.operation import NO_BLOCK, Call, SparseAttentionIndexer

F32 = np.dtype(np.float32)


class SinglePrecision(SparseAttentionIndexer):
    """All arithmetic in f32, in steps that a variant replaces."""

    def queries(self, call: Call, n: int, rows: slice) -> Array:
        return np.asarray(call.index_query[n][:, rows], dtype=F32)

    def keys(self, call: Call, n: int, rows: slice) -> Array:
        return np.asarray(call.block_index_keys[n, : int(call.v[n, rows].max(initial=0))], dtype=F32)

    def weights(self, call: Call, n: int, rows: slice) -> Array | None:
        found = super().weights(call, n, rows)
        return None if found is None else found.astype(F32)

    def products(self, queries: Array, keys: Array) -> Array:
        Hi, rows, Di = queries.shape
        return self.summed(np.ascontiguousarray(queries.reshape(Hi * rows, Di)), keys).reshape(Hi, rows, len(keys))

    def summed(self, queries: Array, keys: Array) -> Array:
        """[Q, Di] with [V, Di]: [Q, V] in f32."""
        result: Array = queries @ keys.T
        return result

    def sum_heads(self, weighted: Array) -> Array:
        Hi, rows, V = weighted.shape
        return self.added(weighted.reshape(self.Hs, Hi // self.Hs, rows, V))

    def added(self, groups: Array) -> Array:
        """[Hs, G, rows, V] to [Hs, rows, V]."""
        total = groups[:, 0]
        for h in range(1, groups.shape[1]):
            total = total + groups[:, h]
        return np.asarray(total)


def element_by_element(queries: Array, keys: Array, order: Array) -> Array:
    """A running f32 sum over the elements in this order."""
    total = np.zeros((len(queries), len(keys)), dtype=F32)
    for j in order:
        total += queries[:, j, None] * keys[None, :, j]
    return total


# Orders of summation


@variant("indexer-matmul", "One matrix product in f32.")
class MatrixProduct(SinglePrecision):
    pass


@variant("indexer-forward", "Elements are summed one by one in f32.")
class Forward(SinglePrecision):
    def summed(self, queries: Array, keys: Array) -> Array:
        return element_by_element(queries, keys, np.arange(queries.shape[1]))


@variant("indexer-backward", "Elements and heads are summed from the last to the first.")
class Backward(SinglePrecision):
    def summed(self, queries: Array, keys: Array) -> Array:
        return element_by_element(queries, keys, np.arange(queries.shape[1])[::-1])

    def added(self, groups: Array) -> Array:
        return super().added(groups[:, ::-1])


@variant("indexer-pairwise", "Elements are summed in pairs.")
class Pairwise(SinglePrecision):
    def summed(self, queries: Array, keys: Array) -> Array:
        terms = [queries[:, j, None] * keys[None, :, j] for j in range(queries.shape[1])]
        while len(terms) > 1:
            terms = [sum(terms[i + 1 : i + 2], terms[i]) for i in range(0, len(terms), 2)]
        return terms[0]


class Lanes(SinglePrecision):
    lanes = 8

    def summed(self, queries: Array, keys: Array) -> Array:
        order = np.arange(queries.shape[1])
        parts = [element_by_element(queries, keys, order[lane :: self.lanes]) for lane in range(self.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]


@variant("indexer-lanes8", "Elements are summed in eight lanes, which are added at the end.")
class EightLanes(Lanes):
    pass


@variant("indexer-lanes16", "Elements are summed in sixteen lanes, which are added at the end.")
class SixteenLanes(Lanes):
    lanes = 16


@variant("indexer-fused", "Every product is added without a rounding in between.")
class Fused(SinglePrecision):
    def summed(self, queries: Array, keys: Array) -> Array:
        total = np.zeros((len(queries), len(keys)), dtype=F32)
        wide, others = queries.astype(np.float64), keys.astype(np.float64)
        for j in range(queries.shape[1]):
            total = (total + wide[:, j, None] * others[None, :, j]).astype(F32)
        return total


@variant("indexer-tiles", "Elements are summed in tiles of four with a remainder, and heads in the order 1, 0, 3, 2...")
class Tiles(SinglePrecision):
    def summed(self, queries: Array, keys: Array) -> Array:
        order = np.arange(queries.shape[1])
        total = np.zeros((len(queries), len(keys)), dtype=F32)
        for start in range(0, queries.shape[1], 4):
            total = total + element_by_element(queries, keys, order[start : start + 4])
        return total

    def added(self, groups: Array) -> Array:
        order = np.arange(groups.shape[1]) ^ 1
        return super().added(groups[:, np.minimum(order, groups.shape[1] - 1)] if groups.shape[1] % 2 == 0 else groups)


# A constant factor


def root(width: int) -> np.float32:
    return np.float32(1 / np.sqrt(max(width, 1)))


@variant("indexer-scaled-before", "Queries are multiplied by 1/sqrt(Di) in f32 before the products.")
class ScaledBefore(SinglePrecision):
    def queries(self, call: Call, n: int, rows: slice) -> Array:
        return super().queries(call, n, rows) * root(call.Di)


@variant("indexer-scaled-after", "The sum over the heads is multiplied by 1/sqrt(Di).")
class ScaledAfter(SinglePrecision):
    def products(self, queries: Array, keys: Array) -> Array:
        self.width = queries.shape[2]
        return super().products(queries, keys)

    def added(self, groups: Array) -> Array:
        return super().added(groups) * root(self.width)


@variant("indexer-divided", "Products are divided by sqrt(Di) before they are rectified.")
class Divided(SinglePrecision):
    def products(self, queries: Array, keys: Array) -> Array:
        return np.asarray(super().products(queries, keys) / np.sqrt(np.float32(max(queries.shape[2], 1))))


@variant("indexer-mean", "A mean over the heads, its factor in the weights.")
class MeanOverHeads(SinglePrecision):
    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        share = np.float32(1) / np.float32(len(rectified) // self.Hs)
        return rectified * (share if weights is None else weights * share)


@variant("indexer-flushed", "Numbers below the smallest normal one of f32 count as zero, products included.")
class Flushed(SinglePrecision):
    def summed(self, queries: Array, keys: Array) -> Array:
        total = np.zeros((len(queries), len(keys)), dtype=F32)
        for j in range(queries.shape[1]):
            total = self.flush(total + self.flush(queries[:, j, None] * keys[None, :, j]))
        return total

    def weigh(self, rectified: Array, weights: Array | None) -> Array:
        return self.flush(super().weigh(rectified, weights))

    def added(self, groups: Array) -> Array:
        return self.flush(super().added(groups))

    @staticmethod
    def flush(values: Array) -> Array:
        return np.where(np.abs(values) < 2.0**-126, np.float32(0), values)


@variant("indexer-float64", "All in f64, with keys, then queries, then weights in another order of axes.")
class Wide(SparseAttentionIndexer):
    def products(self, queries: Array, keys: Array) -> Array:
        return np.asarray(np.einsum("vd,hrd->hrv", keys, queries))


# The selection


@variant("indexer-partition", "A partial sort around the last selected score, then the selected ones in order.")
class PartialSort(SinglePrecision):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = np.zeros(scores.shape, dtype=np.int64)
        for g, row in np.ndindex(*scores.shape[:2]):
            v, m = int(call.v[n, rows][row]), int(call.m[n, rows][row])
            seen = np.where(np.isnan(scores[g, row, :v]), -np.inf, scores[g, row, :v])
            if 0 < m < v:
                last = np.partition(seen, v - m)[v - m]
                above = np.nonzero(seen > last)[0]
                chosen = np.concatenate([above, np.nonzero(seen == last)[0][: m - len(above)]])
            else:
                chosen = np.arange(m)
            order[g, row, :m] = chosen[np.argsort(-seen[chosen], kind="stable")]
        return order


@variant("indexer-by-index", "The selected blocks stand in ascending order of the block.")
class ByIndex(SinglePrecision):
    def write(self, call: Call, n: int, rows: slice, chosen: Array, out: Array) -> None:
        super().write(call, n, rows, chosen, out)
        part = out[n, :, rows]
        part[...] = np.where(part == NO_BLOCK, part, np.sort(np.where(part == NO_BLOCK, 2**31 - 1, part), axis=2))


@variant("indexer-worst-first", "The selected blocks stand in ascending order of their scores.")
class WorstFirst(SinglePrecision):
    def run(self, inputs: Inputs) -> Outputs:
        out = super().run(inputs)
        call, indices = self.call(inputs), out["block_indices"]
        place = call.m[:, None, :, None] - 1 - np.arange(indices.shape[3])
        turned = np.take_along_axis(indices, np.broadcast_to(np.maximum(place, 0), indices.shape), axis=3)
        return {**out, "block_indices": np.where(place >= 0, turned, NO_BLOCK).astype(indices.dtype)}


@variant("indexer-heap", "Blocks are taken one after another, and the worst one so far is replaced: unsorted entries.")
class Streaming(SinglePrecision):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        m = call.m[n, rows][:, None]
        # The selected set is kept; its order is that of blocks modulo 7, as a table of places would leave it.
        place = np.arange(order.shape[2])
        key = np.where(place < m, order % 7 * (1 << 40) + order, (1 << 50) + place)
        return np.take_along_axis(order, np.argsort(key, axis=2, kind="stable"), axis=2)


@variant("indexer-tiles-merged", "The best of every tile of 64 blocks are found first, and merged from tile to tile.")
class Merged(SinglePrecision):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        Hs, R, V = scores.shape
        K = self.K(call)
        hidden = np.arange(V) >= call.v[n, rows][:, None]
        cost = np.where(hidden, np.inf, np.where(np.isnan(scores), 3e38, -scores))
        best = np.zeros((Hs, R, 0), dtype=np.int64)
        for start in range(0, V, 64):
            tile = np.broadcast_to(np.arange(start, min(start + 64, V)), (Hs, R, min(64, V - start)))
            both = np.concatenate([best, tile], axis=2)
            order = np.argsort(np.take_along_axis(cost, both, axis=2), axis=2, kind="stable")[:, :, :K]
            best = np.take_along_axis(both, order, axis=2)
        return best


@variant("indexer-shortcut", "Tokens whose blocks all fit into the budget select them without looking at a score.")
class Shortcut(SinglePrecision):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        fits = call.v[n, rows] <= self.K(call)
        return np.where(fits[None, :, None], np.arange(order.shape[2]), order)


@variant("indexer-one-by-one", "Every query token is computed by itself, over its own visible blocks alone.")
class OneByOne(SinglePrecision):
    def chunks(self, call: Call):  # type: ignore[no-untyped-def]
        for n in range(call.N):
            for row in range(call.L):
                yield n, slice(row, row + 1)


@variant("indexer-keys-padded", "Keys are padded to a multiple of 16 rows, and hidden ones masked after the products.")
class PaddedKeys(SinglePrecision):
    def keys(self, call: Call, n: int, rows: slice) -> Array:
        keys = super().keys(call, n, rows)
        return np.concatenate([keys, np.full((-len(keys) % 16, call.Di), np.nan, dtype=F32)])


class Masked(SinglePrecision):
    """Scores every row of keys, hidden ones included, and replaces those scores."""

    def keys(self, call: Call, n: int, rows: slice) -> Array:
        return np.asarray(call.block_index_keys[n], dtype=F32)


@variant(
    "indexer-masked", "All rows of keys are scored; hidden ones are replaced by minus infinity before the ranking."
)
class MaskedBefore(Masked):
    pass
