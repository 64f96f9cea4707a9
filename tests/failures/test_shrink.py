"""Shrinking: the same failure, as little of it as there can be, in seconds, and never an invalid case."""

from __future__ import annotations

import math
import time
from collections import Counter

import msgspec
import numpy as np
import pytest
from fakes import Forgetful, Honest, NeverRefuses

from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.failures.shrink import failing, shrink, simpler
from conformance.failures.smaller import WAYS, cost
from conformance.faults import catalogue
from conformance.faults.layers import examples
from conformance.judging.engine import Engine
from conformance.record.log import read_log
from conformance.spec.broken import broken_rule
from conformance.spec.case import summary
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import inputs_of
from conformance.spec.resized import possible, resized

replace = msgspec.structs.replace


def fails_on(operation, backend):
    return failing(Engine(operation, backend).run)


def bits(case, operation):
    return [array.tobytes() for array in inputs_of(case, operation).values()]


def failing_case(operation, fault: str, cases):
    """The first of the cases that a fault fails, and the function that says so."""
    fails = fails_on(operation, catalogue.backend("fault", fault))
    return next(case for case in cases if fails(case)), fails


@pytest.fixture(scope="module")
def generated(operation):
    return examples(operation.operation, 60, 3)


@pytest.fixture(scope="module")
def small(library):
    """Written cases that are quick to run, in no order of size."""
    cases = [case for case in library.cases if math.prod(size + 1 for size in case.dims.values()) < 20_000]
    return sorted(cases, key=lambda case: case.digest)


# What is left of a failure, in terms of the contract: N, L, r, and whatever else the fault needs.
NEEDED = {
    "F01": {"N": 1, "L": 2, "r": 2},  # blocks begin where the call begins: a block that straddles two calls
    "F02": {"N": 1, "L": 2, "r": 2},  # a block is complete one token late
    "F06": {"N": 1, "L": 4, "r": 3},  # the waiting keys are read from the end: it takes two rows, one of them in use
    "F23": {"N": 1, "L": 2, "r": 2, "Di": 1},  # epsilon outside the root
    "F40": {"N": 1, "L": 2, "r": 2, "Dr": 4},  # another pairing: it takes two pairs
    "F61": {"N": 2, "L": 2, "r": 2},  # one length for all sequences
    "F12": {"N": 1, "L": 2, "r": 2},  # carried keys are not as they were
}
TOPICS = {"F23": "normalization", "F40": "rotation", "F61": "lengths"}  # where a written case is taken from


@pytest.mark.parametrize("fault", NEEDED)
def test_known_faults_shrink_to_what_they_need(fault, operation, library):
    written = [case for case in library.cases if case.topic == TOPICS.get(fault, "by-hand")]
    case, fails = failing_case(operation, fault, written)
    found = shrink(case, fails, operation)
    sizes = {**found.case.dims, "r": found.case.attributes["key_block_size"]}
    assert all(sizes[name] <= most for name, most in NEEDED[fault].items()), summary(found.case, operation)


@pytest.mark.parametrize("fault", NEEDED)
def test_generated_cases_become_small_in_seconds(fault, operation, generated):
    case, fails = failing_case(operation, fault, generated)
    started = time.perf_counter()
    found = shrink(case, fails, operation)
    assert time.perf_counter() - started < 30
    assert found.finished and found.trials < 400
    assert found.signature == fails(case) == fails(found.case)
    assert sum(math.prod(shape) for shape in Geometry(found.case, operation).shapes.values()) <= 60
    assert len(found.case.relations) + len(found.case.streams) <= 1
    assert found.case.poison == "zero" or fails(replace(found.case, poison="zero")) != found.signature
    assert found.case.clauses == (found.signature[0],)


def test_numbers_become_zeros_ones_and_powers_of_two(operation, generated):
    case, fails = failing_case(operation, "F48", generated)
    found = shrink(case, fails, operation)
    numbers = [n for spec in found.case.data.values() for n in np.array(spec, dtype=object).flat if n is not None]
    assert numbers and all(n == 0 or math.frexp(abs(n))[0] == 0.5 for n in numbers), found.case.data
    assert found.case.seed == 0


