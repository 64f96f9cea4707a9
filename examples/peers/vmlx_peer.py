"""vMLX's indexer as a backend of QSAPrepare and SparseAttentionIndexer, on MLX's CPU device.

    pip install 'qsa-conformance[peers-mlx]' && pip install --no-deps vmlx
    qsa-conformance run -b py:examples/peers/vmlx_peer.py:Vmlx

`QSAIndexer` of the installed vmlx runs: it takes means, normalizes, rotates, scores and selects, in f32. Replaced are
the projection, by the identity, and `_exact_mrope_cos_sin` of its module, which gives rows of the ports in place of cos
and sin of positions. For the block keys the indexer is stopped before the scores. For the selection it gets the block
keys of the port where it would make its own, and queries that are normalized and rotated already; `return_blocks` is a
mode of its own. Block keys are rounded to the type of the ports here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.backends.mlx.arrays import array_of, mlx, mlx_of
from conformance.backends.protocol import BackendInfo, OperationConfig, Session, Unsupported
from conformance.backends.qsa_prepare.peer import Peer as KeyPeer
from conformance.backends.qsa_prepare.tokens import Tokens
from conformance.backends.sparse_attention_indexer.peer import Peer as SelectionPeer

INSTALL = "pip install 'qsa-conformance[peers-mlx]' && pip install --no-deps vmlx"
try:
    mx = mlx()
    from vmlx_engine.models.qwen4_exp import language
except ImportError as error:
    raise Unsupported("vmlx", f"{error.name} is not installed; {INSTALL}") from error

Array = np.ndarray[Any, np.dtype[Any]]
URL = "https://github.com/jjang-ai/vmlx/issues"
VERSION = f"{version('vmlx')} (mlx {mx.__version__})"
_replacing = threading.Lock()  # the replaced function is a global of the foreign module


class _Seen(Exception):  # noqa: N818  it ends a run that has shown what is wanted
    pass


class Vmlx:
    """Both steps as one backend."""

    def __init__(self) -> None:
        self._steps = {step.describe().operation: step for step in (Keys(), Selection())}

    def describe(self) -> tuple[BackendInfo, ...]:
        """One entry an operation."""
        return tuple(step.describe() for step in self._steps.values())

    def prepare(self, config: OperationConfig) -> Session:
        """A session of the step."""
        return self._steps[config.operation].prepare(config)


class Watched(language.QSAIndexer):  # type: ignore[misc]
    """The indexer, stopped when it has block keys."""

    def _pooled_block_keys(self, *args: Any) -> Any:
        self.pooled = super()._pooled_block_keys(*args)
        raise _Seen


class Fed(language.QSAIndexer):  # type: ignore[misc]
    """The indexer, with block keys that were made before."""

    given: Any

    def _pooled_block_keys(self, *_: Any) -> Any:
        return self.given


class Keys(KeyPeer):
    """Block keys."""

    name, vendor, version, url = "vmlx", "vMLX", VERSION, URL
    adds_one = False  # its loader does

    def check(self, config: OperationConfig) -> None:
        """MLX's norm refuses an epsilon of 0."""
        if config.attributes.get("epsilon") == 0:
            raise Unsupported("epsilon", "mlx.nn.RMSNorm refuses an epsilon of 0", self.url)

    def compute(
        self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[tuple[Array, Array]]
    ) -> tuple[list[Array], None]:
        """Block keys of every sequence, f32; one without a whole block is not given to the indexer."""
        blocks = []
        for n in range(tokens.N):
            keys = tokens.keys(n)
            if len(keys) < tokens.r:
                blocks.append(np.zeros((0, tokens.Di), np.float32))
                continue
            indexer = _indexer(Watched, 1, tokens.Di, tokens.r, 0, epsilon)
            indexer.k_layernorm.weight = mlx_of(weight)
            cos, sin = (mlx_of(table.astype(np.float32)) for table in tables[n])
            raw = mlx_of(keys)[None]
            with _tables(lambda ids, c=cos, s=sin: (c[ids], s[ids])), suppress(_Seen):
                indexer(mx.concatenate([mx.zeros_like(raw), raw], axis=-1), None)
            blocks.append(array_of(indexer.pooled[0]))
        return blocks, None


class Selection(SelectionPeer):
    """The best blocks, by index."""

    name, vendor, version, url = "vmlx", "vMLX", VERSION, URL

    def select(self, query: Array, keys: Array, S: int, r: int, K: int) -> Array | list[Array]:
        """As it returns them, with those that are not valid as -1."""
        heads, rows, Di = query.shape
        # While all blocks fit the budget it selects none; then it is told of blocks that no token sees.
        blocks = max(len(keys), K + 1)
        indexer = _indexer(Fed, heads, Di, r, K, 1.0)
        indexer.given = mx.zeros((1, blocks, Di), mx.float32)
        indexer.given[:, : len(keys)] = mlx_of(keys.astype(np.float32))
        payload = mx.zeros((1, blocks * r, Di + 3), mx.float32)
        queries = mlx_of(query.transpose(1, 0, 2))[None]
        selected, valid = indexer._mask_from_payload(queries, payload, cache=None, offset=S - rows, return_blocks=True)
        return np.where(array_of(valid), array_of(selected), -1)


def _indexer(kind: type, heads: int, Di: int, r: int, K: int, epsilon: float) -> Any:
    args = SimpleNamespace(
        hidden_size=1,
        indexer_n_heads=heads,
        indexer_head_dim=Di,
        indexer_budget=K * r,
        indexer_compress_ratio=r,
        rms_norm_eps=epsilon,
        rotary_dim=8,
        max_position_embeddings=64,
        rope_theta=1e4,
        mrope_section=[2, 1, 1],
    )
    indexer = kind(args)
    indexer.index_qk_proj = lambda hidden: hidden
    return indexer


@contextmanager
def _tables(rows: Callable[[Any], tuple[Any, Any]]) -> Iterator[None]:
    """The foreign module finds these rows of cos and sin by position."""

    def found(rotary: Any, position_ids: Any, dtype: Any) -> tuple[Any, Any]:
        ids = position_ids[0] if position_ids.ndim == 3 else position_ids
        cos, sin = rows(ids.astype(mx.int32))
        return cos.astype(dtype), sin.astype(dtype)

    with _replacing:
        exact, language._exact_mrope_cos_sin = language._exact_mrope_cos_sin, found
        try:
            yield
        finally:
            language._exact_mrope_cos_sin = exact
