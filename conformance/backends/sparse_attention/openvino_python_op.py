"""SparseAttention as a custom OpenVINO operation in Python (connect string ``openvino-python-op``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.openvino import python_op
from conformance.backends.sparse_attention import OPERATION
from conformance.backends.sparse_attention.defaults import lengths_of, scale_of
from conformance.backends.sparse_attention.tokens import attended

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class OpenVINOPythonOp(python_op.OpenVINOPythonOp):
    """The Python operation, run by the CPU plug-in."""

    def __init__(self) -> None:
        super().__init__(OPERATION, attend)


def attend(attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The operation in f32, one query token of one selection after the other; inputs and output as in the contract."""
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    indices, counts = inputs["block_indices"], inputs["block_count"]
    (N, H, L, _), (Hkv, S, Ev), Hs = query.shape, value.shape[1:], indices.shape[1]
    r, qb, causal = int(attributes["key_block_size"]), int(attributes["query_block_size"]), bool(attributes["causal"])
    factor = np.float32(scale_of(inputs))
    sinks = inputs["sinks"].astype(np.float32) if "sinks" in inputs else np.full(H, -np.inf, np.float32)
    out = np.zeros((N, H, L, Ev), query.dtype)
    key_head = np.arange(H) // (H // Hkv)
    for n, Sn in enumerate(lengths_of(inputs).tolist()):
        for row in range(L):
            position = Sn - L + row
            if causal and position < 0:
                continue
            for selection in range(Hs):
                listed = indices[n, selection, row // qb, : counts[n, selection, row // qb]]
                tokens = attended(listed, r, Sn, position if causal else None)
                if not len(tokens):
                    continue
                heads = slice(selection * (H // Hs), (selection + 1) * (H // Hs))
                rows = tokens + S - Sn
                keys = key[n, key_head[heads]][:, rows].astype(np.float32)
                values = value[n, key_head[heads]][:, rows].astype(np.float32)
                with np.errstate(all="ignore"):  # NaN, infinity and overflow are values here
                    z = (keys @ query[n, heads, row].astype(np.float32)[:, :, None])[..., 0] * factor
                    most = np.maximum(z.max(axis=1), sinks[heads])[:, None]
                    weights = np.exp(z - most)
                    total = weights.sum(axis=1) + np.exp(sinks[heads] - most[:, 0])
                    out[n, heads, row] = (weights[:, None, :] @ values)[:, 0] / total[:, None]
    return {"attention_output": out}
