"""Calls of SparseAttentionIndexer for the tests."""

from __future__ import annotations

import numpy as np


def call(keys, queries, lengths, weights=None, T=np.float32):
    """One selection over keys [N, B, Di] by queries [N, Hi, L, Di]."""
    inputs = {
        "index_query": np.array(queries, dtype=T),
        "block_index_keys": np.array(keys, dtype=T),
        "key_length": np.array(lengths, dtype=np.int64),
    }
    if weights is not None:
        inputs["index_weights"] = np.array(weights, dtype=T)
    return inputs


def random_call(rng, T):
    """A call with everything that can vary, small enough for fractions."""
    N, Hs, G = int(rng.integers(0, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    L, Di, r, K = int(rng.integers(0, 5)), int(rng.choice([1, 2, 3, 4, 8, 16])), *map(int, rng.integers(1, 5, size=2))
    S = rng.integers(0, 16, size=N)
    B = int((S // r).max(initial=0) + rng.integers(0, 3))
    draw = (
        lambda *shape: rng.integers(-3, 4, size=shape),
        lambda *shape: rng.normal(size=shape),
        lambda *shape: np.round(rng.normal(size=shape) * 2) + 2.0**-12 * rng.integers(0, 3, size=shape),
    )[int(rng.integers(3))]
    inputs = {
        "index_query": draw(N, Hs * G, L, Di).astype(T),
        "block_index_keys": draw(N, B, Di).astype(T),
        "key_length": S.astype(np.int64),
    }
    for n in range(N):
        inputs["block_index_keys"][n, S[n] // r :] = np.nan
    if rng.random() < 0.7:
        inputs["index_weights"] = draw(N, L, Hs * G).astype(T)
    return inputs, {"key_block_size": r, "token_budget": K * r, "num_selection_heads": Hs}
