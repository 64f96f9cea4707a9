"""Relations and streams of an operation whose outputs are choices and that carries nothing from call to call."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from conformance.faults import catalogue
from conformance.faults.trial import Trial
from conformance.library.operations import load_operation
from conformance.library.reading import load_library
from conformance.spec.inputs import inputs_of
from conformance.spec.streams import call_inputs, joined, spans

NAME = "SparseAttentionIndexer"


@pytest.fixture(scope="module")
def indexer():
    return load_library(NAME)


@pytest.fixture(scope="module")
def of_integers(indexer):
    """A ragged case of small whole numbers, without relations and streams of its own."""
    case = indexer.find("separation/all-relations[element_type=f32,disabled=none]")
    return msgspec.structs.replace(case, relations=(), streams=(), level="required")


@pytest.fixture(scope="module")
def of_reals(indexer):
    case = indexer.find("separation/all-relations-of-other-numbers[element_type=f32,disabled=none]")
    return msgspec.structs.replace(case, relations=(), streams=(), level="required")


# Relation, a fault that it shows by itself, and the kind of numbers.
SHOWN = [
    ("split", "I01", "reals"),
    ("rows-alone", "I08", "reals"),
    ("rows-permuted", "I106", "reals"),
    ("length-types", "I10", "reals"),
    ("extra-keys", "I46", "reals"),
    ("dont-care", "I42", "reals"),
    ("causality", "I163", "reals"),
    ("scaled-query", "I96", "reals"),
    ("scaled-weights", "I73", "reals"),
    ("large-budget", "I259", "reals"),
    ("duplicated-keys", "I140", "integers"),
    ("signs-of-zeros", "I143", "integers"),
]


@pytest.mark.parametrize(("relation", "fault", "numbers"), SHOWN, ids=[one[0] for one in SHOWN])
def test_a_relation_shows_a_fault_by_itself(indexer, of_integers, of_reals, relation, fault, numbers):
    """Only the relation's own call may show it: with the right answer to the single call put aside."""
    base = of_integers if numbers == "integers" else of_reals
    trial = Trial(indexer.operation, relations_only=True)
    outcomes = []
    for seed in range(12):
        case = msgspec.structs.replace(base, relations=(relation,), seed=seed)
        outcomes.append(trial.run(catalogue.find("fault", fault), case))
    wrong = [one for one in outcomes if one.status in ("fail", "error", "quality-warning")]
    assert wrong, outcomes[0]


@pytest.mark.parametrize("relation", [one[0] for one in SHOWN])
@pytest.mark.parametrize("variant", ["indexer-lanes16", "indexer-heap", "indexer-partition"])
def test_a_conforming_implementation_breaks_no_relation(indexer, of_integers, of_reals, relation, variant):
    for base in (of_integers, of_reals):
        for free in (False, True):
            trial = Trial(indexer.operation, relations_only=free)
            case = msgspec.structs.replace(base, relations=(relation,))
            outcome = trial.run(catalogue.find("variant", variant), case)
            assert outcome.status in ("pass", "quality-warning"), outcome
            assert outcome.clause in ("", "ORD-1"), outcome


def test_calls_of_a_stream_see_the_keys_that_there_are(of_reals):
    """r = 2 and 9, 30, 9 tokens before: after two tokens of five the longest sequence has 16 complete blocks."""
    operation = load_operation(NAME)
    whole = inputs_of(of_reals, operation)
    spare = whole["block_index_keys"].shape[1] - (30 + 5) // 2
    shapes = []
    for start, end in spans((2, 1, 2)):
        inputs = call_inputs(whole, of_reals, operation, start, end, {})
        shapes.append((inputs["index_query"].shape[2], inputs["block_index_keys"].shape[1] - spare))
        assert inputs["key_length"].tolist() == [9 + end, 30 + end, 9 + end]
        rows = inputs["block_index_keys"].shape[1]
        assert np.array_equal(inputs["block_index_keys"], whole["block_index_keys"][:, :rows], equal_nan=True)
    assert shapes == [(2, 16), (1, 16), (2, 17)]


def test_outputs_of_a_stream_are_put_together_along_the_tokens():
    operation = load_operation(NAME)
    pieces = [{"block_indices": np.full((1, 2, n, 3), n), "block_count": np.full((1, 2, n), n)} for n in (2, 0, 1)]
    both = joined(pieces, operation)
    assert both["block_count"][0, 0].tolist() == [2, 2, 1]
    assert both["block_indices"].shape == (1, 2, 3, 3)
    other = {**pieces[0], "block_indices": np.zeros((1, 2, 2, 4))}
    assert joined([*pieces, other], operation) is None


@pytest.mark.parametrize("entry", [e for e in catalogue.faults(NAME) if e.reading], ids=lambda entry: entry.id)
def test_a_fault_with_a_reading_is_right_under_it(indexer, entry):
    from conformance.judging.engine import Engine

    name, _, choice = entry.reading.partition("=")
    engine = Engine(indexer.operation, catalogue.backend_of(entry), {name: choice})
    small = [case for case in indexer.cases if case.topic in ("by-hand", "streams", "selection", "lengths", "refusals")]
    outcomes = {outcome.status: outcome for outcome in map(engine.run, small[::11])}
    assert not {"fail", "error"} & outcomes.keys(), outcomes
