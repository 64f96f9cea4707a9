"""Adapters of foreign code: each judged as it is, and with one line of the foreign code changed."""

from __future__ import annotations

import importlib.util
import inspect
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.backends import foreign
from conformance.backends.connect import usable
from conformance.backends.embedded import usual_readings
from conformance.backends.protocol import Backend, Unsupported
from conformance.judging.engine import Engine
from conformance.library.operations import load_operation
from conformance.library.reading import load_library
from conformance.library.selection import select
from conformance.record.expectations import default_file, load
from conformance.running.run import run_case
from conformance.timing.contenders import config_of
from conformance.timing.workloads import inputs_of, load_workloads

os.environ["TRITON_INTERPRET"] = "1"  # looked at when Triton is loaded, which other peers do

PREPARE, INDEXER, ATTENTION = "QSAPrepare", "SparseAttentionIndexer", "SparseAttention"
PIPELINE = "SparseAttentionPipeline"
EXAMPLES = Path(__file__).parents[2] / "examples" / "peers"
HIP, VMLX, VLLM = (
    f"py:{EXAMPLES / file}" for file in ("hipengine_peer.py:HipEngine", "vmlx_peer.py:Vmlx", "vllm_peer.py:Vllm")
)
PEERS = [
    *((name, PREPARE) for name in ("nemo-automodel", "nemo-automodel:packed", "mlx-vlm", "mlx-vlm:batch", "rapid-mlx",
                                   "rapid-mlx:fast_fp32")),
    *((name, INDEXER) for name in ("nemo-automodel", "mlx-vlm", "rapid-mlx")),
    *((name, operation) for name in ("nemo-automodel", "mlx-vlm", "rapid-mlx", HIP)
      for operation in (ATTENTION, PIPELINE)),
    *((connect, operation) for connect in (HIP, VMLX) for operation in (PREPARE, INDEXER)),
]  # fmt: skip
CHOSEN = {
    PREPARE: "by-hand or lengths or mean or normalization or rotation",
    INDEXER: "by-hand or selection or scores/ or model",
    ATTENTION: "by-hand or selection/ or model",
    PIPELINE: "model",
}
NEMO = "nemo_automodel.components.models.qwen3_8_flash_next.qsa"
NEMO_FORWARD = "Qwen3_8_FlashNextQSAIndexer.forward"
NEMO_CHUNK = "_gathered_qsa_gqa_attention_chunk"
VLM = "mlx_vlm.models.qwen4_exp.language"
VLM_KERNEL = "mlx_vlm.models.qwen4_exp.qsa_kernel"
RAPID = "rapid_mlx.models.qwen4_exp"
RAPID_CACHE = "rapid_mlx.models.qwen4_exp_cache"
HIP_ENGINE = "hipengine.kernels.cpu_reference.qwen4_exp"
VMLX_ENGINE = "vmlx_engine.models.qwen4_exp.language"
VLLM_KERNEL = Path("models", "qwen4_exp", "nvidia", "ops", "qsa_prepare.py")


@dataclass(frozen=True)
class Mutant:
    """One line of the foreign code, and what stands there instead."""

    connect: str
    operation: str
    module: str
    function: str  # or a method, as CLASS.NAME
    line: str
    instead: str


