"""Rules of the case library beyond its syntax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.errors import nearest
from conformance.judging.audits import AUDITS
from conformance.judging.judge import judge
from conformance.judging.literal import with_literal
from conformance.library.reading import Library
from conformance.spec.broken import due
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation, RefusalRule
from conformance.spec.types import is_integer
from reference.expected import Expected
from reference.parts import elements

Array = np.ndarray[Any, np.dtype[Any]]

SENTENCE = 160  # characters a sentence may have


def uncovered(library: Library) -> list[str]:
    """Required clauses that no case cites."""
    cited = {clause for case in library.cases for clause in case.clauses}
    return [clause.id for clause in library.operation.clauses if clause.level == "required" and clause.id not in cited]


def unbroken(library: Library) -> list[str]:
    """Ways to break a rule of refusal, as rule and what is wrong, that no case tries."""
    operation = library.operation
    refused = [case for case in library.cases if case.refusal]
    spoilt = [(case, _spoilt(case, operation), Geometry(case, operation).symbols) for case in refused]
    left = []
    for rule in operation.refusals:
        apt = [one for one in spoilt if one[0].refusal == due(rule) and rule.clause in one[0].clauses]
        for way in _ways(rule):
            tries = (all(_sentence(*wrong, symbols) in done for wrong in way) for _, done, symbols in apt)
            if not any(tries):
                left.append(f"{rule.id}: " + ", ".join(_sentence(*wrong, None) for wrong in way))
    return left


Wrong = tuple[str, str, Any]  # attribute or port; what is wrong with it; how


def _ways(rule: RefusalRule) -> list[list[Wrong]]:
    """The ways to break a rule; what is wrong in one way is wrong at the same time."""
    ways: list[list[Wrong]] = [[(name, "is", value)] for name, values in rule.attributes.items() for value in values]
    ways += [[(port, "has type", kind)] for port, kinds in rule.types.items() for kind in kinds]
    ways += [[(port, "holds", value)] for port, values in rule.values.items() for value in values]
    ways += [[(port, "is", "left out") for port in rule.absent]] if rule.absent else []
    for shapes in zip(*rule.shapes.values(), strict=True):
        ways.append([(port, "has shape", shape) for port, shape in zip(rule.shapes, shapes, strict=True)])
    return ways


def _sentence(name: str, wrong: str, how: Any, symbols: Mapping[str, Any] | None) -> str:
    """What is wrong as text, with expressions worked out when there are symbols to do it with."""
    if symbols is not None and wrong in ("has shape", "holds"):
        how = [evaluate(one, symbols) for one in how] if isinstance(how, list) else evaluate(how, symbols)
    if symbols is not None and wrong == "is" and how != "left out":
        how = evaluate(how, symbols)
    return f"{name} {wrong} {how}"


def _spoilt(case: Case, operation: Operation) -> set[str]:
    """What is wrong in a case, in the words of `_sentence`."""
    found = {_sentence(name, "is", value, None) for name, value in case.attributes.items()}
    for port, change in case.change.items():
        if change.shape is not None:
            found.add(_sentence(port, "has shape", list(change.shape), None))
        if change.type:
            found.add(_sentence(port, "has type", change.type, None))
        if change.values is not None and port == operation.lengths:
            found |= {_sentence(port, "holds", value, None) for value in change.values}
        found |= {_sentence(port, "holds", one.value, None) for one in change.inject}
        if change.absent:
            found.add(_sentence(port, "is", "left out", None))
    return found


def problems(library: Library, *, whole: bool = True) -> list[str]:
    """Everything that breaks a rule, with its place: sentences, levels, names, shapes, twins, coverage, refusals.

    Coverage and refusals are asked for of a `whole` library only.
    """
    found = [f"{case.place}: {case.id}: {problem}" for case in library.cases for problem in _of_case(case, library)]
    seen: dict[str, Case] = {}
    for case in library.cases:
        twin = seen.setdefault(case.digest, case)
        if twin is not case:
            found.append(f"{case.place}: {case.id}: is the same as {twin.id}")
    if whole:
        found += [f"clause {clause}: no case cites it" for clause in uncovered(library)]
        found += [f"refusal {way}: no case tries it" for way in unbroken(library)]
    return sorted(set(found), key=found.index)


def _of_case(case: Case, library: Library) -> list[str]:
    operation = library.operation
    found = []
    if not case.says.endswith(".") or "\n" in case.says or len(case.says) > SENTENCE:
        found.append(f"'says' must be one sentence of at most {SENTENCE} characters that ends with a full stop")
    if "should" in case.says.lower().split():
        found.append("'says' must state what happens, without 'should'")
    if not case.clauses:
        found.append("it cites no clause")
    levels = {operation.clause[clause].level for clause in case.clauses}
    if case.level == "required" and levels and "required" not in levels:
        found.append("a required case must cite a required clause")
    for audit in case.audits:
        if audit not in AUDITS:
            found.append(f"unknown audit '{audit}'{nearest(audit, list(AUDITS))}; known: {', '.join(AUDITS)}")
    try:
        inputs = inputs_of(case, operation)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        return [*found, str(error)]
    if case.values:
        found += _literals(case, library, inputs)
    return found


def _literals(case: Case, library: Library, inputs: dict[str, Array]) -> list[str]:
    """Values written in a case must have the right shape, be null exactly where nothing is specified, and be right."""
    found = []
    expected = library.operation.oracle(case.attributes).expect(inputs)
    for name, literal in case.values.items():
        array = np.array(literal, dtype=object)
        one = expected[name]
        if array.shape != one.shape and not (array.size == 0 and one.shape and 0 in one.shape):
            found.append(f"{name} has shape {list(array.shape)} in the case, {list(one.shape)} by the contract")
            continue
        given = np.array([v is not None for v in array.flat], dtype=bool).reshape(one.shape)
        judged = _judged(one)
        if (given & ~one.defined()).any():
            found.append(f"{name} has values where the contract specifies nothing; write null there")
        if (judged & ~given).any():
            found.append(f"{name} has null where the contract specifies a value")
        answer = with_literal(literal, one).fill(0 if is_integer(one.dtype) else np.nan)
        verdict = judge(name, answer, one)
        if verdict.status == "fail":
            found.append(f"the reference disagrees with the written value: {verdict.reason}")
    return found


def _judged(expected: Expected) -> Array:
    """Mask of the elements that are compared."""
    mask = np.zeros(expected.shape, dtype=bool)
    for part in expected.parts:
        limits = elements(part)
        mask[part.index] = True if limits is None else np.isfinite(limits[1])
    return mask
