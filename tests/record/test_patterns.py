"""Expectations written as patterns, not one entry a case."""

from __future__ import annotations

import pytest

from conformance.record.expectations import MOST, Entry, Signature, as_patterns, matching


def entries(names, clause="BLK-1", reason="known"):
    return [Entry(case=n, signature=Signature(clause=clause), reason=reason, url="https://x.org/1") for n in names]


def grid(name, first, second):
    return [f"{name}[a={i},b={j}]" for i in range(first) for j in range(second)]


@pytest.mark.parametrize(
    ("failing", "others", "want"),
    [
        ([*grid("t/x", 2, 2), "t/y"], ["u/y"], ["t/*"]),
        (grid("t/x", 3, 4), ["t/z"], ["t/x[*]"]),
        (grid("t/x", 3, 4)[:4], grid("t/x", 3, 4)[4:], ["t/x[a=0,*]"]),
        (["t/x[a=0,b=1]", "t/x[a=2,b=1]"], ["t/x[a=1,b=0]"], ["t/x[*,b=1]"]),
        (["t/x[a=0,b=1]"], ["t/x[a=1,b=1]"], ["t/x[a=0,b=1]"]),
    ],
)
def test_a_pattern_stands_for_exactly_what_fails(failing, others, want):
    assert [e.case for e in as_patterns(entries(failing), [*failing, *others])] == want


def test_a_pattern_stands_for_no_more_cases_than_an_entry_may():
    failing = grid("t/x", 13, 14)
    found = as_patterns(entries(failing), failing)
    assert len(found) <= 14
    stood = [name for entry in found for name in matching(entry.case, failing)]
    assert sorted(stood) == sorted(failing)
    assert all(len(matching(entry.case, failing)) <= MOST for entry in found)


def test_other_signatures_and_reasons_stay_apart():
    failing = grid("t/x", 2, 2)
    some = entries(failing[:2]) + entries(failing[2:], clause="ROT-1")
    assert len(as_patterns(some, failing)) == 2
