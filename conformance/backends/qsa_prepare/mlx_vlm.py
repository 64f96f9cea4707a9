"""mlx-vlm's own indexer (connect strings ``mlx-vlm``, ``mlx-vlm:row``, ``mlx-vlm:batch``).

`Qwen4ExpQSAIndexer.select_from_projected` of the installed mlx-vlm runs with its caches: it cuts raw keys into blocks,
takes the mean, normalizes and rotates, and in "row" mode appends to the block keys and raw keys that a `QSAKVCache`
carries; "batch" gives all sequences at once to a `BatchQSAKVCache`, padded on the left. Only its rotary embedding is
replaced in one place: where it would compute cos and sin from positions, it looks them up in the ports. What it selects
is passed over. The outputs are the cache's arrays or what the indexer's rotation returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.mlx.arrays import array_of, mlx, mlx_of
from conformance.backends.protocol import Unsupported
from conformance.backends.qsa_prepare.peer import RAW, Peer

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.backends.qsa_prepare.peer import Computed
    from conformance.backends.qsa_prepare.tokens import Tables, Tokens

URL = "https://github.com/Blaizzy/mlx-vlm/issues"
MODES = ("row", "batch")
MOST = 1 << 26  # elements of the raw keys that a sequence has had: its cache holds them all


class MlxVlm(Peer):
    """The indexer on MLX's CPU device. Raises ValueError for another mode, `ImportError` where it is not installed."""

    vendor, url = "mlx-vlm", URL

    def __init__(self, mode: str = "row") -> None:
        if mode not in MODES:
            raise ValueError(f"mlx-vlm: mode is {mode!r}, not one of {', '.join(MODES)}")
        self._mx = mlx()
        from mlx_vlm.models.qwen3_5.language import Qwen3_5RotaryEmbedding
        from mlx_vlm.models.qwen4_exp import language

        self._language, self._batch = language, mode == "batch"
        self.name = "mlx-vlm" + (":batch" if self._batch else "")
        self.version = f"{version('mlx-vlm')} (mlx {self._mx.__version__})"
        self.outputs = ("block_index_keys",) if self._batch else ("block_index_keys", RAW)

        class Tabled(Qwen3_5RotaryEmbedding):  # type: ignore[misc]
            """The model's rotation, with the cos and sin of the ports by position."""

            def __init__(self, cos: Any, sin: Any) -> None:
                super().__init__(8, mrope_section=[2, 1, 1])
                self.tables = cos, sin

            def __call__(self, x: Any, position_ids: Any) -> Any:
                cos, sin = self.tables
                return cos[position_ids], sin[position_ids]

        class Observed(language.Qwen4ExpQSAIndexer):  # type: ignore[misc]
            """The indexer, with what its rotation returned."""

            def _apply_rope(self, x: Any, position_ids: Any) -> Any:
                self.rotated = super()._apply_rope(x, position_ids)
                return self.rotated

        self._tabled, self._observed = Tabled, Observed

    def compute(self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[Tables]) -> Computed:
        """Block keys of every sequence, and in "row" mode the raw keys that its cache keeps beyond them.

        Raises `Unsupported` for a past of more raw keys than fit into memory.
        """
        if self._batch:
            return self._together(tokens, epsilon, weight, tables), None
        pairs = [self._alone(tokens, n, epsilon, weight, tables[n]) for n in range(tokens.N)]
        return [blocks for blocks, _ in pairs], [kept for _, kept in pairs]

    def _indexer(self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[Tables]) -> Any:
        cos, sin = (mlx_of(np.concatenate([pair[i] for pair in tables])) for i in (0, 1))
        config = SimpleNamespace(
            hidden_size=2 * tokens.Di,
            indexer_n_heads=1,
            indexer_kv_heads=1,
            indexer_head_dim=tokens.Di,
            indexer_budget=0,
            indexer_compress_ratio=tokens.r,
            rms_norm_eps=epsilon,
        )
        indexer = self._observed(config, self._tabled(cos, sin))
        indexer.k_layernorm.weight = mlx_of(weight)
        return indexer

    def _alone(self, tokens: Tokens, n: int, epsilon: float, weight: Array, tables: Tables) -> tuple[Array, Array]:
        mx, r, new = self._mx, tokens.r, tokens.new(n)
        done, waiting = int(tokens.complete[n]), int(tokens.waiting[n])
        if not len(new):  # the model is never called without a token
            return tokens.past(n), tokens.held(n)
        if (done * r + waiting) * tokens.Di > MOST:
            raise Unsupported("size", "mlx-vlm's cache holds the raw keys of all tokens, too many here", URL)
        cache = self._language.QSAKVCache()
        cache.offset = done * r + waiting
        if done:
            cache.index_block_keys, cache.index_block_ratio = mlx_of(tokens.past(n))[None, None], r
        if cache.offset:  # raw keys of complete blocks must not be read again
            old = np.concatenate([np.full((done * r, tokens.Di), np.nan, tokens.dtype), tokens.held(n)])
            ids = np.concatenate([np.zeros(done * r, np.int32), np.arange(waiting, dtype=np.int32)])
            cache.update_indexer(mlx_of(old)[None], mx.array(ids)[None])
        keys = mlx_of(new)[None]
        ids = mx.array(np.arange(waiting, waiting + len(new), dtype=np.int32))[None]
        if tokens.blocks[n]:
            indexer = self._indexer(tokens, epsilon, weight, [tables])
            indexer.select_from_projected(mx.concatenate([mx.zeros_like(keys), keys], axis=-1), cache, ids)
            blocks = array_of(cache.index_block_keys[0, 0])
        else:  # with no complete block there is nothing to select from: only the cache works
            cache.update_indexer(keys, ids)
            blocks = np.zeros((0, tokens.Di), tokens.dtype)
        return blocks, array_of(cache.index_keys[0, int(tokens.blocks[n]) * r :])

    def _together(self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[Tables]) -> list[Array]:
        mx, r = self._mx, tokens.r
        lengths = [tokens.count(n) for n in range(tokens.N)]
        longest = max(lengths)
        if longest < r:
            return [np.zeros((0, tokens.Di), tokens.dtype)] * tokens.N
        keys = np.full((tokens.N, longest, tokens.Di), np.nan, tokens.dtype)
        ids = np.zeros((tokens.N, longest), np.int32)
        starts = np.cumsum([0, *lengths])
        for n, length in enumerate(lengths):
            keys[n, longest - length :] = tokens.keys(n)
            ids[n, longest - length :] = starts[n] + np.arange(length)
        cache = self._language.BatchQSAKVCache([longest - length for length in lengths])
        indexer = self._indexer(tokens, epsilon, weight, tables)
        given = mlx_of(keys)
        indexer.select_from_projected(mx.concatenate([mx.zeros_like(given), given], axis=-1), cache, mx.array(ids))
        made = array_of(indexer.rotated)[:, 0]  # the last that it rotates are the block keys
        return [made[n, : length // r] for n, length in enumerate(lengths)]
