"""mlx-vlm's own sparse attention (connect string ``mlx-vlm``).

`Qwen4ExpQSAIndexer.build_mask` and `dispatch_qsa_attention` of the installed mlx-vlm run: the first makes the mask of
tokens from selected blocks, padding and open block, the second attends under it, on a CPU with MLX's dense attention.
Replaced is the budget of the indexer, by none, below which it would attend to everything. This module hands over the
blocks, those behind the count as a block beyond all keys, and repeats a row for every query token that shares it.
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

NAME = "mlx-vlm"
URL = "https://github.com/Blaizzy/mlx-vlm/issues"
MOST = 1 << 26  # elements of the logits, which are dense, and of the tokens that are listed


class MlxVlm:
    """The two functions on MLX's CPU device. Raises `ImportError` where mlx-vlm is not installed."""

    def __init__(self) -> None:
        self._mx = mlx()
        from mlx_vlm.models.qwen4_exp import language, qsa_kernel

        self._language, self._kernel = language, qsa_kernel
        self._version = f"{version('mlx-vlm')} (mlx {self._mx.__version__})"

    def describe(self) -> BackendInfo:
        """Every type; sinks can only be left out."""
        return BackendInfo(
            name=NAME,
            version=self._version,
            vendor=NAME,
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation=OPERATION,
        )

    def prepare(self, config: OperationConfig) -> MlxVlmSession:
        """One session. Raises `Rejected` (ERR-1), `Unsupported` for sinks and for what is not causal."""
        check = refusals.checker(config, OPERATION).check
        if "sinks" not in config.disabled:
            raise Unsupported("sinks", "mlx-vlm has no attention sinks", URL)
        if not config.attributes.get("causal", True):
            raise Unsupported("causal", "mlx-vlm always attends to the open block", URL)
        return MlxVlmSession(self._mx, self._language, self._kernel, config, check)


class MlxVlmSession:
    """The functions for one set of attributes."""

    def __init__(self, mx: Any, language: Any, kernel: Any, config: OperationConfig, check: Any) -> None:
        self._mx, self._kernel, self._check = mx, kernel, check
        self._r = int(config.attributes["key_block_size"])
        self._qb = int(config.attributes.get("query_block_size", 1))
        budgetless = SimpleNamespace(
            hidden_size=1, indexer_n_heads=1, indexer_kv_heads=1, indexer_head_dim=1, indexer_budget=-self._r,
            indexer_compress_ratio=self._r, rms_norm_eps=1.0,
        )  # fmt: skip
        self._indexer = language.Qwen4ExpQSAIndexer(budgetless, None)

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), `ForeignError`, `Unsupported` for several selections."""
        self._check(inputs)
        N, H, L, _ = inputs["query"].shape
        S, Ev = inputs["value"].shape[2:]
        if inputs["block_indices"].shape[1] != 1:
            raise Unsupported("selections", "mlx-vlm takes one selection for all heads", URL)
        if N * L * max(H * S, inputs["block_indices"].shape[3] * self._r) > MOST:
            raise Unsupported("size", "mlx-vlm lists tokens and attends densely on a CPU: too many here", URL)
        out = np.zeros((N, H, L, Ev), inputs["query"].dtype)
        if N and L and S:
            scale = scale_of(inputs)
            with foreign.calls(NAME):
                out = self._attended(inputs, scale)
        return {"attention_output": out}

    def close(self) -> None:
        """Nothing is held."""

    def _attended(self, inputs: Mapping[str, Array], scale: float) -> Array:
        mx, r = self._mx, self._r
        N, _, L, _ = inputs["query"].shape
        S = inputs["key"].shape[2]
        padding = mx.array((S - lengths_of(inputs)).astype(np.int32))
        rows = np.arange(L) // self._qb
        listed, count = (inputs[name][:, 0, rows].astype(np.int32) for name in ("block_indices", "block_count"))
        blocks = mx.array(np.where(np.arange(listed.shape[2]) < count[..., None], listed, S // r + 1))
        ends = mx.broadcast_to(mx.arange(S - L + 1, S + 1, dtype=mx.int32)[None], (N, L))
        selection = SimpleNamespace(
            selected_blocks=blocks,
            query_ends=ends,
            complete_counts=mx.maximum(ends - padding[:, None], 0) // r,
            left_padding=padding,
            key_len=S,
        )
        made = self._kernel.dispatch_qsa_attention(
            *(mlx_of(inputs[name]) for name in ("query", "key", "value")),
            blocks,
            ends,
            cache=None,
            scale=scale,
            block_size=r,
            causal=True,
            mask=None,
            mask_factory=lambda: self._indexer.build_mask(selection),
        )
        return array_of(made)
