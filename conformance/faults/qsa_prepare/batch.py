"""Faults that mix sequences up, and faults in the lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from conformance.faults.qsa_prepare.rounding import accumulated
from reference.qsa_prepare.operation import Call, QSAPrepare

# Lengths


@fault(
    "F60",
    "The length of the first sequence is used for all.",
    "LEN-1 SEP-1",
    "jundot/omlx#3293 hw-native-sys/pypto-lib#351 hw-native-sys/pypto-lib#395 youssofal/MTPLX#380 "
    "sgl-project/sglang#22688",
)
class FirstLengthForAll(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        return np.broadcast_to(super().key_lengths(call)[:1], (call.N,))


@fault("F60m", "The longest length is used for all sequences.", "LEN-1 SEP-1", "vllm-project/vllm-ascend#9496")
class LongestLengthForAll(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        return np.broadcast_to(S.max(initial=0), S.shape)


@fault(
    "F61",
    "A key_length of shape [1] holds for the first sequence only; the others have no past.",
    "LEN-2",
    "microsoft/onnxruntime#28031 microsoft/onnxruntime#28259",
)
class OneLengthNotShared(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call).copy()
        if call.key_length.shape == (1,):
            S[1:] = call.L
        return S


@fault("F62", "Lengths in i64 are read as i32, so that every other one is zero.", "LEN-4")
class LongLengthsAsInt(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        if call.key_length.dtype != np.int64 or call.key_length.shape == (1,):
            return super().key_lengths(call)
        return np.ascontiguousarray(call.key_length).view(np.int32)[: call.N].astype(np.int64)


@fault("F62i", "Lengths in i32 are read with the stride of i64.", "LEN-4")
class IntLengthsAsLong(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        if call.key_length.dtype != np.int32:
            return S
        strided = S[::2]
        return np.concatenate((strided, np.zeros(call.N - len(strided), dtype=np.int64)))


@fault("F62w", "Lengths are kept in 16 bits.", "LEN-1")
class LengthsInSixteenBits(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        return super().key_lengths(call).astype(np.int16).astype(np.int64)


@fault("F62h", "Lengths are kept in the element type, which is exact up to 2,048 in f16 and 256 in bf16.", "LEN-1",
       types="f16 bf16")  # fmt: skip
class LengthsInElementType(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        return super().key_lengths(call).astype(call.dtype).astype(np.int64)


@fault("F63", "key_length is taken for the past alone, without the new tokens.", "LEN-1")
class LengthIsPast(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        return super().key_lengths(call) + call.L


@fault("F63n", "Sequences without a past are taken to be as long as the call, padding or not.", "LEN-3")
class PaddingIgnoredInLength(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        return np.maximum(super().key_lengths(call), call.L)


@fault("F63r", "Padding is at the end: the valid rows are the first ones.", "LEN-3 LEN-1")
class PaddingBehind(QSAPrepare):
    def new_row(self, call: Call, n: Array, t: Array) -> Array:
        return super().new_row(call, n, t) - call.lengths.pad[n]


@fault("F95", "Padding counts as tokens when blocks are cut, so that they begin at the first row.", "LEN-3 BLK-1",
       "Blaizzy/mlx-vlm#2028")  # fmt: skip
class PaddingCounted(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        padded = np.nonzero(call.lengths.pad[n] > 0)[0]
        row = b[padded, None] * self.r + np.arange(self.r)
        x[padded] = call.raw_index_keys[n[padded, None], row]
        return x


@fault("F96", "Rows of cos and sin are counted from the padding, not from the first token.", "LEN-3 ROT-3",
       "Blaizzy/mlx-vlm#2028")  # fmt: skip
class RopeNotShifted(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        padded = np.nonzero(call.lengths.pad[n] > 0)[0]
        row = b[padded] * self.r
        cos[padded], sin[padded] = call.rope_cos[n[padded], row], call.rope_sin[n[padded], row]
        return cos, sin


@fault("F97b", "The number of rows is that of the last sequence.", "OUT-3")
class RowsOfTheLast(QSAPrepare):
    def row_count(self, call: Call) -> int:
        return int(call.lengths.c_after[-1]) if call.N else 0

    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        B = max(super().row_count(call), self.row_count(call))
        out = np.zeros((call.N, B, call.Di), dtype=call.dtype)
        for i, c in enumerate(call.lengths.c.tolist()):
            out[i, :c] = call.past_block_index_keys[i, :c]
        out[n, b] = keys
        return out[:, : self.row_count(call)]


@fault("F97c", "Sequences that complete nothing do not count for the number of rows.", "OUT-3 OUT-1")
class RowsOfCompletingOnly(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        lengths = call.lengths
        return out[:, : int(lengths.c_after[lengths.c_after > lengths.c].max(initial=0))]


@fault("F61z", "A key_length of shape [1] without any sequence raises an error.", "LEN-2 SEP-3")
class OneLengthForNone(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        if call.N == 0 and call.key_length.size:
            raise ValueError("could not broadcast [1] to [0]")
        return super().key_lengths(call)


@fault("F97n", "In batches of more than 8 sequences those from the ninth on have no past.", "LEN-1 SEP-1")
class EightPasts(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call).copy()
        S[8:] = np.minimum(S[8:], call.L)
        return S


# Rows of another sequence


@fault(
    "F64",
    "Rows of the past are addressed with the number of rows of the output.",
    "OUT-1 SEP-1",
    "invergent-ai/surogate#110 unslothai/llama.cpp#135 flashinfer-ai/flashinfer#4018 vllm-project/vllm#54359 "
    "vllm-project/vllm#57477 vllm-project/vllm#57317 vllm-project/vllm#55201",
)
class PastStrideOfOutput(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        flat = call.past_block_index_keys.reshape(-1, call.Di)
        i, row = self.history(call)
        out[i, row] = flat[np.minimum(i * out.shape[1] + row, len(flat) - 1)]
        return out


@fault("F64k", "The offset of a sequence in the new keys is added twice.", "SEP-1", "invergent-ai/surogate#110")
class OffsetTwice(QSAPrepare):
    def raw_keys(self, call: Call, n: Array, t: Array) -> Array:
        keys = super().raw_keys(call, n, t)
        n, t = np.broadcast_arrays(n, t)
        new = t >= call.lengths.past[n]
        if call.L and new.any():
            flat = call.raw_index_keys.reshape(-1, call.Di)
            row = 2 * n[new] * call.L + self.new_row(call, n[new], t[new])
            keys[new] = flat[np.minimum(row, len(flat) - 1)]
        return keys


@fault("F64c", "Rows of the past are addressed as if there were no spare ones.", "OUT-1", "vllm-project/vllm#54359")
class SparePastRowsIgnored(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        flat = call.past_block_index_keys.reshape(-1, call.Di)
        i, row = self.history(call)
        out[i, row] = flat[i * call.lengths.c.max(initial=0) + row]
        return out


@fault("F67", "The past of the first sequence is used for all.", "OUT-1 SEP-1", "youssofal/MTPLX#380")
class PastOfTheFirst(QSAPrepare):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        return super().call({**inputs, **self.first(inputs, "past_block_index_keys")})

    def first(self, inputs: Mapping[str, Array], name: str) -> dict[str, Array]:
        """The port with the rows of sequence 0 in place of all."""
        array = inputs[name]
        return {name: np.broadcast_to(array[:1], array.shape)}


@fault(
    "F68",
    "The new keys of the first sequence are used for all.",
    "SEP-1",
    "sgl-project/sgl-kernel-npu#710 sgl-project/sgl-kernel-npu#711 Blaizzy/mlx-vlm#2126",
)
class KeysOfTheFirst(PastOfTheFirst):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        return QSAPrepare.call(self, {**inputs, **self.first(inputs, "raw_index_keys")})


@fault("F68r", "The cos and sin rows of the first sequence are used for all.", "ROT-3 SEP-1", "jundot/omlx#3294")
class RopeOfTheFirst(PastOfTheFirst):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        both = self.first(inputs, "rope_cos") | self.first(inputs, "rope_sin")
        return QSAPrepare.call(self, {**inputs, **both})


@fault("F68w", "The waiting keys of the first sequence are used for all.", "BLK-3 SEP-1", "youssofal/MTPLX#380")
class WaitingOfTheFirst(PastOfTheFirst):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        return QSAPrepare.call(self, {**inputs, **self.first(inputs, "past_incomplete_raw_keys")})


@fault("F68c", "The carried rope of the first sequence is used for all.", "ROT-4 SEP-1", "youssofal/MTPLX#380")
class CarriedRopeOfTheFirst(PastOfTheFirst):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        return QSAPrepare.call(self, {**inputs, **self.first(inputs, "past_incomplete_rope")})


@fault(
    "F69",
    "When N equals L, lengths are taken along the token axis.",
    "LEN-1 SEP-1",
    "jundot/omlx#3293 jundot/omlx#3368",
)
class AxesMixed(QSAPrepare):
    def call(self, inputs: Mapping[str, Array]) -> Call:
        keys = inputs["raw_index_keys"]
        if keys.shape[0] == keys.shape[1]:
            keys = keys.swapaxes(0, 1)
        return super().call({**inputs, "raw_index_keys": keys})


@fault("F65", "Sequences are sorted by length, and come out in that order.", "SEP-1 OUT-2")
class SortedByLength(QSAPrepare):
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        out = super().run(inputs)
        order = np.argsort(-self.call(inputs).lengths.S, kind="stable")
        return {name: a[order] if a.shape[:1] == order.shape else a for name, a in out.items()}


@fault(
    "F65p",
    "New block keys are dealt to the sequences in equal shares.",
    "OUT-2 SEP-1",
    "flashinfer-ai/flashinfer#4018",
)
class EqualShares(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        share = -(-len(n) // max(call.N, 1))
        owner = np.arange(len(n)) // max(share, 1)
        row = call.lengths.c[owner] + np.arange(len(n)) % max(share, 1)
        fits = row < self.row_count(call)
        return super().place(call, owner[fits], row[fits], keys[fits])


@fault("F65e", "Sequences that complete nothing are skipped when block keys are handed out.", "OUT-2 SEP-1")
class HandedToTheNext(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        owner = np.cumsum(np.diff(n, prepend=-1) > 0) - 1
        row = call.lengths.c[owner] + b - call.lengths.c[n]
        fits = row < self.row_count(call)
        return super().place(call, owner[fits], row[fits], keys[fits])


@fault("F66", "Sequences are taken in pairs; with an odd number the last one is not computed.", "BLK-2 SEP-1")
class OddSequenceLeftOut(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        computed = (n < call.N // 2 * 2) | (call.N == 1)
        return n[computed], b[computed]


@fault("F66g", "Only the first 16 sequences of a batch are computed.", "BLK-2 SEP-1")
class SixteenSequences(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        return n[n < 16], b[n < 16]


@fault(
    "F66z",
    "When one sequence of the batch has no past, begun blocks of the others take the rope of the call's first row.",
    "ROT-4 SEP-1",
    "sgl-project/sglang#22688",
)
class CarriedRopeAllOrNone(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        if (call.lengths.past == 0).any() and (call.lengths.past > 0).any() and call.L:
            row = np.maximum(self.new_row(call, n, b * self.r), 0)
            return call.rope_cos[n, row], call.rope_sin[n, row]
        return super().rope(call, n, b)


@fault("F66n", "A NaN or infinity in a key spreads to all sequences.", "SEP-1 SEP-2")
class NanSpreads(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        with np.errstate(invalid="ignore"):
            x[:, 0] += (x.astype(np.float64) * 0).sum(axis=(0, 1)).astype(x.dtype)
        return x


@fault(
    "F92",
    "Sequences of unequal lengths are pooled by another kernel, whose sums are kept in the element type.",
    "NUM-1 SEP-1",
    "vllm-project/vllm-ascend#9496 Blaizzy/mlx-vlm#2126",
    types="f16 bf16",
)
class UnevenKernel(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        self.uneven = bool((call.lengths.S[:1] != call.lengths.S).any())
        return super().block_keys(call, n, b)

    def mean(self, x: Array) -> Array:
        return accumulated(x, x.dtype) / self.r if self.uneven else super().mean(x)
