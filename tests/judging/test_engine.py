"""The engine against backends that lie: status, clause and place of every finding."""

from __future__ import annotations

import fakes
import pytest
from test_reference import case_of

from conformance.judging.engine import Engine
from conformance.spec.case import Change, Refusal
from conformance.spec.streams import spans

STREAMING = {"streams": ((2, 4), (1, 1, 1, 1, 1, 1)), "clauses": ("STA-4", "BLK-3")}


def outcome(operation, backend, **changes):
    engine = Engine(operation, backend)
    try:
        return engine.run(case_of(**changes))
    finally:
        engine.close()


def refusal(**changes):
    due = Refusal(kind="shape", phase="call", names=("rope_sin",))
    return {"refusal": due, "clauses": ("ERR-2",), "change": {"rope_sin": Change(shape=(2, 6, 6))}, **changes}


class TestStatuses:
    @pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
    def test_the_reference_passes(self, operation, name):
        result = outcome(operation, fakes.Honest(), element_type=name, **STREAMING)
        assert (result.status, result.reason) == ("pass", "")
        assert result.verdicts > 20
        assert 0 < result.headroom["ROT-1"] < 1

    @pytest.mark.parametrize(
        ("fake", "status", "words"),
        [
            (fakes.Raises, "error", "raises RuntimeError: the device is on fire"),
            (fakes.RaisesInPrepare, "error", "raises OSError: no such device"),
            (fakes.WrongNames, "error", "without block_index_keys and with keys"),
            (fakes.NoMapping, "error", "returns a tuple"),
            (fakes.WrongShape, "fail", "has shape [2, 3, 6], not [2, 2, 6]"),
            (fakes.WrongType, "fail", "is of type float64, not f32"),
            (fakes.Lists, "fail", "is a list, not an array"),
            (fakes.SlightlyOff, "fail", "history) is -0.858822525, not -0.857964575 bit for bit"),
            (fakes.RefusesAll, "fail", "refuses a valid case"),
            (fakes.Shrugs, "unsupported", "everything: not written yet (https://example.invalid/1)"),
        ],
    )
    def test_every_lie_has_its_status_and_sentence(self, operation, fake, status, words):
        result = outcome(operation, fake())
        assert result.status == status
        assert words in result.reason
        assert "\n" not in result.reason

    def test_a_worst_element_is_named(self, operation):
        worst = outcome(operation, fakes.SlightlyOff()).worst
        assert (worst.output, worst.region) == ("block_index_keys", "history")
        assert worst.bound is None

    def test_an_error_keeps_the_end_of_its_trace(self, operation):
        assert "on fire" in outcome(operation, fakes.Raises()).detail


class TestBehaviour:
    def test_modified_inputs(self, operation):
        result = outcome(operation, fakes.ModifiesInputs())
        assert (result.status, result.clause) == ("fail", "PLG-2")
        assert "raw_index_keys" in result.reason

    def test_outputs_that_change_later(self, operation):
        result = outcome(operation, fakes.ReusesOutputs(), **STREAMING)
        assert (result.status, result.clause, str(result.where)) == ("fail", "PLG-2", "after the last call")

    def test_other_bits_the_second_time(self, operation):
        result = outcome(operation, fakes.Jittery(), past=(0, 0), dims={"N": 2, "L": 6, "Di": 6, "Dr": 4, "Bp": 0})
        assert (result.status, result.clause) == ("fail", "PLG-1")

    def test_a_failure_of_a_used_session_only_is_one_of_plg_3(self, operation):
        engine = Engine(operation, fakes.Forgetful())
        outcomes = [engine.run(case_of(id=f"t/{i}", seed=i)) for i in range(30)]
        failed = [o for o in outcomes if o.status == "fail"]
        assert failed
        assert {o.clause for o in failed} == {"PLG-3"}
        assert "passes on a fresh session, fails after t/" in failed[0].reason

    def test_poison_shows_who_reads_unused_rows(self, operation):
        assert outcome(operation, fakes.LeaksNaN(), poison="nan").status == "fail"
        assert outcome(operation, fakes.LeaksNaN(), poison="zero").status == "pass"


