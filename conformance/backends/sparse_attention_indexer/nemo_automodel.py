"""NVIDIA NeMo Automodel's own selection of blocks (connect string ``nemo-automodel``).

`select_qsa_token_ids` of the installed nemo-automodel runs as it is, nothing in it replaced: it counts the visible
blocks, scores them and takes the best. This module gives it a sequence at a time and reads the blocks off the token
ids that it returns, in its order and without the incomplete block that it adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import foreign, refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.torch.tensors import one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

NAME = "nemo-automodel"
URL = "https://github.com/NVIDIA-NeMo/Automodel/issues"


class NemoAutomodel:
    """The function on the CPU: one selection, no weights. Raises `ImportError` where it is not installed."""

    def __init__(self) -> None:
        self._torch = one_thread()
        from nemo_automodel.components.models.qwen3_8_flash_next import qsa

        self._qsa = qsa
        self._version = f"{version(NAME)} (torch {self._torch.__version__})"

    def describe(self) -> BackendInfo:
        """Both outputs in every type."""
        return BackendInfo(
            name=NAME,
            version=self._version,
            vendor="NVIDIA",
            element_types=("f32", "f16", "bf16"),
            outputs=("block_indices", "block_count"),
            features=("weights", "left_padding"),
            url=URL,
            operation="SparseAttentionIndexer",
        )

    def prepare(self, config: OperationConfig) -> NemoSession:
        """One session. Raises `Rejected` (ERR-1), `Unsupported` for weights, several selections and blocks of one."""
        check = refusals.checker(config, "SparseAttentionIndexer").check
        if "weights" not in config.disabled:
            raise Unsupported("weights", "NeMo sums its index heads without weights", URL)
        if config.attributes.get("num_selection_heads", 1) != 1:
            raise Unsupported("num_selection_heads", "NeMo makes one selection for all heads", URL)
        if config.attributes["key_block_size"] == 1:
            raise Unsupported("key_block_size", "NeMo refuses blocks of one token", URL)
        return NemoSession(self._torch, self._qsa, config, check)


class NemoSession:
    """The function for one set of attributes."""

    def __init__(self, torch: Any, qsa: Any, config: OperationConfig, check: Any) -> None:
        self._torch, self._qsa, self._check = torch, qsa, check
        self._r = int(config.attributes["key_block_size"])
        self._K = int(config.attributes["token_budget"]) // self._r

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5) and `ForeignError`."""
        self._check(inputs)
        N, _, L, _ = inputs["index_query"].shape
        indices = np.full((N, 1, L, self._K), -1, np.int32)
        count = np.zeros((N, 1, L), np.int32)
        for n, S in enumerate(np.broadcast_to(inputs["key_length"].astype(np.int64), (N,)).tolist()):
            first = max(L - S, 0)  # what stands before is padding
            if first == L:
                continue
            for row, ids in enumerate(self._tokens(inputs, n, S, first), first):
                visible = (S - L + row + 1) // self._r * self._r
                blocks = ids[(ids >= 0) & (ids < visible)][:: self._r] // self._r
                indices[n, 0, row, : len(blocks)] = blocks
                count[n, 0, row] = len(blocks)
        return {"block_indices": indices, "block_count": count}

    def close(self) -> None:
        """Nothing is held."""

    def _tokens(self, inputs: Mapping[str, Array], n: int, S: int, first: int) -> Array:
        """Token ids for the query tokens from `first` on, [tokens, budget + r - 1], -1 behind the last."""
        torch = self._torch
        query = tensor_of(inputs["index_query"][n : n + 1, :, first:].transpose(0, 2, 1, 3))
        keys = tensor_of(inputs["block_index_keys"][n : n + 1, :, None])
        with foreign.calls(NAME):
            ids: Array = self._qsa.select_qsa_token_ids(
                query,
                keys,
                torch.tensor([S]),
                token_budget=self._K * self._r,
                compress_ratio=self._r,
                query_position_offset=S - query.shape[1],
                global_sequence_length=S,
            )[0].numpy()
        return ids
