"""Refusals: what a case that breaks one rule must be answered with, when, and naming whom."""

from __future__ import annotations

from conformance.backends.protocol import Rejected
from conformance.errors import article, plain, text_of
from conformance.judging.calling import Caller, Run, Stop
from conformance.judging.outcome import Kind, Where
from conformance.spec.case import Refusal


def refused(engine: Caller, run: Run, due: Refusal) -> None:
    """The refusal that is due, on the shared session: one that has refused a call serves the next as ever.

    Refused at the other phase it is a failure; as another kind, or naming others, a warning.
    """
    case = run.case
    clause = run.serves = blamed(engine, run, due)  # also when something else is raised
    phase = "prepare"
    try:
        to = engine.session(case)
        phase = "call"
        run.where = Where("call")
        to.served.append(case.id)
        to.session.run(engine.inputs(case))
    except Rejected as rejected:
        _check(run, due, rejected, phase, clause)
        return
    kind = f"{article(due.kind)} refusal of {', '.join(due.names)}"
    reason = f"computes instead of refusing; {kind} is due at the {due.phase}"
    raise Stop("fail", clause, reason, Kind.COMPUTES, about=f"{due.kind}: {', '.join(due.names)}")


def blamed(engine: Caller, run: Run, due: Refusal) -> str:
    """The clause of the rule that the case breaks."""
    clauses = {rule.clause for rule in engine.operation.refusals if rule.kind == due.kind}
    return next((clause for clause in run.case.clauses if clause in clauses), run.case.clauses[0])


def _check(run: Run, due: Refusal, got: Rejected, phase: str, clause: str) -> None:
    if any(type(text) is not str for text in (got.kind, got.phase, *got.names)):
        raise got  # as any other exception
    run.verdicts += 1
    told = text_of(got)
    if due.phase == "call" and phase == "prepare":
        reason = f"refuses at the preparation what is wrong with the call ({told})"
        raise Stop("fail", clause, reason, Kind.EARLY, about=told)
    if due.phase == "prepare" and phase == "call":
        reason = f"refuses only at the call what is due at the preparation ({told})"
        raise Stop("fail", clause, reason, Kind.LATE, about=told)
    if got.kind != due.kind:
        reason = f"refuses as '{plain(got.kind, 60)}', not as '{due.kind}'"
        run.warning = Stop("quality-warning", clause, reason, Kind.OTHERWISE, about=plain(got.kind, 60))
    elif not set(got.names) & set(due.names):
        names = plain(", ".join(got.names)) or "nothing"
        reason = f"names {names} as the culprit, not {', '.join(due.names)}"
        run.warning = Stop("quality-warning", clause, reason, Kind.OTHERWISE, about=names)
