"""NVIDIA NeMo Automodel's own selection of blocks (connect string ``nemo-automodel``).

`select_qsa_token_ids` of the installed nemo-automodel runs as it is, nothing in it replaced: it counts the visible
blocks, scores them and takes the best. This module gives it a sequence at a time and reads the blocks off the token
ids that it returns, in its order and without the tokens of the incomplete block that it adds behind them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from conformance.backends.sparse_attention_indexer.peer import Peer
from conformance.backends.torch.tensors import one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class NemoAutomodel(Peer):
    """The function on the CPU. Raises `ImportError` where it is not installed."""

    name, vendor = "nemo-automodel", "NVIDIA"
    url = "https://github.com/NVIDIA-NeMo/Automodel/issues"
    least_block = 2

    def __init__(self) -> None:
        self._torch = one_thread()
        from nemo_automodel.components.models.qwen3_8_flash_next import qsa

        self._qsa = qsa
        self.version = f"{version(self.name)} (torch {self._torch.__version__})"

    def select(self, query: Array, keys: Array, S: int, r: int, K: int) -> list[Array]:
        """As `Peer.select`."""
        rows = query.shape[1]
        ids: Array = self._qsa.select_qsa_token_ids(
            tensor_of(query.transpose(1, 0, 2)[None]),
            tensor_of(keys[None, :, None]),
            self._torch.tensor([S]),
            token_budget=K * r,
            compress_ratio=r,
            query_position_offset=S - rows,
            global_sequence_length=S,
        )[0].numpy()
        chosen = []
        for end, tokens in enumerate(ids, S - rows + 1):
            listed = tokens[tokens >= 0]
            chosen.append(listed[: max(len(listed) - end % r, 0)][::r] // r)
        return chosen
