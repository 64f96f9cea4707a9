"""How a case ends: by a verdict, by what a backend raised, or well; and the outcome that is written of it."""

from __future__ import annotations

import traceback

from conformance.backends.protocol import Rejected, Unsupported
from conformance.errors import plain, text_of
from conformance.judging.border import Raised
from conformance.judging.calling import Run, Stop
from conformance.judging.judge import Verdict
from conformance.judging.outcome import Kind, Outcome


def decided(run: Run, stop: Stop | None) -> Outcome:
    """The outcome of a case that came to this end, or to a good one."""
    return Outcome(
        case=run.case.id,
        digest=run.case.digest,
        status=stop.status if stop else "pass",
        clause=stop.clause if stop else "",
        where=run.where if stop else "",
        reason=stop.reason if stop else "",
        feature=stop.feature if stop else "",
        worst=stop.worst if stop else None,
        verdicts=run.verdicts,
        headroom=run.headroom,
        detail=stop.detail if stop else "",
        lost=stop.lost if stop else "",
        skipped=run.skipped,
        kind=stop.kind if stop and stop.status != "unsupported" else None,
        about=stop.about if stop else "",
    )


def stopped(verdict: Verdict, clause: str, status: str = "") -> Stop:
    """The end of a case by a verdict."""
    about = "" if verdict.worst else verdict.output
    return Stop(status or verdict.status, clause, verdict.reason, Kind(verdict.kind), about=about, worst=verdict.worst)


def raised(error: BaseException, clause: str) -> Stop:
    """The end of a case by what a backend raised. Fields that are not of their declared types make it an error."""
    if isinstance(error, Unsupported) and all(type(x) is str for x in (error.feature, error.reason, error.url)):
        stop = Stop("unsupported", "", text_of(error), Kind.RAISED)
        stop.feature = plain(error.feature)
        return stop
    if isinstance(error, Rejected) and all(type(x) is str for x in (error.kind, error.phase, *error.names)):
        told = text_of(error)
        return Stop("fail", clause, f"refuses a valid case ({told})", Kind.REFUSES, about=told)
    name = plain(type(error).__name__)
    text = text_of(error)
    if isinstance(error, Unsupported | Rejected):
        text = "its fields are not the texts that they are declared to be"
    stop = Stop("error", clause, f"raises {name}: {text}", Kind.RAISED, about=name)
    stop.detail = trace(error)
    return stop


def trace(error: BaseException) -> str:
    """The last steps of a traceback, for the log; never printed by default."""
    if isinstance(error, Raised):
        return error.trace[-2000:]
    try:
        return plain("".join(traceback.format_exception(error)[-4:])[-2000:], 2000)
    except Exception:
        return ""
