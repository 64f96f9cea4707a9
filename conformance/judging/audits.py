"""Audits: what a caller may do between and around calls, each asked for by name in a case.

Each takes the engine, the run, the session, the inputs of the single call and its answer, and raises `Stop` when a
backend does not bear it. Which clause broke is said by the operation's `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from conformance.judging import audits_of_calls as calls
from conformance.judging import audits_of_memory as memory
from conformance.judging.calling import Answer, Caller, Inputs, Open, Run

Audit = Callable[[Caller, Run, Open, Inputs, Answer], None]

AUDITS: Mapping[str, Audit] = {
    "interleave": calls.interleave,
    "shapes": calls.shapes,
    "sessions": calls.sessions,
    "concurrent": calls.concurrent,
    "strided": memory.strided,
    "refused": calls.refused,
    "layouts": memory.some_layouts,
    "every-layout": memory.every_layout,
    "feedback": memory.feedback,
    "kept": calls.kept,
    "changed-in-place": memory.changed_in_place,
    "order": calls.order,
}
# Those that prepare sessions or make hundreds of calls: seldom drawn by the generator.
SELDOM = ("sessions", "concurrent", "every-layout", "kept", "order")

# Those that show in calls one after the other with arrays of their own, whatever memory these lie in.
BY_CALLS = ("interleave", "shapes", "sessions", "refused", "order")
