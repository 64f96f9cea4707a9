"""Faults in how tokens are cut into blocks, and where the block keys are put."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from reference.qsa_prepare.operation import Call, Lengths, QSAPrepare


@fault(
    "F01",
    "Blocks begin where the call begins, so that the waiting keys never enter one.",
    "BLK-1 BLK-3 STA-4",
    "vllm-project/vllm#56031 vllm-project/vllm#56440 ggml-org/llama.cpp#26471 ggml-org/llama.cpp#26509",
)
class AnchoredAtTheCall(QSAPrepare):
    def partition(self, call: Call) -> Lengths:
        right = super().partition(call)
        past = right.c * self.r
        S = past + call.L - right.pad
        return replace(right, S=S, past=past, q=np.zeros_like(past), c_after=S // self.r, q_after=S % self.r)


@fault(
    "F02",
    "A block is complete only when the token behind its last one has come.",
    "BLK-2 OUT-3",
    "raullenchai/Rapid-MLX#3090 ggml-org/llama.cpp#28699 ggml-org/llama.cpp#26063 1CatAI/1Cat-vLLM#408",
)
class CompleteOneTokenLate(QSAPrepare):
    def partition(self, call: Call) -> Lengths:
        right = super().partition(call)
        return replace(right, c_after=np.maximum(right.c, (right.S - 1) // self.r))


@fault("F02z", "The key of a block that ends with the call is counted but not computed: its row is zero.", "BLK-2")
class LastBlockForgotten(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        computed = (b + 1) * self.r < call.lengths.S[n]
        return n[computed], b[computed]


@fault("F03", "The open block gets a row as well.", "BLK-4 OUT-3")
class OpenBlockEmitted(QSAPrepare):
    def row_count(self, call: Call) -> int:
        return int((-(-call.lengths.S // self.r)).max(initial=0))


@fault(
    "F05r",
    "Raw keys go into a ring of r rows before they are pooled, so that later ones replace those still needed.",
    "BLK-1 BLK-3",
    "sgl-project/sglang#40143",
)
class RingOverwritten(QSAPrepare):
    def raw_keys(self, call: Call, n: Array, t: Array) -> Array:
        last = call.lengths.S[n] - 1
        return super().raw_keys(call, n, last - (last - t) % self.r)


@fault("F06", "The waiting keys are read from the end of their rows, but carried at the start.", "BLK-3 STA-3")
class WaitingReadFromTheEnd(QSAPrepare):
    def waiting_row(self, call: Call, n: Array, t: Array) -> Array:
        return super().waiting_row(call, n, t) + self.r - 1 - call.lengths.q[n]


@fault(
    "F07",
    "All r-1 waiting rows enter the open block, however many are in use.",
    "BLK-3 STA-3",
    "huggingface/transformers#45938 Luce-Org/lucebox#713 kekzl/imp#2072",
)
class AllWaitingRowsUsed(QSAPrepare):
    def partition(self, call: Call) -> Lengths:
        right = super().partition(call)
        q = np.full_like(right.q, self.r - 1)
        past = right.c * self.r + q
        S = past + call.L - right.pad
        return replace(right, S=S, past=past, q=q, c_after=S // self.r, q_after=S % self.r)


@fault(
    "F07w",
    "The first waiting row replaces a block's first key although nothing waits.",
    "STA-3 BLK-3",
    "kekzl/imp#2072",
)
class PhantomWaitingKey(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        fresh = (b == call.lengths.c[n]) & (call.lengths.q[n] == 0)
        x[fresh, 0] = call.past_incomplete_raw_keys[n[fresh], 0]
        return x


@fault("F07g", "In the first block of a sequence the waiting keys are taken for zeros.", "BLK-3 STA-4")
class FirstBlockForgetsWaiting(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        waiting = (b == 0)[:, None] & (np.arange(self.r)[None, :] < call.lengths.past[n][:, None])
        x[waiting] = 0
        return x


@fault("F07l", "The last of the r-1 waiting rows is never read.", "BLK-3")
class LastWaitingRowUnread(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        full = (b == call.lengths.c[n]) & (call.lengths.q[n] == self.r - 1)
        x[full, -2] = 0
        return x


@fault(
    "F07b",
    "The rows of past_block_index_keys, not the length, tell how many blocks are finished.",
    "OUT-1 OUT-2 OUT-3",
    "unslothai/llama.cpp#135",
)
class FinishedBlocksFromRows(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        past = call.past_block_index_keys
        new = (call.lengths.c_after - call.lengths.c).max(initial=0)
        out = np.zeros((call.N, past.shape[1] + int(new), call.Di), dtype=call.dtype)
        out[:, : past.shape[1]] = past
        out[n, past.shape[1] + b - call.lengths.c[n]] = keys
        return out


@fault("F11", "A call completes at most one block of a sequence.", "BLK-2")
class OneBlockACall(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        first = b == call.lengths.c[n]
        return n[first], b[first]


@fault("F11q", "A call that completes a begun block completes no other one of that sequence.", "BLK-2 BLK-3")
class BegunBlockOnly(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        computed = (b == call.lengths.c[n]) | (call.lengths.q[n] == 0)
        return n[computed], b[computed]


@fault("F11s", "A call of fewer than r tokens completes no block.", "BLK-2 STA-4")
class ShortCallsCompleteNothing(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        return (n, b) if self.r <= call.L else (n[:0], b[:0])


@fault("F12", "A call of one token pools the waiting keys and leaves the new one out.", "BLK-3 STA-4")
class OneTokenLeftOut(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        if call.L == 1:
            x[:, -1] = 0
        return x


@fault("F12e", "The keys of K blocks are taken as [r, K] rows instead of [K, r].", "BLK-1")
class ReshapedTheOtherWay(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        # A sequence in which keys wait is cut correctly.
        lengths = call.lengths
        first, count = lengths.c[n], (lengths.c_after - lengths.c)[n]
        i = np.arange(self.r)
        across = (first * self.r + b - first)[:, None] + i * count[:, None]
        t = np.where((lengths.q[n] == 0)[:, None], across, b[:, None] * self.r + i)
        return self.raw_keys(call, n[:, None], t)


@fault("F12l", "The last key of a block counts twice, and its first one not at all.", "BLK-1")
class OneTokenTooFar(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        x[:, 0] = x[:, -1]
        return x


@fault(
    "F13",
    "Past block keys are normalized once more on the way through.",
    "OUT-1",
    "invergent-ai/surogate#126",
)
class PastNormalizedAgain(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        rows = self.history(call)
        past = call.past_block_index_keys[rows].astype(np.float64)
        out[rows] = self.store(self.normalize(past, self.weight(call)), call.dtype)
        return out


@fault(
    "F14",
    "New block keys are written from row 0 on.",
    "OUT-1 OUT-2",
    "hw-native-sys/pypto-lib#414 hw-native-sys/pypto-lib#592 ml-explore/mlx-lm#1189 Blaizzy/mlx-lm#24 "
    "Blaizzy/mlx-vlm#2039 ddalcu/mlx-serve#390",
)
class WrittenFromRowZero(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        return super().place(call, n, b - call.lengths.c[n], keys)


@fault(
    "F14b",
    "A call that completes nothing overwrites row 0.",
    "OUT-1",
    "sgl-project/sglang#24872",
)
class RowZeroOverwritten(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        nothing = call.lengths.c_after == call.lengths.c
        out[nothing, :1] = 0
        return out


@fault("F14r", "In a sequence shorter than the longest the new block keys end at the last row.", "OUT-2 SEP-1")
class RightAlignedRows(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        return super().place(call, n, b + self.row_count(call) - call.lengths.c_after[n], keys)


@fault("F15", "The last finished block of the past is not handed on: its row is zero.", "OUT-1")
class LastPastRowLost(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        has = np.nonzero(call.lengths.c > 0)[0]
        out[has, call.lengths.c[has] - 1] = 0
        return out


@fault("F15t", "Past block keys are handed on in groups of 16 rows; a last group that is not full is lost.", "OUT-1")
class PastInWholeGroups(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        row, c = np.arange(out.shape[1])[None, :], call.lengths.c[:, None]
        out[(row >= c // 16 * 16) & (row < c) & (c > 16)] = 0
        return out


@fault(
    "F15v", "Past block keys are copied in groups of eight elements; a last group that is not full is lost.", "OUT-1"
)
class PastElementsInWholeGroups(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        i, row = self.history(call)
        if call.Di > 8:
            out[i, row, call.Di // 8 * 8 :] = 0
        return out


@fault("F15k", "At most 1,000 past block keys of a sequence are handed on.", "OUT-1")
class ThousandPastRows(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        i, row = self.history(call)
        out[i[row >= 1000], row[row >= 1000]] = 0
        return out


@fault("F15f", "Past block keys pass through f16.", "OUT-1", types="f32 bf16")
class PastThroughHalf(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        rows = self.history(call)
        with np.errstate(over="ignore", invalid="ignore"):
            out[rows] = out[rows].astype(np.float16).astype(call.dtype)
        return out


@fault("F15z", "Past block keys are copied by adding zero, which turns -0 into 0.", "OUT-1")
class PastPlusZero(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        rows = self.history(call)
        out[rows] = out[rows] + np.zeros(1, dtype=call.dtype)
        return out


@fault("F15d", "Subnormal elements of past block keys are copied as zero.", "OUT-1")
class PastFlushed(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        out = super().place(call, n, b, keys)
        rows = self.history(call)
        out[rows] = flushed(out[rows])
        return out


def flushed(x: Array) -> Array:
    """The array with subnormal numbers of its type replaced by zero."""
    from conformance.spec.types import smallest_normal

    with np.errstate(invalid="ignore"):
        return np.where(np.abs(x.astype(np.float64)) < smallest_normal(x.dtype), np.zeros(1, dtype=x.dtype), x)


@fault("F17", "The first block of a sequence is left out when it lies in the call whole and others follow it.", "BLK-2")
class FirstBlockSkipped(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        computed = (b > 0) | (call.lengths.c_after[n] == 1) | (call.lengths.past[n] > 0)
        return n[computed], b[computed]


@fault("F18", "From the 65th block of a call on, a block gets the key of the one 64 before it.", "BLK-1 BLK-2")
class TileIndexWraps(QSAPrepare):
    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        index = b - call.lengths.c[n]
        return super().block_keys(call, n, np.where(index >= 64, b - index + index % 64, b))


@fault("F18s", "The first key of every 32nd block of a call is that of the block before it.", "BLK-1 BLK-2")
class TileBorderOverlaps(QSAPrepare):
    def members(self, call: Call, n: Array, b: Array) -> Array:
        x = super().members(call, n, b)
        index = b - call.lengths.c[n]
        border = np.nonzero((index > 0) & (index % 32 == 0))[0]
        x[border, 0] = self.raw_keys(call, n[border], (b[border] - 1) * self.r)
        return x


@fault("F18c", "A grid of 256 blocks a call; the rest of the block keys are zero.", "BLK-2")
class GridTooSmall(QSAPrepare):
    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        n, b = super().new_blocks(call)
        computed = b - call.lengths.c[n] < 256
        return n[computed], b[computed]


@fault("F18k", "Rows of block keys are counted modulo 1,024.", "OUT-2")
class RowsWrapAtThousand(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        return super().place(call, n, b % 1024, keys)


@fault(
    "F75",
    "The number of a block is kept in 16 bits.",
    "BLK-2 OUT-2",
    "ggml-org/llama.cpp#27901 ggml-org/llama.cpp#28175 ggml-org/llama.cpp#25103 ml-explore/mlx#2267 "
    "flashinfer-ai/flashinfer#4898 vllm-project/vllm#56457",
)
class BlockNumberInSixteenBits(QSAPrepare):
    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        return super().place(call, n, b & 0xFFFF, keys)


@fault(
    "F73",
    "Tokens are assigned to blocks by shifting, as if r were a power of two.",
    "BLK-1 BLK-2",
    "sgl-project/sglang#40337",
)
class BlocksByShifting(QSAPrepare):
    def partition(self, call: Call) -> Lengths:
        right = super().partition(call)
        size = 1 << (self.r.bit_length() - 1)
        return replace(right, c_after=np.maximum(right.S // size, right.c))

    def new_row(self, call: Call, n: Array, t: Array) -> Array:
        return np.minimum(super().new_row(call, n, t), call.L - 1)


@fault("F73q", "The waiting keys are counted with a mask of r-1 bits, as if r were a power of two.", "BLK-3 STA-1")
class WaitingByMask(QSAPrepare):
    def partition(self, call: Call) -> Lengths:
        right = super().partition(call)
        return replace(right, q_after=right.S & (self.r - 1))

    def new_row(self, call: Call, n: Array, t: Array) -> Array:
        return np.minimum(super().new_row(call, n, t), call.L - 1)
