"""The calls behind a result: a case is run again on the reference, which answers right, and every call is noted.

How far a run came is told by the outputs that were judged before, so that a failing call is found again by that number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.judging.engine import Answer, Array, Engine, Inputs, Outcome, Run
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from reference.expected import Expected


@dataclass(frozen=True)
class Made:
    """A call: where it was made, after how many judged outputs, on what configuration and inputs."""

    where: str
    verdicts: int
    config: OperationConfig
    inputs: Inputs


class _Reference:
    """A backend that answers with the reference."""

    def __init__(self, operation: Operation, readings: Mapping[str, str], info: BackendInfo) -> None:
        self.operation, self.readings, self.info = operation, readings, info

    def describe(self) -> BackendInfo:
        return self.info

    def prepare(self, config: OperationConfig) -> Session:
        return _Session(self, config)


class _Session:
    def __init__(self, backend: _Reference, config: OperationConfig) -> None:
        self.backend, self.config = backend, config
        self._oracle = backend.operation.oracle(config.attributes, backend.readings)

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        outputs = self._oracle.run(inputs)
        return {name: outputs[name] for name in self.backend.info.outputs}

    def close(self) -> None:
        return


class _Noting(Engine):
    """An engine that keeps every call it makes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made: list[Made] = []

    def call(
        self, run: Run, session: Session, inputs: Inputs, expected: Mapping[str, Expected], *, check: bool = True
    ) -> Answer:
        assert isinstance(session, _Session)
        kept = {name: array.copy() for name, array in inputs.items()}
        self.made.append(Made(run.where, run.verdicts, session.config, kept))
        return super().call(run, session, inputs, expected, check=check)


def made(
    case: Case, operation: Operation, readings: Mapping[str, str], info: BackendInfo, doubted: str = ""
) -> list[Made]:
    """All calls of a case, in their order, with the states that the reference hands on.

    They are those of a backend that is wrong where the relation `doubted` is asked together with others.
    """
    engine = _Noting(operation, _Reference(operation, readings, info), readings, info)
    engine.doubted = doubted
    engine.run(case)
    return engine.made


def failing(
    case: Case, outcome: Outcome, operation: Operation, readings: Mapping[str, str], info: BackendInfo
) -> list[Made]:
    """The calls up to the one that shows a failure, which mostly is the first: others may depend on those before.

    Empty when it shows in no call of its own, as when calls run at the same time.
    """
    asked = tuple(name for name in case.relations if name not in outcome.skipped)
    place = _place(outcome.where)
    doubted = place[1] if place[0] == "relation" else ""
    everything = made(msgspec.structs.replace(case, relations=asked), operation, readings, info, doubted)
    if outcome.reason.startswith("passes on a fresh session"):
        return []
    if outcome.where in ("prepare", "single call") and outcome.clause != "PLG-1":
        return everything[:1]
    if outcome.lost or outcome.where == "after the last call":
        return everything
    if doubted:
        return everything[: _last(everything, place)]
    raised = outcome.status == "error" or outcome.reason.startswith("refuses")
    modified = outcome.clause == "PLG-2"  # seen before anything is judged
    until = [one for one in everything if one.verdicts <= outcome.verdicts - (not raised and not modified)]
    return until[: _last(until, place)]


def _last(calls: list[Made], place: list[str]) -> int:
    """How many calls there are up to the last one made at a place; 0 when there is none."""
    return max((number for number, one in enumerate(calls, 1) if _place(one.where) == place), default=0)


def _place(where: str) -> list[str]:
    """Where a call was made, without what is told behind it, which may be of another call."""
    return where.partition(",")[0].split()[:2] or [""]