def test_the_result_is_minimal(operation, generated):
    """No way to make it cheaper leaves the failure as it is."""
    case, fails = failing_case(operation, "F61", generated)
    best = replace(shrink(case, fails, operation).case, clauses=case.clauses)
    assert fails(best) == fails(case)
    cheaper = [
        candidate
        for way in WAYS
        for candidate in way(best, operation)
        if candidate and cost(candidate, operation) < cost(best, operation) and possible(candidate, operation)
    ]
    other = [candidate for candidate in cheaper if bits(candidate, operation) != bits(best, operation)]
    assert other
    assert not [candidate for candidate in other if fails(candidate) == fails(best)]


def test_the_element_type_stays_when_the_failure_needs_it(operation, small):
    case, fails = failing_case(operation, "F25t", small)
    assert shrink(case, fails, operation).case.element_type == "f16"


def test_a_refusal_is_still_due(operation, generated):
    fails = fails_on(operation, NeverRefuses())
    right = Engine(operation, NumPyReference())
    # Which of the refusals the backend answers wrongly is not for this test to say.
    for case in [case for case in generated if case.refusal and fails(case)][:4]:
        found = shrink(case, fails, operation)
        assert found.signature == fails(case)
        assert cost(found.case, operation) <= cost(case, operation)
        assert right.run(found.case).status == "pass", found.case
        if case.change:
            assert broken_rule(found.case, operation)[0].id == broken_rule(case, operation)[0].id


