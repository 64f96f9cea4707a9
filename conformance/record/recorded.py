"""One case of a log: what was run, and what came out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from conformance.errors import UsageError, nearest
from conformance.judging.engine import Outcome
from conformance.library import operations
from conformance.library.reading import Library
from conformance.record.log import Log, read_log
from conformance.spec.case import Case
from conformance.spec.operation import Operation

SHOWN = ("fail", "error", "quality-warning")


@dataclass(frozen=True)
class Recorded:
    """A case that did not pass, and the log it is from."""

    log: Log
    case: Case
    outcome: Outcome

    @property
    def connect(self) -> str:
        return self.log.header.backend.connect

    @property
    def operation(self) -> Operation:
        """The operation that the log is of. Raises `UsageError` when there is none of its name here."""
        return operations.load_operation(operations.recorded(self.log.header.operation, self.log.header.own))

    @property
    def before(self) -> tuple[Case, ...]:
        """The cases that have to come before in one process for it to fail, as far as the log has them."""
        return tuple(self.log.cases[name].case for name in self.outcome.after if name in self.log.cases)

    @property
    def source(self) -> str:
        """Backend, version and day, for people."""
        backend = self.log.header.backend
        return (
            f"{backend.connect} {backend.version} ({backend.vendor}, {backend.device}), {self.log.header.started[:10]}"
        )

    @property
    def signature(self) -> str:
        """The signature as text."""
        return ", ".join(part for part in self.outcome.signature if part)


def recorded(path: Path, name: str) -> Recorded:
    """The case `name` of a log. Raises `UsageError` when it is not there, was not run to its end, or passed."""
    log = read_log(path)
    if name not in log.cases:
        failing = [outcome.case for outcome in log.outcomes if outcome.status in SHOWN]
        known = f"; not passed: {', '.join(failing[:5])}" if failing else "; everything in it passed"
        raise UsageError(f"{path}: has no case '{name}'{nearest(name, list(log.cases)) or known}")
    if name not in log.results:
        raise UsageError(f"{path}: {name} was begun and has no result: the run was interrupted in it")
    outcome = log.results[name].outcome
    if outcome.status not in SHOWN:
        raise UsageError(f"{path}: {name} did not fail: its status is {outcome.status}")
    return Recorded(log, log.cases[name].case, outcome)


def cases_of(path: Path, library: Library) -> Library:
    """The cases of a log in place of the library's. Raises `UsageError`, also for a log without cases."""
    cases = tuple(record.case for record in read_log(path).cases.values())
    if not cases:
        raise UsageError(f"{path}: has no cases")
    return replace(library, cases=cases, written=len(cases))
