"""Outcomes as data: places and kinds, those of version 0.1.0 included, and a failure headed by what broke."""

from __future__ import annotations

import fakes
import msgspec
import numpy as np
import pytest
from test_reference import case_of

from conformance.backends.protocol import Rejected
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.spec.case import Refusal

PLACES = [
    (Where("prepare"), "prepare"),
    (Where("single"), "single call"),
    (Where("stream", stream=0, call=3, label="3+1+0"), "stream 3+1+0, call 3"),
    (Where("stream", stream=0, label="40 calls"), "stream 40 calls, end"),
    (Where("audit", ("shapes",), steps=("L=1",)), "audit shapes, L=1"),
    (Where("relation", ("split",), label="3+2", steps=("5 tokens",)), "relation split 3+2, 5 tokens"),
    (Where("together", ("one-length", "length-types")), "relations one-length, length-types together"),
    (Where("after"), "after the last call"),
]


@pytest.mark.parametrize(("place", "text"), PLACES)
def test_places_are_written_in_the_words_of_earlier_logs_and_read_from_them(place, text):
    assert str(place) == text
    old = msgspec.convert({"case": "a/b", "digest": "", "status": "fail", "where": text}, Outcome)
    assert (old.place.call_of, str(old.place)) == (place.call_of, text)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        ("fail", "keys[0, 0] (rotated) is nan, not 1", Kind.DIFFERS),
        ("error", "raises ValueError: bad", Kind.RAISED),
        ("fail", "keys has shape [1], not [2]", Kind.SHAPE),
        ("fail", "refuses a valid case (shape at call: keys)", Kind.REFUSES),
        ("fail", "the call modifies its input keys", Kind.MODIFIED),
        ("fail", "passes on a fresh session, fails after a/b on the same one: x", Kind.ALONE),
    ],
)
def test_the_kind_of_an_earlier_outcome_follows_from_its_sentence(status, reason, kind):
    assert Outcome(case="a/b", digest="", status=status, reason=reason).sort is kind


def test_an_outcome_survives_json():
    outcome = Outcome(case="a/b", digest="x", status="fail", where=PLACES[2][0], kind=Kind.VALUE, after=("c/d",))
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome


def test_a_failure_is_headed_by_the_clause_that_broke(operation):
    class Off(fakes.Honest):
        class session(fakes.Honest.session):  # noqa: N801
            def answer(self, inputs):
                outputs = dict(self.inner.run(inputs))
                outputs["present_incomplete_raw_keys"] = outputs["present_incomplete_raw_keys"] + np.float32(1)
                return outputs

    outcome = Engine(operation, Off()).run(case_of(clauses=("LEN-1",)))
    assert (outcome.clause, outcome.kind) == ("STA-1", Kind.VALUE)


def test_what_comes_from_poison_is_said_to(operation):
    class ReadsPoison(fakes.Honest):
        class session(fakes.Honest.session):  # noqa: N801
            def answer(self, inputs):
                outputs = dict(self.inner.run(inputs))
                keys = outputs["block_index_keys"].copy()
                keys += inputs["past_block_index_keys"][0, -1, 0]  # a row of spare history
                outputs["block_index_keys"] = keys
                return outputs

    case = case_of(poison="nan")
    case = msgspec.structs.replace(case, dims={**case.dims, "Bp": case.dims["Bp"] + 2})
    outcome = Engine(operation, ReadsPoison()).run(case)
    assert "it comes from poison in past_block_index_keys[0, " in outcome.reason
    assert outcome.about.startswith("past_block_index_keys[0, ")


def test_a_refusal_that_is_due_at_preparation_must_be_made_there(operation):
    class Late(fakes.Honest):
        def prepare(self, config):
            if config.attributes["epsilon"] >= 0:
                return super().prepare(config)
            return Refusing()

    class Refusing:
        def run(self, inputs):
            raise Rejected("attribute", "call", ("epsilon",))

        def close(self):
            return

    due = Refusal(kind="attribute", phase="prepare", names=("epsilon",))
    case = case_of(clauses=("ERR-1",), refusal=due)
    case = msgspec.structs.replace(case, attributes={**case.attributes, "epsilon": -1.0})
    assert Engine(operation, fakes.Honest()).run(case).status == "pass"
    outcome = Engine(operation, Late()).run(case)
    assert (outcome.status, outcome.clause, outcome.kind) == ("fail", "ERR-1", Kind.LATE)