def test_every_candidate_is_a_case_that_a_right_implementation_passes(operation, generated, small):
    right = Engine(operation, NumPyReference())
    tried = Counter()
    for case in [*generated[:10], *small[:8], *(c for c in small if c.refusal or "inject" in str(c.data))][:26]:
        for way in WAYS:
            candidates = [one for one in way(case, operation) if one and possible(one, operation)]
            for candidate in candidates[:: max(1, len(candidates) // 2)]:
                outcome = right.run(candidate)
                assert outcome.status in ("pass", "quality-warning", "unsupported"), (case.id, candidate, outcome)
                tried[way.__name__] += 1
    assert set(tried) == {way.__name__ for way in WAYS}


def test_nothing_is_tried_twice_and_the_budget_is_kept(operation, generated):
    case, fails = failing_case(operation, "F48", generated)
    seen: list[str] = []

    def counted(one):
        seen.append(one.digest)
        return fails(one)

    found = shrink(case, counted, operation)
    assert len(seen) == len(set(seen)) == found.trials
    few = shrink(case, fails, operation, trials=5)
    assert few.trials == 5 and not few.finished
    assert few.signature == found.signature
    assert not shrink(case, fails, operation, seconds=0.0).finished


def test_a_case_that_passes_cannot_be_shrunk(operation, generated):
    with pytest.raises(ValueError, match="does not fail"):
        shrink(generated[0], fails_on(operation, Honest()), operation)


def test_warnings_can_be_shrunk(operation, small):
    """A fault that rounds within the bounds is warned of; a failure is another matter."""
    from conformance.judging.engine import Outcome

    def run(case):
        return Outcome(case.id, case.digest, "quality-warning", "PLG-4", reason="off by 3 of 7")

    assert failing(run)(small[0]) is None
    assert failing(run, warnings=True)(small[0]) == ("PLG-4", "", "off by # of #")


# Sizes


def test_literal_values_stay_with_their_sequence_and_token(operation, small):
    case = replace(
        next(c for c in small if c.dims["N"] == 3 and c.dims["L"] >= 4 and not c.values and not c.change),
        data={"raw_index_keys": None},
        streams=(),
        pad=(0, 0, 0),
    )
    N, L, Di = (case.dims[name] for name in ("N", "L", "Di"))
    keys = np.arange(N * L * Di).reshape(N, L, Di)
    case = replace(case, data={"raw_index_keys": keys.tolist()})
    kept = resized(case, operation, sequences=(2,), tokens=range(1, L))
    assert np.array_equal(kept.data["raw_index_keys"], keys[[2], 1:])
    narrow = resized(case, operation, dims={"Di": Di - 1}) if Di > case.dims["Dr"] else None
    if narrow:
        assert np.array_equal(narrow.data["raw_index_keys"], keys[..., :-1])


def test_injected_values_stay_with_their_token(operation, small):
    base = next(c for c in small if c.dims["N"] == 2 and c.dims["L"] >= 5 and not c.values and not c.change)
    spec = {"aim": "bell", "inject": [{"at": [1, 3], "value": math.nan}, {"at": [0, 0, 0], "value": 7}]}
    case = replace(base, data={"raw_index_keys": spec}, pad=(0, 0), streams=())
    kept = resized(case, operation, sequences=(1,), tokens=[1, 2, 3])
    assert kept.data["raw_index_keys"]["inject"] == [{"at": [0, 2], "value": pytest.approx(math.nan, nan_ok=True)}]
    assert np.isnan(inputs_of(kept, operation)["raw_index_keys"].astype(float)[0, 2]).all()
    assert resized(case, operation, tokens=(4,)).data["raw_index_keys"] == {"aim": "bell"}


def test_rows_that_follow_from_the_history_follow_it(operation, small):
    case = next(c for c in small if c.dims["N"] == 2 and max(c.past) > 9 and not c.values and not c.change)
    r = case.attributes["key_block_size"]
    assert resized(case, operation, past=[0, 0]).dims["Bp"] == case.dims["Bp"] - max(case.past) // r
    assert resized(case, operation, past=[-1, 0]) is None
    assert resized(case, operation, pad=[1, 0]) is None or case.past[0] == 0


def test_streams_still_add_up(operation, generated):
    case = next(c for c in generated if c.streams and c.dims["L"] > 4)
    for kept in range(case.dims["L"]):
        cut = resized(case, operation, tokens=range(kept), pad=[min(pad, kept) for pad in case.pad])
        assert all(sum(stream) == kept and len(stream) > 1 for stream in cut.streams)


@pytest.mark.parametrize("value", [None, 0, 1, 7, -3.25, 1e-30, math.nan, math.inf, 0.1])
def test_simpler_numbers_cost_less(value):
    from conformance.failures.smaller import digits

    assert all(digits(one) < digits(value) for one in simpler(value))


# On the command line


@pytest.fixture
def log(cli, tmp_path, library):
    """A log of two written cases, one failed by F02 and one passed."""
    case = library.find("by-hand/blk-many-completed[element_type=f32]")
    good = library.find("by-hand/blk-none-completed[element_type=f32]")
    code, _, _ = cli("run", "-b", "fault:F02", "--case", case.id, "--case", good.id, "-o", tmp_path)
    assert code == 1
    return tmp_path / "fault_F02.jsonl", case, good


class TestCommand:
    def test_prints_yaml_sizes_and_trials_and_writes_a_log(self, cli, log, tmp_path):
        import yaml

        path, case, _ = log
        small = tmp_path / "small.jsonl"
        code, out, err = cli("shrink", path, case.id, "-o", small)
        assert (code, err) == (0, "")
        (written,) = yaml.safe_load(out)
        assert written["attributes"] == {"key_block_size": 2}
        assert "# before: " in out and "# after: " in out and " trials in " in out
        (record,) = read_log(small).cases.values()
        assert record.case.says == f"Shrunk from {case.id}."
        code, out, _ = cli("run", "--from-log", small)
        assert code == 1 and f"--from-log {small} --case {record.case.id}" in out
        code, _, err = cli("shrink", path, case.id, "-o", small)
        assert code == 2 and "is there already" in err

    def test_another_backend(self, cli, log):
        path, case, _ = log
        code, _, err = cli("shrink", path, case.id, "-b", "numpy")
        assert code == 2 and "does not fail on numpy" in err

    def test_what_cannot_be_shrunk(self, cli, log, tmp_path):
        path, case, good = log
        assert "did not fail: its status is pass" in cli("shrink", path, good.id)[2]
        assert f"did you mean '{case.id}'?" in cli("shrink", path, case.id[:-1] + "#")[2]
        assert "not passed:" in cli("shrink", path, "unheard-of")[2]
        assert cli("shrink", tmp_path / "none.jsonl", case.id)[0] == 2


def test_a_failure_that_other_cases_bring_about_is_not_shrunk(operation, small):
    """Whoever fails only after many calls of a session passes alone."""
    assert fails_on(operation, Forgetful())(next(c for c in small if not c.streams and not c.refusal)) is None
