"""hipEngine's reference in NumPy as a backend of QSAPrepare and SparseAttentionIndexer.

    pip install --no-deps hipengine
    qsa-conformance run -b py:examples/peers/hipengine_peer.py:HipEngine

`qsa_prepare_index_keys` of the installed hipengine makes the block keys. One thing is replaced, in its module: the
functions `cos` and `sin`. With theta 1 the angle of a token is its position, by which they give rows of the ports.
`qsa_index_scores` and `qsa_select_positions` run as they are. All of it computes in f32; block keys are rounded to the
type of the ports here. hipEngine has the license AGPL-3.0: nothing of it is in this file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np

from conformance.backends.protocol import BackendInfo, OperationConfig, Session, Unsupported
from conformance.backends.qsa_prepare.peer import Peer as KeyPeer
from conformance.backends.qsa_prepare.tokens import Tokens
from conformance.backends.sparse_attention_indexer.peer import Peer as SelectionPeer

try:
    from hipengine.kernels.cpu_reference import qwen4_exp
except ImportError as error:
    raise Unsupported("hipengine", f"{error.name} is not installed; pip install --no-deps hipengine") from error

Array = np.ndarray[Any, np.dtype[Any]]
URL = "https://github.com/shisa-ai/hipEngine/issues"
_replacing = threading.Lock()  # cos and sin are found in a global of the foreign module


class HipEngine:
    """Both steps as one backend."""

    def __init__(self) -> None:
        self._steps = {step.describe().operation: step for step in (Keys(), Selection())}

    def describe(self) -> tuple[BackendInfo, ...]:
        """One entry an operation."""
        return tuple(step.describe() for step in self._steps.values())

    def prepare(self, config: OperationConfig) -> Session:
        """A session of the step."""
        return self._steps[config.operation].prepare(config)


class Keys(KeyPeer):
    """Block keys. A rotary width of 0 is refused."""

    name, vendor, url = "hipengine", "shisa-ai", URL
    version = version("hipengine")
    switches = ()
    adds_one = False
    halves = True

    def compute(
        self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[tuple[Array, Array]]
    ) -> tuple[list[Array], None]:
        """Block keys of every sequence, f32; one without a token has none."""
        blocks = []
        for n in range(tokens.N):
            keys = tokens.keys(n).astype(np.float32)
            if not len(keys):
                blocks.append(np.zeros((0, tokens.Di), np.float32))
                continue
            with _looked_up(*tables[n]), np.errstate(all="ignore"):
                made = qwen4_exp.qsa_prepare_index_keys(
                    keys,
                    np.arange(len(keys)),
                    weight,
                    compression_ratio=tokens.r,
                    rotary_dim=2 * tables[n][0].shape[1],
                    theta=1.0,
                    eps=epsilon,
                )
            blocks.append(made.keys.copy())
        return blocks, None


class Selection(SelectionPeer):
    """The best blocks, by index."""

    name, vendor, url = "hipengine", "shisa-ai", URL
    version = version("hipengine")

    def select(self, query: Array, keys: Array, S: int, r: int, K: int) -> list[Array]:
        """The starts of the blocks, as blocks."""
        positions = np.arange(S - query.shape[1], S)
        with np.errstate(all="ignore"):
            selection = qwen4_exp.qsa_select_positions(
                qwen4_exp.qsa_index_scores(query.transpose(1, 0, 2), keys),
                np.arange(len(keys)) * r,
                query_positions=positions,
                available_positions=np.arange(S),
                compression_ratio=r,
                block_budget=K,
            )
        return [np.asarray(starts) // r for starts in selection.selected_block_starts]


@contextmanager
def _looked_up(cos: Array, sin: Array) -> Iterator[None]:
    """The foreign module finds these rows in place of what it would compute from positions."""

    class Tables:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def cos(self, angles: Array) -> Array:
            return cos[angles[:, 0].astype(np.int64)]

        def sin(self, angles: Array) -> Array:
            return sin[angles[:, 0].astype(np.int64)]

    with _replacing:
        qwen4_exp.np = Tables()
        try:
            yield
        finally:
            qwen4_exp.np = np
