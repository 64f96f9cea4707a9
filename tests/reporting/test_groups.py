"""Failures grouped by cause, and what the end of a run says of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from logs import WORST, made, outcome, part, passing

from conformance.record.log import ResultRecord
from conformance.reporting import table
from conformance.reporting.groups import failures, groups, overview


@pytest.fixture(scope="module")
def library():
    from conformance.library.reading import load_library

    return load_library()


@pytest.fixture(scope="module")
def few(library):
    return part(library)


def failing(library, wrong, **more):
    """A log in which these cases fail, by id, each with what is given for it; all others pass."""
    return made(
        library,
        [outcome(case, "fail", **{"clause": "ROT-1", **wrong[case.id]}) if case.id in wrong else outcome(case)
         for case in library.cases],
        **more,
    )  # fmt: skip


def with_suspects(log, suspects):
    results = {name: ResultRecord(r.outcome, suspects.get(name, "")) for name, r in log.results.items()}
    return msgspec.structs.replace(log, results=results)


def test_failures_of_one_cause_are_one_group_headed_by_the_simplest(few):
    ids = [case.id for case in few.cases if not case.refusal][:5]
    log = failing(few, {name: {} for name in ids})
    (group,) = groups(log)
    sizes = [table.size(log, o) for o in group.outcomes]
    assert len(group.outcomes) == 5
    assert sizes == sorted(sizes)
    text = failures(log)
    assert text.startswith("fail, 5 cases: ROT-1  block_index_keys (rotated)\n")
    assert text.count("qsa-conformance run -b mine --case") == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"clause": "NRM-1"},
        {"worst": msgspec.structs.replace(WORST, output="present_incomplete_rope")},
        {"worst": msgspec.structs.replace(WORST, region="history")},
        {"worst": None, "reason": "has another shape"},
    ],
)
def test_another_clause_output_region_or_kind_is_another_cause(few, changes):
    a, b = [case.id for case in few.cases if not case.refusal][:2]
    assert len(groups(failing(few, {a: {}, b: changes}))) == 2


def test_numbers_in_what_was_raised_do_not_make_another_cause(few):
    a, b, c = [case.id for case in few.cases if not case.refusal][:3]
    error = {"status": "error", "worst": None}
    wrong = {a: error | {"reason": "raises E: at 17"}, b: error | {"reason": "raises E: at 4711", "clause": "NRM-1"},
             c: error | {"reason": "raises F: at 17"}}  # fmt: skip
    log = made(few, [outcome(x, **({"status": "pass"} | wrong.get(x.id, {}))) for x in few.cases])
    assert sorted(len(group.outcomes) for group in groups(log)) == [1, 2]


def test_arithmetic_stands_before_refusals_and_warnings_and_what_is_expected_last(library):
    refusals = [case for case in library.cases if case.refusal and case.level == "required"][:3]
    others = [case for case in library.cases if not case.refusal][:2]
    few = replace(library, cases=(*refusals, *others))
    text = "computes instead of refusing; a shape refusal of {} is due at the call"
    wrong = {case.id: {"worst": None, "clause": "ERR-2", "reason": text.format(i)} for i, case in enumerate(refusals)}
    log = failing(few, wrong | {others[0].id: {}})
    assert [(g.refusal, len(g.outcomes)) for g in groups(log)] == [(False, 1), (True, 3)]
    warned = made(few, [outcome(c, "quality-warning" if c is others[1] else "fail") for c in few.cases])
    assert [g.status for g in groups(warned)][-1] == "quality-warning"


def test_failures_that_resemble_different_mistakes_are_different_groups(few):
    ids = [case.id for case in few.cases if not case.refusal][:5]
    log = failing(few, {name: {} for name in ids})
    found = groups(with_suspects(log, {ids[0]: "one", ids[1]: "one", ids[2]: "two"}))
    assert {(g.suspect, g.resembling, len(g.outcomes)) for g in found} == {("one", 2, 4), ("two", 1, 1)}
    assert "    one (2 of 5 cases)" in failures(with_suspects(log, {ids[0]: "one", ids[1]: "one"}))


def test_expected_failures_are_one_line(few):
    from conformance.record.expectations import Entry, Expectations, Signature

    ids = [case.id for case in few.cases if not case.refusal][:5]
    signature = Signature(clause="ROT-1", output=WORST.output, region=WORST.region)
    entries = tuple(Entry(case=i, signature=signature, reason="known", url="https://x.org/1") for i in ids)
    known = Expectations("known.yaml", entries, tuple((i,) for i in ids), "", dict(zip(ids, entries, strict=True)))
    log = failing(few, {name: {} for name in ids}, expectations=known)
    assert failures(log) == "expected: known (5 failures)"


def test_right_arithmetic_without_refusals_is_said_at_once(library, operation):
    text = "computes instead of refusing; a shape refusal of x is due at the call"
    log = made(library, [outcome(c, "fail", worst=None, reason=text) if c.refusal else outcome(c)
                         for c in library.cases])  # fmt: skip
    number = sum(case.refusal is not None for case in library.cases)
    said = overview(log, operation)
    assert said.endswith(f"all pass; Refusals: {number} of {number} fail")
    assert "Mean" in said
    assert "Rotation" in said
    assert said in table.report([log], operation)


def test_the_end_of_a_report_fits_a_screen_whatever_fails(library, operation):
    regions = [msgspec.structs.replace(WORST, region=f"region {i}") for i in range(60)]
    outcomes = [
        outcome(c, "fail", clause=f"NRM-{i % 7}", worst=regions[i % 60], stderr="said\n" * 50)
        for i, c in enumerate(library.cases)
    ]
    for logs in ([made(library, outcomes)], [made(library, outcomes), passing(library, connect="good")]):
        lines = table.report(logs, operation, next_command=True).splitlines()
        start = next(i for i, line in enumerate(lines) if "mine: NOT CONFORMANT" in line)
        assert len(lines) - start <= 42
        assert lines[-1].startswith("next: qsa-conformance run -b mine --case ")


def test_partial_is_explained(few, operation):
    lone = msgspec.structs.replace(few.cases[0], clauses=("OFF-1",))
    rest = [msgspec.structs.replace(case, clauses=("BLK-1",)) for case in few.cases[1:]]
    library = replace(few, cases=(lone, *rest))
    text = table.report([made(library, [outcome(lone, "unsupported"), *map(outcome, rest)])], operation)
    assert "mine: PARTIAL, 11 of 12 cases (92 %) judged" in text
    assert "unsupported, 1 case: f16: mine takes f32 only" in text
    assert "nothing judged for 1 clause: OFF-1" in text
