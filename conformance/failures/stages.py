"""The first stage that goes wrong, where a backend can switch the later ones off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from conformance.backends.protocol import Backend, BackendInfo
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind, Outcome
from conformance.spec.case import Case
from conformance.spec.operation import Operation

CASES = 3  # failures that are looked at; they must agree


def first_stage(
    operation: Operation,
    backend: Backend,
    info: BackendInfo,
    failures: Sequence[tuple[Case, Outcome]],
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """The first stage that fails when all later ones are switched off, and the one before it passes; else "".

    Nothing is said of what is raised, of wrong types and shapes, of copies, and where no stage can be switched off.
    """
    told = set()
    computed = [
        case
        for case, o in failures
        if o.sort is Kind.VALUE and not case.refusal and o.worst and o.worst.bound is not None
    ]
    engine = Engine(operation, backend, info=info)
    try:
        for case in computed[:CASES]:
            if clock() > deadline:
                return ""
            told.add(_stage(engine, operation, info, case))
    finally:
        engine.close()
    return told.pop() if len(told) == 1 else ""


def _stage(engine: Engine, operation: Operation, info: BackendInfo, case: Case) -> str:
    passed_before = True  # nothing comes before the first one
    for stage in operation.stages:
        alone = msgspec.structs.replace(
            case, id=f"{case.id}, {stage.name} alone", disabled=tuple(sorted({*case.disabled, *stage.off})),
            values={}, change={}, audits=(), relations=(),
        )  # fmt: skip
        if set(alone.disabled) - set(info.features):
            passed_before = False
            continue
        try:
            outcome = engine.first(alone)
        except ValueError:  # the case cannot be put without these features
            passed_before = False
            continue
        if outcome.status == "fail" and outcome.sort is Kind.VALUE:
            return stage.name if passed_before else ""
        passed_before = outcome.status in ("pass", "quality-warning")  # what is raised without a feature tells nothing
    return ""
