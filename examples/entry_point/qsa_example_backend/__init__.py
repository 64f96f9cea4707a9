"""A backend in a package of its own: once it is installed, `qsa-conformance run -b example` finds it.

It is kept small by what it leaves out: float32 alone, no switching off of rotation or normalization.
"""

from __future__ import annotations

import numpy as np

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo


class Backend:
    """Says who it is, and prepares instances."""

    def describe(self):
        return BackendInfo(
            name="example",
            version="1.0",
            vendor="qsa-conformance examples",
            element_types=("f32",),
            outputs=("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope"),
            features=("left_padding",),
        )

    def prepare(self, config):
        return Session(config, refusals.checker(config, "QSAPrepare"))


class Session:
    """One instance. `run` may be called with any N, L and Bp; nothing is kept between calls."""

    def __init__(self, config, checker):
        self.check = checker.check
        self.r = config.attributes["key_block_size"]
        self.epsilon = np.float32(config.attributes["epsilon"])

    def close(self):
        pass

    def run(self, inputs):
        self.check(inputs)
        raw, past_keys = inputs["raw_index_keys"], inputs["past_block_index_keys"]
        (N, L, Di), r = raw.shape, self.r
        lengths = np.broadcast_to(inputs["key_length"], (N,)).tolist()
        keys = np.zeros((N, max((S // r for S in lengths), default=0), Di), np.float32)
        open_keys = np.zeros_like(inputs["past_incomplete_raw_keys"])
        open_rope = np.zeros_like(inputs["past_incomplete_rope"])
        for n, S in enumerate(lengths):
            c, q = divmod(max(S - L, 0), r)
            pad = max(L - S, 0)
            # From the first token of the open block on: raw keys, and rows of cos and sin. Of the tokens that wait only
            # the first has a row, the carried one; the others need none.
            tokens = np.concatenate([inputs["past_incomplete_raw_keys"][n, :q], raw[n, pad:]])
            new_rope = np.concatenate([inputs["rope_cos"][n, pad:], inputs["rope_sin"][n, pad:]], axis=1)
            rope = np.concatenate([np.repeat(inputs["past_incomplete_rope"][n : n + 1], q, axis=0), new_rope])
            keys[n, :c] = past_keys[n, :c]
            for b in range(len(tokens) // r):
                keys[n, c + b] = self.block_key(tokens[b * r : (b + 1) * r], inputs["k_norm_weight"], rope[b * r])
            first = len(tokens) - len(tokens) % r
            if first < len(tokens):
                open_keys[n, : len(tokens) - first] = tokens[first:]
                open_rope[n] = rope[first]
        return {
            "block_index_keys": keys,
            "present_incomplete_raw_keys": open_keys,
            "present_incomplete_rope": open_rope,
        }

    def block_key(self, members, weight, rope):
        """[r, Di], [Di] and [2*Dr] to [Di]: mean, normalization, rotation."""
        with np.errstate(all="ignore"):
            mean = members.sum(axis=0) / np.float32(self.r)
            y = mean / np.sqrt(np.mean(mean * mean) + self.epsilon) * weight
            cos, sin = np.split(rope, 2)
            a, b = np.split(y[: len(cos)], 2)
            y[: len(cos)] = y[: len(cos)] * cos + np.concatenate([-b, a]) * sin
        return y
