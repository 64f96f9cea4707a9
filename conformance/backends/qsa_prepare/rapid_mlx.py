"""Rapid-MLX's own indexer (connect strings ``rapid-mlx``, ``rapid-mlx:fast_fp32``, ``rapid-mlx:MODE``).

`QSAIndexer` of the installed rapid-mlx runs on its `QSAIndexCache`: a ring of raw keys, block keys in place, sequences
of any length and padding on the left. The cache is filled from the ports and read after the call; nothing is computed
here. Replaced are the projection, by the identity, and in its module the functions `cos` and `sin`: with theta 1 the
angle of a token is its position, by which they look up the rows of the ports.

The text after the colon is the indexer's own mode of normalization; without one it takes its default.
"""

from __future__ import annotations

import threading
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

URL = "https://github.com/raullenchai/Rapid-MLX/issues"
MOST = 1 << 15  # tokens of a call that its cache takes one by one, which is all but a single sequence from a block on
_replacing = threading.Lock()  # cos and sin are replaced in a global of the foreign module


class RapidMlx(Peer):
    """The indexer on MLX's CPU device, all sequences at once. Raises `ImportError` where it is not installed."""

    vendor, url = "Rapid-MLX", URL
    outputs = ("block_index_keys", RAW)

    def __init__(self, norm: str = "") -> None:
        self._mx = mlx()
        from rapid_mlx.models import qwen4_exp, qwen4_exp_cache

        self._model, self._cache, self._norm = qwen4_exp, qwen4_exp_cache, norm
        self.name = f"rapid-mlx:{norm}" if norm else "rapid-mlx"
        self.version = f"{version('rapid-mlx')} (mlx {self._mx.__version__})"

    def compute(self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[Tables]) -> Computed:
        """Block keys, the past ones included, and the raw keys in the ring.

        Raises `Unsupported` for a call that takes too long.
        """
        mx, r, N = self._mx, tokens.r, tokens.N
        at_once = N == 1 and not tokens.waiting[0] and not tokens.pad[0]
        if N * tokens.L > MOST and not at_once:
            raise Unsupported("size", "Rapid-MLX goes token by token here, which would take minutes", URL)
        # Sequence n has the positions from n * stride on; the ring asks for nothing but the remainder by r.
        stride = r * (1 + -(-max(tokens.count(n) for n in range(N)) // r))
        cos = np.zeros((stride * N, tables[0][0].shape[1]), np.float32)
        sin = np.zeros_like(cos)
        for n, pair in enumerate(tables):
            for table, rows in zip((cos, sin), pair, strict=True):
                table[n * stride : n * stride + len(rows)] = rows
        cache = self._filled(tokens, [n * stride + int(tokens.waiting[n]) for n in range(N)])
        if tokens.L:
            keys = mlx_of(tokens.inputs["raw_index_keys"])
            indexer = self._indexer(tokens, epsilon, weight, cos.shape[1])
            with self._tables(mx.array(cos), mx.array(sin)):
                indexer(mx.concatenate([mx.zeros_like(keys), keys], axis=-1), cache, physical_kv_length=0)
                mx.eval(cache.raw_ring, *([] if cache.compressed_keys is None else [cache.compressed_keys]))
        made = None if cache.compressed_keys is None else array_of(cache.compressed_keys)
        ring, none = array_of(cache.raw_ring), np.zeros((0, tokens.Di), tokens.dtype)
        blocks = [none if made is None else made[n, :count].copy() for n, count in enumerate(cache._compressed_counts)]
        return blocks, [ring[n, : tokens.left[n]] for n in range(N)]

    def _filled(self, tokens: Tokens, offsets: list[int]) -> Any:
        """A cache in the state that the ports describe."""
        pad = [int(count) for count in tokens.pad]
        ring = np.zeros((tokens.N, tokens.r, tokens.Di), tokens.dtype)
        ring[:, : tokens.r - 1] = tokens.inputs["past_incomplete_raw_keys"]
        cache = self._cache.QSAIndexCache(tokens.r, pad if any(pad) or tokens.N > 1 else None)
        cache._offsets = offsets
        cache._compressed_counts = [int(count) for count in tokens.complete]
        cache._pending_left_padding = pad
        cache.raw_ring = mlx_of(ring)
        past = tokens.inputs["past_block_index_keys"]
        if past.shape[1]:
            cache.compressed_keys = mlx_of(past)
        return cache

    def _indexer(self, tokens: Tokens, epsilon: float, weight: Array, width: int) -> Any:
        args = SimpleNamespace(
            hidden_size=2 * tokens.Di,
            indexer_n_heads=1,
            indexer_kv_heads=1,
            indexer_head_dim=tokens.Di,
            indexer_budget=tokens.r,
            indexer_compress_ratio=tokens.r,
            rms_norm_eps=epsilon,
            head_dim=width,
            partial_rotary_factor=1.0,
            rope_theta=1.0,
        )
        indexer = self._model.QSAIndexer(args)
        indexer.index_qk_proj = lambda hidden: hidden
        indexer.k_layernorm.weight = mlx_of(weight)
        indexer.k_layernorm.set_fast_rmsnorm_mode(self._norm or self._model._FAST_RMSNORM_DEFAULT)
        return indexer

    def _tables(self, cos: Any, sin: Any) -> _Tables:
        return _Tables(self._model, self._mx, cos, sin)


class _Tables:
    """While it is entered the foreign module's `mx.cos` and `mx.sin` give rows of the ports."""

    def __init__(self, module: Any, mx: Any, cos: Any, sin: Any) -> None:
        self._module, self._mx, self._rows = module, mx, (cos, sin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mx, name)

    def cos(self, angles: Any) -> Any:
        return self._rows[0][self._places(angles)]

    def sin(self, angles: Any) -> Any:
        return self._rows[1][self._places(angles)]

    def _places(self, angles: Any) -> Any:
        if not angles.shape[-1]:
            return self._mx.zeros(angles.shape[:-1], self._mx.int32)
        return self._mx.clip(angles[..., 0].astype(self._mx.int32), 0, len(self._rows[0]) - 1)

    def __enter__(self) -> None:
        _replacing.acquire()
        self._module.mx = self

    def __exit__(self, *_: object) -> None:
        self._module.mx = self._mx
        _replacing.release()