MUTANTS = [
    Mutant("nemo-automodel", PREPARE, NEMO, NEMO_FORWARD, ".float().mean(dim=2)", ".float().amax(dim=2)"),
    Mutant("nemo-automodel", PREPARE, NEMO, NEMO_FORWARD,
           "self.k_layernorm(compressed_key)", "self.q_layernorm(compressed_key)"),
    Mutant("nemo-automodel", PREPARE, NEMO, "apply_qsa_rope", "cos, sin = freqs_cis", "sin, cos = freqs_cis"),
    Mutant("mlx-vlm", PREPARE, VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "mx.mean(pooled_keys.astype(mx.float32), axis=2)", "mx.max(pooled_keys.astype(mx.float32), axis=2)"),
    Mutant("mlx-vlm", PREPARE, VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "..., new_block_ids * self.compress_ratio\n", "..., (new_block_ids + 1) * self.compress_ratio - 1\n"),
    Mutant("mlx-vlm:batch", PREPARE, VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "block_starts[..., None]\n", "block_starts[..., None] + 1\n"),
    Mutant("rapid-mlx", PREPARE, RAPID, "QSAIndexer.__call__",
           "normalized = self.k_layernorm(groups)", "normalized = groups"),
    Mutant("rapid-mlx", PREPARE, RAPID, "QSAIndexer.__call__", "starts[None, :],", "starts[None, :] + 1,"),
    Mutant("rapid-mlx", PREPARE, RAPID_CACHE, "QSAIndexCache.update", "mx.mean(", "mx.sum("),
    Mutant("nemo-automodel", INDEXER, NEMO, "select_qsa_token_ids",
           "torch.div(query_positions + 1,", "torch.div(query_positions + 2,"),
    Mutant("nemo-automodel", INDEXER, NEMO, "select_qsa_token_ids", "torch.relu(scores)", "torch.abs(scores)"),
    Mutant("nemo-automodel", INDEXER, NEMO, "select_qsa_token_ids",
           "(block_budget + 1) * compress_ratio - 1", "(block_budget + 2) * compress_ratio - 1"),
    Mutant("mlx-vlm", INDEXER, VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "mx.sum(mx.maximum(scores, 0), axis=1)", "mx.sum(scores, axis=1)"),
    Mutant("mlx-vlm", INDEXER, VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "mx.arange(seq_len, dtype=mx.int32) + 1\n", "mx.arange(seq_len, dtype=mx.int32)\n"),
    Mutant("rapid-mlx", INDEXER, RAPID, "QSAIndexer.__call__", "mx.maximum(scores.astype(mx.float32), 0)",
           "scores.astype(mx.float32)"),
    Mutant("rapid-mlx", INDEXER, RAPID, "QSAIndexer.__call__",
           "complete_counts[:, None] > self.block_topk", "complete_counts[:, None] > self.block_topk + 1"),
    Mutant("nemo-automodel", ATTENTION, NEMO, NEMO_CHUNK, "scores * softmax_scale", "scores / softmax_scale"),
    Mutant("nemo-automodel", ATTENTION, NEMO, NEMO_CHUNK, "valid = token_ids >= 0", "valid = token_ids > 0"),
    Mutant("mlx-vlm", ATTENTION, VLM, "Qwen4ExpQSAIndexer.build_mask", "selected_tokens | tail", "selected_tokens"),
    Mutant("mlx-vlm", ATTENTION, VLM_KERNEL, "dispatch_qsa_attention", "scale=scale,", "scale=2 * scale,"),
    Mutant("rapid-mlx", ATTENTION, RAPID, "_QSASelection.valid",
           "self.block_valid[..., None]", "~self.block_valid[..., None]"),
    Mutant("rapid-mlx", ATTENTION, RAPID, "_QSASelection.dense_mask", "self.token_indices, sentinel",
           "self.token_indices + 1, sentinel"),
    Mutant("rapid-mlx", ATTENTION, RAPID, "QSAAttention.__call__", "mx.array(-1e9,", "mx.array(-1,"),
    Mutant("rapid-mlx", ATTENTION, RAPID, "QSAAttention.__call__", "scale=self.scale,\n            mask",
           "scale=2 * self.scale,\n            mask"),
    Mutant("rapid-mlx", PIPELINE, RAPID, "QSAIndexer.__call__", "mx.maximum(scores.astype(mx.float32), 0)",
           "scores.astype(mx.float32)"),
    Mutant("mlx-vlm", PIPELINE, VLM, "Qwen4ExpQSAIndexer.select_from_projected",
           "mx.sum(mx.maximum(scores, 0), axis=1)", "mx.sum(scores, axis=1)"),
    Mutant(HIP, PREPARE, HIP_ENGINE, "qsa_interleaved_rope", "first * sine + second * cosine",
           "first * sine - second * cosine"),
    Mutant(HIP, PREPARE, HIP_ENGINE, "qsa_prepare_index_keys", "variance + np.float32(eps)", "variance"),
    Mutant(HIP, INDEXER, HIP_ENGINE, "qsa_select_positions", "<= query_position)[0]", "< query_position)[0]"),
    Mutant(HIP, INDEXER, HIP_ENGINE, "qsa_index_scores", "np.maximum(dots, np.float32(0.0))", "dots"),
    Mutant(HIP, ATTENTION, HIP_ENGINE, "qsa_sparse_gqa_attention", "head // group_size", "head % kv_heads"),
    Mutant(HIP, ATTENTION, HIP_ENGINE, "qsa_sparse_gqa_attention", "np.float32) * attention_scale", "np.float32)"),
    Mutant(HIP, ATTENTION, HIP_ENGINE, "qsa_sparse_gqa_attention", "for position in logical]",
           "for position in logical[1:]]"),
    Mutant(HIP, PIPELINE, HIP_ENGINE, "qsa_index_scores", "np.maximum(dots, np.float32(0.0))", "dots"),
    Mutant(VMLX, PREPARE, VMLX_ENGINE, "QSAIndexer._pool_blocks", ".mean(axis=2)", ".max(axis=2)"),
    Mutant(VMLX, PREPARE, VMLX_ENGINE, "QSAIndexer._pool_blocks",
           "first_block * r : last_block * r : r, :", "first_block * r + r - 1 : last_block * r : r, :"),
    Mutant(VMLX, INDEXER, VMLX_ENGINE, "QSAIndexer._mask_from_payload", "mx.arange(offset + 1, offset + S + 1)",
           "mx.arange(offset, offset + S)"),
    Mutant("nemo-automodel", PIPELINE, NEMO, "select_qsa_token_ids",
           "torch.div(query_positions + 1,", "torch.div(query_positions + 2,"),
]  # fmt: skip


