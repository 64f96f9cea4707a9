"""Cases on a backend as a work: what `run` does in every place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from conformance.backends.connect import usable
from conformance.backends.plugin.process import Limits
from conformance.backends.protocol import Backend, Unsupported, close, environment_of, printed
from conformance.errors import BackendError, Lost
from conformance.judging.border import guarded
from conformance.judging.company import in_company
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.running.place import Ready, bundled
from conformance.spec.case import Case
from conformance.spec.operation import Operation


class One(msgspec.Struct, frozen=True):
    """A case; `first` is what came of it when it ended its process, after the case `before` in the same one."""

    case: Case
    first: Outcome | None = None
    before: str = ""


class Setup(msgspec.Struct, frozen=True):
    """A backend, and how it is run."""

    connect: str
    readings: dict[str, str]
    operation: Operation
    limits: Limits = Limits()
    isolate: bool = False


class CaseWork(msgspec.Struct, frozen=True):
    """Cases on a backend: one outcome for each."""

    setup: Setup

    unit: ClassVar[Any] = One
    result: ClassVar[Any] = Outcome

    @property
    def about(self) -> str:
        return f"'{self.setup.connect}'"

    @contextmanager
    def open(self) -> Iterator[CaseBench]:
        """The backend made ready. Raises `BackendError` and `Unsupported`."""
        bench = CaseBench(self.setup)
        try:
            yield bench
        finally:
            bench.close()

    def limits(self) -> Limits:
        return process_limits(self.setup)

    def again(self, unit: One, lost: Lost, said: str, before: str) -> One | None:
        return None if unit.first else One(unit.case, self.given_up(unit, lost, said), before)

    def given_up(self, unit: One, lost: Lost, said: str) -> Outcome:
        case = unit.case
        return Outcome(
            case=case.id,
            digest=case.digest,
            status="error",
            clause=self.setup.operation.rules.serves or case.clauses[0],
            where=Where("worker"),
            kind=Kind.LOST,
            reason=str(lost),
            lost=lost.kind,
            stderr=said,
        )

    def urgent(self, result: Outcome) -> bool:
        return False

    def name(self, unit: One) -> str:
        return unit.case.id


def process_limits(setup: Setup) -> Limits:
    """The limits of a worker process.

    A plug-in in a process of its own has its limits there; the worker, which is ours then, needs memory beside it.
    """
    if setup.isolate or setup.connect.startswith("cmd:"):
        return replace(setup.limits, seconds=float("inf"), memory=2 * setup.limits.memory)
    return setup.limits


class CaseBench:
    """A backend and an engine on it, and the same isolated where that was needed once."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.backend: Backend | None
        self._engines: list[Engine] = []
        self._isolated: Engine | None = None
        backend, info = self._usable(setup.isolate)
        self.backend = backend
        self.info = info
        self.ready = Ready(info, environment_of(guarded(backend)))
        self.engine = self._engine(backend)

    def _usable(self, isolate: bool) -> Any:
        setup = self.setup
        return usable(setup.connect, setup.limits, operation=setup.operation.operation, isolate=isolate)

    def _engine(self, backend: Backend) -> Engine:
        engine = Engine(self.setup.operation, backend, self.setup.readings, self.info, retry=self.retry)
        self._engines.append(engine)
        return engine

    def do(self, unit: One, give: Callable[[Outcome], bool]) -> None:
        give(self.again(unit) if unit.first else self.run(unit.case))

    def run(self, case: Case) -> Outcome:
        """The outcome of a case, with what a plug-in printed when it did not pass."""
        return run_case(self.engine, case)

    def again(self, unit: One) -> Outcome:
        """The outcome of a case that ended its process: where it does so again it can be seen in which call."""
        assert unit.first is not None
        alone = self.isolated(unit.case)
        if unit.before:
            clause = self.engine.rule("instances_shared", unit.case)
            return in_company(unit.first, alone, unit.before, clause)
        return alone if alone.status in ("fail", "error") else unit.first

    def isolated(self, case: Case) -> Outcome:
        """The outcome of a case with the backend in a process of its own."""
        if self.setup.isolate:
            return self.run(case)
        if self._isolated is None:
            self._isolated = self._engine(self._usable(True)[0])
        return run_case(self._isolated, case)

    def retry(self, cases: Sequence[Case]) -> Outcome:
        """The outcome of the last of some cases, run in this order in a fresh process, or one as good."""
        try:
            backend, info = self._usable(not as_fresh(self.setup.connect))
        except (BackendError, Unsupported) as error:
            lost = Lost("crash", f"cannot be started again: {error}")
            return CaseWork(self.setup).given_up(One(cases[-1]), lost, "")
        engine = Engine(self.setup.operation, backend, self.setup.readings, info)
        try:
            return [engine.run(case) for case in cases][-1]
        finally:
            engine.close()
            close(backend)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
            close(engine.backend)


def as_fresh(connect: str) -> bool:
    """Whether a backend that is connected to anew shares nothing with those before, as if in a process of its own."""
    return connect.partition(":")[0] in ("fault", "variant", "cmd")


def run_case(engine: Engine, case: Case) -> Outcome:
    """The outcome of a case, with what a plug-in printed when it did not pass."""
    outcome = engine.run(case)
    said = printed(engine.backend)
    if outcome.status in ("fail", "error") and said and not outcome.stderr:
        outcome = msgspec.structs.replace(outcome, stderr=said)
    return outcome


@contextmanager
def once_more(setup: Setup, backend: Backend | None, outcomes: Sequence[Outcome]) -> Iterator[Backend]:
    """The backend for further questions: as it was run, but in a process of its own when it has ended one."""
    apart = backend is None and not bundled(setup.connect)  # it was not in this process, and does not get into it
    isolate = setup.isolate or apart or any(outcome.lost for outcome in outcomes)
    if backend is not None and not (isolate and not setup.isolate):
        yield backend
        return
    made, _ = usable(setup.connect, setup.limits, operation=setup.operation.operation, isolate=isolate)
    try:
        yield made
    finally:
        close(made)
