"""SparseAttention in eager PyTorch on the CPU (connect string ``torch``): gathered rows, attended to in f32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.sparse_attention.defaults import lengths_of, scale_of
from conformance.backends.sparse_attention.dense import DensePart
from conformance.backends.torch.tensors import URL, array_of, on_threads, one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

GATHERED = 1 << 24  # elements of rows that are gathered at a time


class TorchEager:
    """PyTorch as the implementation under test."""

    def __init__(self) -> None:
        self._torch = one_thread()

    def describe(self) -> BackendInfo:
        """Every type and feature of the contract."""
        return BackendInfo(
            name="torch",
            version=str(self._torch.__version__),
            vendor="PyTorch",
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation="SparseAttention",
        )

    def timing_targets(self, threads: int) -> tuple[DensePart, ...]:
        """What `perf` times next to this backend: PyTorch's own attention to all keys, on as many threads."""
        return (DensePart("dense scaled_dot_product_attention", lambda config: DenseSession(self._torch, threads)),)

    def prepare(self, config: OperationConfig) -> TorchSession:
        """One session for the attributes; raises `Rejected` for those out of range (ERR-1)."""
        return TorchSession(self._torch, config)


class DenseSession:
    """PyTorch's scaled_dot_product_attention over all keys up to each query."""

    def __init__(self, torch: Any, threads: int) -> None:
        self._torch, self._threads = torch, threads

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], object]:
        """The call on these inputs, made ready; selection and lengths are passed over."""
        torch = self._torch
        query, key, value = (tensor_of(inputs[name]) for name in ("query", "key", "value"))
        L, S = query.shape[2], key.shape[2]
        mask = torch.arange(S) <= torch.arange(S - L, S)[:, None]
        attend = torch.nn.functional.scaled_dot_product_attention

        def call() -> object:
            with on_threads(self._threads), torch.inference_mode():
                return attend(query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1])

        return call

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call."""
        return {"attention_output": array_of(self.bind(inputs)())}

    def close(self) -> None:
        """Nothing is held."""


class TorchSession:
    """SparseAttention for one set of attributes."""

    def __init__(self, torch: Any, config: OperationConfig) -> None:
        self._torch = torch
        self._check = refusals.checker(config, "SparseAttention").check
        self._r = int(config.attributes["key_block_size"])
        self._qb = int(config.attributes.get("query_block_size", 1))
        self._causal = bool(config.attributes.get("causal", True))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; raises `Rejected` (ERR-2 to ERR-5)."""
        self._check(inputs)
        torch = self._torch
        query, key, value = (tensor_of(inputs[name]) for name in ("query", "key", "value"))
        N, H, L, E = query.shape
        _, Hkv, S, Ev = value.shape
        Hs, _, KB = inputs["block_indices"].shape[1:]
        indices = torch.from_numpy(inputs["block_indices"].astype("int64"))
        counts = torch.from_numpy(inputs["block_count"].astype("int64"))
        scale = scale_of(inputs)
        sinks = tensor_of(inputs["sinks"]).float() if "sinks" in inputs else torch.full((H,), -torch.inf)
        heads = math.gcd(H // Hkv, H // Hs)  # that share key-value head and selection
        width = KB * min(self._r, S) + (min(self._r - 1, S) if self._causal else 0)
        step = max(1, GATHERED // max(1, width * (E + Ev)))
        out = torch.zeros(N, H, L, Ev)
        for n, Sn in enumerate(lengths_of(inputs).tolist()):
            for first in range(0, H, heads):
                kv, selection = first // (H // Hkv), first // (H // Hs)
                keys, values = key[n, kv], value[n, kv]
                for start in range(0, L, step):
                    tokens = torch.arange(start, min(start + step, L))
                    listed = tokens // self._qb
                    rows, there = attended_rows(
                        indices[n, selection, listed],
                        counts[n, selection, listed],
                        Sn - L + tokens if self._causal else None,
                        (S, Sn),
                        self._r,
                    )
                    own = slice(first, first + heads)
                    out[n, own, tokens] = self._attend(
                        query[n, own, tokens], keys, values, rows, there, scale, sinks[own, None]
                    )
        return {"attention_output": array_of(out.to(query.dtype))}

    def close(self) -> None:
        """Nothing is held."""

    def _attend(self, query: Any, keys: Any, values: Any, rows: Any, there: Any, scale: float, sinks: Any) -> Any:
        """ATT-1, ATT-4, ATT-5: [heads, l, Ev] from queries [heads, l, E] and the rows of each of the l tokens."""
        torch = self._torch
        if not rows.shape[1] or not keys.shape[0]:
            return torch.zeros(*query.shape[:2], values.shape[1])
        missing = ~there[..., None]
        taken = keys[rows].float().masked_fill(missing, 0)  # [l, width, E]
        logits = torch.einsum("hle,lte->hlt", query.float(), taken) * scale
        logits = logits.masked_fill(~there, -torch.inf)
        most = torch.maximum(logits.max(dim=-1).values, sinks)
        most = most.masked_fill(most == -torch.inf, 0)
        weights = torch.exp(logits - most[..., None])
        total = weights.sum(dim=-1) + torch.exp(sinks - most)
        taken = values[rows].float().masked_fill(missing, 0)
        summed = torch.einsum("hlt,lte->hle", weights, taken)
        return summed / total.masked_fill(total == 0, 1)[..., None]


def attended_rows(
    indices: Any, counts: Any, positions: Any | None, lengths: tuple[int, int], r: int
) -> tuple[Any, Any]:
    """Rows of key and value [l, width] for l query tokens, and the mask of those attended to (BLK-1, SEL-1, OPN-1).

    `indices` are [l, KB], `counts` and `positions` [l], all int64; no positions: not causal. `lengths` are S and Sn.
    """
    import torch

    S, Sn = lengths
    held = min(r, S)  # of a block
    tokens = (indices[:, :, None] * r + torch.arange(held)).flatten(1)
    there = (torch.arange(indices.shape[1]) < counts[:, None]).repeat_interleave(held, dim=1)
    if positions is not None:
        opens = torch.div(positions + 1, r, rounding_mode="floor")[:, None] * r
        there &= tokens < opens
        rest = opens + torch.arange(min(r - 1, S))
        tokens = torch.cat([tokens, rest], dim=1)
        there = torch.cat([there, rest <= positions[:, None]], dim=1)
    there &= (tokens >= 0) & (tokens < Sn)
    return (tokens + S - Sn).masked_fill(~there, 0), there
