"""The budget of an expression: nothing written in a file can hang or exhaust the process."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.spec.expression import ExpressionError, evaluate, whole


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9", "10**10**10", "2**-9**99", "(" * 50_000 + "1" + ")" * 50_000, "-" * 50_000 + "1",
        "1+" * 30_000 + "1",
        "1" * 5_000, "(-8)**0.5", "1e400 - 1e400 // 0", "1j", "2j**2", "max(1)", "max(1, 2, 3)", "max", "max + 1",
        "_power(9, 9)", "__import__", "top(1)", "r if r else 1", "'a' * 9", "r @ r", "r << 99",
        "9223372036854775807 + 1",
        "r.__class__", "[1][0]", "(r := 1)", "1 // (r - 4)", "r % 0", "\0", "(lambda: 1)()", "True", "min(1, x=2)",
    ],
)  # fmt: skip
def test_what_is_no_expression_or_has_no_value_is_one_sentence(text):
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, {"r": 4})
    assert len(str(caught.value)) < 1500 and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0.5", "r / 2", "1e30", "top", "1.0"])
def test_a_whole_number_is_asked_for(text):
    with pytest.raises(ExpressionError):
        whole(text, {"r": 4})


def test_values_at_the_limits():
    assert evaluate("2**62", {}) == 2**62
    assert evaluate("(-2)**3", {}) == -8
    assert whole("r == 4", {"r": 4}) == 1
    assert evaluate("~(r == 4)", {"r": 4}) is False
    assert evaluate("where(r > 3, 1, 2)", {"r": 4}) == 1
    assert evaluate("where(a > 1, a, 0)", {"a": np.arange(4)}).tolist() == [0, 0, 2, 3]


def test_among_looks_at_the_first_entries_of_every_row_of_a_sequence():
    entries = np.array([[[1, 3, 7], [2, 0, 0]], [[0, 9, 2], [-1, 5, 1]]])
    found = evaluate(
        "among(x, e, c)", {"x": np.array([[0, 1, 2, 3, -1]] * 2), "e": entries, "c": np.array([[2, 1], [1, 2]])}
    )
    assert found.tolist() == [[False, True, True, True, False], [True, False, False, False, False]]
