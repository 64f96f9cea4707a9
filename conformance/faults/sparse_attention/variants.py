"""Implementations that differ from the reference in ways the contract leaves open; none of them may be failed."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.faults.sparse_attention.planting import Array, variant
from reference.sparse_attention.operation import Call, Rows, SparseAttention

F32 = np.dtype(np.float32)
Type = np.dtype[Any]
LOG2E = np.float32(1.4426950408889634)


class SinglePrecision(SparseAttention):
    """All arithmetic in f32, in steps that a variant replaces; `step` is where a result may be rounded to T."""

    tile = 0  # tokens that an online softmax takes at a time; 0: all of them
    splits = 1  # parts of the tokens that are computed by themselves

    def attend(self, call: Call, rows: Rows) -> Array:
        T = call.dtype
        tokens, mask = self.attended(call, rows)
        key, value = (x.astype(F32) for x in self.gathered(call, rows, tokens, mask))
        with np.errstate(all="ignore"):
            z = self.products(call, rows, key)
            parts = [
                self.partial(z[:, cut], mask[:, cut], value[:, cut], T)
                for cut in np.array_split(np.arange(z.shape[1]), self.splits)
            ]
            return self.joined(parts, self.sink(call, rows).astype(F32), T).astype(np.float64)

    def step(self, name: str, values: Any, T: Type) -> Any:
        """NUM-2: a scale, a scaled query, a logit, a weight or a partial result; f32 in and out."""
        return values

    def factor(self, call: Call) -> Any:
        return self.step("scale", np.float32(self.scale(call)), call.dtype)

    def products(self, call: Call, rows: Rows, key: Array) -> Array:
        """ATT-1: z [R, M], in f32."""
        query = call.query[rows.n, rows.h, rows.l].astype(F32)
        dot = self.step("dot", self.dot(query[:, None, :], key), call.dtype)
        return np.asarray(self.step("logit", dot * self.factor(call), call.dtype))

    def dot(self, query: Array, key: Array) -> Array:
        """The sum over E of query [R, 1, E] times key [R, M, E]."""
        return self.sum(query * key)

    def sum(self, terms: Array) -> Array:
        """The sum over the last axis, first to last."""
        total = np.zeros(terms.shape[:-1], dtype=F32)
        for j in range(terms.shape[-1]):
            total = total + terms[..., j]
        return total

    def exp(self, x: Array) -> Array:
        """The exponential of f32 numbers, rounded to f32."""
        return np.exp(x)

    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        """Maximum [R], sum of exponentials [R] and weighted sum [R, Ev] of some tokens, one tile after the other."""
        count = z.shape[1]
        top = np.full(len(z), -np.inf, dtype=F32)
        total = np.zeros(len(z), dtype=F32)
        result = np.zeros((len(z), value.shape[2]), dtype=F32)
        for start in range(0, count, self.tile or max(count, 1)):
            tile = slice(start, start + (self.tile or count))
            new = np.maximum(top, np.max(z[:, tile], axis=1, where=mask[:, tile], initial=np.float32(-np.inf)))
            safe = np.where(new == -np.inf, np.float32(0), new)
            kept = self.exp(top - safe)
            weights = np.where(mask[:, tile], self.exp(z[:, tile] - safe[:, None]), np.float32(0))
            weights = self.step("weight", weights, T)
            total = total * kept + self.sum(weights)
            result = result * kept[:, None] + self.sum(np.moveaxis(weights[:, :, None] * value[:, tile], 1, 2))
            top = new
        return top, total, result

    def joined(self, parts: list[tuple[Array, Array, Array]], sink: Array, T: Type) -> Array:
        """The output [R, Ev] in f32 from the parts of the tokens; zeros where there is none."""
        top = np.maximum(np.max([part[0] for part in parts], axis=0), sink)
        safe = np.where(top == -np.inf, np.float32(0), top)
        total = self.exp(sink - safe)
        result = np.zeros_like(parts[0][2])
        for part_top, part_total, part_result in parts:
            share = self.exp(part_top - safe)
            total = total + part_total * share
            result = result + part_result * share[:, None]
        return np.where(total[:, None] > 0, result / np.where(total > 0, total, np.float32(1))[:, None], np.float32(0))


class Rounded(SinglePrecision):
    """Rounds to T at the steps it names."""

    steps: tuple[str, ...] = ()

    def step(self, name: str, values: Any, T: Type) -> Any:
        return values.astype(T).astype(F32) if name in self.steps else values


# Orders and formulas


@variant(
    "float64",
    "Everything in float64, rounded once at the end.",
    rounding="once, at the end",
)
class Float64(SparseAttention):
    pass


@variant("forward", "Sums in f32, first to last.")
class Forward(SinglePrecision):
    pass


@variant("backward", "Sums in f32, last to first.")
class Backward(SinglePrecision):
    def sum(self, terms: Array) -> Array:
        return super().sum(terms[..., ::-1])


@variant("pairwise", "Sums in f32 over halves.")
class Pairwise(SinglePrecision):
    def sum(self, terms: Array) -> Array:
        while terms.shape[-1] > 1:
            half = terms.shape[-1] // 2
            rest = terms[..., 2 * half :]
            terms = np.concatenate((terms[..., :half] + terms[..., half : 2 * half], rest), axis=-1)
        return terms[..., 0] if terms.shape[-1] else np.zeros(terms.shape[:-1], dtype=F32)


@variant("lanes", "Sums in f32 in eight lanes, then over the lanes.")
class Lanes(SinglePrecision):
    def sum(self, terms: Array) -> Array:
        padded = np.concatenate((terms, np.zeros((*terms.shape[:-1], -terms.shape[-1] % 8), dtype=F32)), axis=-1)
        lanes = padded.reshape(*terms.shape[:-1], padded.shape[-1] // 8, 8)
        return super().sum(super().sum(np.moveaxis(lanes, -1, -2)))


@variant("fused", "Dot products with fused multiply and add.")
class Fused(SinglePrecision):
    def dot(self, query: Array, key: Array) -> Array:
        total = np.zeros(np.broadcast_shapes(query.shape, key.shape)[:-1], dtype=F32)
        for j in range(key.shape[-1]):
            exact = query[..., j].astype(np.float64) * key[..., j]
            total = (total.astype(np.float64) + exact).astype(F32)
        return total


class BaseTwo(SinglePrecision):
    def exp(self, x: Array) -> Array:
        return np.exp2(x)

    def factor(self, call: Call) -> Any:
        return self.step("scale", np.float32(self.scale(call)), call.dtype) * LOG2E

    def sink(self, call: Call, rows: Rows) -> Array:
        return super().sink(call, rows).astype(F32) * LOG2E


variant("base-2", "Exponentials to base 2; the scale holds the logarithm.")(BaseTwo)


@variant("scaled-query", "The query is scaled before the dot product, in f32.")
class ScaledQuery(SinglePrecision):
    def products(self, call: Call, rows: Rows, key: Array) -> Array:
        query = call.query[rows.n, rows.h, rows.l].astype(F32) * self.factor(call)
        query = self.step("query", query, call.dtype)
        return np.asarray(self.step("logit", self.dot(query[:, None, :], key), call.dtype))


@variant("scaled-both", "Query and key are multiplied by the root of the scale each.")
class ScaledBoth(SinglePrecision):
    def products(self, call: Call, rows: Rows, key: Array) -> Array:
        root = np.sqrt(np.float32(abs(self.scale(call))))
        query = call.query[rows.n, rows.h, rows.l].astype(F32) * root * np.sign(np.float32(self.scale(call)))
        return self.dot(query[:, None, :], key * root)


@variant("normalized-first", "Weights are divided by their sum before the weighted sum.")
class NormalizedFirst(SinglePrecision):
    def attend(self, call: Call, rows: Rows) -> Array:
        T = call.dtype
        tokens, mask = self.attended(call, rows)
        key, value = (x.astype(F32) for x in self.gathered(call, rows, tokens, mask))
        sink = self.sink(call, rows).astype(F32)
        with np.errstate(all="ignore"):
            z = self.products(call, rows, key)
            top = self.maximum(z, mask, sink).astype(F32)[:, None]
            e = np.where(mask, self.exp(z - top), np.float32(0))
            total = (self.sum(e) + self.exp(sink - top[:, 0]))[:, None]
            weights = self.step("weight", np.where(total > 0, e / total, np.float32(0)), T)
            return self.sum(np.moveaxis(weights[:, :, None] * value, 1, 2)).astype(np.float64)


# Online softmax and splits over the keys


@variant("online-1", "Online softmax, one token at a time.")
class Online1(SinglePrecision):
    tile = 1


@variant("online-8", "Online softmax in tiles of 8 tokens.")
class Online8(SinglePrecision):
    tile = 8


@variant("online-16-base-2", "Online softmax in tiles of 16 tokens, to base 2.")
class Online16(BaseTwo):
    tile = 16


@variant("split-4", "The tokens in four parts that are joined at the end.")
class Split4(SinglePrecision):
    splits = 4


@variant("split-7-online", "The tokens in seven parts, each in tiles of 3.")
class Split7(SinglePrecision):
    splits, tile = 7, 3


# The set of tokens


@variant("mask", "Attention over all rows of key and value under a boolean mask; rows outside A are weighted by zero.")
class Mask(SinglePrecision):
    def attended(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        tokens, mask = super().attended(call, rows)
        everything = np.broadcast_to(np.arange(call.S), (len(rows), call.S))
        belongs = np.zeros((len(rows), call.S + 1), dtype=bool)
        belongs[np.arange(len(rows))[:, None], np.where(mask, tokens, call.S)] = True
        return everything, belongs[:, : call.S]

    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> tuple[Array, Array]:
        row = self.key_row(call, rows.n[:, None], tokens)
        row = np.where(row >= 0, row, row + call.S) % max(call.S, 1)
        n, head = rows.n[:, None], self.key_head(call, rows.h)[:, None]
        # A boolean mask leaves 0 * NaN what it is: only rows that are finite have no effect (SEP-1, SEP-4).
        return call.key[n, head, row].astype(np.float64), call.value[n, head, row].astype(np.float64)


@variant("sorted", "The listed blocks are sorted first.")
class Sorted(SinglePrecision):
    def listed(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        blocks, counted = super().listed(call, rows)
        order = np.argsort(np.where(counted, blocks, np.iinfo(np.int64).max), axis=1, kind="stable")
        return np.take_along_axis(blocks, order, axis=1), np.take_along_axis(counted, order, axis=1)


@variant("open-first", "The open block comes before the listed ones.")
class OpenFirst(SinglePrecision):
    def attended(self, call: Call, rows: Rows) -> tuple[Array, Array]:
        tokens, mask = super().attended(call, rows)
        return tokens[:, ::-1], mask[:, ::-1]


@variant("sink-column", "The sink is a further token whose value is zero.")
class SinkColumn(SinglePrecision):
    def attend(self, call: Call, rows: Rows) -> Array:
        T = call.dtype
        tokens, mask = self.attended(call, rows)
        key, value = (x.astype(F32) for x in self.gathered(call, rows, tokens, mask))
        sink = self.sink(call, rows).astype(F32)[:, None]
        with np.errstate(all="ignore"):
            z = np.concatenate((sink, self.products(call, rows, key)), axis=1)
            value = np.concatenate((np.zeros((len(rows), 1, value.shape[2]), dtype=F32), value), axis=1)
            mask = np.concatenate((sink > -np.inf, mask), axis=1)
            none = np.full(len(rows), -np.inf, dtype=F32)
            return self.joined([self.partial(z, mask, value, T)], none, T).astype(np.float64)


# What is unspecified


@variant("padding-poisoned", "Rows of padding are NaN.")
class PaddingPoisoned(SinglePrecision):
    def run(self, inputs: Any) -> dict[str, Array]:
        outputs = super().run(inputs)
        if self.causal:
            call = Call(**inputs)
            rows = Rows.all_of(call)
            rows = rows.where(self.positions(call, rows) < 0)
            outputs["attention_output"][rows.n, rows.h, rows.l] = np.nan
        return outputs


@variant("negative-zeros", "The zeros of rows without tokens are negative.")
class NegativeZeros(SinglePrecision):
    def attend(self, call: Call, rows: Rows) -> Array:
        values = super().attend(call, rows)
        return np.where(values == 0, -0.0, values)


# Roundings to T


@variant("scale-in-t", "The scale is rounded to T.")
class ScaleInT(Rounded):
    steps = ("scale",)


@variant(
    "query-in-t",
    "The scaled query is rounded to T.",
    rounding="the scaled query",
)
class QueryInT(Rounded, ScaledQuery):
    steps = ("scale", "query")


@variant(
    "logits-in-t",
    "Logits are rounded to T before and after the scale.",
    rounding="logits, before and after the scale",
)
class LogitsInT(Rounded):
    steps = ("scale", "dot", "logit")


@variant(
    "weights-in-t",
    "Weights are rounded to T before they are normalized, the sum is of the rounded ones.",
    rounding="weights, before they are normalized",
)
class WeightsInT(Rounded):
    steps = ("weight",)


@variant(
    "weights-in-t-normalized",
    "Weights are rounded to T after they were normalized.",
    rounding="weights, normalized",
)
class NormalizedInT(Rounded, NormalizedFirst):
    steps = ("weight",)


@variant(
    "eager",
    "As in eager PyTorch: logits in T twice, softmax in f32, weights in T.",
    rounding="logits and normalized weights, as in eager code",
)
class Eager(Rounded, NormalizedFirst):
    steps = ("scale", "dot", "logit", "weight")


@variant("partials-in-t", "The tokens in four parts, whose normalized results are rounded to T.")
class PartialsInT(Rounded):
    splits, steps = 4, ("weight",)

    def partial(self, z: Array, mask: Array, value: Array, T: Type) -> tuple[Array, Array, Array]:
        top, total, result = super().partial(z, mask, value, T)
        share = np.where(total > 0, total, np.float32(1))
        return top, total, (result / share[:, None]).astype(T).astype(F32) * total[:, None]


@variant(
    "flash-in-t",
    "Online softmax in tiles of 8 to base 2, with the scaled query and the weights in T.",
    rounding="the scaled query and the weights",
)
class FlashInT(Rounded, ScaledQuery, BaseTwo):
    steps, tile = ("query", "weight"), 8


@variant("flush-subnormals", "Subnormal f32 numbers are zero, as inputs and after every operation.")
class FlushSubnormals(SinglePrecision):
    def step(self, name: str, values: Any, T: Type) -> Any:
        return flush(values)

    def gathered(self, call: Call, rows: Rows, tokens: Array, mask: Array) -> tuple[Array, Array]:
        key, value = super().gathered(call, rows, tokens, mask)
        return flush(key), flush(value)

    def dot(self, query: Array, key: Array) -> Array:
        return self.sum(flush(flush(query) * flush(key)))

    def store(self, values: Array, dtype: Type) -> Array:
        return super().store(values if dtype == np.float16 else flush(values), dtype)


def flush(values: Array) -> Array:
    """Values with numbers below the smallest normal f32 number replaced by zero."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) < 2.0**-126, np.zeros((), dtype=values.dtype) * values, values)
