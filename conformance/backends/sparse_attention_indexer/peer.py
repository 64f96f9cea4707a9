"""What adapters of foreign selection code share: the protocol around a function that selects blocks for one sequence.

A `Peer` cuts off padding, calls the function with the query rows and block keys of each sequence, and writes what it
returns into the two outputs. It scores, ranks and counts nothing: every entry comes out of the foreign function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import foreign, refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.sparse_attention_indexer import OPERATION

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class Peer:
    """An adapter; a subclass sets the fields and selects. Foreign code makes one selection and knows no weights."""

    name = version = vendor = url = ""
    least_block = 1  # tokens of a block

    def describe(self) -> BackendInfo:
        """Both outputs in every type; weights can only be left out."""
        return BackendInfo(
            name=self.name,
            version=self.version,
            vendor=self.vendor,
            element_types=("f32", "f16", "bf16"),
            outputs=("block_indices", "block_count"),
            features=("weights", "left_padding"),
            url=self.url,
            operation=OPERATION,
        )

    def prepare(self, config: OperationConfig) -> PeerSession:
        """One session. Raises `Rejected` (ERR-1), `Unsupported` for weights, several selections and small blocks."""
        check = refusals.checker(config, OPERATION).check
        if "weights" not in config.disabled:
            raise Unsupported("weights", f"{self.name} sums its index heads without weights", self.url)
        if config.attributes.get("num_selection_heads", 1) != 1:
            raise Unsupported("num_selection_heads", f"{self.name} makes one selection for all heads", self.url)
        if config.attributes["key_block_size"] < self.least_block:
            raise Unsupported("key_block_size", f"{self.name} refuses blocks of one token", self.url)
        return PeerSession(self, config, check)

    def select(self, query: Array, keys: Array, S: int, r: int, K: int) -> Sequence[Array] | Array:
        """Per query token the blocks in the order of the foreign code; negative entries are none.

        `query` is [Hi, l, Di] for the last l of S tokens, `keys` [S // r, Di], both of type T; K blocks at most.
        """
        raise NotImplementedError


class PeerSession:
    """A peer for one set of attributes."""

    def __init__(self, peer: Peer, config: OperationConfig, check: Any) -> None:
        self._peer, self._check = peer, check
        self._r = int(config.attributes["key_block_size"])
        self._K = int(config.attributes["token_budget"]) // self._r

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5) and `ForeignError`."""
        self._check(inputs)
        query, keys = inputs["index_query"], inputs["block_index_keys"]
        N, _, L, _ = query.shape
        chosen: list[tuple[int, int, Array]] = []
        for n, S in enumerate(np.broadcast_to(inputs["key_length"].astype(np.int64), (N,)).tolist()):
            first = max(L - S, 0)  # what stands before is padding
            if first == L:
                continue
            with foreign.calls(self._peer.name):
                rows = self._peer.select(query[n, :, first:], keys[n, : S // self._r], S, self._r, self._K)
            chosen += [(n, row, blocks[blocks >= 0]) for row, blocks in enumerate(rows, first)]
        # A row that is too long is not cut: it shows in the shape of the output.
        width = max([self._K, *(len(blocks) for _, _, blocks in chosen)])
        indices, count = np.full((N, 1, L, width), -1, np.int32), np.zeros((N, 1, L), np.int32)
        for n, row, blocks in chosen:
            indices[n, 0, row, : len(blocks)] = blocks
            count[n, 0, row] = len(blocks)
        return {"block_indices": indices, "block_count": count}

    def close(self) -> None:
        """Nothing is held."""
