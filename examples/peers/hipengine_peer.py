"""hipEngine's reference in NumPy as a backend of all four operations.

    pip install --no-deps hipengine
    qsa-conformance run -b py:examples/peers/hipengine_peer.py:HipEngine

`qsa_prepare_index_keys` of the installed hipengine makes the block keys. One thing is replaced, in its module: the
functions `cos` and `sin`. With theta 1 the angle of a token is its position, by which they give rows of the ports.
`qsa_index_scores`, `qsa_select_positions` and `qsa_sparse_gqa_attention` run as they are, the last on positions that
are listed here from blocks. All of it computes in f32; results are rounded to the type of the ports here. hipEngine has
the license AGPL-3.0: nothing of it is in this file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np

from conformance.backends import foreign
from conformance.backends.chain import Chain
from conformance.backends.protocol import Backend, BackendInfo, OperationConfig, Session, Unsupported, info_for
from conformance.backends.qsa_prepare.peer import Peer as KeyPeer
from conformance.backends.qsa_prepare.tokens import Tokens
from conformance.backends.refusals import checker
from conformance.backends.sparse_attention.defaults import lengths_of
from conformance.backends.sparse_attention.tokens import attended_by_rows
from conformance.backends.sparse_attention_indexer.peer import Peer as SelectionPeer

try:
    from hipengine.kernels.cpu_reference import qwen4_exp
except ImportError as error:
    raise Unsupported("hipengine", f"{error.name} is not installed; pip install --no-deps hipengine") from error

Array = np.ndarray[Any, np.dtype[Any]]
URL = "https://github.com/shisa-ai/hipEngine/issues"
_replacing = threading.Lock()  # cos and sin are found in a global of the foreign module


class HipEngine:
    """The three steps, and all of them in a row, as one backend."""

    def __init__(self) -> None:
        steps: dict[str, Backend] = {
            "QSAPrepare": Keys(),
            "SparseAttentionIndexer": Selection(),
            "SparseAttention": Attention(),
        }
        self._steps = steps | {"SparseAttentionPipeline": Chain("SparseAttentionPipeline", steps)}

    def describe(self) -> tuple[BackendInfo, ...]:
        """One entry an operation."""
        return tuple(info_for(step, operation) for operation, step in self._steps.items())

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


class Attention:
    """Attention to listed positions: one list for all heads, no sinks."""

    name = "hipengine"

    def describe(self) -> BackendInfo:
        """Every type; sinks can only be left out."""
        return BackendInfo(
            name=self.name,
            version=version(self.name),
            vendor="shisa-ai",
            element_types=("f32", "f16", "bf16"),
            outputs=("attention_output",),
            features=("key_length", "scale", "sinks", "left_padding"),
            url=URL,
            operation="SparseAttention",
        )

    def prepare(self, config: OperationConfig) -> Session:
        """One session. Raises `Rejected` (ERR-1), `Unsupported` for sinks."""
        check = checker(config, "SparseAttention").check
        if "sinks" not in config.disabled:
            raise Unsupported("sinks", f"{self.name} has no attention sinks", URL)
        return AttentionSession(config, check)


class AttentionSession:
    """The function for one set of attributes."""

    def __init__(self, config: OperationConfig, check: Any) -> None:
        self._config, self._check = config, check

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises `Rejected` (ERR-2 to ERR-5), `ForeignError`, `Unsupported` for several selections."""
        self._check(inputs)
        N, H, L, _ = inputs["query"].shape
        S, Ev = inputs["value"].shape[2:]
        if inputs["block_indices"].shape[1] != 1:
            raise Unsupported("selections", "hipengine takes one list of positions for all heads", URL)
        causal = self._config.attributes.get("causal", True)
        scale = float(inputs["scale"].reshape(-1)[0]) if "scale" in inputs else None
        out = np.zeros((N, L, H, Ev), inputs["query"].dtype)
        for n in range(N):
            tokens, Sn = attended_by_rows(self._config.attributes, inputs, n), int(lengths_of(inputs)[n])
            rows = [row for row in range(L) if len(tokens[row])]  # an empty list is refused
            if not rows:
                continue
            query, key, value = (inputs[name][n].transpose(1, 0, 2) for name in ("query", "key", "value"))
            with foreign.calls("hipengine"), np.errstate(all="ignore"):
                out[n, rows] = qwen4_exp.qsa_sparse_gqa_attention(
                    query[rows],
                    key[S - Sn :],
                    value[S - Sn :],
                    query_positions=[Sn - L + row if causal else Sn - 1 for row in rows],
                    key_positions=np.arange(Sn),
                    selected_positions=[tokens[row] for row in rows],
                    scale=scale,
                )
        return {"attention_output": np.ascontiguousarray(out.transpose(0, 2, 1, 3))}

    def close(self) -> None:
        """Nothing is held."""


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
