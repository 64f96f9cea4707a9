"""Rapid-MLX's own selection of blocks (connect string ``rapid-mlx``).

`QSAIndexer` of the installed rapid-mlx runs on its `QSAIndexCache`: it counts the visible blocks, scores them and takes
the best. The cache holds the block keys of the port and makes no others. Projection and norm of the queries, which
come after both, are replaced by the identity; the rotary width is 0. Blocks are read off the token indices returned.

The code attends to everything while the context fits the budget; the length of the cache is said to be beyond it, so
that it selects all the same.
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


class RapidMlx(Peer):
    """The indexer on MLX's CPU device. Raises `ImportError` where it is not installed."""

    name, vendor = "rapid-mlx", "Rapid-MLX"
    url = "https://github.com/raullenchai/Rapid-MLX/issues"

    def __init__(self) -> None:
        self._mx = mlx()
        from rapid_mlx.models import qwen4_exp, qwen4_exp_cache

        self._model = qwen4_exp
        self.version = f"{version('rapid-mlx')} (mlx {self._mx.__version__})"

        class Filled(qwen4_exp_cache.QSAIndexCache):  # type: ignore[misc]
            """The cache of keys that are there already."""

            def update(self, *_: Any, **__: Any) -> None:
                """The new tokens have been counted, and complete blocks made of them."""

        self._cache = Filled

    def select(self, query: Array, keys: Array, S: int, r: int, K: int) -> Array:
        """As `Peer.select`: [l, K]."""
        mx = self._mx
        heads, rows, Di = query.shape
        cache = self._cache(r)
        cache._offsets, cache._compressed_counts = [S - rows], [len(keys)]
        if len(keys):
            cache.compressed_keys = mlx_of(keys)[None]
        queries = mlx_of(query.transpose(1, 0, 2).reshape(1, rows, heads * Di))
        hidden = mx.concatenate([queries, mx.zeros((1, rows, Di), queries.dtype)], axis=-1)
        selection = self._indexer(heads, Di, r, K)(hidden, cache, physical_kv_length=max(S, (K + 1) * r))
        blocks = array_of(selection.token_indices[0, :, : K * r : r]) // r
        return np.where(array_of(selection.block_valid[0]), blocks, -1)

    def _indexer(self, heads: int, Di: int, r: int, K: int) -> Any:
        args = SimpleNamespace(
            hidden_size=1,
            indexer_n_heads=heads,
            indexer_kv_heads=1,
            indexer_head_dim=Di,
            indexer_budget=K * r,
            indexer_compress_ratio=r,
            rms_norm_eps=1.0,
            head_dim=Di,
            partial_rotary_factor=0.0,
            rope_theta=1.0,
        )
        indexer = self._model.QSAIndexer(args)
        indexer.index_qk_proj = lambda hidden: hidden
        indexer.q_layernorm = lambda states: states
        return indexer
