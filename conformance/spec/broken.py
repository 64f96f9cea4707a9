"""Broken rules: how a valid case is spoilt so that exactly one refusal is due, and which rule a case breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conformance.spec.case import Case, Change, Injected, Refusal
from conformance.spec.expression import evaluate, whole
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation, RefusalRule, Scalar


@dataclass(frozen=True)
class Breach:
    """What makes a valid case break one rule in one way."""

    attributes: Mapping[str, Scalar]
    change: Mapping[str, Change]


def ways(rule: RefusalRule) -> int:
    """In how many ways a rule can be broken."""
    lists: list[Sequence[Any]] = [*rule.attributes.values(), *rule.shapes.values(), *rule.types.values()]
    lists += rule.values.values()
    return max([1, *map(len, lists)])


def applies(rule: RefusalRule, case: Case, operation: Operation) -> bool:
    """Whether all ports that a rule spoils are on."""
    ports = {*rule.shapes, *rule.types, *rule.values, *rule.absent}
    return not any(operation.port[port].feature in case.disabled for port in ports)


def breach(case: Case, operation: Operation, rule: RefusalRule, way: int = 0, row: int | None = None) -> Breach | None:
    """What breaks a rule in a case; None when the rule cannot be broken there.

    `row` is the sequence whose length is spoilt: the one that is spoilt already, or the first.
    """
    if not applies(rule, case, operation):
        return None
    known = Geometry(case, operation)
    change: dict[str, Change] = {}
    for port, shapes in rule.shapes.items():
        shape = known.of(shapes[way % len(shapes)])
        if min(shape, default=0) < 0 or shape == known.of(operation.port[port].shape):
            return None
        change[port] = Change(shape=shape)
    for port, types in rule.types.items():
        change[port] = Change(type=types[way % len(types)])
    for port, values in rule.values.items():
        spoilt = _spoilt_value(known, port, values[way % len(values)], case.change.get(port), row)
        if spoilt is None:
            return None
        change[port] = spoilt
    for port in rule.absent:
        change[port] = Change(absent=True)
    attributes = {name: evaluate(values[way % len(values)], known.symbols) for name, values in rule.attributes.items()}
    if attributes and all(operation.is_valid(name, value, known.symbols) for name, value in attributes.items()):
        return None
    return Breach(attributes, change)


def _spoilt_value(known: Geometry, port: str, text: Any, before: Change | None, row: int | None) -> Change | None:
    case, operation = known.case, known.operation
    if port != operation.lengths:
        shape = known.shape(operation.port[port])
        if 0 in shape:
            return None
        return Change(inject=(Injected(at=(0,) * len(shape), value=evaluate(text, known.symbols)),))
    values = list(known.lengths)
    values = values[:1] if case.length_shape == "one" else values
    bad = row if row is not None else _bad_row(before, values) if before else 0
    if bad >= len(values):
        return None
    values[bad] = whole(text, operation.per_sequence(known.scalars, values)[bad])
    return Change(values=values)


def _bad_row(change: Change, values: Sequence[int]) -> int:
    """The sequence that a change of the lengths spoils, or the first."""
    given = change.values if isinstance(change.values, list | tuple) else []
    differ = [n for n, (a, b) in enumerate(zip(given, values, strict=False)) if a != b]
    return differ[0] if len(differ) == 1 and len(given) == len(values) else 0


def due(rule: RefusalRule) -> Refusal:
    """The refusal that is due when a rule is broken."""
    return Refusal(kind=rule.kind, phase=rule.phase, names=rule.names)


def broken_rule(case: Case, operation: Operation) -> tuple[RefusalRule, int] | None:
    """The rule whose breach gives a case its changes, and in which way it is broken."""
    for rule in operation.refusals:
        if case.refusal != due(rule) or not (rule.shapes or rule.types or rule.values or rule.absent):
            continue
        for way in range(ways(rule)):
            found = breach(case, operation, rule, way)
            if found and found.change == case.change:
                return rule, way
    return None


def spoilt(case: Case, operation: Operation, rule: RefusalRule, way: int = 0) -> Case | None:
    """The valid case with a rule broken, and the refusal that is due; None when it cannot be broken there."""
    found = breach(case, operation, rule, way)
    if found is None:
        return None
    attributes = {**case.attributes, **found.attributes}
    return msgspec.structs.replace(case, attributes=attributes, change=dict(found.change), refusal=due(rule))
