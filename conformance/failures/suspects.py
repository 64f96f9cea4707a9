"""Suspects: implementations that are wrong, or read the contract differently, in a known way.

Nothing here knows an operation; faults and readings come from its catalogue and its description.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.backends.protocol import Backend, BackendInfo, OperationConfig
from conformance.faults import catalogue, suspicion
from conformance.faults.entry import Entry
from conformance.faults.trial import LARGE, Common, Sharing
from conformance.judging.calling import Inputs, Run
from conformance.judging.engine import Engine
from conformance.judging.outcome import Outcome
from conformance.library.selection import size
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from reference.expected import Expected

Array = np.ndarray[Any, np.dtype[Any]]

CASES_KEPT = 400  # whose inputs and expectations are kept


@dataclass(frozen=True)
class Suspect:
    """A known way to be wrong: a fault, a reading, or both together."""

    fault: Entry | None = None
    readings: tuple[tuple[str, str], ...] = ()
    told: str = field(default="", compare=False)  # what the readings are about, in the operation's words

    @property
    def name(self) -> str:
        """Fault id, reading, or both."""
        parts = [f"reading {name}={choice}" for name, choice in self.readings]
        return " with ".join(filter(None, [self.fault.id if self.fault else "", *parts]))

    @property
    def says(self) -> str:
        """One sentence: what it does."""
        return self.fault.says if self.fault else self.told

    def backend(self, operation: Operation) -> Backend:
        """The suspect as a backend of its own."""
        return suspicion.backend(operation.operation, self.fault, dict(self.readings))


def suspects(operation: Operation) -> list[Suspect]:
    """All single suspects: every alternative reading, then every fault that is not just one of them."""
    found = [
        Suspect(readings=((reading.name, choice),), told=f"{reading.says}: {reading.alternatives[choice]}")
        for reading in operation.readings
        for choice in reading.alternatives
        if reading.by == "values" and choice not in reading.narrower and choice not in reading.without
    ]
    if operation.operation not in catalogue.modules():
        return []  # without a catalogue nothing is known to go wrong
    faults = catalogue.faults(operation.operation)
    # Where several faults are of one reading, it leaves open what each of them does in a way of its own.
    share = Counter(entry.reading for entry in faults)
    same = {f"{name}={choice}" for one in found for name, choice in one.readings}
    same = {reading for reading in same if share[reading] == 1}
    return found + [Suspect(entry) for entry in faults if entry.reading not in same]


def pairs(singles: Iterable[Suspect], partial: Iterable[Suspect]) -> list[Suspect]:
    """Readings together with faults, one of which explains something by itself."""
    singles, some = list(singles), set(partial)
    return [
        Suspect(fault.fault, reading.readings)
        for reading in singles
        if not reading.fault
        for fault in singles
        if fault.fault and {fault, reading} & some
    ]


@dataclass(frozen=True)
class Sketch:
    """How a case ended on a suspect: its outcome, and the output that was wrong in the last call."""

    outcome: Outcome
    last: Array | None = None


@dataclass
class _Last:
    """An observer that keeps the latest answer."""

    got: Mapping[str, Any] = field(default_factory=dict)

    def called(self, run: Run, config: OperationConfig, inputs: Inputs, expected: Mapping[str, Expected]) -> None:
        self.got = {}

    def answered(self, run: Run, got: Mapping[str, Any] | BaseException) -> None:
        self.got = {} if isinstance(got, BaseException) else got

    def ended(self, case: Case, outcome: Outcome) -> None:
        return


class Lab:
    """Runs cases on suspects. What depends on a case alone is worked out once, and no suspect runs a case twice."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.singles = suspects(operation)
        self._common: OrderedDict[str, Common] = OrderedDict()
        self._known: dict[tuple[object, ...], Sketch] = {}
        self._sizes: dict[str, int] = {}

    def size(self, case: Case) -> int:
        """Bytes of a case, of one id worked out once."""
        if case.id not in self._sizes:
            self._sizes[case.id] = size(case, self.operation)
        return self._sizes[case.id]

    def of(self, suspect: Suspect, case: Case, info: BackendInfo, after: Sequence[Case] = ()) -> Sketch:
        """How a case ends on a suspect that declares what `info` does, with other cases run before in its process."""
        key = (suspect.name, case.id, case.digest, info.outputs, info.features, info.element_types,
               tuple(one.id for one in after))  # fmt: skip
        if key not in self._known:
            self._known[key] = self._run(suspect, case, info, after)
        return self._known[key]

    def _run(self, suspect: Suspect, case: Case, info: BackendInfo, after: Sequence[Case]) -> Sketch:
        common, last = self._of(case), _Last()
        source = Sharing(self.operation, common)
        engine = Engine(self.operation, suspect.backend(self.operation), info=info, source=source, observers=(last,))
        try:
            for one in after:
                engine.first(one)
            outcome = engine.first(common.case)
        finally:
            engine.close()
        wrong = last.got.get(outcome.worst.output) if outcome.worst and outcome.status in ("fail", "error") else None
        return Sketch(outcome, wrong.copy() if isinstance(wrong, np.ndarray) else None)

    def _of(self, case: Case) -> Common:
        key = f"{case.id} {case.digest}"
        if key not in self._common:
            for other in [k for k, kept in self._common.items() if kept.size >= LARGE]:
                del self._common[other]
            self._common[key] = Common(case)
            self._common[key].size = self.size(case)
            while len(self._common) > CASES_KEPT:
                self._common.popitem(last=False)
        self._common.move_to_end(key)
        return self._common[key]
