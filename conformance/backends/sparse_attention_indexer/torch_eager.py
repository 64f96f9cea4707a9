"""SparseAttentionIndexer in eager PyTorch on the CPU (connect strings ``torch``, ``torch:topk``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.sparse_attention_indexer import refusals
from conformance.backends.sparse_attention_indexer.numpy_reference import FEATURES, OUTPUTS
from conformance.backends.torch.tensors import URL, array_of, on_threads, one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

MODES = ("stable", "topk")
SCORES = 1 << 24  # that are held at a time


class TorchEager:
    """PyTorch as the implementation under test.

    mode "topk" takes whatever `torch.topk` gives, which among equal scores need not be the smaller index; "stable", the
    default, puts that right (TIE-1). Raises ValueError for another mode.
    """

    def __init__(self, mode: str = "stable") -> None:
        if mode not in MODES:
            raise ValueError(f"torch: mode is {mode!r}, not one of {', '.join(MODES)}")
        self._torch = one_thread()
        self._mode = mode

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="torch" + (":topk" if self._mode == "topk" else ""),
            version=str(self._torch.__version__),
            vendor="PyTorch",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=FEATURES,
            url=URL,
            operation="SparseAttentionIndexer",
        )

    def timing_targets(self, threads: int) -> tuple[ThreadedPart, ...]:
        """What `perf` times next to this backend: the same with plain topk, on as many threads as the others have."""

        def prepare(config: OperationConfig) -> Threaded:
            return Threaded(TorchSession(self._torch, config, stable=False), threads)

        return (ThreadedPart(f"topk, {threads} threads", prepare),)

    def prepare(self, config: OperationConfig) -> TorchSession:
        """One session for the attributes; raises `Rejected` for those out of range (ERR-1)."""
        refusals.check_attributes(config)
        return TorchSession(self._torch, config, stable=self._mode == "stable")


@dataclass(frozen=True)
class ThreadedPart:
    """A session on several threads, which may sum in another order on every machine: timed, not judged."""

    name: str
    prepare: Callable[[OperationConfig], Threaded]
    moves: bool = True


class Threaded:
    """A session whose calls run on a number of threads."""

    def __init__(self, session: TorchSession, threads: int) -> None:
        self._session, self._threads = session, threads

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call."""
        with on_threads(self._threads):
            return self._session.run(inputs)

    def close(self) -> None:
        """Nothing is held."""


class TorchSession:
    """SparseAttentionIndexer for one set of attributes."""

    def __init__(self, torch: Any, config: OperationConfig, stable: bool) -> None:
        self._torch, self._config, self._stable = torch, config, stable
        self._r = int(config.attributes["key_block_size"])
        self._K = int(config.attributes["token_budget"]) // self._r
        self._Hs = int(config.attributes.get("num_selection_heads", 1))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; raises `Rejected` (ERR-1 to ERR-5)."""
        refusals.check_call(self._config, inputs)
        torch = self._torch
        query, keys = tensor_of(inputs["index_query"]).float(), tensor_of(inputs["block_index_keys"]).float()
        weights = tensor_of(inputs["index_weights"]).float() if "index_weights" in inputs else None
        N, Hi, L, _ = query.shape
        S = torch.tensor(inputs["key_length"].tolist()).expand(N) if N else torch.zeros(0, dtype=torch.int64)
        ends = S[:, None] - L + torch.arange(L) + 1  # [N, L]
        visible = torch.div(ends, self._r, rounding_mode="floor").clamp(min=0)
        indices = torch.full((N, self._Hs, L, self._K), -1, dtype=torch.int32)
        step = max(1, SCORES // max(1, Hi * keys.shape[1]))
        for n in range(N):
            for start in range(0, L, step):
                rows = slice(start, start + step)
                weight = None if weights is None else weights[n, rows].T[:, :, None]
                most = int(visible[n, rows].max())
                if most:
                    scores = self._scores(query[n, :, rows], keys[n, :most], weight)
                    indices[n, :, rows] = self._select(scores, visible[n, rows])
        count = visible.clamp(max=self._K).to(torch.int32)[:, None, :].expand(N, self._Hs, L)
        return {"block_indices": array_of(indices), "block_count": array_of(count)}

    def close(self) -> None:
        """Nothing is held."""

    def _scores(self, query: Any, keys: Any, weight: Any | None) -> Any:
        """SCO-1: [Hs, l, b] from queries [Hi, l, Di], keys [b, Di] and weights [Hi, l, 1]."""
        scores = self._torch.relu(query @ keys.T)
        if weight is not None:
            scores *= weight
        return scores.unflatten(0, (self._Hs, -1)).sum(dim=1)

    def _select(self, scores: Any, visible: Any) -> Any:
        """SEL-1, SEL-2, TIE-1, ORD-1: indices [Hs, l, K] of the best visible blocks, -1 behind them."""
        torch = self._torch
        hidden = torch.arange(scores.shape[-1]) >= visible[:, None]
        # NaN ranks first, as in topk; as a number it leaves every row its K-th score, whatever others hold (SEP-2)
        scores = scores.masked_fill(scores.isnan(), torch.inf).masked_fill(hidden, -torch.inf)
        K = min(self._K, scores.shape[-1])
        values, order = scores.topk(K, dim=-1)
        if self._stable:
            # Of the scores equal to the K-th, those that come first; then all in order, equal ones by index.
            last = values[..., -1:]
            above, equal = scores > last, scores == last
            wanted = above | (equal & (equal.cumsum(-1) <= K - above.sum(-1, keepdim=True)))
            order = wanted.nonzero()[:, -1].view(*scores.shape[:-1], -1)
            ranks = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
            order = order.gather(-1, ranks)
        order = order.masked_fill(torch.arange(K) >= visible[:, None], -1)
        return torch.nn.functional.pad(order, (0, self._K - K), value=-1).to(torch.int32)
