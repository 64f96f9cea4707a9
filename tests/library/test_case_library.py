"""Refusals in the case library: every way to break a rule is tried, and a missing one is noticed."""

from __future__ import annotations

import pytest

from conformance.library.lint import unbroken
from conformance.library.reading import Library, load_library


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


def test_every_way_to_break_a_rule_is_tried(library: Library) -> None:
    assert unbroken(library) == []


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        ("refusals/block-size[r=-4,", "block-size: key_block_size is -4"),
        ("refusals/rows-of-the-state[rows=two-more,", "rows-raw-state: past_incomplete_raw_keys has shape"),
        ("refusals/element-type[port=cos-i32]", "type-cos: rope_cos has type i32"),
        ("refusals/odd-width", "rope-odd: rope_cos has shape"),
        ("refusals/history-too-short[rows=one-less", "past-too-short: past_block_index_keys has shape"),
    ],
)
def test_a_rule_that_is_not_tried_is_named(library: Library, case: str, rule: str) -> None:
    rest = tuple(one for one in library.cases if not one.id.startswith(case))
    assert len(rest) < len(library.cases)
    found = unbroken(Library(library.operation, rest, library.written))
    assert len(found) == 1
    assert found[0].startswith(rule)
