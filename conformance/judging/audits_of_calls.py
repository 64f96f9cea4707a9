"""Audits of calls: what other calls, shapes, sessions and configurations may do to the answers of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Barrier, Thread
from typing import Any

import msgspec

from conformance.backends.protocol import Unsupported
from conformance.judging.calling import Answer, Caller, Inputs, Open, Run, Stop, taken
from conformance.judging.outcome import Kind
from conformance.spec.broken import spoilt
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from conformance.spec.resized import reshaped, with_other_attributes
from conformance.spec.types import LENGTH_TYPES

CROWDS = (2, 3, 8)  # sessions at once: as many as cores, and more
ROUNDS = 6  # calls of each of them
FURTHER = 300  # calls after which an output is looked at again


def interleave(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Another call in between does not show."""
    other = reshaped(run.case, engine.operation, {}, seed=run.case.seed + 1)
    _judged(engine, run, to, other)
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("repeatable", run.case)
    engine.same(run, again, single, clause, "an intervening call changes the result's bits")


def shapes(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """One session serves other shapes, smaller and larger, and then the first again."""
    where = run.where
    for dims in _other_dims(run.case, engine.operation):
        run.where = where.then(", ".join(f"{k}={v}" for k, v in dims.items()))
        _judged(engine, run, to, reshaped(run.case, engine.operation, dims))
    run.where = where.then("the first again")
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("instances_shared", run.case)
    engine.same(run, again, single, clause, "calls of other shapes in between change the bits")


def _other_dims(case: Case, operation: Operation) -> list[dict[str, int]]:
    """Dimensions of other calls that the same session serves."""
    batch, tokens = operation.batch, operation.tokens
    if not tokens:
        return [{batch: case.dims[batch] + 3}, {batch: 1}] if batch else []
    L = case.dims[tokens]
    found = [{tokens: 1}, {tokens: 3 * L + 2}]
    found += [{batch: case.dims[batch] + 3}, {batch: 1, tokens: 2}] if batch else []
    return [*found, {tokens: 0}]


def sessions(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Two instances with other attributes do not affect each other."""
    other = reshaped(with_other_attributes(run.case, engine.operation), engine.operation, {})
    clause = engine.rule("instances_shared", run.case)
    with _own(engine, other) as second:
        for _ in range(2):
            _judged(engine, run, second, other)
            again = engine.call(run, to, whole, single.expected)
            engine.same(run, again, single, clause, "an instance with other attributes changes the bits")


def order(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Configurations prepared one after the other, types first, in an order of the case's own, keep nothing."""
    where = run.where
    others = list(_neighbours(run.case, engine))
    turn = run.case.seed % max(len(others), 1)
    for says, case in (*others[turn:], *others[:turn]):
        run.where = where.then(says)
        with suppress(Unsupported), _own(engine, case) as one:
            _judged(engine, run, one, case)
    run.where = where.then("the first again")
    with _own(engine, run.case) as fresh:
        again = engine.call(run, fresh, whole, single.expected)
        clause = engine.rule("instances_shared", run.case)
        engine.same(run, again, single, clause, "instances of other configurations in between change the bits")


def _neighbours(case: Case, engine: Caller) -> Iterator[tuple[str, Case]]:
    """Cases that differ in one thing that sessions are prepared for."""
    operation = engine.operation
    plain = reshaped(case, operation, {})
    for kind in engine.info.element_types:
        if kind != case.element_type:
            yield kind, msgspec.structs.replace(plain, element_type=kind)
    if operation.lengths:
        for kind in LENGTH_TYPES:
            if kind != case.length_type:
                yield kind, msgspec.structs.replace(plain, length_type=kind)
    for name in case.attributes:
        other = with_other_attributes(case, operation, only=name)
        if other.attributes != case.attributes:
            yield f"{name}={other.attributes[name]:g}", reshaped(other, operation, {})
    for feature in operation.switchable:
        if feature in engine.info.features:
            is_off = feature in case.disabled
            off = tuple(n for n in case.disabled if n not in _needed(feature, operation)) if is_off else case.disabled
            off = operation.closed(off if is_off else (*off, feature))
            yield f"{feature} {'on' if is_off else 'off'}", msgspec.structs.replace(plain, disabled=off)


def _needed(feature: str, operation: Operation) -> set[str]:
    """A feature and all that it needs."""
    return {feature}.union(*(_needed(name, operation) for name in operation.features[feature].needs))


def concurrent(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Requests at the same time, each on a session and numbers of its own, give the bits of each alone.

    Two, three and eight at once, some of them of another configuration.
    """
    case, where = run.case, run.where
    other = reshaped(with_other_attributes(case, engine.operation), engine.operation, {})
    requests = [(case, whole, single)]
    with _own(engine, other) as second:
        for number in range(1, max(CROWDS)):
            foreign = number % 3 == 2
            asked = reshaped(other if foreign else case, engine.operation, {}, seed=case.seed + number)
            inputs = engine.inputs(asked)
            alone = engine.call(run, second if foreign else to, inputs, engine.oracle(asked).expect(inputs))
            requests.append((asked, inputs, alone))
    for count in CROWDS:
        run.where = where if count == 2 else where.then(f"{count} sessions")
        _at_once(engine, run, requests[:count])


def _at_once(engine: Caller, run: Run, requests: list[tuple[Case, Inputs, Answer]]) -> None:
    opened = [engine.prepare(engine.config(case)) for case, _, _ in requests]
    answers: list[tuple[Answer, Any]] = []
    start = Barrier(len(requests))

    def serve(one: Open, arrays: Inputs, alone: Answer) -> None:
        start.wait()
        for _ in range(ROUNDS):
            try:
                answers.append((alone, one.session.run({name: array.copy() for name, array in arrays.items()})))
            except BaseException as error:  # raised where the audit waits for it
                answers.append((alone, error))
                return

    threads = [
        Thread(target=serve, args=(one, inputs, alone))
        for one, (_, inputs, alone) in zip(opened, requests, strict=True)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads take turns more often than usual
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for one in opened:
        one.session.close()
    clause = engine.rule("repeatable", run.case)
    for alone, got in answers:
        if isinstance(got, BaseException):
            raise got
        outputs = taken(got, engine.info.outputs, engine.operation.output, engine.rule("serves", run.case))
        engine.same(run, Answer(outputs, alone.expected), alone, clause, "concurrent requests give different bits")


def kept(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Outputs stay as they are over hundreds of further calls, of this session and of another."""
    case = run.case
    others = [reshaped(case, engine.operation, {}, seed=case.seed + 1)]
    others += [reshaped(case, engine.operation, dims) for dims in _other_dims(case, engine.operation)[:2]]
    inputs = [engine.inputs(other) for other in others]
    with _own(engine, case) as second:
        for number in range(FURTHER):
            one = second if number % 3 == 2 else to
            one.session.run({name: array.copy() for name, array in inputs[number % len(inputs)].items()})
    for name, array, before in run.watched:
        if array.tobytes() != before:
            reason = f"{name} of an earlier call changed after it was returned"
            raise Stop("fail", engine.rule("outputs_untouched", case), reason, Kind.CHANGED, about=name)
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("repeatable", case)
    engine.same(run, again, single, clause, f"{FURTHER} calls in between change the bits")


def refused(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """A call that is refused in between does not show."""
    broken = (spoilt(run.case, engine.operation, rule) for rule in engine.operation.refusals if rule.shapes)
    wrong = next((case for case in broken if case), run.case)
    engine.offer(run, to, engine.inputs(wrong))
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("instances_shared", run.case)
    engine.same(run, again, single, clause, "a refused call in between changes the bits")


def _judged(engine: Caller, run: Run, to: Open, case: Case) -> None:
    inputs = engine.inputs(case)
    engine.call(run, to, inputs, engine.oracle(case).expect(inputs))


@contextmanager
def _own(engine: Caller, case: Case) -> Iterator[Open]:
    """A session of its own, closed afterwards."""
    one = engine.prepare(engine.config(case))
    try:
        yield one
    finally:
        one.session.close()
