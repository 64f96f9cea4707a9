"""Faults that show beyond a size only: counters, masks, tiles, offsets and lengths that are too narrow."""

from __future__ import annotations

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import Call, Lengths, QSAPrepare

Outputs = dict[str, Array]


# Width of a key


@fault("F340", "Beyond 2,048 elements a last group that is not full is not computed.", "NRM-1 AVG-1",
       "ggml-org/llama.cpp#26708")  # fmt: skip
class WideTail(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        if call.Di > 2048:
            out[:, call.Di // 16 * 16 :] = 0
        return out


@fault("F340s", "Squares are added in registers for 1,024 elements; of wider keys the rest is left out.", "NRM-1",
       "ggml-org/llama.cpp#26708")  # fmt: skip
class SquaresOfRegisters(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        return np.asarray(super().mean_square(m[:, :1024]) * min(1, 1024 / max(m.shape[1], 1)))


@fault("F340t", "Of a rotary width above 256 only the first 128 pairs are rotated.", "ROT-1", "vllm-project/vllm#43676")
class PairsOfOneTile(QSAPrepare):
    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        out = super().rotate(y, cos, sin)
        first, second, *_ = self.pairs(cos.shape[1])
        for half in (first[128:], second[128:]):
            out[:, half] = y[:, half]
        return out


@fault("F340u", "The width is kept in eight bits, with zero for 256, where the mean square is divided by it.", "NRM-1")
class WidthInEightBits(QSAPrepare):
    def mean_square(self, m: Array) -> Array:
        width = m.shape[1]
        return super().mean_square(m) * (width / (width % 256 or 256) if width > 511 else 1)


# Block size


@fault("F341", "With one key more than a whole number of 32 a block loses its last key.", "AVG-1",
       "ggml-org/llama.cpp#26708")  # fmt: skip
class LaneRemainder(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x) if self.r < 33 or self.r % 32 != 1 else super().mean(x[:, :-1]) * ((self.r - 1) / self.r)


@fault("F341b", "Block sizes above 256 are counted in eight bits when the sum is divided.", "AVG-1",
       "sgl-project/sglang#40337")  # fmt: skip
class BlockSizeInEightBits(QSAPrepare):
    def mean(self, x: Array) -> Array:
        return super().mean(x) * (self.r / (self.r % 256 or 256))


@fault("F341q", "Waiting keys are counted in a signed byte: from 128 on there are none.", "BLK-3 STA-4",
       "sgl-project/sglang#40337")  # fmt: skip
class WaitingInABytes(QSAPrepare):
    def raw_keys(self, call: Call, n: Array, t: Array) -> Array:
        keys = super().raw_keys(call, n, t)
        keys[(t < call.lengths.past[n]) & (t - call.lengths.c[n] * self.r >= 128)] = 0
        return keys


@fault("F341s", "The raw state is copied in pieces of 32,768 elements a sequence; the rest is lost.", "STA-1")
class StateOfOnePiece(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        out.reshape(call.N, (self.r - 1) * call.Di)[:, 1 << 15 :] = 0
        return out


# Sequences


@fault("F342", "Open blocks are marked in a mask of 32 bits; sequences beyond it hand on no state.", "STA-1 SEP-1",
       "ggml-org/llama.cpp#25103")  # fmt: skip
class OpenBlocksInAMask(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        out[32:] = 0
        return out


@fault("F342r", "The rope of more than 64 sequences is handed on for the first 64 only.", "STA-2 SEP-1",
       "ggml-org/llama.cpp#25103")  # fmt: skip
class RopeOfSixtyFour(QSAPrepare):
    def rope_state(self, call: Call) -> Array:
        out = super().rope_state(call)
        if call.rotates:
            out[64:] = 0
        return out


@fault("F342b", "Sequences are handled 128 at a time; what is left over is treated as the last of the group before.",
       "SEP-1 LEN-1")  # fmt: skip
class SequencesInGroups(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call).copy()
        if call.N > 128:
            whole = call.N // 128 * 128
            S[whole:] = np.minimum(S[whole:], S[whole - 1])
        return S


@fault("F342p", "Past block keys of more than 256 sequences are copied for 256.", "OUT-1 SEP-1")
class PastOfManySequences(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        for i in range(256, call.N):
            out[i, : call.lengths.c[i]] = 0
        return out


# Tokens and blocks


@fault("F343", "Tokens are taken in tiles of 2^k, from 1,024 up; a last tile of one token is left out.", "BLK-2 AVG-1")
class LastTileOfOneToken(QSAPrepare):
    def raw_keys(self, call: Call, n: Array, t: Array) -> Array:
        keys = super().raw_keys(call, n, t)
        L = call.L
        if L > 1024 and (L - 1) & (L - 2) == 0:
            keys[(self.new_row(call, n, t) == L - 1) & (t >= call.lengths.past[n])] = 0
        return keys


@fault("F343b", "From the 2,049th block of a call on, a block is rotated by the row of the 2,048th before.", "ROT-3")
class RowsOfGrid(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        late = b - call.lengths.c[n] >= 2048
        return super().rope(call, n, np.where(late, b - 2048, b))


@fault("F343c", "In calls of more than 8,192 tokens blocks from the 2,049th on are half as large.", "NRM-1")
class LongPrefill(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        out = super().block_keys(call, n, b)
        late = b - call.lengths.c[n] >= 2048
        if call.L > 8192 and late.any():
            out[late] *= 0.5
        return out


@fault("F343p", "Past block keys are addressed with a signed index of 16 bits: from row 32,768 on they are lost.",
       "OUT-1")  # fmt: skip
class PastRowsInSixteenBits(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        for i, c in enumerate(call.lengths.c.tolist()):
            out[i, 1 << 15 : min(c, 1 << 16)] = 0
        return out


# Products of dimensions


class Offsets(QSAPrepare):
    """Raw keys are found by an offset in elements that is too narrow."""

    def raw_keys(self, call: Call, n: Array, t: Array) -> Array:
        keys = super().raw_keys(call, n, t)
        row = np.maximum(self.new_row(call, n, t), 0)
        flat = (n * call.L + row) * call.Di
        lost = self.lost(flat, call) & (t >= call.lengths.past[n])
        if lost.any():
            keys[lost] = 0
        return keys

    def lost(self, flat: Array, call: Call) -> Array:
        """Whether the row at this offset is missed."""
        raise NotImplementedError


@fault("F344", "Offsets into the raw keys are kept in 16 bits, rows counted.", "BLK-1 SEP-1",
       "flashinfer-ai/flashinfer#3005")  # fmt: skip
class RowsInSixteenBits(Offsets):
    def lost(self, flat: Array, call: Call) -> Array:
        return np.asarray(flat // max(call.Di, 1) >= 1 << 16) & (call.N > 1)


@fault("F344m", "Offsets of raw keys are kept in an f32 number: beyond 2^24 odd ones are missed.", "BLK-1",
       "flashinfer-ai/flashinfer#3007")  # fmt: skip
class OffsetsInAFloat(Offsets):
    def lost(self, flat: Array, call: Call) -> Array:
        return np.asarray(flat.astype(np.float32).astype(np.int64) != flat)


@fault("F344k", "In calls of more than 2^20 elements the last 16 raw keys of each sequence are missed.", "BLK-1",
       "linkedin/Liger-Kernel#1483")  # fmt: skip
class LastRowsOfLargeCall(Offsets):
    def lost(self, flat: Array, call: Call) -> Array:
        rows = flat // max(call.Di, 1) % max(call.L, 1)
        return np.asarray((rows >= call.L - 16) & (call.N * call.L * call.Di > 1 << 20))


@fault("F344t", "The product of L and Dr is kept in 15 bits: in longer calls the first row stands for all.", "ROT-3",
       "linkedin/Liger-Kernel#803")  # fmt: skip
class TableOffsetInFifteenBits(QSAPrepare):
    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        cos, sin = super().rope(call, n, b)
        row = self.new_row(call, n, b * self.r)
        lost = row * call.Dr >= 1 << 15
        if lost.any() and call.L:
            cos[lost], sin[lost] = call.rope_cos[n[lost], 0], call.rope_sin[n[lost], 0]
        return cos, sin


@fault("F344p", "Past block keys of more than 2^16 elements a sequence are copied up to there.", "OUT-1",
       "thu-ml/SageAttention#386")  # fmt: skip
class PastOfOnePiece(QSAPrepare):
    limit = 1 << 16

    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        for i, c in enumerate(call.lengths.c.tolist()):
            out[i, :c].reshape(-1)[self.limit :] = 0
        return out


@fault("F344q", "Past block keys of more than 2^20 elements a sequence are copied up to there.", "OUT-1",
       "thu-ml/SageAttention#386")  # fmt: skip
class PastOfOneLargePiece(PastOfOnePiece):
    limit = 1 << 20


@fault("F344g", "N times B is a grid of at most 65,535: block keys beyond it are zero.", "BLK-2 OUT-2",
       "ml-explore/mlx#2267")  # fmt: skip
class GridOfRows(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        rows = out.reshape(-1, call.Di)
        if call.N > 1:
            rows[65535:] = 0
        return out


@fault("F344s", "States of more than 2^16 elements in all are copied up to there.", "STA-1",
       "Dao-AILab/causal-conv1d#114")  # fmt: skip
class StatesOfOnePiece(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        if call.N > 1:
            out.reshape(-1)[1 << 16 :] = 0
        return out


# Lengths


class LengthArithmetic(QSAPrepare):
    """The number of finished blocks after the call, worked out in narrow numbers."""

    def partition(self, call: Call) -> Lengths:
        given = super().partition(call)
        c_after = np.asarray(self.finished(given.S, call)).astype(np.int64)
        wrong = c_after != given.c_after
        c_after = np.where(wrong, given.c, c_after)  # what cannot be found is not computed
        return Lengths(given.S, given.pad, given.past, given.c, given.q, c_after, given.q_after)

    def finished(self, S: Array, call: Call) -> Array:
        raise NotImplementedError


@fault("F345", "Lengths are kept in f32 numbers, which are exact up to 2^24.", "LEN-1")
class LengthsInAFloat(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        return super().key_lengths(call).astype(np.float32).astype(np.int64)


@fault("F345r", "Blocks are counted by rounding up and taking one off, in 32 bits: S + r overflows.", "LEN-1 BLK-2")
class RoundedUpInThirtyTwoBits(LengthArithmetic):
    def finished(self, S: Array, call: Call) -> Array:
        with np.errstate(over="ignore"):
            return (S + self.r).astype(np.int64).astype(np.int32) // np.int32(self.r) - 1


@fault("F345b", "Lengths are turned into bytes of a 32-bit offset: beyond 2^29 tokens nothing is completed.",
       "LEN-1 BLK-2")  # fmt: skip
class LengthInBytes(LengthArithmetic):
    def finished(self, S: Array, call: Call) -> Array:
        return (S * 4).astype(np.int32).astype(np.int64) // 4 // self.r


@fault("F345d", "Tokens seen before are found by doubling in 32 bits: beyond 2^30 there are none.", "LEN-1 STA-1")
class DoubledLengths(QSAPrepare):
    def raw_state(self, call: Call) -> Array:
        out = super().raw_state(call)
        out[call.lengths.S >= 1 << 30] = 0
        return out


@fault("F345s", "A division by r is a multiplication by 1/r in f32.", "LEN-1 BLK-2", "sgl-project/sglang#40337")
class DivisionByReciprocal(LengthArithmetic):
    def finished(self, S: Array, call: Call) -> Array:
        return np.asarray(np.floor(S.astype(np.float32) * (np.float32(1) / np.float32(self.r))))


@fault("F345w", "Lengths in i64 keep 24 bits.", "LEN-1 LEN-4")
class LengthsOfTwentyFourBits(QSAPrepare):
    def key_lengths(self, call: Call) -> Array:
        S = super().key_lengths(call)
        return S & ((1 << 24) - 1) if call.key_length.dtype.itemsize == 8 else S
