"""Which cases are run: expressions over ids, clauses, levels, quick runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from conformance.errors import UsageError, nearest
from conformance.library.reading import Library
from conformance.spec.case import Case

QUICK = 120  # cases of a quick run
Test = Callable[[str], bool]
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def matcher(expression: str) -> Test:
    """A test for ids, as pytest's -k: words that occur in the id, with `and`, `or`, `not` and parentheses.

    Raises `UsageError` for an expression that is none.
    """
    tokens = _TOKEN.findall(expression)
    position = 0

    def fail(problem: str) -> UsageError:
        return UsageError(f"-k '{expression}': {problem}; write words with and, or, not and parentheses")

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        position += 1
        return str(tokens[position - 1])

    def either() -> Test:
        left = both()
        while peek() == "or":
            take()
            left = _any(left, both())
        return left

    def both() -> Test:
        left = one()
        while peek() == "and":
            take()
            left = _all(left, one())
        return left

    def one() -> Test:
        token = peek()
        if not token:
            raise fail("it ends too early")
        if token in ("and", "or", ")"):
            raise fail(f"'{token}' is not expected there")
        take()
        if token == "not":
            inner = one()
            return lambda text: not inner(text)
        if token == "(":
            inside = either()
            if peek() != ")":
                raise fail("a parenthesis is not closed")
            take()
            return inside
        word = token.lower()
        return lambda text: word in text.lower()

    if not tokens:
        raise fail("it is empty")
    test = either()
    if position < len(tokens):
        raise fail(f"'{peek()}' is not expected there")
    return test


def _any(a: Test, b: Test) -> Test:
    return lambda text: a(text) or b(text)


def _all(a: Test, b: Test) -> Test:
    return lambda text: a(text) and b(text)


def select(
    library: Library,
    *,
    expression: str = "",
    clauses: Sequence[str] = (),
    level: str = "",
    ids: Sequence[str] = (),
    quick: bool = False,
) -> tuple[Case, ...]:
    """The chosen cases, in the library's order. Raises `UsageError` for unknown names and when nothing is left."""
    known = {**library.operation.clause, **library.operation.groups}
    for clause in clauses:
        if clause not in known:
            raise UsageError(f"no clause '{clause}'{nearest(clause, list(known))}")
    for name in ids:
        library.find(name)
    test = matcher(expression) if expression else None
    wanted = set(clauses)
    chosen = [
        case
        for case in library.cases
        if (not test or test(case.id))
        and (not ids or case.id in ids)
        and (not level or case.level == level)
        and (not wanted or any(c in wanted or c.partition("-")[0] in wanted for c in case.clauses))
    ]
    if not chosen:
        raise UsageError("no case is left by these filters; see: qsa-conformance cases list")
    return tuple(_quick(chosen) if quick else chosen)


def _quick(cases: list[Case]) -> list[Case]:
    """A spread over the library: for every clause a case of its own, then evenly from the small ones."""
    small = [case for case in cases if _size(case) < 1e5]
    seen: set[str] = set()
    first = []
    for case in small:
        if not seen.issuperset(case.clauses):
            seen.update(case.clauses)
            first.append(case)
    rest = [case for case in small if case not in first]
    step = max(1, len(rest) // max(1, QUICK - len(first)))
    chosen = {case.id for case in [*first, *rest[::step]]}
    return [case for case in cases if case.id in chosen]


def _size(case: Case) -> int:
    size = 1
    for value in case.dims.values():
        size *= max(value, 1)
    return size
