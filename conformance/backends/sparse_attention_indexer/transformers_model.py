"""The published model's own selection of blocks (connect string ``transformers``).

`Qwen4ExpTextQSAIndexer` of the installed transformers runs: it counts the visible blocks, multiplies, rectifies, sums
and takes the best. What the operation gets ready-made stands in for the parts of the module that would compute it:
the index queries for its query norm, the block keys for its key norm, cos 1 and sin 0 for the rotation. The selection
is read from the token mask that the module returns; the mask holds no order, so that blocks come out by index.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.torch.tensors import one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

URL = "https://github.com/huggingface/transformers/issues"
MOST = 1 << 25  # query tokens times tokens of the longest sequence: the module goes token by token


class TransformersModel:
    """The indexer of transformers as the implementation under test: one selection, no weights."""

    def __init__(self) -> None:
        self._torch = one_thread()
        import transformers
        from transformers.models.qwen4_exp import modeling_qwen4_exp

        self._version = f"{transformers.__version__} (torch {self._torch.__version__})"
        self._modeling = modeling_qwen4_exp

    def describe(self) -> BackendInfo:
        """Both outputs in every type."""
        return BackendInfo(
            name="transformers",
            version=self._version,
            vendor="Hugging Face",
            element_types=("f32", "f16", "bf16"),
            outputs=("block_indices", "block_count"),
            features=("weights", "left_padding"),
            url=URL,
            operation="SparseAttentionIndexer",
        )

    def prepare(self, config: OperationConfig) -> TransformersSession:
        """One session for the attributes.

        Raises `Rejected` for attributes out of range (ERR-1), `Unsupported` for weights and for several selections.
        """
        check = refusals.checker(config, "SparseAttentionIndexer").check
        if "weights" not in config.disabled:
            raise Unsupported("weights", "the model sums its index heads without weights", URL)
        if config.attributes.get("num_selection_heads", 1) != 1:
            raise Unsupported("num_selection_heads", "the model makes one selection for all heads", URL)
        return TransformersSession(self._torch, self._modeling, config, check)


class TransformersSession:
    """The indexer for one set of attributes; it is built for the heads and the width of each call."""

    def __init__(self, torch: Any, modeling: Any, config: OperationConfig, check: Any) -> None:
        self._torch, self._modeling, self._check = torch, modeling, check
        self._r = int(config.attributes["key_block_size"])
        self._K = int(config.attributes["token_budget"]) // self._r

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), and `Unsupported` for one that the module is too slow for."""
        self._check(inputs)
        N, Hi, L, Di = inputs["index_query"].shape
        S = np.broadcast_to(inputs["key_length"].astype(np.int64), (N,))
        if L * int(S.max(initial=0)) > MOST:
            raise Unsupported("size", f"the model's loop over {L} query tokens would take minutes", URL)
        indices = np.full((N, 1, L, self._K), -1, np.int32)
        count = np.zeros((N, 1, L), np.int32)
        for n in range(N):
            mask = self._selected(inputs, n, int(S[n]), Hi, Di) if L and S[n] else np.zeros((L, 0), bool)
            for row, tokens in enumerate(mask):
                blocks = self._blocks(tokens, max(int(S[n]) - L + row + 1, 0))
                indices[n, 0, row, : len(blocks)] = blocks[: self._K]
                count[n, 0, row] = len(blocks)
        return {"block_indices": indices, "block_count": count}

    def close(self) -> None:
        """Nothing is held."""

    def _blocks(self, tokens: Array, end: int) -> Array:
        """The selected blocks among the `end` visible tokens; the incomplete one that the mask adds does not count."""
        whole = tokens[: end // self._r * self._r].reshape(-1, self._r)
        found: Array = np.flatnonzero(whole.any(axis=1))
        return found

    def _selected(self, inputs: Mapping[str, Array], n: int, S: int, Hi: int, Di: int) -> Array:
        """The module's token mask [L, S] for one sequence."""
        torch = self._torch
        query = tensor_of(inputs["index_query"][n : n + 1].transpose(0, 2, 1, 3))  # [1, L, Hi, Di]
        keys = tensor_of(inputs["block_index_keys"][n])
        L = query.shape[1]
        indexer = self._modeling.Qwen4ExpTextQSAIndexer(_model_config(self._r, self._K, Hi, Di), 0).eval()
        indexer.q_layernorm = _StandIn(torch, lambda _: query)
        indexer.k_layernorm = _StandIn(torch, lambda pooled: keys[: len(pooled)])
        tokens = torch.zeros((1, max(L, S), (Hi + 1) * Di), dtype=query.dtype)
        indexer.index_qk_proj = _StandIn(torch, lambda hidden: tokens[:, : hidden.shape[1]])
        cache = _RawKeys(tokens[:, :S, :Di])
        one = torch.ones((1, max(L, S), Di - Di % 2), dtype=query.dtype)
        ends = S - L + torch.arange(L) + 1
        mask = torch.arange(S) < ends[:, None]
        with torch.inference_mode():
            chosen = indexer(tokens[:, :L], (one, torch.zeros_like(one)), mask[None, None], cache)
        selected: Array = chosen[0, 0].numpy()
        return selected


def _StandIn(torch: Any, forward: Any) -> Any:  # noqa: N802  it makes a module
    """A module that gives what the operation was given, in place of what the model would compute."""

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return forward(x)

    return Module()


class _RawKeys:
    """A cache that holds as many raw keys as there are tokens; their values are not looked at."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys

    def update_indexer(self, keys: Any, layer: int) -> Any:
        return self._keys


@lru_cache(maxsize=256)  # to check a configuration takes the model library longer than to run the module
def _model_config(r: int, K: int, Hi: int, Di: int) -> Any:
    """A model configuration with one layer; only what the indexer reads matters."""
    from transformers.models.qwen4_exp import Qwen4ExpTextConfig

    return Qwen4ExpTextConfig(
        hidden_size=(Hi + 1) * Di,
        num_hidden_layers=1,
        num_attention_heads=1,  # checked to divide the hidden size
        num_key_value_heads=1,
        layer_types=["indexed_attention"],
        head_dim=max(Di - Di % 2, 1),  # of no use to the indexer, but checked to be even
        indexer_n_heads=Hi,
        indexer_kv_heads=1,
        indexer_head_dim=Di,
        indexer_budget=K * r,
        indexer_compress_ratio=r,
    )
