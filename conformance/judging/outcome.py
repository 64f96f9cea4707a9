"""What comes out of a case, as data: nothing has to read the sentences in it."""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from conformance.judging import before
from conformance.judging.judge import Worst

STATUSES = ("pass", "quality-warning", "fail", "error", "unsupported", "not-run")


class Kind(Enum):
    """In which way a case does not pass."""

    VALUE = "wrong value"
    SHAPE = "wrong shape"
    TYPE = "wrong type"
    OUTPUTS = "wrong outputs"  # not a mapping, one is missing, or one is unknown
    RAISED = "raised"
    LOST = "lost process"
    REFUSES = "refuses a valid case"
    COMPUTES = "computes instead of refusing"
    LATE = "refuses late"  # due at the preparation, refused at the call
    EARLY = "refuses early"  # at the preparation, what is wrong with the call
    OTHERWISE = "refuses as something else"
    DIFFERS = "differs when repeated"  # the same question, and another answer
    MODIFIED = "input modified"
    CHANGED = "earlier output changed"
    ALONE = "passes alone"  # and fails after other cases


At = Literal["", "prepare", "call", "single", "stream", "audit", "relation", "together", "repeated", "after", "worker"]

FIXED = {
    "": "",
    "prepare": "prepare",
    "call": "call",
    "single": "single call",
    "repeated": "repeated call",
    "after": "after the last call",
    "worker": "worker process",
}


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where in a case something was seen; as a text, in words.

    `names` holds the audit, or the relations; `stream` counts the case's streams from 0 and `call` its calls from 1
    (0: at its end); `label` is the partition; `steps` are details for people.
    """

    at: At = ""
    names: tuple[str, ...] = ()
    stream: int = -1
    call: int = 0
    label: str = ""
    steps: tuple[str, ...] = ()

    def then(self, *steps: str) -> Where:
        """The same place, in more detail."""
        return msgspec.structs.replace(self, steps=(*self.steps, *steps))

    @property
    def call_of(self) -> tuple[str, ...]:
        """What calls at this place have in common: kind of place, and stream, audit or relation."""
        return (self.at, self.label) if self.at == "stream" else (self.at, *self.names[:1])

    def __bool__(self) -> bool:
        return bool(self.at)

    def __str__(self) -> str:
        names = ", ".join(self.names)
        if self.at == "stream":
            text = f"stream {self.label}, " + (f"call {self.call}" if self.call else "end")
        elif self.at == "audit":
            text = f"audit {names}"
        elif self.at == "relation":
            text = f"relation {names}" + (f" {self.label}" if self.label else "")
        elif self.at == "together":
            text = f"relations {names} together"
        else:
            text = FIXED[self.at]
        return ", ".join((text, *self.steps))


def partition_label(stream: tuple[int, ...]) -> str:
    """A stream's partition in words: its steps, or their number when there are many."""
    return "+".join(map(str, stream)) if len(stream) <= 12 else f"{len(stream)} calls"


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one case on one backend.

    `kind` and `where` say in data what `reason` says in words; `where` is a text in logs of version 0.1.0, and `place`
    always data. `about` is the output, the port, the exception's type or the refusal that the reason speaks of.
    `clause` is the one that broke. `verdicts` counts judged outputs; `headroom` is the largest error / bound by clause;
    `feature` is what an unsupported case would need; `lost` is the kind of end that the process took which ran the
    case, and `stderr` the end of what it printed, kept when the case did not pass; `skipped` says of relations why they
    could not be checked; `after` names the cases that have to come before, in one process, for it to fail.
    """

    case: str
    digest: str
    status: str
    clause: str = ""
    where: Where | str = ""
    reason: str = ""
    feature: str = ""
    worst: Worst | None = None
    verdicts: int = 0
    headroom: dict[str, float] = {}
    seconds: float = 0.0
    detail: str = ""
    lost: str = ""
    stderr: str = ""
    skipped: dict[str, str] = {}
    kind: Kind | None = None
    about: str = ""
    after: tuple[str, ...] = ()

    @property
    def place(self) -> Where:
        """`where` as data, also in an outcome of version 0.1.0."""
        return self.where if isinstance(self.where, Where) else Where(**before.where(self.where))

    @property
    def sort(self) -> Kind | None:
        """`kind`, also in an outcome of version 0.1.0; None for a case that passed or was not run."""
        if self.kind or self.status in ("pass", "unsupported", "not-run"):
            return self.kind
        return Kind(before.kind(self.status, self.reason, self.lost, valued=self.worst is not None))

    @property
    def signature(self) -> tuple[str, str, str]:
        """What failures of one cause have in common: clause, output, and the region or the kind of failure."""
        if self.worst and self.kind is not Kind.ALONE:
            return self.clause, self.worst.output, self.worst.region
        if self.kind is None:
            return self.clause, "", before.signed(self.status, self.reason)
        if self.kind is Kind.RAISED:
            return self.clause, "", f"raises {self.about}"
        if self.kind is Kind.LOST:
            return self.clause, "", self.lost
        return self.clause, "", self.kind.value + (f": {self.about}" if self.about else "")

    @property
    def earlier_signature(self) -> tuple[str, str, str]:
        """The signature that version 0.1.0 gave, which stands in expectation files of that time."""
        if self.worst:
            return self.clause, self.worst.output, self.worst.region
        return self.clause, "", before.signed(self.status, self.reason)
