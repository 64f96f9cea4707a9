"""The published model's own attention layer (connect strings ``transformers``, ``transformers:eager``).

`Qwen4ExpTextAttention` of the installed transformers runs, with its own `Qwen4ExpTextQSAIndexer` in it: partition into
blocks, mean, norm, rotation, scores, selection, mask and attention are the layer's. The ports take the place of what
its projections give and of its caches; queries come after norm and RoPE, so that these hand them through. Of the past
only block keys are given, not the tokens they were made of: they stand in the first rows of what the layer computes.

Results in between are recorded: the block keys where they are rotated, the selection as the token mask, the output
where it leaves the attention. The mask holds no order, so that blocks come out by index.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.qsa_prepare.transformers_model import held_weight
from conformance.backends.sparse_attention_pipeline import OPERATION
from conformance.backends.torch.tensors import array_of, one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

URL = "https://github.com/huggingface/transformers/issues"
MODES = ("sdpa", "eager")
MOST = 1 << 24  # query tokens times tokens of the longest sequence: the indexer goes token by token
_observing = threading.Lock()  # the observed function is a global of the model's module


class TransformersModel:
    """The attention layer of transformers as the implementation under test. Raises ValueError for another mode."""

    def __init__(self, mode: str = "sdpa") -> None:
        if mode not in MODES:
            raise ValueError(f"transformers: mode is {mode!r}, not one of {', '.join(MODES)}")
        self._torch = one_thread()
        import transformers
        from transformers.models.qwen4_exp import modeling_qwen4_exp

        self._mode, self._modeling = mode, modeling_qwen4_exp
        self._version = f"{transformers.__version__} (torch {self._torch.__version__})"

    def describe(self) -> BackendInfo:
        """All but the states, which the model does not have: it keeps every raw key."""
        return BackendInfo(
            name="transformers" + (":eager" if self._mode == "eager" else ""),
            version=self._version,
            vendor="Hugging Face",
            element_types=("f32", "f16", "bf16"),
            outputs=("block_index_keys", "block_indices", "block_count", "attention_output"),
            features=("rope", "weights", "scale", "sinks", "left_padding"),
            url=URL,
            operation=OPERATION,
        )

    def prepare(self, config: OperationConfig) -> TransformersSession:
        """One session. Raises `Rejected` for attributes out of range, `Unsupported` for what the layer lacks."""
        check = refusals.checker(config, OPERATION).check
        for feature, reason in (
            ("weights", "the model sums its index heads without weights"),
            ("sinks", "the model has no attention sinks"),
        ):
            if feature not in config.disabled:
                raise Unsupported(feature, reason, URL)
        if "norm" in config.disabled:
            raise Unsupported("norm", "the model always normalizes its index keys", URL)
        if config.attributes["num_selection_heads"] != 1:
            raise Unsupported("num_selection_heads", "the model makes one selection for all heads", URL)
        return TransformersSession(self._torch, self._modeling, self._mode, config, check)


@dataclass(frozen=True)
class _Sequence:
    """The ports of one sequence as tensors without padding: L tokens, S with the past, of which c*r are in blocks."""

    raw: Any  # [S, Di], zeros where the tokens of a past block stood
    past: Any  # [c, Di]
    cos: Any  # [S, Dr]
    sin: Any
    index_query: Any  # [L, Hi, Di]
    query: Any  # [L, H, E]
    key: Any  # [Hkv, S, E]
    value: Any


class TransformersSession:
    """The layer for one set of attributes; it is built for the heads and widths of each call."""

    def __init__(self, torch: Any, modeling: Any, mode: str, config: OperationConfig, check: Any) -> None:
        self._torch, self._modeling, self._mode, self._check = torch, modeling, mode, check
        self._config = config
        self._r = int(config.attributes["key_block_size"])
        self._K = int(config.attributes["token_budget"]) // self._r

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected`, and `Unsupported` for what is too slow or of another width than the model's."""
        self._check(inputs)
        N, H, L, E = inputs["query"].shape
        Di, Ev = inputs["raw_index_keys"].shape[2], inputs["value"].shape[3]
        if Ev != E:
            raise Unsupported("width", "keys and values of the model are of one width", URL)
        S = np.broadcast_to(inputs["key_length"].astype(np.int64), (N,))
        if L * int(S.max(initial=0)) > MOST:
            raise Unsupported("size", f"the model's loop over {L} query tokens would take minutes", URL)
        stored, factor = held_weight(inputs["k_norm_weight"].astype(np.float32))
        layer = self._layer(inputs, stored)
        T = inputs["query"].dtype
        keys = np.zeros((N, int(S.max(initial=0)) // self._r, Di), T)
        indices = np.full((N, 1, L, self._K), -1, np.int32)
        count, out = np.zeros((N, 1, L), np.int32), np.zeros((N, H, L, Ev), T)
        for n in range(N):
            new, blocks = min(L, int(S[n])), int(S[n]) // self._r
            past = max(int(S[n]) - L, 0) // self._r
            keys[n, :past] = inputs["past_block_index_keys"][n, :past]
            if not new:
                continue
            found, mask, result = self._called(layer, _sequence(inputs, n, int(S[n]), self._r), factor)
            keys[n, past:blocks] = array_of(found)[past:blocks] if found is not None else keys[n, past:blocks]
            out[n, :, L - new :] = array_of(result).reshape(new, H, Ev).transpose(1, 0, 2)
            for row, tokens in enumerate(mask.numpy(), L - new):
                end = int(S[n]) - L + row + 1
                chosen = np.flatnonzero(tokens[: end // self._r * self._r].reshape(-1, self._r).any(axis=1))
                indices[n, 0, row, : len(chosen)] = chosen[: self._K]
                count[n, 0, row] = len(chosen)
        return {"block_index_keys": keys, "block_indices": indices, "block_count": count, "attention_output": out}

    def close(self) -> None:
        """Nothing is held."""

    def _layer(self, inputs: Mapping[str, Array], weight: Array) -> Any:
        """The layer for these widths, with the norm's weight and the scale of the call."""
        _, H, _, E = inputs["query"].shape
        _, Hi, _, Di = inputs["index_query"].shape
        epsilon = float(self._config.attributes["epsilon"])
        config = _model_config(self._r, self._K, epsilon, (H, inputs["key"].shape[1], Hi, Di), self._mode)
        layer = self._modeling.Qwen4ExpTextAttention(config, 0).eval()
        layer.head_dim = E
        given = inputs.get("scale")
        layer.scaling = 1 / math.sqrt(E) if given is None else float(given.reshape(-1)[0])
        layer.indexer.k_layernorm.weight = self._torch.nn.Parameter(self._torch.from_numpy(weight), requires_grad=False)
        return layer

    def _called(self, layer: Any, given: _Sequence, factor: float) -> tuple[Any, Any, Any]:
        """One call of the layer for one sequence: block keys, or None where there are none, token mask, output."""
        torch = self._torch
        (L, H, E), S = given.query.shape, len(given.raw)
        none = torch.zeros((1, L, 1), dtype=given.query.dtype)
        raw = given.raw[None, S - L :]
        queries = torch.zeros((1, L, given.index_query[0].numel()), dtype=raw.dtype)
        layer.indexer.index_qk_proj = _stand_in(torch, lambda _: torch.cat([queries, raw], dim=-1))
        layer.indexer.q_layernorm = _stand_in(torch, lambda _: given.index_query[None])
        open_gate = torch.full((1, L, H, E), math.inf, dtype=none.dtype)  # its sigmoid is 1
        query_and_gate = torch.cat([given.query[None], open_gate], dim=-1).reshape(1, L, -1)
        layer.q_proj = _stand_in(torch, lambda _: query_and_gate)
        layer.q_norm = layer.k_norm = layer.o_proj = _stand_in(torch, lambda x: x)
        layer.k_proj = _stand_in(torch, lambda _: given.key[:, S - L :].transpose(0, 1).reshape(1, L, -1))
        layer.v_proj = _stand_in(torch, lambda _: given.value[:, S - L :].transpose(0, 1).reshape(1, L, -1))
        mask = torch.arange(S) < (S - L + torch.arange(L) + 1)[:, None]
        shown = mask[None, None]
        if self._mode == "eager":  # as the model makes it: zeros, and the type's lowest number
            shown = torch.zeros(shown.shape, dtype=none.dtype).masked_fill(~shown, torch.finfo(none.dtype).min)
        masks: list[Any] = []
        hook = layer.indexer.register_forward_hook(lambda module, taken, selected: masks.append(selected))
        try:
            with torch.inference_mode(), self._observed(given, factor) as rotated:
                output, _ = layer(none, (given.cos[None], given.sin[None]), shown, _Caches(given))
        finally:
            hook.remove()
        return (rotated[-1] if rotated else None), masks[0][0, 0] & mask, output[0]

    @contextmanager
    def _observed(self, given: _Sequence, factor: float) -> Iterator[list[Any]]:
        """Hands queries through the model's rotary function, and collects the block keys that it rotates."""
        found: list[Any] = []
        with _observing:
            rotate: Callable[..., Any] = self._modeling.apply_rotary_pos_emb

            def observe(q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1) -> Any:
                if k is not None:
                    return q, k
                if unsqueeze_dim == 2:  # the index queries
                    return q
                keys = rotate(q, cos=cos, sin=sin) / factor
                seen = min(len(keys), len(given.past))
                keys[:seen, 0] = given.past[:seen]
                found.append(keys.squeeze(1))
                return keys

            self._modeling.apply_rotary_pos_emb = observe
            try:
                yield found
            finally:
                self._modeling.apply_rotary_pos_emb = rotate


class _Caches:
    """The caches of the layer, with the tokens of the call in them."""

    def __init__(self, given: _Sequence) -> None:
        self._given = given

    def update_indexer(self, keys: Any, layer: int) -> Any:
        return self._given.raw[None]

    def update(self, key: Any, value: Any, layer: int, **_: Any) -> tuple[Any, Any]:
        return self._given.key[None], self._given.value[None]


def _sequence(inputs: Mapping[str, Array], n: int, S: int, r: int) -> _Sequence:
    """The ports of one sequence; what stands for tokens of past blocks is never looked at, but for its place."""
    L = inputs["raw_index_keys"].shape[1]
    new, past = min(L, S), max(S - L, 0)
    c, q = past // r, past % r

    def rows(port: str) -> Array:
        return inputs[port][n, L - new :]

    def before(like: Array, waiting: Array) -> Any:
        blocks = np.zeros((c * r, like.shape[1]), like.dtype)
        return tensor_of(np.concatenate([blocks, waiting, like]))

    raw = rows("raw_index_keys")
    if inputs["rope_cos"].ndim == 3:
        cos, sin = rows("rope_cos"), rows("rope_sin")
        carried = np.repeat(inputs["past_incomplete_rope"][n][None], q, axis=0)
        held_cos, held_sin = np.split(carried, 2, axis=1)
    else:
        cos = sin = np.zeros((new, 0), raw.dtype)
        held_cos = held_sin = np.zeros((q, 0), raw.dtype)
    spare = inputs["key"].shape[2] - S
    return _Sequence(
        raw=before(raw, inputs["past_incomplete_raw_keys"][n, :q]),
        past=tensor_of(inputs["past_block_index_keys"][n, :c]),
        cos=before(cos, held_cos),
        sin=before(sin, held_sin),
        index_query=tensor_of(inputs["index_query"][n, :, L - new :].transpose(1, 0, 2)),
        query=tensor_of(inputs["query"][n, :, L - new :].transpose(1, 0, 2)),
        key=tensor_of(inputs["key"][n, :, spare:]),
        value=tensor_of(inputs["value"][n, :, spare:]),
    )


def _stand_in(torch: Any, forward: Callable[[Any], Any]) -> Any:
    """A module that gives what the pipeline was given, in place of what the model would compute."""

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return forward(x)

    return Module()


@lru_cache(maxsize=256)  # to check a configuration takes the model library longer than to run the module
def _model_config(r: int, K: int, epsilon: float, sizes: tuple[int, int, int, int], mode: str) -> Any:
    """A model configuration with one layer; only what the layer reads matters."""
    from transformers.models.qwen4_exp import Qwen4ExpTextConfig

    H, Hkv, Hi, Di = sizes
    config = Qwen4ExpTextConfig(
        hidden_size=8 * H,  # checked to be a multiple
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        num_attention_heads=H,
        num_key_value_heads=Hkv,
        head_dim=2,  # the layer is told the width: no projection of its own is used
        rms_norm_eps=epsilon,
        indexer_n_heads=Hi,
        indexer_kv_heads=1,
        indexer_head_dim=Di,
        indexer_budget=K * r,
        indexer_compress_ratio=r,
    )
    config._attn_implementation = mode
    return config
