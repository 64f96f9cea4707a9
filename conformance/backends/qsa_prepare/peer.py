"""What adapters of foreign block-key code share: the protocol around a function that gives the block keys.

A `Peer` arranges the ports (`tokens.Tokens`), stores the weight as `1 + u` where the foreign code adds the one, runs
code with half-width tables once for either half, and copies the past in front. It takes no mean, norm or rotation:
every computed element of a block key comes out of the foreign function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends import foreign, refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Unsupported
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON
from conformance.backends.qsa_prepare.tokens import Tokens, in_halves
from conformance.backends.qsa_prepare.transformers_model import held_weight

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.backends.qsa_prepare.tokens import Tables

    # Block keys of each sequence, its past among them or not, and the raw keys that wait, where the code keeps them.
    Computed = tuple[list[Array], list[Array] | None]

RAW = "present_incomplete_raw_keys"


class Peer:
    """An adapter; a subclass sets the fields and computes."""

    name = version = vendor = url = ""
    outputs: tuple[str, ...] = ("block_index_keys",)
    element_types: tuple[str, ...] = ("f32", "f16", "bf16")
    switches: tuple[str, ...] = ("rope",)  # features that the foreign code can do without
    adds_one = True  # the foreign code multiplies by 1 + u
    halves = False  # it takes one half of cos and of sin for both halves

    def describe(self) -> BackendInfo:
        """What the foreign code yields. None of it carries the rotation of an open block."""
        return BackendInfo(
            name=self.name,
            version=self.version,
            vendor=self.vendor,
            element_types=self.element_types,
            outputs=self.outputs,
            features=(*self.switches, "left_padding"),
            url=self.url,
        )

    def prepare(self, config: OperationConfig) -> PeerSession:
        """One session. Raises `Rejected` for attributes out of range, `Unsupported` for what cannot be switched off."""
        check = refusals.checker(config, OPERATION).check
        for feature in sorted(config.disabled - set(self.switches)):
            raise Unsupported(feature, f"{self.name} always has it", self.url)
        self.check(config)
        return PeerSession(self, config, check)

    def check(self, config: OperationConfig) -> None:
        """Raises `Unsupported` for a configuration that the foreign code does not take."""

    def compute(self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[Tables]) -> Computed:
        """What the foreign code makes of a call with at least one sequence; `weight` is f32 and as it stores it."""
        raise NotImplementedError


class PeerSession:
    """One configuration of a peer; state is in the tensors only."""

    def __init__(self, peer: Peer, config: OperationConfig, check: Any) -> None:
        self._peer, self._config, self._check = peer, config, check
        self._epsilon = float(config.attributes.get("epsilon", DEFAULT_EPSILON))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), `Unsupported` for a weight that the code cannot hold, and
        `ForeignError` for what it throws."""
        self._check(inputs)
        tokens = Tokens(self._config, inputs)
        weight = inputs["k_norm_weight"].astype(np.float32)
        stored, scale = held_weight(weight) if self._peer.adds_one else (weight, 1.0)
        blocks, state = self._computed(tokens, stored)
        if scale != 1:
            plain, _ = self._computed(tokens, weight - np.float32(1))
            if any((np.isfinite(a) != np.isfinite(b)).any() for a, b in zip(blocks, plain, strict=True)):
                raise Unsupported("weight", f"{self._peer.name} stores w - 1 and holds no such weight", self._peer.url)
            blocks = [self._unscaled(tokens, n, keys, scale) for n, keys in enumerate(blocks)]
        outputs = {"block_index_keys": tokens.assembled(blocks)}
        if RAW in self._peer.outputs:
            outputs[RAW] = tokens.raw_state(state or [])
        return outputs

    def close(self) -> None:
        """Nothing is held."""

    def _unscaled(self, tokens: Tokens, n: int, keys: Array, scale: float) -> Array:
        """The power of two of the weight taken off again, for the keys that were computed in this call."""
        new = keys[len(keys) - int(tokens.blocks[n] - tokens.complete[n]) :]
        return new.astype(np.float32) / np.float32(scale)

    def _computed(self, tokens: Tokens, weight: Array) -> Computed:
        if not tokens.N:
            return [], []
        tables = [tokens.tables(n) for n in range(tokens.N)]
        with foreign.calls(self._peer.name):
            if not (self._peer.halves and tokens.has_rope):
                return self._peer.compute(tokens, self._epsilon, weight, tables)
            lower, upper = in_halves(tables)
            blocks, state = self._peer.compute(tokens, self._epsilon, weight, lower)
            if upper is not None:
                half = upper[0][0].shape[1]
                others, _ = self._peer.compute(tokens, self._epsilon, weight, upper)
                for keys, other in zip(blocks, others, strict=True):
                    keys[:, half : 2 * half] = other[:, half : 2 * half]
            return blocks, state
