"""Chains: the stages of a pipeline on one backend that serves each of them."""

from __future__ import annotations

import pytest

from conformance.backends.chain import Chain
from conformance.backends.connect import connect, usable
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, Unsupported
from conformance.judging.engine import Engine
from conformance.library.reading import read_library, source_of

PIPELINE = "SparseAttentionPipeline"
STAGES = ("QSAPrepare", "SparseAttentionIndexer", "SparseAttention")


@pytest.fixture(scope="module")
def library():
    return read_library(source_of("sparse_attention_pipeline"))


def config(**attributes):
    given = {"key_block_size": 4, "epsilon": 1e-6, "token_budget": 8, "num_selection_heads": 1} | attributes
    return OperationConfig(PIPELINE, given, "f32", "i64", frozenset({"rope", "weights", "sinks"}))


class Noting:
    """A backend of one operation that notes what it is given, and returns what it is told to."""

    def __init__(self, operation, outputs, features=(), returns=None):
        self.operation, self.outputs, self.features, self.returns = operation, outputs, features, returns or {}
        self.configs, self.inputs = [], []

    def describe(self):
        return BackendInfo("noting", "1", "test", ("f32",), self.outputs, self.features, operation=self.operation)

    def prepare(self, config):
        self.configs.append(config)
        return self

    def run(self, inputs):
        self.inputs.append(inputs)
        return self.returns

    def close(self):
        pass


def noted(**returns):
    keys, selection, output = object(), object(), object()
    return {
        "QSAPrepare": Noting(STAGES[0], ("block_index_keys",), ("rope", "left_padding"), {"block_index_keys": keys}),
        "SparseAttentionIndexer": Noting(
            STAGES[1], ("block_indices", "block_count"), ("weights", "left_padding"),
            {"block_indices": selection, "block_count": selection},
        ),
        "SparseAttention": Noting(
            STAGES[2], ("attention_output",), ("sinks", "scale", "left_padding"), {"attention_output": output}
        ),
    }  # fmt: skip


def test_outputs_go_on_as_they_are_and_ports_under_their_names():
    stages = noted()
    session = Chain(PIPELINE, stages).prepare(config())
    inputs = {"key_length": object(), "raw_index_keys": object(), "index_query": object(), "query": object()}
    got = session.run(inputs)
    indexed, attended = stages["SparseAttentionIndexer"].inputs[0], stages["SparseAttention"].inputs[0]
    assert indexed["block_index_keys"] is got["block_index_keys"]
    assert attended["block_indices"] is got["block_indices"]
    assert all(stage.inputs[0]["key_length"] is inputs["key_length"] for stage in stages.values())
    assert "query" not in indexed
    assert "block_index_keys" not in attended


def test_a_stage_is_prepared_with_its_own_attributes_and_features():
    stages = noted()
    Chain(PIPELINE, stages).prepare(config(token_budget=12))
    prepared = {name: stage.configs[0] for name, stage in stages.items()}
    assert prepared["QSAPrepare"].attributes == {"key_block_size": 4, "epsilon": 1e-6}
    assert prepared["SparseAttentionIndexer"].attributes["token_budget"] == 12
    assert prepared["SparseAttention"].attributes == {"key_block_size": 4, "query_block_size": 1, "causal": True}
    assert {name: one.disabled for name, one in prepared.items()} == {
        "QSAPrepare": {"rope"},
        "SparseAttentionIndexer": {"weights"},
        "SparseAttention": {"sinks"},
    }


def test_a_chain_declares_what_all_of_its_stages_can_do():
    info = Chain(PIPELINE, noted()).describe()
    assert info.operation == PIPELINE
    assert info.outputs == ("block_index_keys", "block_indices", "block_count", "attention_output")
    assert info.features == ("rope", "weights", "scale", "sinks", "left_padding")  # not norm, which no stage declares


def test_a_stage_that_is_not_fed_is_unsupported():
    stages = noted()
    stages["QSAPrepare"].returns = {}
    with pytest.raises(Unsupported, match="no earlier stage returns block_index_keys"):
        Chain(PIPELINE, stages).prepare(config()).run({})


def test_a_stage_refuses_for_the_chain():
    with pytest.raises(Rejected) as refusal:
        connect("numpy", operation=PIPELINE).prepare(config(token_budget=9))
    assert refusal.value.names == ("token_budget",)


@pytest.mark.parametrize("name", ["numpy", "openvino-cpu-op", "torch", "onnxruntime"])
def test_bundled_chains_pass_some_cases(library, name):
    try:
        backend, info = usable(name, operation=PIPELINE)
    except Unsupported as reason:
        pytest.skip(str(reason))
    engine = Engine(library.operation, backend, info=info)
    for case in library.cases[::29]:
        assert engine.run(case).status in ("pass", "quality-warning"), case.id


@pytest.mark.parametrize("mode", ["sdpa", "eager"])
def test_the_published_layer_passes_with_free_ties(library, mode):
    pytest.importorskip("transformers.models.qwen4_exp")
    backend, info = usable(f"transformers:{mode}", operation=PIPELINE)
    engine = Engine(library.operation, backend, {"ties": "free", "order": "ascending"}, info)
    outcomes = [engine.run(case) for case in library.cases if case.topic == "model"][::3]
    assert {outcome.status for outcome in outcomes} <= {"pass", "quality-warning"}
    assert sum(outcome.verdicts for outcome in outcomes) > 100
