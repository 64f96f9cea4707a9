"""Adapters of foreign code: each judged as it is, and with one line of the foreign code changed."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from conformance.backends import foreign
from conformance.backends.connect import usable
from conformance.backends.protocol import Backend, Unsupported
from conformance.judging.engine import Engine
from conformance.library.reading import load_library
from conformance.library.selection import select
from conformance.running.run import run_case

PEERS = ("nemo-automodel", "nemo-automodel:packed", "mlx-vlm", "mlx-vlm:batch", "rapid-mlx", "rapid-mlx:fast_fp32")
CHOSEN = ("by-hand", "lengths", "mean", "normalization", "rotation")
NEMO = "nemo_automodel.components.models.qwen3_8_flash_next.qsa"
NEMO_FORWARD = "Qwen3_8_FlashNextQSAIndexer.forward"
VLM = "mlx_vlm.models.qwen4_exp.language"
RAPID = "rapid_mlx.models.qwen4_exp"
RAPID_CACHE = "rapid_mlx.models.qwen4_exp_cache"


@dataclass(frozen=True)
class Mutant:
    """One line of the foreign code, and what stands there instead."""

    connect: str
    module: str
    function: str  # or a method, as CLASS.NAME
    line: str
    instead: str


MUTANTS = [
    Mutant("nemo-automodel", NEMO, NEMO_FORWARD, ".float().mean(dim=2)", ".float().amax(dim=2)"),
    Mutant("nemo-automodel", NEMO, NEMO_FORWARD,
           "self.k_layernorm(compressed_key)", "self.q_layernorm(compressed_key)"),
    Mutant("nemo-automodel", NEMO, "apply_qsa_rope", "cos, sin = freqs_cis", "sin, cos = freqs_cis"),
    Mutant("mlx-vlm", VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "mx.mean(pooled_keys.astype(mx.float32), axis=2)", "mx.max(pooled_keys.astype(mx.float32), axis=2)"),
    Mutant("mlx-vlm", VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "..., new_block_ids * self.compress_ratio\n", "..., (new_block_ids + 1) * self.compress_ratio - 1\n"),
    Mutant("mlx-vlm:batch", VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "block_starts[..., None]\n", "block_starts[..., None] + 1\n"),
    Mutant("rapid-mlx", RAPID, "QSAIndexer.__call__", "normalized = self.k_layernorm(groups)", "normalized = groups"),
    Mutant("rapid-mlx", RAPID, "QSAIndexer.__call__", "starts[None, :],", "starts[None, :] + 1,"),
    Mutant("rapid-mlx", RAPID_CACHE, "QSAIndexCache.update", "mx.mean(", "mx.sum("),
]  # fmt: skip


def judged(connect: str, *, until_wrong: bool = False) -> list[str]:
    """The statuses of a varied subset of the library, of all of it or up to the first that is wrong."""
    library = load_library()
    backend, info = peer(connect)
    engine = Engine(library.operation, backend, {}, info)
    statuses = []
    for case in select(library, quick=True):
        if case.id.partition("/")[0] in CHOSEN:
            statuses.append(run_case(engine, case).status)
            if until_wrong and statuses[-1] in ("fail", "error"):
                break
    engine.close()
    return statuses


def peer(connect: str) -> tuple[Backend, Any]:
    try:
        return usable(connect, operation="QSAPrepare")
    except Unsupported as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("connect", PEERS)
def test_a_peer_passes_what_it_supports(connect: str) -> None:
    statuses = judged(connect)
    assert set(statuses) <= {"pass", "unsupported"} and statuses.count("pass") >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.connect}-{m.instead.strip()[:30]}")
def test_one_changed_line_of_the_foreign_code_is_failed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    peer(mutant.connect)
    module = __import__(mutant.module, fromlist=["_"])
    owner, _, name = mutant.function.rpartition(".")
    target = getattr(module, owner) if owner else module
    source = textwrap.dedent(inspect.getsource(getattr(target, name)))
    assert mutant.line in source, "the foreign code has changed: choose another line"
    made: dict[str, Any] = {}
    # Its own globals, so that what adapter and library replace there is seen by the changed function, too.
    exec(compile(source.replace(mutant.line, mutant.instead), mutant.module, "exec"), module.__dict__, made)
    monkeypatch.setattr(target, name, made[name])
    assert "fail" in judged(mutant.connect, until_wrong=True)


@pytest.mark.parametrize(("name", "extra"), [("nemo-automodel", "peers-nemo"), ("mlx-vlm", "peers-mlx"),
                                             ("rapid-mlx", "peers-mlx")])  # fmt: skip
def test_a_peer_that_is_not_installed_names_what_installs_it(name: str, extra: str, monkeypatch) -> None:
    for module in ("nemo_automodel", "mlx", "mlx_vlm", "rapid_mlx"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    for module in ("mlx.core", "nemo_automodel.components.models.common"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(Unsupported, match=rf"pip install 'qsa-conformance\[{extra}\]'"):
        usable(name, operation="QSAPrepare")


def test_a_foreign_error_is_told_by_its_own_last_line() -> None:
    with pytest.raises(foreign.ForeignError) as caught, foreign.calls("some-runtime"):
        raise ValueError("Exception from graph.cpp:1628:\nno such axis\n\nAt:\n  operation.py(42): select\n")
    assert str(caught.value) == "some-runtime: ValueError: no such axis"
    assert "graph.cpp:1628" in caught.value.__notes__[0]


def test_answers_of_the_protocol_are_not_foreign_errors() -> None:
    with pytest.raises(Unsupported), foreign.calls("some-runtime"):
        raise Unsupported("norm", "it always has it")
