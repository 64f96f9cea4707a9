"""What may be called conformant, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from logs import interrupted, made, outcome, part, passing

from conformance.record.log import read_log
from conformance.record.verdict import standing


@pytest.fixture(scope="module")
def few():
    from conformance.library.reading import load_library

    return part(load_library())


def test_all_of_it_is_conformant(few):
    found = standing(passing(few))
    assert (found.verdict, found.share, found.left_out) == ("CONFORMANT", "12 of 12 cases (100 %)", ())
    assert found.unjudged == ()


def test_what_is_unsupported_makes_it_partial_and_is_told_with_the_clauses(few):
    case, *others = few.cases
    lone = msgspec.structs.replace(case, clauses=("OFF-1",))
    others = [msgspec.structs.replace(c, clauses=("BLK-1",)) for c in others]
    library = replace(few, cases=(lone, *others))
    found = standing(made(library, [outcome(lone, "unsupported"), *map(outcome, others)]))
    assert found.verdict == "PARTIAL"
    assert found.share == "11 of 12 cases (92 %)"
    assert found.left_out == ("unsupported, 1 case: f16: mine takes f32 only",)
    assert found.unjudged == ("OFF-1",)


def test_next_to_nothing_is_never_conformant(few):
    case, *others = few.cases
    found = standing(made(few, [outcome(case), *(outcome(c, "unsupported") for c in others)]))
    assert (found.verdict, found.judged) == ("PARTIAL", 1)
    nothing = standing(made(few, [outcome(c, "unsupported") for c in few.cases]))
    assert (nothing.verdict, nothing.judged) == ("NOT CONFORMANT", 0)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("outputs", ("block_index_keys",), "undeclared outputs: present_incomplete_raw_keys, present_incomplete_rope"),
        ("element_types", ("f32", "bf16"), "undeclared element type: f16"),
        ("features", ("rope", "left_padding"), "undeclared feature: norm"),
    ],
)
def test_what_is_not_declared_makes_it_partial_though_all_cases_pass(few, field, value, says, tmp_path):
    log = passing(few, tmp_path / "a.jsonl")
    head = msgspec.structs.replace(log.header, backend=msgspec.structs.replace(log.header.backend, **{field: value}))
    found = standing(msgspec.structs.replace(log, header=head))
    assert (found.verdict, found.left_out) == ("PARTIAL", (says,))


def test_a_clause_of_an_output_that_is_not_returned_is_not_judged(few):
    case = msgspec.structs.replace(few.cases[0], clauses=("BLK-1", "STA-1"))
    log = passing(replace(few, cases=(case,)))
    head = msgspec.structs.replace(
        log.header, backend=msgspec.structs.replace(log.header.backend, outputs=("block_index_keys",))
    )
    assert standing(msgspec.structs.replace(log, header=head)).unjudged == ("STA-1",)


def test_a_library_of_ones_own_is_not_the_contract(few):
    log = passing(few)
    head = msgspec.structs.replace(log.header, own="mine")
    assert standing(msgspec.structs.replace(log, header=head)).verdict == "INCOMPLETE"


def test_an_interrupted_run_is_incomplete_whatever_its_header_says(few):
    assert standing(interrupted(passing(few), 5)).verdict == "INCOMPLETE"


def test_the_log_says_what_was_left_out(few, tmp_path):
    case, *others = few.cases
    made(few, [outcome(case, "unsupported"), *map(outcome, others)], tmp_path / "a.jsonl")
    footer = read_log(tmp_path / "a.jsonl").footer
    assert (footer.verdict, footer.judged) == ("PARTIAL", 11)
    assert footer.left_out == ("unsupported, 1 case: f16: mine takes f32 only",)