def judged(connect: str, operation: str, *, until_wrong: bool = False, chosen: str = "") -> list[str]:
    """The statuses of a part of the library, of all of it or up to the first that is wrong; "known" as expected."""
    library = load_library(operation)
    known = default_file(connect, operation)
    expected = load(known, library) if known and known.is_file() else None
    backend, info = peer(connect, operation)
    engine = Engine(library.operation, backend, usual_readings(connect, operation), info)
    statuses = []
    for case in select(library, expression=chosen or CHOSEN[operation], quick=not chosen and operation == PREPARE):
        outcome = run_case(engine, case)
        statuses.append("known" if expected and expected.met(outcome) else outcome.status)
        if until_wrong and statuses[-1] in ("fail", "error"):
            break
    engine.close()
    return statuses


def peer(connect: str, operation: str) -> tuple[Backend, Any]:
    try:
        return usable(connect, operation=operation)
    except Unsupported as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(("connect", "operation"), PEERS)
def test_a_peer_passes_what_it_supports(connect: str, operation: str) -> None:
    statuses = judged(connect, operation)
    assert set(statuses) <= {"pass", "quality-warning", "unsupported", "known"}
    assert len(statuses) - statuses.count("unsupported") >= 20


@pytest.mark.parametrize(("connect", "operation"), PEERS)
def test_a_call_ends_when_its_results_are_arrays_in_memory(connect: str, operation: str) -> None:
    """A runtime that computes when it is asked for the numbers has done so: timing ends with the call."""
    backend, info = peer(connect, operation)
    whole = load_operation(operation)
    workload = next(one for one in load_workloads(whole) if one.id.startswith("decode") and one.quick)
    session = backend.prepare(config_of(workload.case))
    outputs = session.run(inputs_of(workload.case, whole))
    assert {type(array) for array in outputs.values()} == {np.ndarray}
    assert set(info.outputs) <= outputs.keys()
    session.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.connect.rpartition(':')[2]}-{m.instead.strip()[:30]}")
def test_one_changed_line_of_the_foreign_code_is_failed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    peer(mutant.connect, mutant.operation)
    module = __import__(mutant.module, fromlist=["_"])
    owner, _, name = mutant.function.rpartition(".")
    target = getattr(module, owner) if owner else module
    found = getattr(target, name)
    source = textwrap.dedent(inspect.getsource(found.fget if isinstance(found, property) else found))
    assert mutant.line in source, "the foreign code has changed: choose another line"
    made: dict[str, Any] = {}
    # Its own globals, so that what adapter and library replace there is seen by the changed function, too.
    exec(compile(source.replace(mutant.line, mutant.instead), mutant.module, "exec"), module.__dict__, made)
    monkeypatch.setattr(target, name, made[name])
    assert "fail" in judged(mutant.connect, mutant.operation, until_wrong=True)


VLLM_CASES = "rotated-part-is-small or model/drafts[disabled=none] or decode-step[element_type=bf16]"


@pytest.mark.parametrize(("line", "instead"), [
    ("", ""),
    ("r0 * cos - r1 * sin", "r0 * cos + r1 * sin"),
    ("tl.sum(source, axis=0) / COMPRESS_RATIO", "tl.max(source, axis=0)"),
    ("range(0, num_state_rows):", "range(1, num_state_rows):"),
], ids=["as it is", "rotation", "mean", "state"])  # fmt: skip
def test_a_kernel_for_gpus_is_judged_in_an_interpreter(
    line: str, instead: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peer(VLLM, PREPARE)
    spec = importlib.util.find_spec("vllm")
    assert spec and spec.submodule_search_locations
    source = (Path(spec.submodule_search_locations[0]) / VLLM_KERNEL).read_text()
    assert line in source, "the foreign code has changed: choose another line"
    copy = tmp_path / "vllm" / VLLM_KERNEL  # Triton reads the source of a kernel from its file
    copy.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    copy.write_text(source.replace(line, instead) if line else source)
    monkeypatch.syspath_prepend(tmp_path)
    statuses = [status for status in judged(VLLM, PREPARE, chosen=VLLM_CASES) if status != "unsupported"]
    assert set(statuses) == {"pass"} if not line else "fail" in statuses


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


def test_a_foreign_error_without_text_is_told_by_the_line_of_code() -> None:
    with pytest.raises(foreign.ForeignError) as caught, foreign.calls("some-runtime"):
        raise AssertionError
    assert str(caught.value).startswith("some-runtime: AssertionError: raise AssertionError (test_foreign.py:")


def test_answers_of_the_protocol_are_not_foreign_errors() -> None:
    with pytest.raises(Unsupported), foreign.calls("some-runtime"):
        raise Unsupported("norm", "it always has it")
