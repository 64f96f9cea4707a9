"""The published model's own indexer as an implementation of the block keys (connect string ``transformers``).

`Qwen4ExpTextQSAIndexer` of the installed transformers runs, with its own partition into blocks, mean, norm and
rotation, and the block keys it forms are read off where it rotates them. This module arranges the ports of QSAPrepare
as that module's inputs, copies the past block keys in front of the result, and takes off the power of two that
`held_weight` may have put on the weight; it computes nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.backends.refusals import Check

URL = "https://github.com/huggingface/transformers/issues"
_observing = threading.Lock()  # the observed function is a global of the model's module


class TransformersModel:
    """The QSA indexer of transformers as the implementation under test.

    It yields block keys only: the model keeps every raw key and has no open-block state to return.
    """

    def __init__(self) -> None:
        import torch
        import transformers
        from transformers.models.qwen4_exp import modeling_qwen4_exp

        torch.set_num_threads(1)  # sums in one order on every machine
        self._torch = torch
        self._version = f"{transformers.__version__} (torch {torch.__version__})"
        self._modeling = modeling_qwen4_exp

    def describe(self) -> BackendInfo:
        """Block keys in every type; the norm is part of the model and cannot be switched off."""
        return BackendInfo(
            name="transformers",
            version=self._version,
            vendor="Hugging Face",
            element_types=("f32", "f16", "bf16"),
            outputs=("block_index_keys",),
            features=("rope", "left_padding"),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> TransformersSession:
        """One session for the attributes.

        Raises `Rejected` for attributes out of range (ERR-1) and `Unsupported` for a disabled norm.
        """
        check = refusals.checker(config, OPERATION).check
        if "norm" in config.disabled:
            raise Unsupported("norm", "the model always normalizes its index keys", URL)
        return TransformersSession(self._torch, self._modeling, config, check)


class TransformersSession:
    """The indexer for one set of attributes; it is built once for every key width."""

    def __init__(self, torch: Any, modeling: Any, config: OperationConfig, check: Check) -> None:
        self._torch = torch
        self._modeling = modeling
        self._config, self._check = config, check
        self._indexers: dict[int, Any] = {}

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call: the eight ports in, the block keys out.

        Past block keys are copied here, not by the model. Raises `Rejected` (ERR-2 to ERR-5), and `Unsupported` for a
        weight that the model cannot hold.
        """
        self._check(inputs)
        N, _, Di = inputs["raw_index_keys"].shape
        past_blocks = inputs["past_block_index_keys"]
        history = _history(self._config, inputs)
        B = int(history.blocks_after.max(initial=0))
        blocks = np.zeros((N, B, Di), past_blocks.dtype)
        for n in range(N):
            c = history.blocks_before[n]
            blocks[n, :c] = past_blocks[n, :c]
        if N:
            for n, computed in self._computed(inputs, history).items():
                c = history.blocks_before[n]
                blocks[n, c : c + len(computed)] = computed
        return {"block_index_keys": blocks}

    def close(self) -> None:
        """Nothing is held."""

    def _computed(self, inputs: Mapping[str, Array], history: _History) -> dict[int, Array]:
        """The keys that the model computes, [K, Di] for every sequence in which it completes a block.

        Its tokens are the r-1 rows for waiting keys and the L new ones; the attention mask hides those that hold
        nothing. All but the last come from its cache, so that the one query left sees every token.
        """
        raw = inputs["raw_index_keys"]
        keys = self._tensor(np.concatenate([inputs["past_incomplete_raw_keys"], raw], axis=1))
        cos, sin = (self._tensor(table) for table in _tables(self._config, inputs))
        weight = inputs["k_norm_weight"].astype(np.float32)
        stored, scale = held_weight(weight)
        results = self._rotated(stored, keys, cos, sin, history)
        if scale != 1:
            plain = self._rotated(weight - np.float32(1), keys, cos, sin, history)
            if any(
                (np.isfinite(a) != np.isfinite(b)).any() for a, b in zip(results, plain, strict=True)
            ):  # the power of two, not the model, left the range of float32
                raise _unheld_weight()
        sequences = np.flatnonzero(history.visible.sum(axis=1) >= self._r)
        return {int(n): result / np.float32(scale) for n, result in zip(sequences, results, strict=True)}

    def _rotated(self, stored: Array, keys: Any, cos: Any, sin: Any, history: _History) -> list[Array]:
        """One run of the model: the keys of every sequence that completes a block, as float32."""
        from transformers import DynamicCache

        torch = self._torch
        config = _model_config(self._r, float(self._config.attributes.get("epsilon", DEFAULT_EPSILON)), keys.shape[-1])
        cache = DynamicCache(config=config)
        if keys.shape[1] > 1:
            cache.update_indexer(keys[:, :-1], 0)
        # Nothing asks for scores, so the query half of the projection is zero
        projected = torch.cat([torch.zeros_like(keys[:, -1:]), keys[:, -1:]], dim=-1)
        mask = torch.from_numpy(history.visible)[:, None, None, :]
        with torch.inference_mode(), self._observed() as rotated:
            self._indexer(keys.shape[-1], config, stored)(projected, (cos, sin), mask, cache)
        return [result.squeeze(1).float().numpy() for result in rotated[1:]]  # the first is the query

    def _indexer(self, Di: int, config: Any, weight: Array) -> Any:
        """The module with keys handed through and the given stored weight; for one call at a time."""
        torch = self._torch
        if Di not in self._indexers:
            self._indexers[Di] = self._modeling.Qwen4ExpTextQSAIndexer(config, 0).eval()
            # A product with the unit matrix would spread NaN and infinity over a token; the identity hands rows through
            self._indexers[Di].index_qk_proj = torch.nn.Identity()
        indexer = self._indexers[Di]
        indexer.k_layernorm.weight = torch.nn.Parameter(torch.from_numpy(weight), requires_grad=False)
        return indexer

    @contextmanager
    def _observed(self) -> Iterator[list[Any]]:
        """Collects what the model's rotary function returns while it runs."""
        results: list[Any] = []
        with _observing:
            rotate = self._modeling.apply_rotary_pos_emb

            def observe(*args: Any, **kwargs: Any) -> Any:
                results.append(rotate(*args, **kwargs))
                return results[-1]

            self._modeling.apply_rotary_pos_emb = observe
            try:
                yield results
            finally:
                self._modeling.apply_rotary_pos_emb = rotate

    @property
    def _r(self) -> int:
        return int(self._config.attributes["key_block_size"])

    def _tensor(self, array: Array) -> Any:
        copy = np.array(array, order="C")  # from_numpy shares memory and complains about read-only arrays
        if self._config.element_type == "bf16":
            return self._torch.from_numpy(copy.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(copy)


@lru_cache(maxsize=256)  # to check a configuration takes the model library longer than to run the module
def _model_config(r: int, epsilon: float, Di: int) -> Any:
    """A model configuration with one layer and one index head; only what the indexer reads matters."""
    from transformers.models.qwen4_exp import Qwen4ExpTextConfig

    return Qwen4ExpTextConfig(
        hidden_size=2 * Di,
        num_hidden_layers=1,
        layer_types=["indexed_attention"],
        head_dim=max(Di - Di % 2, 1),  # of no use to the indexer, but checked to be even
        rms_norm_eps=epsilon,
        indexer_n_heads=1,
        indexer_kv_heads=1,
        indexer_head_dim=Di,
        indexer_budget=r,
        indexer_compress_ratio=r,
    )


@dataclass(frozen=True)
class _History:
    """Where the tokens of a call are: arrays of shape [N], and visible [N, r-1+L], true for tokens to be pooled."""

    blocks_before: Array
    blocks_after: Array
    visible: Array


def _history(config: OperationConfig, inputs: Mapping[str, Array]) -> _History:
    N, L, _ = inputs["raw_index_keys"].shape
    r = int(config.attributes["key_block_size"])
    S = np.broadcast_to(inputs["key_length"].astype(np.int64), (N,))
    past, pad = np.maximum(S - L, 0), np.maximum(L - S, 0)
    waiting = np.arange(r - 1) < (past % r)[:, None]
    new = np.arange(L) >= pad[:, None]
    return _History(past // r, S // r, np.concatenate([waiting, new], axis=1))


def _tables(config: OperationConfig, inputs: Mapping[str, Array]) -> tuple[Array, Array]:
    """cos and sin for the r-1 waiting rows and the L new ones, [N, r-1+L, Dr]; of width zero with rotation off.

    Of the waiting tokens only the first can begin a block; the rows of the others have no effect on the model either.
    """
    raw = inputs["raw_index_keys"]
    N, L, _ = raw.shape
    slots = int(config.attributes["key_block_size"]) - 1
    if "rope" in config.disabled:
        empty = np.zeros((N, slots + L, 0), raw.dtype)
        return empty, empty
    carried = np.repeat(inputs["past_incomplete_rope"][:, None], slots, axis=1)
    cos, sin = np.split(carried, 2, axis=-1)
    return np.concatenate([cos, inputs["rope_cos"]], axis=1), np.concatenate([sin, inputs["rope_sin"]], axis=1)


def held_weight(weight: Array) -> tuple[Array, float]:
    """The float32 u and the power of two s with 1 + u == s * weight, exactly and in float32.

    The model stores u and multiplies by 1 + u, which loses the low bits of a weight that is small or negative. A power
    of two on all of the weight commutes with every later rounding and is taken off the keys again. So s is 1 where that
    is exact, else 2 (enough for f16), else what lifts the smallest element out of the reach of the 1. Raises
    `Unsupported` where float32 has no range for that.
    """
    scales = [1.0, 2.0]
    magnitudes = np.abs(weight[np.isfinite(weight) & (weight != 0)])
    if magnitudes.size:
        lift = 26 - int(np.floor(np.log2(float(magnitudes.min()))))
        scales += [2.0**lift] if 1 < lift < 128 else []
    with np.errstate(over="ignore"):
        for scale in scales:
            stored = weight * np.float32(scale) - np.float32(1)
            if np.array_equal(np.float32(1) + stored, weight.astype(np.float64) * scale, equal_nan=True):
                return stored, scale
    raise _unheld_weight()


def _unheld_weight() -> Unsupported:
    return Unsupported(
        "weight", "the model multiplies by 1 + u in float32, and no u gives this k_norm_weight exactly", URL
    )
