"""What a case is while it runs: its calls, their answers, and the end that decides it.

Outputs are taken over at one border, `taken`: from there on they are plain arrays under plain names, whatever a plug-in
returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.errors import text_of
from conformance.judging.judge import Worst
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.spec.case import Case
from conformance.spec.operation import Operation, Reference

if TYPE_CHECKING:
    from reference.expected import Expected

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = dict[str, Array]

MANY = 256  # outputs that a mapping may have
WATCHED = 1 << 28  # bytes up to which an output is looked at again later


class Stop(Exception):  # noqa: N818  not an error of ours: it ends a case early
    """The case is decided."""

    def __init__(
        self,
        status: str,
        clause: str,
        reason: str,
        kind: Kind,
        *,
        about: str = "",
        worst: Worst | None = None,
        detail: str = "",
        lost: str = "",
    ) -> None:
        super().__init__(reason)
        self.status, self.clause, self.reason, self.kind = status, clause, reason, kind
        self.about, self.worst, self.detail, self.lost = about, worst, detail, lost
        self.feature = ""


class Inapplicable(Exception):  # noqa: N818  an answer, not a failure
    """There is nothing to compare in this case or with this backend, and why."""


@dataclass
class Run:
    """What is gathered while a case runs."""

    case: Case
    verdicts: int = 0
    headroom: dict[str, float] = field(default_factory=dict)
    where: Where = field(default_factory=lambda: Where("prepare"))
    warning: Stop | None = None
    watched: list[tuple[str, Array, bytes]] = field(default_factory=list)  # outputs that must not change any more
    serves: str = ""  # the clause by which the calls of an audit are answered, where it is not the usual one
    skipped: dict[str, str] = field(default_factory=dict)  # relations and audits that could not be checked
    offered: bool = False  # the call that is made ought to be refused


@dataclass(frozen=True)
class Answer:
    """What a call returned, as plain arrays and as it came, and what was expected of it."""

    got: Mapping[str, Any]
    expected: Mapping[str, Expected]
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Open:
    """A session, what it was prepared for, and the ids of the cases that it served."""

    session: Session
    config: OperationConfig
    served: list[str] = field(default_factory=list)


class Observer(Protocol):
    """Watches an engine. Calls that run at the same time are not told of."""

    def called(self, run: Run, config: OperationConfig, inputs: Inputs, expected: Mapping[str, Expected]) -> None:
        """A call is about to be made, with these inputs; they may be kept, and are not to be written to."""
        ...

    def answered(self, run: Run, got: Mapping[str, Any] | BaseException) -> None:
        """The call returned these plain outputs, or raised."""
        ...

    def ended(self, case: Case, outcome: Outcome) -> None:
        """A case is decided."""
        ...


class Caller(Protocol):
    """What relations, audits and refusals ask of the engine."""

    operation: Operation
    readings: Mapping[str, str]
    info: BackendInfo
    doubted: str

    def inputs(self, case: Case) -> Inputs: ...
    def oracle(self, case: Case) -> Reference: ...
    def config(self, case: Case) -> OperationConfig: ...
    def session(self, case: Case) -> Open: ...
    def prepare(self, config: OperationConfig) -> Open: ...
    def drop(self, case: Case) -> None: ...
    def rule(self, name: str, case: Case) -> str: ...
    def rows(self, case: Case) -> list[dict[str, Any]]: ...

    def call(
        self, run: Run, to: Open, inputs: Inputs, expected: Mapping[str, Expected], *, check: bool = True
    ) -> Answer: ...

    def hand_over(
        self, run: Run, to: Open, handed: Mapping[str, Any], expected: Mapping[str, Expected], *, check: bool = True
    ) -> Answer: ...

    def offer(self, run: Run, to: Open, inputs: Inputs) -> None: ...

    def judge(self, run: Run, answer: Answer, clause: str = "") -> None: ...

    def same(self, run: Run, answer: Answer, other: Answer, clause: str, reason: str, status: str = "fail") -> None: ...


def taken(got: object, due: Sequence[str], known: Mapping[str, Any], blame: str) -> dict[str, Any]:
    """The outputs as plain arrays by name; what is not an array stays as it is. Raises `Stop` for other outputs.

    A subclass of ndarray (a masked array, a memory map) counts by the numbers it holds; its own methods are not used.
    Whatever the mapping itself raises, goes through.
    """
    if not isinstance(got, Mapping):
        kind = text_of(type(got).__name__)
        raise Stop("error", blame, f"run() returns a {kind}, not a mapping of outputs", Kind.OUTPUTS)
    outputs: dict[Any, Any] = {}
    for number, name in enumerate(got):
        if number > MANY:
            raise Stop("error", blame, f"run() returns more than {MANY} outputs", Kind.OUTPUTS)
        value = got[name]
        array = isinstance(value, np.ndarray) and type(value) is not np.ndarray
        outputs[name if type(name) is str else text_of(name)] = np.ndarray.view(value, np.ndarray) if array else value
    missing = [name for name in due if name not in outputs]
    unknown = [text_of(name, 60) for name in outputs if name not in known]
    if missing or unknown:
        parts = [f"without {', '.join(missing)}"] * bool(missing)
        parts += [f"with {', '.join(unknown[:8])}"] * bool(unknown)
        reason = f"run() returns outputs {' and '.join(parts)}"
        raise Stop("error", blame, reason, Kind.OUTPUTS, about=(missing + unknown)[0])
    return outputs


def untouched(before: Mapping[str, Array], after: Mapping[str, Array], clause: str) -> None:
    """Raises `Stop` when an input was modified."""
    for name, array in before.items():
        now = after[name]
        if now.shape != array.shape or now.tobytes() != array.tobytes():
            raise Stop("fail", clause, f"the call modifies its input {name}", Kind.MODIFIED, about=name)
