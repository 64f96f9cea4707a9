"""NVIDIA NeMo Automodel's own sparse attention (connect string ``nemo-automodel``).

`gathered_qsa_gqa_attention` of the installed nemo-automodel runs as it is, nothing in it replaced: it gathers the
tokens, takes logits, softmax and weighted sum. This module lists the attended tokens as the ids that the function
takes, and fills the narrower of key and value up with zeros, which change no product: the function wants them alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from conformance.backends import foreign, refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.sparse_attention.defaults import lengths_of, scale_of
from conformance.backends.sparse_attention.torch_eager import attended_rows
from conformance.backends.torch.tensors import array_of, one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

NAME = "nemo-automodel"
URL = "https://github.com/NVIDIA-NeMo/Automodel/issues"


class NemoAutomodel:
    """The function on the CPU: one selection for all heads, no sinks. Raises `ImportError` where it is missing."""

    def __init__(self) -> None:
        self._torch = one_thread()
        from nemo_automodel.components.models.qwen3_8_flash_next import qsa

        self._qsa = qsa
        self._version = f"{version(NAME)} (torch {self._torch.__version__})"

    def describe(self) -> BackendInfo:
        """Every type; sinks can only be left out."""
        return BackendInfo(
            name=NAME,
            version=self._version,
            vendor="NVIDIA",
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation="SparseAttention",
        )

    def prepare(self, config: OperationConfig) -> NemoSession:
        """One session. Raises `Rejected` for attributes out of range (ERR-1), `Unsupported` for sinks."""
        check = refusals.checker(config, "SparseAttention").check
        if "sinks" not in config.disabled:
            raise Unsupported("sinks", "NeMo has no attention sinks", URL)
        return NemoSession(self._torch, self._qsa, config, check)


class NemoSession:
    """The function for one set of attributes."""

    def __init__(self, torch: Any, qsa: Any, config: OperationConfig, check: Any) -> None:
        self._torch, self._qsa, self._check = torch, qsa, check
        self._r = int(config.attributes["key_block_size"])
        self._qb = int(config.attributes.get("query_block_size", 1))
        self._causal = bool(config.attributes.get("causal", True))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), `ForeignError`, `Unsupported` for several selections."""
        self._check(inputs)
        torch = self._torch
        query, key, value = (tensor_of(inputs[name]).transpose(1, 2) for name in ("query", "key", "value"))
        N, L, H, E = query.shape
        S, Ev = value.shape[1], value.shape[3]
        if inputs["block_indices"].shape[1] != 1:
            raise Unsupported("selections", "NeMo takes one selection for all heads", URL)
        scale = scale_of(inputs)
        wide = max(E, Ev)
        query, key, value = (
            torch.nn.functional.pad(tensor, (0, wide - tensor.shape[3])) for tensor in (query, key, value)
        )
        out = torch.zeros((N, L, H, Ev), dtype=query.dtype)
        for n in range(N):
            ids = self._ids(inputs, n, L, S)
            if not ids.numel() or not S:
                continue
            own = slice(n, n + 1)
            with torch.inference_mode(), foreign.calls(NAME):
                made = self._qsa.gathered_qsa_gqa_attention(
                    query[own], key[own], value[own], ids[None], softmax_scale=scale
                )
            out[n] = made[0, ..., :Ev]
        return {"attention_output": array_of(out.transpose(1, 2))}

    def close(self) -> None:
        """Nothing is held."""

    def _ids(self, inputs: Mapping[str, Array], n: int, L: int, S: int) -> Any:
        """Rows of key and value that each query token attends to, [L, width], -1 where there is none."""
        torch = self._torch
        Sn = int(lengths_of(inputs)[n])
        tokens = torch.arange(L)
        rows, there = attended_rows(
            torch.from_numpy(inputs["block_indices"][n, 0].astype("int64"))[tokens // self._qb],
            torch.from_numpy(inputs["block_count"][n, 0].astype("int64"))[tokens // self._qb],
            Sn - L + tokens if self._causal else None,
            (S, Sn),
            self._r,
        )
        return rows.masked_fill(~there, -1)
