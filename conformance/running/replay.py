"""`replay:LOG`: the results recorded in a log, as if its backend had been run again.

A log holds results and no outputs, so nothing is judged anew: a case that is the same as then has its recorded outcome,
any other is not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.backends.protocol import BackendInfo
from conformance.errors import BackendError, UsageError
from conformance.judging.engine import Outcome
from conformance.record.log import Log, read_log
from conformance.record.records import info_of
from conformance.spec.case import Case

PREFIX = "replay:"


@dataclass(frozen=True)
class Recording:
    """A log in the place of a backend."""

    log: Log

    @property
    def info(self) -> BackendInfo:
        """The backend that the log is of."""
        return info_of(self.log.header)

    @property
    def environment(self) -> dict[str, str]:
        """What the log was made on, and when."""
        head = self.log.header
        return {**head.environment, "recorded": f"{head.started} with suite {head.suite}, library {head.library}"}

    def diagnoses(self, failures: Sequence[Outcome]) -> dict[str, str]:
        """What the log says that failures look like, by case id."""
        return {o.case: text for o in failures if (text := self.log.results[o.case].diagnosis)}

    def outcomes(self, cases: tuple[Case, ...]) -> Iterator[Outcome]:
        """The recorded outcome of every case that has the same digest as then."""
        for case in cases:
            record = self.log.results.get(case.id)
            if record and record.outcome.digest == case.digest:
                yield record.outcome
            else:
                reason = "the case is another one now" if record else "the case is not in the log"
                yield Outcome(case=case.id, digest=case.digest, status="not-run", reason=reason)


def recording(connect: str, readings: Mapping[str, str]) -> Recording:
    """The recording that `replay:LOG` names. Raises `BackendError`, also for a log of other readings."""
    path = connect.removeprefix(PREFIX)
    if not path:
        raise BackendError(f"'{connect}' needs something after the colon, as in replay:log.jsonl")
    try:
        log = read_log(Path(path))
    except UsageError as error:
        raise BackendError(str(error)) from None
    if dict(log.header.readings) != dict(readings):
        given = " ".join(f"--reading {name}={choice}" for name, choice in log.header.readings.items())
        raise BackendError(f"{log.path}: was made with other readings; repeat them: {given or 'no --reading'}")
    return Recording(log)
