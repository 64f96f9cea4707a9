"""Who may be timed: backends that are conformant, by a log or by a quick run."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.backends.connect import usable
from conformance.backends.embedded import usual_readings
from conformance.backends.protocol import close
from conformance.errors import UsageError
from conformance.library.reading import Library
from conformance.library.selection import select
from conformance.record.log import Log
from conformance.record.verdict import FINE
from conformance.reporting.table import verdict_of
from conformance.running.run import Plan, execute, outcomes


class Refused(Exception):  # noqa: N818  an answer: the backend is not timed
    """A backend that is not conformant."""


def check_conformance(connect: str, library: Library, logs: Sequence[Log] = ()) -> Log:
    """The log by which a backend is conformant: one of `logs`, else a quick run of the library in this process.

    A log counts under the readings that it is of. Raises `Refused` when the backend is not conformant, `BackendError`
    and `Unsupported` as connecting does, `UsageError` for a log of another library or version, or of a part.
    """
    given = next((log for log in logs if log.header.backend.connect == connect), None)
    if given:
        if given.header.library != library.digest:
            again = f"run `qsa-conformance run -b {connect}` again"
            raise UsageError(f"{given.path} is of a run with another library; {again}")
        verdict = verdict_of(given)
        if verdict == "INCOMPLETE":
            raise UsageError(f"{given.path} is not of a complete run; it cannot tell that {connect} is conformant")
        if verdict not in FINE:
            raise Refused(f"{connect} is not timed: by {given.path} it is {verdict}")
    backend, info = usable(connect, operation=library.operation.operation)
    if given:
        close(backend)
        if given.header.backend.version != info.version:
            judged = f"{given.path} is of version {given.header.backend.version}, and {info.version} is here"
            raise UsageError(f"{judged}; run `qsa-conformance run -b {connect}` again")
        return given
    followed = usual_readings(connect, library.operation.operation)
    plan = Plan(connect, select(library, quick=True), False, {"--quick": "yes"}, followed)
    log = execute(plan, library, info, outcomes(plan, library, backend, info))
    if verdict_of(log) == "NOT CONFORMANT":
        wrong = [o for o in log.outcomes if o.status in ("fail", "error")]
        first = f"{wrong[0].case}, {wrong[0].clause}: {wrong[0].reason}" if wrong else "it passes no case"
        raise Refused(f"{connect} is not timed: it is not conformant ({len(wrong)} cases of a quick run fail; {first})")
    if log.footer is None:
        raise KeyboardInterrupt
    return log
