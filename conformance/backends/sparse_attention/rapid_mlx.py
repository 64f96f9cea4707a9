"""Rapid-MLX's own sparse attention (connect string ``rapid-mlx``).

`QSAAttention` of the installed rapid-mlx runs: from selected tokens it makes its mask, `_QSASelection.dense_mask`, and
attends under it, on a CPU with MLX's dense attention, as its kernels for Metal decline there. Replaced are the
projections and norms before it, by what the ports hold; its indexer, by the tokens of the listed blocks and of the open
block; the gate after it, by 1. The rotary width is 0. The narrower of key and value is filled up with zeros, which
change no product: the code wants them alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import foreign, refusals
from conformance.backends.mlx.arrays import array_of, mlx, mlx_of
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.sparse_attention import OPERATION
from conformance.backends.sparse_attention.defaults import lengths_of, scale_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

NAME = "rapid-mlx"
URL = "https://github.com/raullenchai/Rapid-MLX/issues"
MOST = 1 << 26  # elements of the logits, which are dense, and of the tokens that are listed
OPEN = 1e4  # of a gate: its sigmoid is 1 in every type


class RapidMlx:
    """The layer on MLX's CPU device. Raises `ImportError` where rapid-mlx is not installed."""

    def __init__(self) -> None:
        self._mx = mlx()
        from rapid_mlx.models import qwen4_exp

        self._model = qwen4_exp
        self._version = f"{version(NAME)} (mlx {self._mx.__version__})"

    def describe(self) -> BackendInfo:
        """Every type; sinks can only be left out."""
        return BackendInfo(
            name=NAME,
            version=self._version,
            vendor="Rapid-MLX",
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation=OPERATION,
        )

    def prepare(self, config: OperationConfig) -> RapidMlxSession:
        """One session. Raises `Rejected` (ERR-1), `Unsupported` for sinks and for what is not causal."""
        check = refusals.checker(config, OPERATION).check
        if "sinks" not in config.disabled:
            raise Unsupported("sinks", "Rapid-MLX has no attention sinks", URL)
        if not config.attributes.get("causal", True):
            raise Unsupported("causal", "Rapid-MLX always attends to the open block", URL)
        return RapidMlxSession(self._mx, self._model, config, check)


class RapidMlxSession:
    """The layer for one set of attributes."""

    def __init__(self, mx: Any, model: Any, config: OperationConfig, check: Any) -> None:
        self._mx, self._model, self._check = mx, model, check
        self._r = int(config.attributes["key_block_size"])
        self._qb = int(config.attributes.get("query_block_size", 1))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), `ForeignError`, `Unsupported` for several selections."""
        self._check(inputs)
        N, H, L, _ = inputs["query"].shape
        S, Ev = inputs["value"].shape[2:]
        if inputs["block_indices"].shape[1] != 1:
            raise Unsupported("selections", "Rapid-MLX takes one selection for all heads", URL)
        if N * L * max(H * S, (inputs["block_indices"].shape[3] + 1) * self._r) > MOST:
            raise Unsupported("size", "Rapid-MLX lists tokens and attends densely on a CPU: too many here", URL)
        out = np.zeros((N, H, L, Ev), inputs["query"].dtype)
        if N and L and S:
            scale = scale_of(inputs)
            with foreign.calls(NAME):
                out = self._attended(inputs, scale)[..., :Ev]
        return {"attention_output": np.ascontiguousarray(out)}

    def close(self) -> None:
        """Nothing is held."""

    def _attended(self, inputs: Mapping[str, Array], scale: float) -> Array:
        mx = self._mx
        query, key, value = (mlx_of(inputs[name]) for name in ("query", "key", "value"))
        N, H, L, _ = query.shape
        wide = max(query.shape[3], value.shape[3])
        query, key, value = (
            mx.pad(array, [(0, 0)] * 3 + [(0, wide - array.shape[3])]) for array in (query, key, value)
        )
        layer = self._layer(H, key.shape[1], wide)
        layer.scale = scale
        states = query.transpose(0, 2, 1, 3)
        projected = mx.concatenate([states, mx.full(states.shape, OPEN, states.dtype)], axis=-1)
        unused = mx.zeros((N, L, key.shape[1], wide), key.dtype)
        selection = self._selection(inputs)
        layer.q_proj, layer.k_proj, layer.v_proj = lambda x: projected, lambda x: unused, lambda x: unused
        layer.q_norm = layer.k_norm = layer.o_proj = lambda states: states
        layer.indexer = _Given(selection, self._r)
        made = layer(mx.zeros((N, L, 1)), (_Filled(key, value), ()), mask="causal")
        return array_of(made).reshape(N, L, H, wide).transpose(0, 2, 1, 3)

    def _selection(self, inputs: Mapping[str, Array]) -> Any:
        """The tokens by their rows in key and value, as the indexer hands them over: blocks, then the open block."""
        mx, r = self._mx, self._r
        N, S = inputs["key"].shape[0], inputs["key"].shape[2]
        L = inputs["query"].shape[2]
        rows = np.arange(L) // self._qb
        listed, count = (inputs[name][:, 0, rows].astype(np.int32) for name in ("block_indices", "block_count"))
        before = (S - lengths_of(inputs).astype(np.int32))[:, None, None]
        position = np.arange(S - L, S, dtype=np.int32)[None, :, None] - before
        blocks = (listed[..., None] * r + np.arange(r, dtype=np.int32)).reshape(N, L, -1)
        tail = (position + 1) // r * r + np.arange(r, dtype=np.int32)
        return self._model._QSASelection(
            token_indices=mx.array(np.concatenate([blocks, tail], axis=2) + before),
            block_valid=mx.array((np.arange(listed.shape[2]) < count[..., None]) & (position >= 0)),
            tail_valid=mx.array((tail <= position) & (position >= 0)),
            physical_kv_length=S,
        )

    def _layer(self, heads: int, key_heads: int, width: int) -> Any:
        return self._model.QSAAttention(
            SimpleNamespace(
                hidden_size=1,
                num_attention_heads=heads,
                num_key_value_heads=key_heads,
                head_dim=width,
                partial_rotary_factor=0.0,
                attention_bias=False,
                rms_norm_eps=1.0,
                rope_theta=1.0,
                max_position_embeddings=1,
                indexer_n_heads=1,
                indexer_kv_heads=1,
                indexer_head_dim=1,
                indexer_budget=self._r,
                indexer_compress_ratio=self._r,
            )
        )


class _Given:
    """Stands for the indexer: the selection that there is already."""

    def __init__(self, selection: Any, block_size: int) -> None:
        self._selection = selection
        self.compress_ratio, self.rope_theta = block_size, 1.0
        self.block_topk = selection.block_valid.shape[-1]
        self.token_budget = self.block_topk * block_size

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self._selection


class _Filled:
    """Stands for the cache: keys and values that are there already, those of the call among them."""

    offset = 0

    def __init__(self, keys: Any, values: Any) -> None:
        self._held = keys, values

    def size(self) -> int:
        return 0

    def update_and_fetch(self, *_: Any) -> tuple[Any, Any]:
        return self._held
