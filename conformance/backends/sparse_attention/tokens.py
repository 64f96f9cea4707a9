"""Which tokens a query token attends to, for code that takes them as a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.sparse_attention.defaults import lengths_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


def attended(listed: Array, r: int, Sn: int, position: int | None) -> Array:
    """The tokens of listed blocks and, in the causal mode, of the open block, each once and in order, int64."""
    blocks = np.unique(listed.astype(np.int64))
    tokens = (blocks[:, None] * r + np.arange(min(r, Sn))).reshape(-1)
    if position is None:
        return tokens[tokens < Sn]
    opens = (position + 1) // r * r
    return np.concatenate([tokens[tokens < opens], np.arange(opens, position + 1)])


def attended_by_rows(attributes: Mapping[str, Any], inputs: Mapping[str, Array], n: int) -> list[Array]:
    """The tokens of sequence n that each of the L query tokens attends to by the first selection; none for padding."""
    r, qb = int(attributes["key_block_size"]), int(attributes.get("query_block_size", 1))
    causal = bool(attributes.get("causal", True))
    L, Sn = inputs["query"].shape[2], int(lengths_of(inputs)[n])
    found = []
    for row in range(L):
        position = Sn - L + row
        if causal and position < 0:
            found.append(np.zeros(0, np.int64))
            continue
        listed = inputs["block_indices"][n, 0, row // qb, : int(inputs["block_count"][n, 0, row // qb])]
        found.append(attended(listed, r, Sn, position if causal else None))
    return found
