"""The published model's own attention function (connect strings ``transformers``, ``transformers:eager``).

The function that `Qwen4ExpTextAttention` of the installed transformers calls runs, with its groups of heads, logits,
softmax and weighted sum: by default the one on PyTorch's scaled_dot_product_attention, with "eager" the model's own.
This module states the attended tokens as the mask that the model would make of them; it computes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.backends import foreign, refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.sparse_attention.defaults import lengths_of, scale_of
from conformance.backends.sparse_attention.torch_eager import attended_rows
from conformance.backends.torch.tensors import array_of, one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

URL = "https://github.com/huggingface/transformers/issues"
MODES = ("sdpa", "eager")
MOST = 1 << 28  # elements of a mask
MOST_F32 = 3.4e38


class TransformersModel:
    """The attention of transformers as the implementation under test. Raises ValueError for another mode."""

    def __init__(self, mode: str = "sdpa") -> None:
        if mode not in MODES:
            raise ValueError(f"transformers: mode is {mode!r}, not one of {', '.join(MODES)}")
        self._torch = one_thread()
        import transformers
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.models.qwen4_exp.modeling_qwen4_exp import eager_attention_forward

        self._mode = mode
        self._version = f"{transformers.__version__} (torch {self._torch.__version__})"
        self._forward = sdpa_attention_forward if mode == "sdpa" else eager_attention_forward

    def describe(self) -> BackendInfo:
        """Every type; the model has no sinks."""
        return BackendInfo(
            name="transformers" + (":eager" if self._mode == "eager" else ""),
            version=self._version,
            vendor="Hugging Face",
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation="SparseAttention",
        )

    def prepare(self, config: OperationConfig) -> TransformersSession:
        """One session. Raises `Rejected` for attributes out of range (ERR-1), `Unsupported` for sinks."""
        check = refusals.checker(config, "SparseAttention").check
        if "sinks" not in config.disabled:
            raise Unsupported("sinks", "the model has no attention sinks", URL)
        return TransformersSession(self._torch, self._forward, self._mode == "eager", config, check)


class TransformersSession:
    """The attention function for one set of attributes."""

    def __init__(self, torch: Any, forward: Any, eager: bool, config: OperationConfig, check: Any) -> None:
        self._torch, self._forward, self._eager, self._check = torch, forward, eager, check
        self._r = int(config.attributes["key_block_size"])
        self._qb = int(config.attributes.get("query_block_size", 1))
        self._causal = bool(config.attributes.get("causal", True))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), and `Unsupported` for a mask that does not fit."""
        self._check(inputs)
        torch = self._torch
        query, key, value = (tensor_of(inputs[name]) for name in ("query", "key", "value"))
        N, H, L, _ = query.shape
        _, Hkv, S, Ev = value.shape
        Hs = inputs["block_indices"].shape[1]
        if H * L * S > MOST:
            raise Unsupported("size", f"the model's mask for {L} query tokens and {S} keys would not fit", URL)
        scale = scale_of(inputs)
        out = torch.zeros((N, H, L, Ev), dtype=query.dtype)
        if not S or not L:
            return {"attention_output": array_of(out)}
        module = _Module(num_key_value_groups=H // Hkv)
        for n in range(N):
            mask = self._mask(inputs, n, L, S).repeat_interleave(H // Hs, dim=0)[None]  # [1, H, L, S]
            if self._eager:  # as the model makes it: zeros, and the type's lowest number where nothing is attended to
                mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
            own = slice(n, n + 1)
            self._check_range(query[n], key[n].repeat_interleave(H // Hkv, dim=0), scale)
            with torch.inference_mode(), foreign.calls("transformers"):
                result, _ = self._forward(
                    module, query[own], key[own], value[own], mask, dropout=0.0, scaling=scale, is_causal=False
                )
            out[n] = result[0].transpose(0, 1)
        return {"attention_output": array_of(out)}

    def _check_range(self, query: Any, key: Any, scale: float) -> None:
        """Raises `Unsupported` where the product with a key leaves f32, attended to or not: [H, L, E] and [H, S, E].

        The model multiplies every key, and infinity is not undone by the mask (SEP-1).
        """
        if float(query.abs().max()) * float(key.abs().max()) * query.shape[-1] * max(abs(scale), 1) < MOST_F32:
            return
        if bool(query.isfinite().all() & key.isfinite().all()):
            products = query.double().abs() @ key.double().abs().mT
            if float(products.max()) * max(abs(scale), 1) >= MOST_F32:
                raise Unsupported("far keys", "the model multiplies masked keys too, and a product leaves f32", URL)

    def close(self) -> None:
        """Nothing is held."""

    def _mask(self, inputs: Mapping[str, Array], n: int, L: int, S: int) -> Any:
        """The attended tokens of every selection and query token, [Hs, L, S]."""
        torch = self._torch
        Sn = int(lengths_of(inputs)[n])
        indices = torch.from_numpy(inputs["block_indices"][n].astype("int64"))
        counts = torch.from_numpy(inputs["block_count"][n].astype("int64"))
        tokens = torch.arange(L)
        mask = torch.zeros((len(indices), L, S), dtype=torch.bool)
        for selection in range(len(indices)):
            rows, there = attended_rows(
                indices[selection, tokens // self._qb],
                counts[selection, tokens // self._qb],
                Sn - L + tokens if self._causal else None,
                (S, Sn),
                self._r,
            )
            token, place = there.nonzero(as_tuple=True)
            mask[selection, token, rows[token, place]] = True
        return mask


@dataclass(frozen=True)
class _Module:
    """What the attention functions ask of the layer that calls them."""

    num_key_value_groups: int
    training: bool = False
    is_causal: bool = False
