"""The readings of the contract that an implementation follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from conformance.backends.protocol import Backend, BackendInfo
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind
from conformance.library.reading import Library
from conformance.library.selection import SMALL, size
from conformance.spec.broken import spoilt, ways
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation, Reading
from reference.expected import Expected
from reference.parts import elements

TELLING = 12  # cases by which a reading is told from its alternatives


def small_cases(library: Library, info: BackendInfo | None = None) -> list[Case]:
    """Small cases, spread evenly over the topics of the library."""
    topics: dict[str, list[Case]] = {}
    for case in library.cases:
        if size(case, library.operation) <= SMALL and (info is None or case.element_type in info.element_types):
            topics.setdefault(case.topic, []).append(case)
    order: list[Case] = []
    for i in range(max(map(len, topics.values()), default=0)):
        order += [cases[i] for cases in topics.values() if i < len(cases)]
    return order


def followed_readings(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case]
) -> dict[str, str]:
    """For every switchable reading the choice that the backend follows, "" when no case could tell.

    It is the choice under which it passes most of the telling cases: those in which the reference's answer is another
    one under an alternative. The default is preferred, but for an alternative that asks for more and is met as well.
    """
    return {reading.name: _followed(operation, backend, info, cases, reading) for reading in operation.readings}


def _followed(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case], reading: Reading
) -> str:
    if reading.by == "declaration":
        everything = {output.name for output in operation.outputs} <= set(info.outputs)
        return reading.default if everything else next(iter(reading.alternatives))
    if set(reading.without.values()) & operation.features.keys():
        return _followed_refusal(operation, backend, info, cases, reading)
    if reading.without:
        return _followed_leniency(operation, backend, info, cases, reading)
    choices = [reading.default, *reading.alternatives]
    telling = list(islice((case for case in cases if told_apart(operation, case, reading.name, choices)), TELLING))
    scores = dict.fromkeys(choices, 0)
    for choice in choices:
        engine = Engine(operation, backend, {} if choice == reading.default else {reading.name: choice}, info)
        try:
            scores[choice] = sum(engine.run(case).status in ("pass", "quality-warning") for case in telling)
        finally:
            engine.close()
    best = max(scores.values())
    if not best:
        return ""
    at_best = [choice for choice in choices if scores[choice] == best]
    return next((choice for choice in at_best if choice in reading.narrower), at_best[0])


def _followed_leniency(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case], reading: Reading
) -> str:
    """A reading that computes what the default refuses: break the rules of the attribute or port."""
    choice, name = next(iter(reading.without.items()))
    valid = [case for case in cases if not case.refusal][:TELLING]
    rules = [rule for rule in operation.refusals if name in rule.names]
    broken = [spoilt(case, operation, rule, way) for case in valid for rule in rules for way in range(ways(rule))]
    engine = Engine(operation, backend, info=info)
    try:
        outcomes = [engine.run(case) for case in broken if case]
    finally:
        engine.close()
    if any(outcome.kind is Kind.COMPUTES for outcome in outcomes):
        return choice
    return reading.default if any(outcome.status in ("pass", "quality-warning") for outcome in outcomes) else ""


def _followed_refusal(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case], reading: Reading
) -> str:
    """A reading that refuses what the default computes: ask for a case that needs the feature."""
    choice, feature = next(iter(reading.without.items()))
    if feature not in info.features:
        return choice
    condition = operation.features[feature].when
    engine = Engine(operation, backend, info=info)
    try:
        for case in cases:
            if not case.refusal and any(evaluate(condition, row) for row in engine.rows(case)):
                outcome = engine.run(case)
                if outcome.status in ("pass", "quality-warning"):
                    return reading.default
                if outcome.kind is Kind.REFUSES:
                    return choice
    finally:
        engine.close()
    return ""


def told_apart(operation: Operation, case: Case, name: str, choices: Sequence[str]) -> bool:
    """Whether the reference answers the single call of a case in another way under one of the choices."""
    if case.refusal or case.values or case.change:
        return False
    answers = []
    for choice in choices:
        readings = {name: choice}
        under = operation.under(readings)
        try:
            inputs = inputs_of(case, under)
            answers.append(operation.oracle(case.attributes, readings).expect(inputs))
        except (IndexError, ValueError):
            return False  # the case cannot be put under this choice
    return any(_differ(answers[0], answer) for answer in answers[1:])


def _differ(a: Mapping[str, Expected], b: Mapping[str, Expected]) -> bool:
    for name, one in a.items():
        other = b[name]
        if one.shape != other.shape or one.dtype != other.dtype or len(one.parts) != len(other.parts):
            return True
        for p, q in zip(one.parts, other.parts, strict=True):
            if len(p.index) != len(q.index) or any(
                x != y if isinstance(x, slice) else not np.array_equal(x, y)
                for x, y in zip(p.index, q.index, strict=True)
            ):
                return True
            mine, theirs = elements(p), elements(q)
            if mine and theirs:
                with np.errstate(invalid="ignore"):
                    apart = np.abs(mine[0] - theirs[0]) > 4 * (mine[1] + theirs[1])
                    if (apart & (mine[1] > 0) & (theirs[1] > 0)).any():
                        return True
    return False
