"""QSAPrepare in eager PyTorch on the CPU, one sequence after the other (connect strings ``torch``, ``torch:MODE``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON, OUTPUTS
from conformance.backends.torch.tensors import URL, array_of, one_thread, tensor_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Array
    from conformance.backends.refusals import Check

MODES = ("exact", "native")


class TorchEager:
    """PyTorch as the implementation under test.

    mode "exact" computes in float64 and rounds at the end only, as PyTorch does it, by way of float32. "native"
    accumulates in float32 and rounds to T after the mean, after the normalization and at every step of the rotation, as
    model code in PyTorch does. Both are allowed by NUM-2. Without a mode bf16 is computed natively and the other types
    exactly. Raises ValueError for another mode.
    """

    def __init__(self, mode: str = "") -> None:
        if mode and mode not in MODES:
            raise ValueError(f"torch: mode is {mode!r}, not one of {', '.join(MODES)}")
        self._torch = one_thread()
        self._mode = mode

    def describe(self) -> BackendInfo:
        """Every output, type and feature of the contract."""
        return BackendInfo(
            name="torch" + (f":{self._mode}" if self._mode else ""),
            version=str(self._torch.__version__),
            vendor="PyTorch",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=("rope", "norm", "left_padding"),
            url=URL,
        )

    def prepare(self, config: OperationConfig) -> TorchSession:
        """One session for the attributes; raises `Rejected` for those out of range (ERR-1)."""
        check = refusals.checker(config, OPERATION).check
        mode = self._mode or ("native" if config.element_type == "bf16" else "exact")
        return TorchSession(self._torch, config, check, exact=mode == "exact")


class TorchSession:
    """QSAPrepare for one set of attributes."""

    def __init__(self, torch: Any, config: OperationConfig, check: Check, exact: bool) -> None:
        self._torch = torch
        self._config, self._check = config, check
        self._r = int(config.attributes["key_block_size"])
        self._epsilon = float(config.attributes.get("epsilon", DEFAULT_EPSILON))
        self._wide = torch.float64 if exact else torch.float32
        self._between = torch.float64 if exact else None  # None: T itself

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call: the eight ports in, the three outputs out; raises `Rejected` (ERR-2 to ERR-5)."""
        self._check(inputs)
        torch, r = self._torch, self._r
        rope_on = "rope" not in self._config.disabled
        raw = tensor_of(inputs["raw_index_keys"])
        past_blocks = tensor_of(inputs["past_block_index_keys"])
        past_raw = tensor_of(inputs["past_incomplete_raw_keys"])
        weight = None if "norm" in self._config.disabled else tensor_of(inputs["k_norm_weight"])
        N, L, Di = raw.shape
        if rope_on:
            rope = torch.cat([tensor_of(inputs["rope_cos"]), tensor_of(inputs["rope_sin"])], dim=-1)
            past_rope = tensor_of(inputs["past_incomplete_rope"])
        else:  # a table of width zero rotates nothing (OFF-1)
            rope, past_rope = raw.new_empty(N, L, 0), raw.new_empty(N, 0)

        lengths = [int(length) for length in inputs["key_length"]]
        S = lengths * N if len(lengths) == 1 else lengths
        B = max((length // r for length in S), default=0)
        blocks = raw.new_zeros(N, B, Di)
        present_raw = raw.new_zeros(N, r - 1, Di)
        present_rope = torch.zeros_like(past_rope)
        for n in range(N):
            pad, past = max(L - S[n], 0), max(S[n] - L, 0)
            c, q = divmod(past, r)
            # The tokens not yet in a finished block, oldest first. Of the waiting ones only the first has its rope row
            # kept; the others repeat it, for they never stand first in a block.
            keys = torch.cat([past_raw[n, :q], raw[n, pad:]])
            rows = torch.cat([past_rope[n].expand(q, -1), rope[n, pad:]])
            done, rest = divmod(len(keys), r)
            blocks[n, :c] = past_blocks[n, :c]
            blocks[n, c : c + done] = self._block_keys(
                keys[: done * r].unflatten(0, (done, r)), rows[: done * r : r], weight
            )
            present_raw[n, :rest] = keys[done * r :]
            if rest:
                present_rope[n] = rows[done * r]
        return {
            "block_index_keys": array_of(blocks),
            "present_incomplete_raw_keys": array_of(present_raw),
            "present_incomplete_rope": array_of(present_rope if rope_on else raw.new_empty(0)),
        }

    def close(self) -> None:
        """Nothing is held."""

    def _block_keys(self, members: Any, rope: Any, weight: Any | None) -> Any:
        """Keys [K, Di] of K blocks from members [K, r, Di] and first-token rows [K, 2*Dr] (AVG-1, NRM-1, ROT-1)."""
        torch = self._torch
        between = self._between or members.dtype
        y = (members.to(self._wide).sum(dim=1) / self._r).to(between)
        if weight is not None:
            m = y.to(self._wide)
            root = torch.sqrt(m.square().mean(dim=-1, keepdim=True) + self._epsilon)
            y = (m / root * weight.to(self._wide)).to(between)
        cos, sin = rope.to(between).chunk(2, dim=-1)
        Dr = cos.shape[-1]
        first, second = y[:, : Dr // 2], y[:, Dr // 2 : Dr]
        turned = y[:, :Dr] * cos + torch.cat([-second, first], dim=-1) * sin
        return torch.cat([turned, y[:, Dr:]], dim=-1).to(members.dtype)
