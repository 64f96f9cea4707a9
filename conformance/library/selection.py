"""Which cases are run: expressions over ids, clauses, levels, quick runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from conformance.errors import UsageError, nearest
from conformance.library.reading import Library
from conformance.spec.case import Case
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation

QUICK = 120  # cases of a quick run
SMALL = 64_000  # bytes up to which a case is cheap
DEEPEST = 50  # parentheses and nots within each other
SHOWN = 80  # characters of an expression in an error
Test = Callable[[str], bool]
_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def matcher(expression: str) -> Test:
    """A test for ids, like pytest's -k: words that occur in the id, with `and`, `or`, `not` and parentheses.

    Raises `UsageError` for an expression that is none.
    """
    tokens = _TOKEN.findall(expression)
    position = depth = 0

    def fail(problem: str) -> UsageError:
        shown = expression if len(expression) <= SHOWN else expression[:SHOWN] + "..."
        return UsageError(f"-k '{shown}': {problem}; write words with and, or, not and parentheses")

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        position += 1
        return str(tokens[position - 1])

    def either() -> Test:
        parts = [both()]
        while peek() == "or":
            take()
            parts.append(both())
        return parts[0] if len(parts) == 1 else lambda text: any(test(text) for test in parts)

    def both() -> Test:
        parts = [one()]
        while peek() == "and":
            take()
            parts.append(one())
        return parts[0] if len(parts) == 1 else lambda text: all(test(text) for test in parts)

    def one() -> Test:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise fail(f"it is nested more than {DEEPEST} deep")
        test = inner_one()
        depth -= 1
        return test

    def inner_one() -> Test:
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


def select(
    library: Library,
    *,
    expression: str = "",
    clauses: Sequence[str] = (),
    level: str = "",
    ids: Sequence[str] = (),
    quick: bool = False,
) -> tuple[Case, ...]:
    """The chosen cases: in the library's order, or in that of the `ids`, as some failures need others to come before.

    Raises `UsageError` for unknown names and when nothing is left.
    """
    known = {**library.operation.clause, **library.operation.groups}
    for clause in clauses:
        if clause not in known:
            raise UsageError(f"no clause '{clause}'{nearest(clause, list(known))}")
    order = {case_id: number for number, name in enumerate(ids) for case_id in named_by(library, name)}
    test = matcher(expression) if expression else None
    wanted = set(clauses)
    chosen = [
        case
        for case in library.cases
        if (not test or test(case.id))
        and (not ids or case.id in order)
        and (not level or case.level == level)
        and (not wanted or any(c in wanted or c.partition("-")[0] in wanted for c in case.clauses))
    ]
    chosen.sort(key=lambda case: order.get(case.id, 0))
    if not chosen:
        raise UsageError("no case is left by these filters; see: qsa-conformance cases list")
    return tuple(_quick(chosen, library.operation) if quick else chosen)


def named_by(library: Library, name: str) -> list[str]:
    """The ids that a name stands for: a case, all cases that were written as one, or a topic. Raises `UsageError`."""
    found = [case.id for case in library.cases if case.id == name]
    found = found or [case.id for case in library.cases if case.id.startswith((f"{name}[", f"{name.rstrip('/')}/"))]
    return found or [library.find(name).id]


def _quick(cases: list[Case], operation: Operation) -> list[Case]:
    """A spread over the library: for every clause a case of its own, then evenly from the small ones."""
    small = [case for case in cases if size(case, operation) <= SMALL]
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


def size(case: Case, operation: Operation) -> int:
    """Bytes of the inputs and outputs of a case's single call."""
    return Geometry(case, operation).bytes
