"""What SparseAttention refuses of counts and entries (ERR-5, recommended): they are looked at in every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.backends.protocol import OperationConfig, Rejected
from conformance.backends.sparse_attention.defaults import lengths_of

Array = np.ndarray[Any, np.dtype[Any]]


def check_values(config: OperationConfig, inputs: Mapping[str, Array]) -> None:
    """Refuse a count outside 0 to KB, and an entry below its count that names no block of its sequence.

    Rows of which all query tokens are padding are not looked at (LEN-4). The inputs have the right types and shapes.
    Raises `Rejected` at "call" with kind "value" and the port at fault.
    """
    counts, entries = inputs["block_count"].astype(np.int64), inputs["block_indices"]
    if not counts.size:
        return
    L = inputs["query"].shape[2]
    tokens = lengths_of(inputs)
    looked_at = np.ones(counts.shape, dtype=bool)
    if config.attributes["causal"]:
        qb = int(config.attributes["query_block_size"])
        after = np.minimum((np.arange(counts.shape[2]) + 1) * qb, L)
        looked_at &= (after > np.maximum(L - tokens, 0)[:, None])[:, None, :]
    if (looked_at & ((counts < 0) | (counts > entries.shape[3]))).any():
        raise Rejected("value", "call", ("block_count",))
    counted = looked_at[..., None] & (np.arange(entries.shape[3]) < counts[..., None])
    blocks = -(-tokens // int(config.attributes["key_block_size"]))
    if (counted & ((entries < 0) | (entries >= blocks[:, None, None, None]))).any():
        raise Rejected("value", "call", ("block_indices",))
