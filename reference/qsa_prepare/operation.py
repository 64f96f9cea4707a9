"""QSAPrepare in float64 NumPy, one short method a stage.

A block key is the mean of a block's r raw index keys, RMS-normalized and rotated with the RoPE of the block's first
token. A variant, faulty or of another reading, overrides one method. Symbols are those of the contract: N sequences,
L new tokens each, width Di, rotary width Dr, block size r; per sequence S valid tokens, pad, past, c and q before the
call, c_after and q_after after it. K is the number of blocks that a call completes, over all sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Blocks that are gathered and computed at a time: enough to amortize NumPy's overhead, few enough to stay in cache.
CHUNK = 2048


@dataclass(frozen=True)
class Readings:
    """The choices of the contract that can be switched; the defaults are the contract's."""

    alignment: str = "left"  # of the open block's raw keys: "left" | "right"
    empty_weight: str = "off"  # "off" | "unit"
    unused: str = "unspecified"  # rows beyond c_after and unused state: "unspecified" | "zeros" | "carried"
    rows: str = "longest"  # of block_index_keys: "longest" | "bound"
    short_length: str = "padding"  # S < L: "padding" | "refused" (the harness withholds such cases)
    rope_width: str = "full"  # "full" | "half": cos and sin hold one number a pair
    pairing: str = "halves"  # "halves" | "interleaved"
    outputs: str = "three"  # "three" | "keys" (the harness does not ask for the others)


@dataclass(frozen=True)
class Lengths:
    """Per-sequence symbols of one call, int64 arrays of shape [N] (LEN-1 to LEN-3, BLK-1)."""

    S: Array
    pad: Array
    past: Array
    c: Array
    q: Array
    c_after: Array
    q_after: Array


