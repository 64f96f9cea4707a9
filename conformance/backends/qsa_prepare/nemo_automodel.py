"""NVIDIA NeMo Automodel's own indexer (connect strings ``nemo-automodel``, ``nemo-automodel:packed``).

`Qwen3_8_FlashNextQSAIndexer` of the installed nemo-automodel runs: it cuts the tokens into blocks, takes the mean,
normalizes and rotates. Two of its parts are replaced: the projection by the identity, as the operation gets keys that
are projected; and `select_qsa_token_ids`, to which it hands the block keys, by a function that keeps them and stops
before the scores, which are another operation's. The keys are returned as the indexer made them. It takes one half of
cos and sin for both halves of a key, so that tables whose halves differ are run once for each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.qsa_prepare.peer import Peer
from conformance.backends.torch.tensors import one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.backends.qsa_prepare.peer import Computed
    from conformance.backends.qsa_prepare.tokens import Tables, Tokens

URL = "https://github.com/NVIDIA-NeMo/Automodel/issues"
MODES = ("padded", "packed")
_observing = threading.Lock()  # the observed function is a global of the foreign module


class _Seen(Exception):  # noqa: N818  it ends a run that has shown what is wanted
    pass


class NemoAutomodel(Peer):
    """The indexer on the CPU: sequences padded to one length, or packed into one row. ValueError for another mode."""

    vendor, url = "NVIDIA", URL
    switches = ()  # a rotary width of 0 is refused
    halves = True

    def __init__(self, mode: str = "padded") -> None:
        if mode not in MODES:
            raise ValueError(f"nemo-automodel: mode is {mode!r}, not one of {', '.join(MODES)}")
        self._torch = one_thread()
        from nemo_automodel.components.models.common import BackendConfig
        from nemo_automodel.components.models.qwen3_8_flash_next import qsa

        self._qsa, self._backend, self._packed = qsa, BackendConfig(linear="torch"), mode == "packed"
        self.name = "nemo-automodel" + (":packed" if self._packed else "")
        self.version = f"{version('nemo-automodel')} (torch {self._torch.__version__})"

    def compute(self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[Tables]) -> Computed:
        """The block keys of every sequence that has tokens, f32."""
        torch, r = self._torch, tokens.r
        lengths = [tokens.count(n) for n in range(tokens.N)]
        rows = [n for n in range(tokens.N) if lengths[n]]
        blocks = [np.zeros((0, tokens.Di), np.float32)] * tokens.N
        if not rows:
            return blocks, None
        keys = [tokens.keys(n) for n in rows]
        angles = [np.concatenate(tables[n], axis=1) for n in rows]
        if self._packed:
            ends = np.cumsum([0, *(lengths[n] for n in rows)])
            how: dict[str, Any] = {"cu_seqlens": torch.from_numpy(ends)}
            batch, angle = np.concatenate(keys)[None], np.concatenate(angles)[None]
        else:
            longest = max(lengths)
            there = np.arange(longest) < np.array([lengths[n] for n in rows])[:, None]
            how = {"attention_mask": torch.from_numpy(there)}
            batch, angle = (_padded(arrays, longest) for arrays in (keys, angles))
        made = self._block_keys(self._indexer(tokens, epsilon, weight), tensor_of(batch), tensor_of(angle), how)
        for place, n in enumerate(rows):
            blocks[n] = made[place, : lengths[n] // r, 0].float().numpy().copy()
        return blocks, None

    def _indexer(self, tokens: Tokens, epsilon: float, weight: Array) -> Any:
        torch = self._torch
        config = SimpleNamespace(
            hidden_size=2 * tokens.Di,
            indexer_n_heads=1,
            indexer_kv_heads=1,
            indexer_head_dim=tokens.Di,
            indexer_budget=tokens.r,
            indexer_compress_ratio=tokens.r,
            rms_norm_eps=epsilon,
            torch_dtype="float32",
        )
        indexer = self._qsa.Qwen3_8_FlashNextQSAIndexer(config, self._backend).eval()
        indexer.index_qk_proj = torch.nn.Identity()
        indexer.k_layernorm.weight = torch.nn.Parameter(torch.from_numpy(weight.copy()), requires_grad=False)
        return indexer

    def _block_keys(self, indexer: Any, keys: Any, angles: Any, how: dict[str, Any]) -> Any:
        """What the indexer hands to the selection: [rows, blocks, 1, Di]."""
        torch, seen = self._torch, []

        def keep(queries: Any, block_keys: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(block_keys)
            raise _Seen

        with _observing, torch.inference_mode():
            select = self._qsa.select_qsa_token_ids
            self._qsa.select_qsa_token_ids = keep
            try:
                with suppress(_Seen):
                    indexer(torch.cat([torch.zeros_like(keys), keys], dim=-1), freqs_cis=angles, **how)
            finally:
                self._qsa.select_qsa_token_ids = select
        return seen[0]


def _padded(arrays: Sequence[Array], length: int) -> Array:
    """One array with NaN behind what is shorter: padding must not be read."""
    out = np.full((len(arrays), length, arrays[0].shape[1]), np.nan, arrays[0].dtype)
    for row, array in enumerate(arrays):
        out[row, : len(array)] = array
    return out
