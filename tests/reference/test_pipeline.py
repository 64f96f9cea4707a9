"""The reference of the pipeline: composition, teacher forcing, decided rows, constructed margins."""

from __future__ import annotations

import ml_dtypes
import msgspec
import numpy as np
import pytest

from conformance.backends.connect import connect
from conformance.judging.engine import Engine
from conformance.judging.judge import judge
from conformance.library.reading import load_library
from reference.expected import Following, after
from reference.parts import Fed, lasting
from reference.sparse_attention_pipeline.constructed import constructed
from reference.sparse_attention_pipeline.operation import OUTPUTS
from reference.sparse_attention_pipeline.oracle import Oracle

ATTRIBUTES = {"key_block_size": 4, "epsilon": 1e-6, "token_budget": 12, "num_selection_heads": 1}
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def status(expected, got):
    """The clause of the first output that is wrong, and the output; nothing when all are right."""
    for name in OUTPUTS:
        verdict = judge(name, got[name], after(expected, got)[name])
        if verdict.status == "fail":
            return name, verdict.clause
    return None


def made(kind="f32", wanted=None, seed=0, **more):
    wanted = np.broadcast_to(np.array([3, 7, 8]), (2, 4, 3)) if wanted is None else wanted
    return constructed(4, wanted, blocks=12, width=20, rotary=6, element_type=np.dtype(TYPES[kind]), seed=seed, **more)


def test_the_stages_are_judged_on_what_came_before_them():
    oracle, inputs = Oracle(ATTRIBUTES), made()
    got = oracle.run(inputs)
    expected = oracle.expect(inputs)
    assert isinstance(expected, Following)
    assert status(expected, got) is None
    wrong_keys = {**got, "block_index_keys": -got["block_index_keys"]}
    assert status(expected, wrong_keys)[0] == "block_index_keys"
    # A selection that follows from wrong keys is right by them: not the stage that errs.
    forced = after(expected, wrong_keys)["block_indices"]
    followed = oracle.op.index.run(oracle.op.to_index(inputs, wrong_keys))["block_indices"]
    assert all(part.agrees(followed[part.index]) for part in forced.parts if isinstance(part, Fed))


def test_a_wrong_stage_is_named_by_its_own_clauses():
    oracle, inputs = Oracle(ATTRIBUTES), made()
    got, expected = oracle.run(inputs), oracle.expect(inputs)
    chosen = got["block_indices"].copy()
    chosen[0, 0, 2, 0] = 5  # not wanted
    wrong = {**got, "block_indices": chosen}
    wrong |= oracle.op.attend.run(oracle.op.to_attend(inputs, wrong))
    assert status(expected, wrong) == ("block_indices", "INDEX-SEL-2")
    output = got["attention_output"].copy()
    output[1, 0, 3, 1] += 1
    assert status(expected, {**got, "attention_output": output})[1].startswith("ATTEND-")


@pytest.mark.parametrize("broken", [np.zeros(3), None, "text"])
def test_an_output_that_is_no_such_array_does_not_stop_the_judge(broken):
    oracle, inputs = Oracle(ATTRIBUTES), made()
    got = {**oracle.run(inputs), "block_count": broken}
    assert status(oracle.expect(inputs), got) == ("block_count", "")


@pytest.mark.parametrize("kind", TYPES)
def test_constructed_margins_decide_every_row_for_any_wanted_set(kind):
    random = np.random.default_rng(4)
    for seed in range(4):
        wanted = np.array([[random.choice(12, 3, replace=False) for _ in range(4)] for _ in range(2)])
        inputs = made(kind, wanted, seed)
        oracle = Oracle(ATTRIBUTES)
        first = oracle.expect(inputs)._found._first
        assert first.decided.mask.all()
        assert (np.sort(first.decided.sets[:, 0], axis=2) == np.sort(wanted, axis=2)).all()
        got = oracle.run(inputs)
        assert (np.sort(got["block_indices"][:, 0], axis=2) == np.sort(wanted, axis=2)).all()
        assert status(oracle.expect(inputs), got) is None


def test_with_values_between_one_and_two_only_the_wanted_tokens_can_give_the_output():
    wanted = np.broadcast_to(np.array([2, 5, 9]), (1, 4, 3))
    got = Oracle(ATTRIBUTES).run(made("bf16", wanted))["attention_output"].astype(np.float64)
    assert got.min() >= 1 - 2**-6
    assert got.max() <= 2 + 2**-6


def test_equal_scores_decide_nothing():
    oracle, inputs = Oracle(ATTRIBUTES), made("bf16")
    tied = {**inputs, "index_query": np.zeros_like(inputs["index_query"])}
    assert not oracle.expect(tied)._found._first.decided.mask.any()


def test_scores_that_are_no_numbers_are_selected_where_there_is_room_for_all():
    """Keys of zeros without epsilon are no numbers; the set of a row is all that it sees, whatever other rows see."""
    library = load_library("sparse_attention_pipeline")
    case = next(
        case for case in library.cases if case.element_type == "f32" and case.dims["L"] >= 7 and not case.refusal
    )
    zeros = {"aim": "constant", "value": 0}
    bare = msgspec.structs.replace(
        case, attributes=case.attributes | {"epsilon": 0, "token_budget": 64 * case.attributes["key_block_size"]},
        data={"raw_index_keys": zeros, "past_incomplete_raw_keys": zeros}, values={}, audits=(), relations=(),
    )  # fmt: skip
    engine = Engine(library.operation, connect("numpy", operation="SparseAttentionPipeline"))
    try:
        outcome = engine.run(bare)
    finally:
        engine.close()
    assert (outcome.status, outcome.reason) == ("pass", "")


def test_of_another_call_only_decided_rows_are_said():
    oracle, inputs = Oracle(ATTRIBUTES), made()
    tied = {**inputs, "index_query": np.zeros_like(inputs["index_query"])}
    for given, said in ((inputs, True), (tied, False)):
        output = after(oracle.expect(given), oracle.run(given))["attention_output"]
        assert any(len(part.index[0]) for part in lasting(output.parts)) == said