@dataclass(frozen=True)
class Call:
    """The inputs of one call, and what follows from their shapes."""

    raw_index_keys: Array  # [N, L, Di]
    past_block_index_keys: Array  # [N, Bp, Di]
    key_length: Array  # [N] or [1]
    rope_cos: Array  # [N, L, Dr], or empty
    rope_sin: Array
    k_norm_weight: Array  # [Di], or empty
    past_incomplete_raw_keys: Array  # [N, r-1, Di]
    past_incomplete_rope: Array  # [N, 2*Dr], or empty
    lengths: Lengths = field(init=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type T."""
        return self.raw_index_keys.dtype

    @property
    def N(self) -> int:  # noqa: N802
        return int(self.raw_index_keys.shape[0])

    @property
    def L(self) -> int:  # noqa: N802
        return int(self.raw_index_keys.shape[1])

    @property
    def Di(self) -> int:  # noqa: N802
        return int(self.raw_index_keys.shape[2])

    @property
    def Dr(self) -> int:  # noqa: N802
        """Width of cos and sin, 0 when rotation is off. Zero rows of a positive width are no empty rope (OFF-3)."""
        return int(self.rope_cos.shape[2]) if self.rope_cos.ndim == 3 else 0

    @property
    def rotates(self) -> bool:
        return self.Dr > 0


class QSAPrepare:
    """The operation for one block size and epsilon; it keeps no state between calls (PLG-1)."""

    def __init__(self, key_block_size: int, epsilon: float = 1e-6, readings: Readings | None = None) -> None:
        self.r = key_block_size
        self.epsilon = epsilon
        self.readings = readings or Readings()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One call: the eight inputs by contract name in, the three outputs by contract name out, all of type T."""
        call = self.call(inputs)
        n, b = self.new_blocks(call)
        keys = np.zeros((len(n), call.Di), dtype=call.dtype)
        for start in range(0, len(n), CHUNK):
            rows = slice(start, start + CHUNK)
            keys[rows] = self.store(self.block_keys(call, n[rows], b[rows]), call.dtype)
        return {
            "block_index_keys": self.place(call, n, b, keys),
            "present_incomplete_raw_keys": self.raw_state(call),
            "present_incomplete_rope": self.rope_state(call),
        }

    # Tokens and blocks

    def call(self, inputs: Mapping[str, Array]) -> Call:
        call = Call(**inputs)
        object.__setattr__(call, "lengths", self.partition(call))
        return call

    def partition(self, call: Call) -> Lengths:
        """LEN-1 to LEN-4, BLK-1: where the new tokens of every sequence lie on its grid of blocks."""
        S = self.key_lengths(call)
        L, r = call.L, self.r
        past = np.maximum(S - L, 0)
        return Lengths(S, np.maximum(L - S, 0), past, past // r, past % r, S // r, S % r)

    def key_lengths(self, call: Call) -> Array:
        """LEN-2, LEN-4: S as int64 [N], from a key_length of shape [N] or [1]."""
        S = call.key_length.astype(np.int64)
        return S if len(S) == call.N else np.repeat(S, call.N)

    def new_blocks(self, call: Call) -> tuple[Array, Array]:
        """BLK-2, BLK-4: sequence and block number, each [K], of the blocks that this call completes."""
        lengths = call.lengths
        counts = np.maximum(lengths.c_after - lengths.c, 0)
        n = np.repeat(np.arange(call.N), counts)
        return n, np.arange(len(n)) + np.repeat(lengths.c - (np.cumsum(counts) - counts), counts)

    def raw_keys(self, call: Call, n: Array, t: Array) -> Array:
        """BLK-3: raw keys [..., Di] of tokens t of sequences n, from the waiting keys or from the new rows."""
        lengths = call.lengths
        if call.L:
            keys: Array = call.raw_index_keys[n, np.maximum(self.new_row(call, n, t), 0)]
        else:
            keys = np.zeros((*t.shape, call.Di), dtype=call.dtype)
        waits = t < lengths.past[n]
        if waits.any():
            n, t = (n + np.zeros_like(t))[waits], t[waits]
            keys[waits] = call.past_incomplete_raw_keys[n, self.waiting_row(call, n, t)]
        return keys

    def new_row(self, call: Call, n: Array, t: Array) -> Array:
        """LEN-1: row of the new tokens that holds token t of sequence n; negative for earlier tokens."""
        row: Array = t - call.lengths.S[n] + call.L
        return row

    def waiting_row(self, call: Call, n: Array, t: Array) -> Array:
        """STA-1, STA-3: row of the carried raw keys that holds token t of the open block."""
        row: Array = t - call.lengths.c[n] * self.r
        return row + self.r - 1 - call.lengths.q[n] if self.readings.alignment == "right" else row

    def rope(self, call: Call, n: Array, b: Array) -> tuple[Array, Array]:
        """ROT-3, ROT-4: cos and sin, each [K, Dr], of the first tokens of blocks b of sequences n."""
        t, Dr = b * self.r, call.Dr
        if call.L:
            row = np.maximum(self.new_row(call, n, t), 0)
            cos, sin = call.rope_cos[n, row], call.rope_sin[n, row]
        else:
            cos, sin = (np.zeros((len(n), Dr), dtype=call.dtype) for _ in range(2))
        begun = t < call.lengths.past[n]
        if begun.any():
            carried = call.past_incomplete_rope[n[begun]]
            cos[begun], sin[begun] = carried[:, :Dr], carried[:, Dr:]
        return cos, sin

    # Arithmetic of one block key

    def block_keys(self, call: Call, n: Array, b: Array) -> Array:
        """Mean, normalization, rotation: float64 block keys [K, Di]."""
        y = self.mean(self.members(call, n, b))
        if self.normalizes(call):
            y = self.normalize(y, self.weight(call))
        if call.rotates:
            y = self.rotate(y, *(x.astype(np.float64) for x in self.rope(call, n, b)))
        return y

    def members(self, call: Call, n: Array, b: Array) -> Array:
        """BLK-1: the raw keys [K, r, Di] of blocks b of sequences n, in type T."""
        return self.raw_keys(call, n[:, None], b[:, None] * self.r + np.arange(self.r))

    def mean(self, x: Array) -> Array:
        """AVG-1: [K, r, Di] to float64 [K, Di]."""
        with np.errstate(invalid="ignore"):  # infinities of both signs
            result: Array = x.astype(np.float64).sum(axis=1) / self.r
        return result

    def normalizes(self, call: Call) -> bool:
        """OFF-2: an empty weight switches the normalization off."""
        return call.k_norm_weight.size > 0 or self.readings.empty_weight == "unit"

    def weight(self, call: Call) -> Array:
        """NRM-1: the weight as given, float64 [Di]."""
        if call.k_norm_weight.size == 0:
            return np.ones(call.Di)
        return call.k_norm_weight.astype(np.float64)

    def normalize(self, m: Array, weight: Array) -> Array:
        """NRM-1, NRM-2: [K, Di] by its root mean square, then times the weight."""
        with np.errstate(all="ignore"):
            result: Array = m / self.root(self.mean_square(m)) * weight
        return result

    def mean_square(self, m: Array) -> Array:
        """NRM-1: [K, 1], over all Di elements."""
        return np.mean(m * m, axis=1, keepdims=True) if m.size else np.zeros((len(m), 1))

    def root(self, square: Array) -> Array:
        """NRM-1: the root mean square, with epsilon inside the root."""
        result: Array = np.sqrt(square + self.epsilon)
        return result

    def pairs(self, width: int) -> tuple[Array, Array, Array, Array]:
        """ROT-1: for a table of `width` columns the elements `first` and `second` of every pair, and their columns."""
        rotary = 2 * width if self.readings.rope_width == "half" else width
        j = np.arange(rotary // 2)
        if self.readings.pairing == "interleaved":
            first, second = 2 * j, 2 * j + 1
        else:
            first, second = j, j + rotary // 2
        return first, second, *((j, j) if self.readings.rope_width == "half" else (first, second))

    def rotate(self, y: Array, cos: Array, sin: Array) -> Array:
        """ROT-1, ROT-2, ROT-5: [K, Di] by cos and sin [K, Dr]; each element has its own cos and sin."""
        first, second, at_first, at_second = self.pairs(cos.shape[1])
        out = y.copy()
        with np.errstate(all="ignore"):
            out[:, first] = y[:, first] * cos[:, at_first] - y[:, second] * sin[:, at_first]
            out[:, second] = y[:, second] * cos[:, at_second] + y[:, first] * sin[:, at_second]
        return out

    def store(self, values: Array, dtype: np.dtype[Any]) -> Array:
        """NUM-2, NUM-3: one rounding to T; what is too large becomes infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded: Array = values.astype(dtype)
        return rounded

    # Outputs and carried state

    def row_count(self, call: Call) -> int:
        """OUT-3: B."""
        if self.readings.rows == "bound":
            return int(call.past_block_index_keys.shape[1]) + (call.L + self.r - 1) // self.r
        return int(call.lengths.c_after.max(initial=0))

    def history(self, call: Call) -> tuple[Array, Array]:
        """OUT-1: sequence and row, each [H], of the past block keys that are handed on."""
        n, b = np.nonzero(np.arange(call.past_block_index_keys.shape[1])[None, :] < call.lengths.c[:, None])
        return n, b

    def unused_rows(self, call: Call) -> tuple[tuple[Array, Array], Array] | None:
        """OUT-3: rows of block_index_keys beyond c_after and their values [U, Di], None where unspecified."""
        if self.readings.unused == "unspecified":
            return None
        B = self.row_count(call)
        beyond = np.arange(B)[None, :] >= call.lengths.c_after[:, None]
        if self.readings.unused == "zeros":
            n, b = np.nonzero(beyond)
            return (n, b), np.zeros((len(n), call.Di), dtype=call.dtype)
        n, b = np.nonzero(beyond & (np.arange(B) < call.past_block_index_keys.shape[1])[None, :])
        return (n, b), call.past_block_index_keys[n, b]

    def place(self, call: Call, n: Array, b: Array, keys: Array) -> Array:
        """OUT-1 to OUT-3: block_index_keys [N, B, Di] from the past block keys and the K new ones."""
        out = np.zeros((call.N, self.row_count(call), call.Di), dtype=call.dtype)
        rest = self.unused_rows(call)
        if rest:
            out[rest[0]] = rest[1]
        # A slice a sequence copies faster than a mask over all rows.
        for i, c in enumerate(call.lengths.c.tolist()):
            out[i, :c] = call.past_block_index_keys[i, :c]
        out[n, b] = keys
        return out

    def open_rows(self, call: Call) -> tuple[Array, Array, Array]:
        """STA-1: sequence, token and row of the state, each [W], of the raw keys of the open blocks."""
        lengths = call.lengths
        n, j = np.nonzero(np.arange(self.r - 1)[None, :] < lengths.q_after[:, None])
        row = j + self.r - 1 - lengths.q_after[n] if self.readings.alignment == "right" else j
        return n, lengths.c_after[n] * self.r + j, row

    def raw_state(self, call: Call) -> Array:
        """STA-1: present_incomplete_raw_keys [N, r-1, Di]."""
        carried = self.readings.unused == "carried"
        state = call.past_incomplete_raw_keys
        out = state.copy() if carried else np.zeros((call.N, self.r - 1, call.Di), dtype=call.dtype)
        n, t, row = self.open_rows(call)
        out[n, row] = self.raw_keys(call, n, t)
        return out

    def rope_state(self, call: Call) -> Array:
        """STA-2, OFF-1: present_incomplete_rope [N, 2*Dr], or [0] when rotation is off."""
        if not call.rotates:
            return np.zeros((0,), dtype=call.dtype)
        carried = self.readings.unused == "carried"
        out = (call.past_incomplete_rope if carried else np.zeros((call.N, 2 * call.Dr), dtype=call.dtype)).copy()
        n = np.nonzero(call.lengths.q_after > 0)[0]
        out[n] = np.concatenate(self.rope(call, n, call.lengths.c_after[n]), axis=1)
        return out
