"""SparseAttentionIndexer as a custom OpenVINO operation in Python (connect string ``openvino-python-op``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.openvino import python_op
from conformance.backends.sparse_attention_indexer import OPERATION

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


class OpenVINOPythonOp(python_op.OpenVINOPythonOp):
    """The Python operation, run by the CPU plug-in."""

    def __init__(self) -> None:
        super().__init__(OPERATION, select)


def select(attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The operation in f32, one query token after the other (SEP-1); inputs and outputs as in the contract."""
    query, keys = (inputs[name].astype(np.float32) for name in ("index_query", "block_index_keys"))
    N, Hi, L, _ = query.shape
    r, Hs = int(attributes["key_block_size"]), int(attributes["num_selection_heads"])
    K = int(attributes["token_budget"]) // r
    weights = (
        inputs["index_weights"].astype(np.float32) if "index_weights" in inputs else np.ones((N, L, Hi), np.float32)
    )
    indices = np.full((N, Hs, L, K), -1, np.int32)
    count = np.zeros((N, Hs, L), np.int32)
    for n, S in enumerate(np.broadcast_to(inputs["key_length"], (N,)).tolist()):
        for row in range(L):
            visible = max((S - L + row + 1) // r, 0)
            m = min(K, visible)
            count[n, :, row] = m
            with np.errstate(all="ignore"):  # NaN, infinity and overflow are values here (SEP-2, NUM-3)
                heads = np.maximum(query[n, :, row] @ keys[n, :visible].T, 0) * weights[n, row][:, None]
                scores = heads.reshape(Hs, Hi // Hs, visible).sum(axis=1)
            for g in range(Hs):
                indices[n, g, row, :m] = np.argsort(-scores[g], kind="stable")[:m]
    return {"block_indices": indices, "block_count": count}
