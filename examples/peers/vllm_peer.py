"""vLLM's fused kernel of QSAPrepare as a backend, run by Triton's interpreter on a CPU.

    pip install --no-deps vllm triton==3.8.0
    qsa-conformance run -b py:examples/peers/vllm_peer.py:Vllm --time-limit 1200

`qsa_prepare` of the installed vllm launches its kernel, which finds blocks by position, takes means, normalizes,
rotates and keeps raw keys in a ring. Replaced is `vllm.triton_utils`, by the installed Triton, as vLLM hides it where
there is no GPU. The tables go in as f32, whatever the type of the ports: the interpreter of Triton 3.8.0 multiplies two
bf16 numbers wrongly, and other versions do not run this kernel. Ring and cache are filled from the ports and read back;
nothing is computed here.

The kernel is written for bf16, for block sizes and widths that are powers of two, and for half of a key rotated. The
interpreter takes about a second for a hundred blocks, and minutes for some cases.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import types
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conformance.backends.protocol import Unsupported
from conformance.backends.qsa_prepare.peer import RAW, Peer
from conformance.backends.qsa_prepare.tokens import Tokens

INSTALL = "pip install --no-deps vllm triton==3.8.0"
KERNEL = Path("models", "qwen4_exp", "nvidia", "ops", "qsa_prepare.py")
MOST = 1 << 12  # tokens of a call: the interpreter would take minutes
Array = np.ndarray[Any, np.dtype[Any]]
_interpreting = threading.Lock()  # the interpreter changes Triton's language for as long as a kernel runs


class Vllm(Peer):
    """The kernel, with a ring of `spare` rows more than a block has."""

    name, vendor, url = "vllm-triton", "vLLM", "https://github.com/vllm-project/vllm/issues"
    outputs = ("block_index_keys", RAW)
    element_types = ("bf16",)
    switches = ()
    halves = True

    def __init__(self, spare: str = "0") -> None:
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise Unsupported("triton", "it was loaded already, to compile; set TRITON_INTERPRET=1, or run this alone")
        os.environ["TRITON_INTERPRET"] = "1"
        try:
            import torch
        except ImportError as error:
            raise Unsupported("vllm", f"{error.name} is not installed; {INSTALL}") from error
        torch.set_num_threads(1)
        self._torch, self._spare = torch, int(spare)
        self._kernel = kernel()
        self.version = f"{version('vllm')} (triton {version('triton')}, interpreted)"

    def compute(
        self, tokens: Tokens, epsilon: float, weight: Array, tables: Sequence[tuple[Array, Array]]
    ) -> tuple[list[Array], list[Array]]:
        """Block keys, the past ones included, and the raw keys in the ring."""
        torch, r, Di, N = self._torch, tokens.r, tokens.Di, tokens.N
        if not (_power(r) and _power(Di) and Di >= 4 and 4 * tables[0][0].shape[1] == Di):
            raise Unsupported("widths", "the kernel takes powers of two, and rotates half of a key", self.url)
        if N * tokens.L > MOST:
            raise Unsupported("size", f"Triton's interpreter would take minutes for {N * tokens.L} tokens", self.url)
        rows = r + self._spare
        pages = max(int(tokens.blocks.max()), 1)
        starts = np.cumsum([0, *(len(cos) for cos, _ in tables)])
        done = np.zeros((N, pages, Di), tokens.dtype)
        ring = np.full((N, rows, Di + 12), np.nan, tokens.dtype)  # behind a key its three positions, in 64 bits each
        places = ring.view(np.uint8).reshape(N, rows, -1)[..., 2 * Di :].view(np.int64)
        places[:] = 0
        calls: dict[str, list[Any]] = {name: [] for name in ("keys", "positions", "logical", "slots", "into", "work")}
        ends, sequences = [0], []
        for n in range(N):
            before = int(tokens.complete[n]) * r
            done[n, : tokens.complete[n]] = tokens.past(n)
            for i, key in enumerate(tokens.held(n)):
                ring[n, (before + i) % rows, :Di] = key
                places[n, (before + i) % rows] = starts[n] + i
            new = tokens.new(n)
            if not len(new):
                continue
            at = before + int(tokens.waiting[n]) + np.arange(len(new))
            calls["keys"].append(new)
            calls["positions"].append(starts[n] + at - before)
            calls["logical"].append(at)
            calls["slots"].append(n * rows + at % rows)
            calls["into"].append(np.where((at + 1) % r == 0, n * pages + at // r, -1))
            groups = max(1, int(tokens.blocks[n] - tokens.complete[n]))
            calls["work"] += [(len(sequences), group) for group in range(groups)]
            ends.append(ends[-1] + len(new))
            sequences.append(n)
        cache, state = self._tensor(done), self._tensor(ring)
        if sequences:
            table = np.concatenate([np.concatenate(pair, axis=1) for pair in tables]).astype(np.float32)
            self._launch(calls, self._tensor(table), weight, epsilon, (state, cache, sequences, ends), r, Di)
        made, kept = (t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for t in (cache, state))
        blocks = [made[n, : int(tokens.blocks[n])].copy() for n in range(N)]
        left = [np.arange(int(tokens.blocks[n]) * r, int(tokens.blocks[n]) * r + int(tokens.left[n])) for n in range(N)]
        return blocks, [kept[n, where % rows, :Di] for n, where in enumerate(left)]

    def _launch(
        self, calls: dict[str, list[Any]], table: Any, weight: Array, epsilon: float, stores: Any, r: int, Di: int
    ) -> None:
        torch = self._torch
        state, cache, sequences, ends = stores
        keys = self._tensor(np.concatenate(calls["keys"]))
        none = torch.zeros(len(keys), 0, dtype=torch.bfloat16)

        def i64(name: str) -> Any:
            return torch.from_numpy(np.concatenate(calls[name]).astype(np.int64))

        def i32(values: Any) -> Any:
            return torch.from_numpy(np.array(values, dtype=np.int32))

        with _interpreting, torch.inference_mode():
            self._kernel.qsa_prepare(
                none, keys, i64("positions"), table, torch.zeros(Di), torch.from_numpy(weight.copy()), epsilon,
                torch.zeros(len(keys), 0, Di, dtype=none.dtype), state, i64("slots"),
                i32(sequences)[:, None].contiguous(), i32(ends), i64("logical"), cache, i64("into"), i32(calls["work"]),
                compress_ratio=r, mrope_section=None, rope_pos_offset=Di,
                # No heads of the main attention, which the kernel serves as well.
                main_qkv=none, main_q_norm_weight=torch.zeros(Di), main_k_norm_weight=torch.zeros(Di), main_eps=1e-6,
                main_kv_cache=torch.zeros(1, 1, 0, 2 * Di, dtype=torch.bfloat16),
                main_slot_mapping=torch.zeros(len(keys), dtype=torch.int64), main_k_scale=1.0, main_v_scale=1.0,
            )  # fmt: skip

    def _tensor(self, array: Array) -> Any:
        copy = np.array(array, order="C")
        if copy.dtype == ml_dtypes.bfloat16:
            return self._torch.from_numpy(copy.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(copy)


def kernel() -> Any:
    """vLLM's module of the kernel, loaded without the rest of it. Raises `Unsupported` where it is not installed."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise Unsupported("vllm", f"it is not installed; {INSTALL}")
    try:
        version("vllm"), version("triton")
        import triton
        import triton.language as tl
    except (ImportError, PackageNotFoundError) as error:
        raise Unsupported("vllm", f"{error.name or error} is not installed; {INSTALL}") from error
    package, utils = types.ModuleType("vllm"), types.ModuleType("vllm.triton_utils")
    package.__path__ = []
    utils.tl, utils.triton = tl, triton  # type: ignore[attr-defined]
    there = {name: sys.modules.get(name) for name in ("vllm", "vllm.triton_utils")}
    sys.modules.update({"vllm": package, "vllm.triton_utils": utils})
    try:
        found = importlib.util.spec_from_file_location(
            "vllm_qsa_prepare", Path(spec.submodule_search_locations[0]) / KERNEL
        )
        assert found and found.loader
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    finally:
        for name, before in there.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
    return module


def _power(x: int) -> bool:
    return x > 0 and x & (x - 1) == 0
