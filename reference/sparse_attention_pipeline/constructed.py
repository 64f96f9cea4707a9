"""Inputs of the pipeline in which every selection is decided, in every element type, for any wanted sets.

Every block has a dimension of its own that is not rotated: its keys are multiples of that unit vector, and the norm
makes them sqrt(width) times it. An index query has 1.5 to 2 on the dimensions of wanted blocks and 0.5 to 1 on all
others. The rotated part is alive, and 2^-6 as large.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reference.sparse_attention_pipeline.operation import Array

SMALL = 2.0**-6


def constructed(
    r: int,
    wanted: Array,
    *,
    blocks: int,
    width: int,
    rotary: int,
    element_type: np.dtype[Any],
    spare: int = 3,
    heads: int = 4,
    seed: int = 0,
) -> dict[str, Array]:
    """The ports of one call whose new tokens all see `blocks` blocks of r tokens.

    `wanted` [N, L, K] are the blocks that each query token selects, with a budget of K * r tokens; L is at most r. The
    first of the L new tokens ends the last block; all tokens before it are in the states and caches. `width`, that of
    index keys, is at least `rotary + blocks`. Values of the tokens that some query of the sequence wants, and of those
    behind the blocks, lie between 1 and 2, all others are loud. Caches have `spare` rows more than there are tokens.
    Raises ValueError for sizes that do not fit.
    """
    N, L, K = wanted.shape
    if width < rotary + blocks:
        raise ValueError(f"{blocks} blocks need an index key of at least {rotary + blocks} elements, not {width}")
    if not 1 <= L <= r:
        raise ValueError(f"{L} query tokens cannot all see {blocks} blocks of {r} tokens; 1 to {r} can")
    if blocks < K or (wanted < 0).any() or (wanted >= blocks).any():
        raise ValueError(f"wanted blocks are numbers from 0 to {blocks - 1}")
    random = np.random.default_rng(seed)
    S = blocks * r + L - 1  # the first query token ends the last block
    past = S - L
    c = past // r
    E, H, Hkv = 8, 4, 2

    def typed(values: Array) -> Array:
        return np.ascontiguousarray(values).astype(element_type)

    raw = random.uniform(-SMALL, SMALL, (N, S, width))
    raw[:, :, rotary:] = 0
    block = np.arange(S) // r
    own = block < blocks
    raw[:, np.nonzero(own)[0], rotary + block[own]] = random.uniform(1, 2, (N, int(own.sum())))
    keys = random.uniform(-SMALL, SMALL, (N, c, width)) * np.sqrt(width)
    keys[:, :, rotary:] = 0
    keys[:, np.arange(c), rotary + np.arange(c)] = np.sqrt(width)
    angles = random.uniform(0, 2 * np.pi, (N, S, rotary // 2))
    cos, sin = (np.concatenate([table(angles)] * 2, axis=2) for table in (np.cos, np.sin))

    query = random.uniform(0.5, 1, (N, heads, L, width))
    query[..., :rotary] = random.uniform(-SMALL, SMALL, (N, heads, L, rotary))
    n, row, _ = np.indices(wanted.shape)
    for head in range(heads):
        query[n, head, row, rotary + wanted] = random.uniform(1.5, 2, wanted.shape)

    value = random.choice([-1000.0, 1000.0], (N, Hkv, S, E))
    quiet = np.zeros((N, S), dtype=bool)
    quiet[:, blocks * r :] = True
    for sequence in range(N):
        quiet[sequence] |= np.isin(block, wanted[sequence])
    value = np.where(quiet[:, None, :, None], random.uniform(1, 2, value.shape), value)

    def cached(rows: Array) -> Array:
        before = np.full((N, Hkv, spare, E), 1000.0)
        return typed(np.concatenate([before, rows], axis=2))

    waiting = np.zeros((N, r - 1, width))
    waiting[:, : past - c * r] = raw[:, c * r : past]
    return {
        "raw_index_keys": typed(raw[:, past:]),
        "past_block_index_keys": typed(keys),
        "key_length": np.full(N, S, dtype=np.int64),
        "rope_cos": typed(cos[:, past:]),
        "rope_sin": typed(sin[:, past:]),
        "k_norm_weight": typed(np.ones(width)),
        "past_incomplete_raw_keys": typed(waiting),
        "past_incomplete_rope": typed(np.concatenate([cos[:, c * r], sin[:, c * r]], axis=1)),
        "index_query": typed(query),
        "query": typed(random.standard_normal((N, H, L, E))),
        "key": cached(random.standard_normal((N, Hkv, S, E))),
        "value": cached(value),
    }
