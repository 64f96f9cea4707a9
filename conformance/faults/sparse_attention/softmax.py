"""Faults in the softmax and the weighted sum."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention.planting import Array, Faulty, fault
from conformance.faults.sparse_attention.variants import F32, Mask, SinglePrecision, Type
from reference.sparse_attention.operation import Call, Rows

Marked = tuple[Array, Array]


# Rows without tokens


@fault("A98", "A row without tokens is NaN.", "ATT-5", "iree-org/iree#24178 tracel-ai/burn#4697 pytorch/pytorch#131060")
class EmptyIsNaN(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        values = super().attend(call, rows)
        values[~self.attended(call, rows)[1].any(axis=1)] = np.nan
        return values


@fault("A99", "A row without tokens is the mean of all values.", "ATT-5", "robertknight/rten#1321")
class EmptyIsMean(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        values = super().attend(call, rows)
        empty = ~self.attended(call, rows)[1].any(axis=1)
        if empty.any() and call.S:
            mean = np.nan_to_num(call.value.astype(np.float64), posinf=0, neginf=0).clip(-9, 9).mean(axis=2)
            values[empty] = mean[rows.n[empty], self.key_head(call, rows.h[empty])]
        return values


@fault("A100", "A row without tokens keeps what the row before gave.", "ATT-5", "openvinotoolkit/openvino#33814")
class EmptyIsStale(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        values = super().attend(call, rows)
        empty = ~self.attended(call, rows)[1].any(axis=1)
        for i in np.flatnonzero(empty):
            values[i] = values[i - 1] if i else 1.0
        return values


# Softmax


class Exponentials(Faulty):
    """The softmax of f32 numbers with another maximum."""

    def maximum(self, z: Array, mask: Array, sink: Array) -> Array:
        raise NotImplementedError

    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        with np.errstate(all="ignore"):
            z, sink = z.astype(F32), sink.astype(F32)
            top = self.maximum(z, mask, sink).astype(F32)
            e = np.where(mask, np.exp(z - top[:, None]), np.float32(0))
            total = e.sum(axis=1) + np.exp(sink - top)
            some = mask.any(axis=1, keepdims=True)
            return np.where(some, e / total[:, None], np.float32(0)).astype(np.float64)


@fault("A101", "Exponentials are taken without subtracting the maximum.", "ATT-1 NUM-4")
class NoMaximum(Exponentials):
    def maximum(self, z: Array, mask: Array, sink: Array) -> Array:
        return np.zeros(len(z))


@fault("A102", "The maximum starts at 0: where all logits are far below, all weights vanish.", "ATT-1 NUM-4")
class MaximumFromZero(Exponentials):
    def maximum(self, z: Array, mask: Array, sink: Array) -> Array:
        return np.maximum(super(Exponentials, self).maximum(z, mask, sink), 0)


@fault("A103", "Tokens that are not attended to have a logit of -1e4: a finite stand-in for minus infinity.",
       "ATT-1 NUM-4", "flashinfer-ai/flashinfer#4401")  # fmt: skip
class FiniteMask(Mask, Faulty):
    stand_in = -1e4

    def products(self, call: Call, rows: Rows, key: Array) -> Array:
        z = super().products(call, rows, key)
        mask = self.attended(call, rows)[1]
        return np.where(mask, z, np.float32(self.stand_in))

    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        return super().partial(z, np.broadcast_to(mask.any(axis=1, keepdims=True), mask.shape), value, T)


@fault("A104", "A mask of -1e9 is added to the logits, which hides no huge key.", "SEP-1 ATT-1")
class AddedMask(FiniteMask):
    def products(self, call: Call, rows: Rows, key: Array) -> Array:
        z = SinglePrecision.products(self, call, rows, key)
        return np.where(self.attended(call, rows)[1], z, z + np.float32(-1e9))


@fault("A105", "Tokens that are not attended to keep a weight of exp(-20).", "SEP-1")
class WeakMask(FiniteMask):
    def products(self, call: Call, rows: Rows, key: Array) -> Array:
        z = SinglePrecision.products(self, call, rows, key)
        mask = self.attended(call, rows)[1]
        top = np.max(z, axis=1, where=mask, initial=-np.inf)
        return np.where(mask, z, top[:, None] - np.float32(20))


@fault("A106", "Exponentials are clipped: no logit is taken to be further than 30 below the maximum.", "ATT-1")
class ClippedExponent(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        top = self.maximum(z, mask, sink)[:, None]
        return super().weights(np.maximum(z, top - 8), mask, sink)


@fault("A107", "Logits are capped by a tangent at 50.", "ATT-1")
class SoftCap(Faulty):
    def logits(self, call: Call, rows: Rows, key: Array) -> Array:
        capped: Array = 50 * np.tanh(super().logits(call, rows, key) / 50)
        return capped


@fault("A108", "Exponentials are to base 2 without the change of base.", "ATT-1")
class WrongBase(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        return super().weights(z * np.log(2.0), mask, sink * np.log(2.0))


@fault("A109", "The sink is taken to base 2 where the logits hold the change of base.", "ATT-4")
class SinkOfOtherBase(Faulty):
    def sink(self, call: Call, rows: Rows) -> Array:
        return np.asarray(super().sink(call, rows) * np.log(2.0))


@fault("A110", "Online softmax in tiles of 8 does not rescale the weighted sum when the maximum grows.", "ATT-1 NUM-3")
class NoRescaling(SinglePrecision, Faulty):
    tile = 8

    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        result = np.zeros((len(z), value.shape[2]), dtype=F32)
        top = np.full(len(z), -np.inf, dtype=F32)
        total = np.zeros(len(z), dtype=F32)
        for start in range(0, z.shape[1], self.tile):
            tile = slice(start, start + self.tile)
            new, part, sums = super().partial(z[:, tile], mask[:, tile], value[:, tile], T)
            larger = np.maximum(new, top)
            safe = np.where(larger == -np.inf, np.float32(0), larger)
            total = total * np.exp(top - safe) + part * np.exp(new - safe)
            result = result + sums * np.exp(new - safe)[:, None]
            top = larger
        return top, total, result


@fault("A111", "A first tile of 8 tokens of which none is attended to gives NaN.", "ATT-1", "vllm-project/vllm#48364")
class FirstTileEmpty(Mask, Faulty):
    tile = 8

    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        top, total, result = super().partial(z, mask, value, T)
        if z.shape[1] > self.tile:
            lost = ~mask[:, : self.tile].any(axis=1) & mask.any(axis=1)
            result[lost] = np.nan
        return top, total, result


@fault("A112", "Parts of a split are averaged by their number of tokens, not by their weight.", "NUM-3 ATT-1")
class SplitAveraged(SinglePrecision, Faulty):
    splits = 2

    def joined(self, parts: list[tuple[Array, Array, Array]], sink: Array, T: Type) -> Array:
        total = np.zeros(len(sink), dtype=F32)
        result = np.zeros_like(parts[0][2])
        for _, part_total, part_result in parts:
            there = part_total > 0
            share = np.where(there, part_total, np.float32(1))
            result = result + np.where(there[:, None], part_result / share[:, None], np.float32(0))
            total = total + there
        return result / np.maximum(total, 1)[:, None]


@fault("A113", "Tokens are taken in tiles of 16; what is left over is dropped.", "ATT-1")
class TilesOfSixteen(Faulty):
    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().attended(call, rows)
        place, count = np.cumsum(mask, axis=1) - 1, mask.sum(axis=1)
        whole = np.where(count > 16, count // 16 * 16, count)
        return tokens, mask & (place < whole[:, None])


@fault("A114", "No more than 1,024 tokens are attended to.", "ATT-1")
class AtMostATile(Faulty):
    limit = 1024

    def attended(self, call: Call, rows: Rows) -> Marked:
        tokens, mask = super().attended(call, rows)
        return tokens, mask & (np.cumsum(mask, axis=1) <= self.limit)


@fault("A115", "No more than 32 tokens are attended to.", "ATT-1")
class AtMostThirtyTwo(AtMostATile):
    limit = 32


@fault("A116", "Of a width beyond 8 the part that fills no vector of 8 is left out of the dot product.", "ATT-1")
class VectorsOfEight(Faulty):
    def logits(self, call: Call, rows: Rows, key: Array) -> Array:
        width = call.E // 8 * 8 if call.E > 8 else call.E
        key = key.copy()
        key[:, :, width:] = 0
        return super().logits(call, rows, key)


@fault("A117", "Of a width of values beyond 8 the part that fills no vector of 8 is left at zero.", "ATT-1")
class ValuesInEights(Faulty):
    def weighted(self, weights: Array, value: Array) -> Array:
        result = super().weighted(weights, value)
        if result.shape[1] > 8:
            result[:, result.shape[1] // 8 * 8 :] = 0
        return result


@fault("A118", "Of a width of keys beyond 64 the rest is left out of the dot product.", "ATT-1")
class SixtyFour(Faulty):
    def logits(self, call: Call, rows: Rows, key: Array) -> Array:
        key = key.copy()
        key[:, :, 64:] = 0
        return super().logits(call, rows, key)


@fault("A119", "Weights are not normalized.", "ATT-1")
class NotNormalized(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        with np.errstate(all="ignore"):
            top = self.maximum(z, mask, sink)[:, None]
            return np.where(mask, np.exp(z - top), 0.0)


@fault("A120", "Weights are normalized over all listed entries' room, unread ones counted as exp(0).", "ATT-1 SEL-1",
       "NVIDIA/cudnn-frontend#838")  # fmt: skip
class RoomInTheSum(Faulty):
    def weights(self, z: Array, mask: Array, sink: Array) -> Array:
        weights = super().weights(z, mask, sink)
        with np.errstate(all="ignore"):
            top = self.maximum(z, mask, sink)
            total = np.where(mask, np.exp(z - top[:, None]), 0).sum(axis=1) + np.exp(sink - top)
            more = (~mask).sum(axis=1) * np.exp(-top)
            return weights * np.where(total > 0, total / (total + more), 1)[:, None]


@fault("A121", "Key and value are exchanged where their widths agree.", "ATT-1")
class KeyAndValueExchanged(Faulty):
    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> Marked:
        key, value = super().gathered(call, rows, tokens, mask)
        return (value, key) if call.Ev == call.E else (key, value)


@fault("A122", "A query of zeros gives zeros.", "ATT-1")
class ZeroQuery(Faulty):
    def attend(self, call: Call, rows: Rows) -> Array:
        values = super().attend(call, rows)
        values[~np.any(call.query[rows.n, rows.h, rows.l], axis=1)] = 0
        return values
