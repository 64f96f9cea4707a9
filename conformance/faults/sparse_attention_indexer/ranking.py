"""Faults in how blocks are ranked by their scores."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_indexer.planting import Array, fault
from reference.sparse_attention_indexer.operation import NO_BLOCK, Call, SparseAttentionIndexer


class Ranked(SparseAttentionIndexer):
    """Ranks by another key than the scores, the largest first, ties to the smaller block."""

    def key(self, scores: Array) -> Array:
        raise NotImplementedError

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        with np.errstate(all="ignore"):
            return super().rank(call, n, rows, self.key(scores).astype(np.float64))


def visible(call: Call, n: int, rows: slice, V: int) -> Array:
    return np.asarray(np.arange(V) < call.v[n, rows][:, None])


# Ties


@fault("I140", "Of equal scores the larger block is taken.", "TIE-1", "vllm-project/vllm#55122", reading="ties=free")
class TiesToTheLarger(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        hidden = ~visible(call, n, rows, scores.shape[2])
        key = np.where(hidden | np.isnan(scores), np.inf, -scores)
        back = scores.shape[2] - 1 - np.argsort(key[:, :, ::-1], axis=2, kind="stable")
        # Hidden blocks stay last among what is infinite.
        seen = np.take_along_axis(np.broadcast_to(hidden, key.shape), back, axis=2)
        return np.take_along_axis(back, np.argsort(seen, axis=2, kind="stable"), axis=2)


@fault("I141", "Of equal scores any are taken, as an unstable sort leaves them.", "TIE-1",
       "jundot/omlx#2243 ROCm/aiter#4376", reading="ties=free")  # fmt: skip
class TiesAnywhere(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        V = scores.shape[2]
        mixed = np.argsort(np.arange(V) * 0x9E3779B1 % 0x10001, kind="stable")
        hidden = ~visible(call, n, rows, V)
        key = np.where(hidden, np.inf, np.where(np.isnan(scores), 1e308, np.minimum(-scores, 1e308)))
        return mixed[np.argsort(key[:, :, mixed], axis=2, kind="stable")]


@fault("I142", "Ties with the last selected block go to the larger ones, by a partition around it.", "TIE-1",
       "sgl-project/sglang#24654", reading="ties=free")  # fmt: skip
class TiesAtTheLimit(TiesToTheLarger):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        back = super().rank(call, n, rows, scores)
        right = SparseAttentionIndexer.rank(self, call, n, rows, scores)
        K = self.K(call)
        last = np.take_along_axis(scores, right[:, :, max(K - 1, 0) : K], axis=2) if scores.shape[2] >= K else None
        if last is None:
            return right
        tied = np.take_along_axis(scores, back, axis=2) == last
        return np.where(np.take_along_axis(scores, right, axis=2) == last, back, np.where(tied, back, right))


@fault("I143", "Scores of -0, from keys of -0, rank below those of +0, as by their bits.", "TIE-1")
class MinusZeroBelow(Ranked):
    def products(self, queries: Array, keys: Array) -> Array:
        products = super().products(queries, keys)
        # A sum that begins with its first term keeps the sign of zeros.
        minus = (np.signbit(queries[:, :, None]) != np.signbit(keys)).all(axis=3) if len(keys) < 64 else False
        return np.where((products == 0) & minus, -0.0, products)

    def rectify(self, products: Array) -> Array:
        return np.where(products < 0, 0.0, products)

    def sum_heads(self, weighted: Array) -> Array:
        scores = super().sum_heads(weighted)
        groups = weighted.reshape(self.Hs, -1, *weighted.shape[1:])
        return np.where(((groups == 0) & np.signbit(groups)).all(axis=1), -0.0, scores)

    def key(self, scores: Array) -> Array:
        bits = np.ascontiguousarray(scores, dtype=np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits)


# Keys of the ranking


@fault("I144", "Negative scores are ranked by their bits, the most negative first.", "SEL-2",
       "vllm-project/vllm#51782")  # fmt: skip
class SignedBits(Ranked):
    def key(self, scores: Array) -> Array:
        return np.ascontiguousarray(scores, dtype=np.float32).view(np.int32)


@fault("I145", "Scores are ranked as bits without a sign: negative ones come first.", "SEL-2")
class UnsignedBits(Ranked):
    def key(self, scores: Array) -> Array:
        return np.ascontiguousarray(scores, dtype=np.float32).view(np.uint32)


@fault("I146", "Scores are ranked by their size.", "SEL-2")
class BySize(Ranked):
    def key(self, scores: Array) -> Array:
        return np.abs(scores)


@fault("I147", "Scores are ranked by their upper sixteen bits, within a bin by arrival.", "SEL-2",
       "vllm-project/vllm#51782 vllm-project/vllm#55314")  # fmt: skip
class CoarseBins(Ranked):
    bits = 16

    def key(self, scores: Array) -> Array:
        whole = np.ascontiguousarray(scores, dtype=np.float32).view(np.int32).astype(np.int64)
        ordered = np.where(whole < 0, -(whole & 0x7FFFFFFF), whole)
        return ordered >> (32 - self.bits)


@fault("I148", "Scores are ranked by their upper eleven bits.", "SEL-2", "vllm-project/vllm#51782")
class VeryCoarseBins(CoarseBins):
    bits = 11


@fault("I149", "Of more than 4,096 blocks with the same upper 24 bits only the first 4,096 are candidates.", "SEL-2",
       "sgl-project/sglang#36807 sgl-project/sglang#37625")  # fmt: skip
class BucketOverflow(SparseAttentionIndexer):
    limit, bits = 4096, 24

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        scores = scores.copy()
        if scores.shape[2] > self.limit:
            for g, row in np.ndindex(*scores.shape[:2]):
                seen = scores[g, row, : int(call.v[n, rows][row])]
                coarse = np.ascontiguousarray(seen, dtype=np.float32).view(np.int32) >> (32 - self.bits)
                values, places, sizes = np.unique(coarse, return_inverse=True, return_counts=True)
                for number in np.nonzero(sizes > self.limit)[0] if len(values) else ():
                    members = np.nonzero(places == number)[0]
                    seen[members[self.limit :]] = -np.inf
        return super().rank(call, n, rows, scores)


@fault("I150", "Of more than 1,024 blocks in one bin of the ranking only the first 1,024 are candidates.", "SEL-2",
       "sgl-project/sglang#35257")  # fmt: skip
class TieBufferOverflow(BucketOverflow):
    limit, bits = 1024, 20


@fault("I151", "Blocks beyond the 4,096th are not ranked.", "SEL-2 VIS-1")
class FourThousandBlocks(SparseAttentionIndexer):
    limit = 4096

    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        scores = scores.copy()
        scores[:, :, self.limit :] = -np.inf
        return super().rank(call, n, rows, scores)


@fault("I152", "Blocks beyond the 1,024th are not ranked.", "SEL-2 VIS-1")
class ThousandBlocks(FourThousandBlocks):
    limit = 1024


@fault(
    "I153", "The best are found in tiles of 256 blocks, and the tile's start is not added to the block.", "SEL-2 VIS-1"
)
class TileOffsetLost(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        return super().rank(call, n, rows, scores) % 256


@fault("I154", "Each half of the blocks gives half of the selection.", "SEL-2")
class HalfFromEachHalf(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        v, m = call.v[n, rows][None, :, None], call.m[n, rows][None, :, None]
        early = order < v // 2
        place = np.where(early, np.cumsum(early, axis=2), np.cumsum(~early, axis=2)) - 1
        half = np.where(early, place < np.minimum(m - m // 2, v // 2), place < m - np.minimum(m - m // 2, v // 2))
        return np.take_along_axis(order, np.argsort(~half | (order >= v), axis=2, kind="stable"), axis=2)


@fault("I155", "Every tile of 64 blocks gives no more than the first eight of its best.", "SEL-2")
class FewFromEachTile(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        scores = scores.copy()
        V = scores.shape[2]
        if V > 64:
            for start in range(0, V, 64):
                tile = np.where(np.isnan(scores[:, :, start : start + 64]), -np.inf, scores[:, :, start : start + 64])
                rest = np.argsort(-tile, axis=2, kind="stable")[:, :, 8:]
                np.put_along_axis(scores[:, :, start : start + 64], rest, -np.inf, axis=2)
        return super().rank(call, n, rows, scores)


@fault("I156", "The last entry is the first block that is not selected yet, whatever it scores.", "SEL-2")
class LastEntryArbitrary(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores).copy()
        for g, row in np.ndindex(*order.shape[:2]):
            v, m = int(call.v[n, rows][row]), int(call.m[n, rows][row])
            if 0 < m < v:
                rest = np.sort(order[g, row, m - 1 : v])
                order[g, row, m - 1 : v] = rest
        return order


@fault("I157", "Only blocks that score more than zero are selected.", "SEL-1 SEL-2 CNT-1", "vllm-project/vllm#55314")
class PositiveOnly(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        return np.where(np.take_along_axis(scores, order, axis=2) > 0, order, NO_BLOCK)


@fault("I158", "Blocks that score the same as another are selected once.", "SEL-1 SEL-2")
class EqualScoresOnce(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        ranked = np.take_along_axis(scores, order, axis=2)
        again = np.zeros(order.shape, dtype=bool)
        again[:, :, 1:] = ranked[:, :, 1:] == ranked[:, :, :-1]
        return np.take_along_axis(order, np.argsort(again, axis=2, kind="stable"), axis=2)


@fault("I159", "While the context fits into the budget the blocks from 0 on are given, one too many.", "CNT-1 VIS-1",
       "kekzl/imp#2072")  # fmt: skip
class ShortcutBelowBudget(SparseAttentionIndexer):
    def selected(self, call: Call) -> Array:
        m = super().selected(call)
        fits = (call.v > 0) & (call.v < self.K(call)) & (call.v < call.B)
        return np.where(fits, call.v + 1, m)

    def write(self, call: Call, n: int, rows: slice, chosen: Array, out: Array) -> None:
        m = call.m[n, rows]
        counted = np.broadcast_to(np.arange(out.shape[3]), (self.Hs, len(m), out.shape[3]))
        super().write(call, n, rows, chosen, out)
        fits = call.v[n, rows] < m
        short = np.where(counted < m[:, None], counted, NO_BLOCK)
        out[n, :, rows] = np.where(fits[:, None], short, out[n, :, rows])


@fault("I160", "A sequence whose context fits into the budget selects the same first blocks for all its tokens.",
       "CNT-1 VIS-1", "jundot/omlx#3264")  # fmt: skip
class ShortcutBySequence(SparseAttentionIndexer):
    def selected(self, call: Call) -> Array:
        all_of = np.broadcast_to(self.key_lengths(call)[:, None] // self.r, call.v.shape)
        return np.where((all_of <= self.K(call)) & (call.p >= 0), all_of, super().selected(call))

    def write(self, call: Call, n: int, rows: slice, chosen: Array, out: Array) -> None:
        m = call.m[n, rows]
        super().write(call, n, rows, chosen, out)
        counted = np.broadcast_to(np.arange(out.shape[3]), (self.Hs, len(m), out.shape[3]))
        fits = (call.v[n, rows] < m)[:, None]
        out[n, :, rows] = np.where(fits, np.where(counted < m[:, None], counted, NO_BLOCK), out[n, :, rows])


@fault("I161", "Scores are quantized to eight bits between the smallest and the largest of the row.", "SEL-2 NUM-1")
class QuantizedScores(Ranked):
    def key(self, scores: Array) -> Array:
        finite = np.where(np.isfinite(scores), scores, 0)
        low, high = finite.min(axis=2, keepdims=True, initial=0), finite.max(axis=2, keepdims=True, initial=0)
        return np.asarray(np.floor((finite - low) / np.where(high > low, high - low, 1) * 255))


@fault("I162", "The best block is left out, and one more of the others taken.", "SEL-2")
class BestLeftOut(SparseAttentionIndexer):
    def rank(self, call: Call, n: int, rows: slice, scores: Array) -> Array:
        order = super().rank(call, n, rows, scores)
        more = call.v[n, rows] > call.m[n, rows]
        shifted = np.roll(order, -1, axis=2)
        return np.where(more[None, :, None], shifted, order)


@fault("I163", "The first query of a tile of four is used for all of them.", "SEL-2 SEP-1",
       "vllm-project/vllm#47238")  # fmt: skip
class SharedByTile(SparseAttentionIndexer):
    def queries(self, call: Call, n: int, rows: slice) -> Array:
        queries = super().queries(call, n, rows)
        seen = call.v[n, rows] > 0
        first = np.arange(queries.shape[1]) // 4 * 4
        return np.where((seen & seen[first])[None, :, None], queries[:, first], queries)