class TestSupport:
    def test_keys_only_streams_on_the_references_state(self, operation):
        assert outcome(operation, fakes.KeysOnly(), **STREAMING).status == "pass"

    def test_cases_about_an_output_that_is_not_returned(self, operation):
        result = outcome(operation, fakes.KeysOnly(), clauses=("STA-1",))
        assert (result.status, result.feature) == (
            "unsupported",
            "present_incomplete_raw_keys, present_incomplete_rope",
        )

    def test_types_and_features_that_are_not_declared(self, operation):
        assert outcome(operation, fakes.OnlyF32(), element_type="f16").feature == "f16"
        assert outcome(operation, fakes.OnlyF32(), disabled=("norm",)).feature == "norm"
        assert outcome(operation, fakes.OnlyF32(), disabled=("rope",)).status == "pass"


class TestRefusals:
    def test_the_due_refusal_passes(self, operation):
        assert outcome(operation, fakes.Honest(), **refusal()).status == "pass"

    def test_computing_instead_fails(self, operation):
        result = outcome(operation, fakes.NeverRefuses(), **refusal())
        assert (result.status, result.clause) == ("fail", "ERR-2")
        assert result.reason == "computes instead of refusing; a shape refusal of rope_sin is due at the call"

    def test_computing_what_need_not_be_refused_warns(self, operation):
        result = outcome(operation, fakes.NeverRefuses(), **refusal(level="recommended"))
        assert result.status == "quality-warning"

    def test_another_culprit_warns(self, operation):
        result = outcome(operation, fakes.RefusesAsShape(), **refusal())
        assert (result.status, result.reason) == ("quality-warning", "names key_length as the culprit, not rope_sin")

    def test_another_kind_warns(self, operation):
        due = Refusal(kind="type", phase="call", names=("rope_sin",))
        changed = refusal(refusal=due, change={"rope_sin": Change(type="other")})
        assert outcome(operation, fakes.Honest(), **changed).status == "pass"
        assert "as 'shape', not as 'type'" in outcome(operation, fakes.RefusesAsShape(), **changed).reason

    def test_an_exception_of_another_kind_is_an_error(self, operation):
        result = outcome(operation, fakes.Raises(), **refusal())
        assert (result.status, result.clause) == ("error", "ERR-2")

    @pytest.mark.parametrize("attributes", [{"key_block_size": 1}, {"key_block_size": -4}, {"epsilon": -1e-6}])
    def test_attributes(self, operation, attributes):
        case = {
            "attributes": {"key_block_size": 4, "epsilon": 1e-6, **attributes},
            "refusal": Refusal(kind="attribute", phase="prepare", names=tuple(attributes)),
            "clauses": ("ERR-1",),
        }
        assert outcome(operation, fakes.Honest(), **case).status == "pass"
        assert outcome(operation, fakes.NeverRefuses(), **case).status == "fail"


class TestAudits:
    AUDITS = ("interleave", "shapes", "sessions", "concurrent")

    def test_the_reference_passes_all(self, operation):
        assert outcome(operation, fakes.Honest(), audits=self.AUDITS, clauses=("PLG-3",)).reason == ""

    @pytest.mark.parametrize("past", [(0, 0), (2, 5), (9, 1)])
    def test_zero_tokens_and_sequences(self, operation, past):
        dims = {"N": 2, "L": 0, "Di": 6, "Dr": 4, "Bp": max(p // 4 for p in past)}
        assert outcome(operation, fakes.Honest(), dims=dims, past=past, audits=self.AUDITS).reason == ""
        dims = {"N": 0, "L": 3, "Di": 6, "Dr": 4, "Bp": 0}
        assert outcome(operation, fakes.Honest(), dims=dims, past=(), pad=(), audits=self.AUDITS).reason == ""


def test_values_of_the_case_take_the_place_of_the_references(operation):
    right = {"block_index_keys": [[[1.5, 3.5]]], "present_incomplete_raw_keys": [[[None, None]]]}
    case = {
        "attributes": {"key_block_size": 2, "epsilon": 0.0}, "dims": {"N": 1, "L": 2, "Di": 2, "Dr": 2, "Bp": 0},
        "past": (0,), "pad": (0,), "disabled": ("norm", "rope"), "data": {"raw_index_keys": [[[1, 3], [2, 4]]]},
    }  # fmt: skip
    assert outcome(operation, fakes.Honest(), **case, values=right).reason == ""
    wrong = {**right, "block_index_keys": [[[1.5, 3.25]]]}
    assert "is 3.5, not 3.25" in outcome(operation, fakes.Honest(), **case, values=wrong).reason


def test_spans_of_a_partition():
    assert list(spans((3, 0, 2))) == [(0, 3), (3, 3), (3, 5)]
