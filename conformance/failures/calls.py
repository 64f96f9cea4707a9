"""The calls behind a result: a case is run again on the reference, which answers right, and every call is noted.

How far a run came is told by the outputs that were judged before, so that a failing call is found again by that number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, Session
from conformance.judging.audits import BY_CALLS
from conformance.judging.calling import Array, Inputs, Run
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from reference.expected import Expected


@dataclass(frozen=True)
class Made:
    """A call: where it was made, after how many judged outputs, on what configuration and inputs.

    With `refused`, one that is made to be refused.
    """

    where: Where
    verdicts: int
    config: OperationConfig
    inputs: Inputs
    refused: bool = False


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
        try:
            outputs = self._oracle.run(inputs)
        except (IndexError, TypeError, ValueError) as error:  # as inputs that are to be refused make it do
            raise Rejected("value", "call", ()) from error
        return {name: outputs[name] for name in self.backend.info.outputs}

    def close(self) -> None:
        return


@dataclass
class Noting:
    """An observer that keeps every call that is made."""

    made: list[Made] = field(default_factory=list)

    def called(self, run: Run, config: OperationConfig, inputs: Inputs, expected: Mapping[str, Expected]) -> None:
        """Keep a call."""
        self.made.append(Made(run.where, run.verdicts, config, inputs, refused=run.offered))

    def answered(self, run: Run, got: Mapping[str, Any] | BaseException) -> None:
        """The reference answers right."""

    def ended(self, case: Case, outcome: Outcome) -> None:
        """The case is over."""


def made(
    case: Case, operation: Operation, readings: Mapping[str, str], info: BackendInfo, doubted: str = ""
) -> list[Made]:
    """All calls of a case, in their order, with the states that the reference hands on.

    They are those of a backend that is wrong where the relation `doubted` is asked together with others.
    """
    noting = Noting()
    engine = Engine(operation, _Reference(operation, readings, info), readings, info, observers=(noting,))
    engine.doubted = doubted
    engine.run(case)
    return noting.made


def failing(
    case: Case, outcome: Outcome, operation: Operation, readings: Mapping[str, str], info: BackendInfo
) -> list[Made]:
    """The calls up to the one that shows a failure, which mostly is the first: others may depend on those before.

    Empty when it shows in no call of its own, as when calls run at the same time.
    """
    asked = tuple(name for name in case.relations if name not in outcome.skipped)
    place, kind = outcome.place, outcome.sort
    doubted = place.names[0] if place.at == "relation" else ""
    everything = made(msgspec.structs.replace(case, relations=asked), operation, readings, info, doubted)
    if kind is Kind.ALONE or (place.at == "audit" and place.names[0] not in BY_CALLS):
        return []
    if place.at in ("prepare", "single"):
        return everything[:1]
    if outcome.lost or place.at == "after":
        return everything
    if doubted:
        return everything[: _last(everything, place)]
    # Whatever is seen before outputs are judged leaves the count as it was before the call.
    unjudged = outcome.status == "error" or kind in (Kind.REFUSES, Kind.EARLY, Kind.MODIFIED, Kind.CHANGED)
    until = [one for one in everything if one.verdicts <= outcome.verdicts - (not unjudged)]
    return until[: _last(until, place)]


def _last(calls: list[Made], place: Where) -> int:
    """How many calls there are up to the last one made at a place; 0 when there is none."""
    return max((number for number, one in enumerate(calls, 1) if one.where.call_of == place.call_of), default=0)
