"""The tokens of a QSAPrepare call, sequence by sequence, as foreign code wants them: where they are, and nothing else.

lay = Tokens(config, inputs)
lay.keys(n), lay.tables(n)     # waiting and new keys of sequence n, and cos and sin of each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from conformance.backends.protocol import OperationConfig

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

    Tables = tuple[Array, Array]  # cos and sin, [tokens, Dr] each


class Tokens:
    """Arrays of shape [N]: `complete` and `waiting` before the call, `pad` of it, `blocks` and `left` after it."""

    def __init__(self, config: OperationConfig, inputs: Mapping[str, Array]) -> None:
        raw = inputs["raw_index_keys"]
        self.inputs, self.dtype = inputs, raw.dtype
        self.N, self.L, self.Di = raw.shape
        self.r = int(config.attributes["key_block_size"])
        S = np.broadcast_to(inputs["key_length"].astype(np.int64), (self.N,))
        self.pad = np.maximum(self.L - S, 0)
        self.complete, self.waiting = np.divmod(np.maximum(S - self.L, 0), self.r)
        self.blocks, self.left = np.divmod(S, self.r)
        self.has_rope = "rope" not in config.disabled

    def count(self, n: int) -> int:
        """Tokens of sequence n from the first one that waits."""
        return int(self.waiting[n] + self.L - self.pad[n])

    def held(self, n: int) -> Array:
        """The raw keys that wait, [waiting, Di]."""
        return self.inputs["past_incomplete_raw_keys"][n, : self.waiting[n]]

    def new(self, n: int) -> Array:
        """The raw keys of the call without padding."""
        return self.inputs["raw_index_keys"][n, self.pad[n] :]

    def keys(self, n: int) -> Array:
        """All raw keys that are not in a complete block yet."""
        return np.concatenate([self.held(n), self.new(n)])

    def past(self, n: int) -> Array:
        """The block keys of the past, [complete, Di]."""
        return self.inputs["past_block_index_keys"][n, : self.complete[n]]

    def tables(self, n: int) -> Tables:
        """cos and sin for every key; all that wait have the carried row, as only the first can begin a block."""
        if not self.has_rope:
            empty = np.zeros((self.count(n), 0), self.dtype)
            return empty, empty
        carried = np.repeat(self.inputs["past_incomplete_rope"][n][None], self.waiting[n], axis=0)
        new = np.concatenate([self.inputs["rope_cos"][n, self.pad[n] :], self.inputs["rope_sin"][n, self.pad[n] :]], 1)
        cos, sin = np.split(np.concatenate([carried, new]), 2, axis=1)
        return cos, sin

    def assembled(self, computed: Sequence[Array]) -> Array:
        """`block_index_keys` [N, B, Di]: of each sequence its past, where it is not among the computed, and those."""
        out = np.zeros((self.N, int(self.blocks.max(initial=0)), self.Di), self.dtype)
        for n, keys in enumerate(computed):
            first = int(self.blocks[n]) - len(keys)
            out[n, :first] = self.past(n)[:first]
            with np.errstate(over="ignore", invalid="ignore"):
                out[n, first : self.blocks[n]] = keys.astype(self.dtype)
        return out

    def raw_state(self, rows: Sequence[Array]) -> Array:
        """`present_incomplete_raw_keys` [N, r-1, Di] from the rows of each sequence."""
        out = np.zeros((self.N, self.r - 1, self.Di), self.dtype)
        for n, kept in enumerate(rows):
            out[n, : len(kept)] = kept
        return out


def in_halves(tables: Sequence[Tables]) -> tuple[list[Tables], list[Tables] | None]:
    """For code with tables of half width: those of the lower half, and of the upper half where it has other numbers."""
    half = tables[0][0].shape[1] // 2 if tables else 0
    lower = [(cos[:, :half], sin[:, :half]) for cos, sin in tables]
    upper = [(cos[:, half:], sin[:, half:]) for cos, sin in tables]
    same = all(
        a.tobytes() == b.tobytes()
        for one, other in zip(lower, upper, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return lower, None if same else upper
