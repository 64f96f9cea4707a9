"""mlx-vlm's own selection of blocks (connect string ``mlx-vlm``).

`Qwen4ExpQSAIndexer.select_from_projected` of the installed mlx-vlm runs with its cache: it counts the visible blocks,
scores them and takes the best. The block keys of the port are those that its cache carries, so that it makes none of
its own. Norm and rotation of the queries, which come after both, are replaced by the identity.

A single token whose blocks all fit goes past the selection in this code. It is given a second token, whose row is
passed over, so that it is selected for all the same.
"""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.mlx.arrays import array_of, mlx, mlx_of
from conformance.backends.sparse_attention_indexer.peer import Peer

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class MlxVlm(Peer):
    """The indexer on MLX's CPU device. Raises `ImportError` where it is not installed."""

    name = vendor = "mlx-vlm"
    url = "https://github.com/Blaizzy/mlx-vlm/issues"

    def __init__(self) -> None:
        self._mx = mlx()
        from mlx_vlm.models.qwen4_exp import language

        self._language = language
        self.version = f"{version('mlx-vlm')} (mlx {self._mx.__version__})"

        class AsGiven(language.Qwen4ExpQSAIndexer):  # type: ignore[misc]
            """The indexer, with queries that are rotated already."""

            def _apply_rope(self, x: Any, position_ids: Any) -> Any:
                return x

        self._indexer = AsGiven

    def select(self, query: Array, keys: Array, S: int, r: int, K: int) -> Array:
        """As `Peer.select`: [l, K]."""
        mx = self._mx
        heads, rows, Di = query.shape
        asked = slice(0, rows)
        if rows == 1:  # the second token stands before the one asked for, where there is room
            before = S > 1
            asked = slice(1, 2) if before else slice(0, 1)
            query, rows, S = np.repeat(query, 2, axis=1), 2, max(S, 2)
        cache = self._language.QSAKVCache()
        cache.offset = S - rows
        cache.index_block_keys, cache.index_block_ratio = mlx_of(keys)[None, None], r
        queries = mlx_of(query.transpose(1, 0, 2).reshape(1, rows, heads * Di))
        if cache.offset:  # raw keys are counted, and read only where a block is missing
            cache.update_indexer(mx.zeros((1, cache.offset, Di), queries.dtype), mx.zeros((1, cache.offset), mx.int32))
        raw = mx.zeros((1, rows, Di), queries.dtype)
        selection = self._made(heads, Di, r, K).select_from_projected(
            mx.concatenate([queries, raw], axis=-1), cache, mx.zeros((1, rows), mx.int32)
        )
        return array_of(selection.selected_blocks[0])[asked]

    def _made(self, heads: int, Di: int, r: int, K: int) -> Any:
        config = SimpleNamespace(
            hidden_size=1,
            indexer_n_heads=heads,
            indexer_kv_heads=1,
            indexer_head_dim=Di,
            indexer_budget=K * r,
            indexer_compress_ratio=r,
            rms_norm_eps=1.0,
        )
        indexer = self._indexer(config, None)
        indexer.q_layernorm = indexer.k_layernorm = lambda states: states
        return indexer
