"""Runs a case on a backend: the single call, the streams, the audits, the relations; an `Outcome` comes back.

Every call is judged against the reference for that call's own inputs; by induction over a stream's calls, and by a
last comparison with the single call, a stream is judged against the single call. Which clause broke when calls differ,
inputs change or sessions disturb each other is said by the operation's `rules`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from conformance.backends.protocol import Backend, BackendInfo, OperationConfig, Rejected, info_for
from conformance.errors import Lost, plain, text_of
from conformance.judging import poison, relations
from conformance.judging.audits import AUDITS
from conformance.judging.border import Mirrored, guarded
from conformance.judging.calling import (
    WATCHED,
    Answer,
    Inapplicable,
    Inputs,
    Observer,
    Open,
    Run,
    Stop,
    taken,
    untouched,
)
from conformance.judging.company import Company, Retry
from conformance.judging.ending import decided, raised, stopped
from conformance.judging.judge import judge
from conformance.judging.literal import with_values
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.judging.refusals import refused
from conformance.judging.sessions import Sessions
from conformance.judging.streams import stream
from conformance.judging.support import check_support
from conformance.spec.case import Case
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation, Reference
from reference.expected import after

if TYPE_CHECKING:
    from reference.expected import Expected


class Source:
    """Where an engine takes the inputs of cases and the reference from."""

    def __init__(self, operation: Operation, readings: Mapping[str, str]) -> None:
        self.operation, self.readings = operation, readings
        self._oracles: dict[Any, Reference] = {}

    def inputs(self, case: Case) -> Inputs:
        """The ports of a case's single call."""
        return inputs_of(case, self.operation)

    def oracle(self, case: Case) -> Reference:
        """The reference for a case's attributes."""
        key = tuple(sorted(case.attributes.items()))
        if key not in self._oracles:
            self._oracles[key] = self.operation.oracle(case.attributes, self.readings)
        return self._oracles[key]


@contextmanager
def quiet() -> Iterator[None]:
    """NumPy does not warn: what a plug-in computes from our poison overflows and is invalid, and has to be ignored.

    Also where warnings are errors, and in threads, which start with NumPy's own settings.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


class Engine:
    """Runs cases of one operation on one backend.

    Sessions are kept and shared between cases of one configuration, as a plug-in's users share them. A case that fails
    after others is run again without them (see `company`); if it passes then, the failure is one of shared instances.
    With `free` no values of the reference are used, only relations between answers. `retry` runs cases in a fresh
    process, where there is a way to.
    """

    doubted = ""  # a relation that is asked by itself, too, where several were asked together without a finding

    def __init__(
        self,
        operation: Operation,
        backend: Backend,
        readings: Mapping[str, str] | None = None,
        info: BackendInfo | None = None,
        *,
        free: bool = False,
        source: Source | None = None,
        observers: Sequence[Observer] = (),
        retry: Retry | None = None,
    ) -> None:
        self.readings: Mapping[str, str] = dict(readings or {})
        self.operation = operation.under(self.readings)
        self.backend = guarded(backend)
        self.info = info or info_for(self.backend, operation.operation)
        self.free = free
        self.observers = tuple(observers)
        self.source = source or Source(self.operation, self.readings)
        self._sessions = Sessions(self.backend)
        self._latest: list[str] = []  # the case before this one, unless a process was lost in it
        self._company = Company(self._again, retry)

    def close(self) -> None:
        """Close all sessions; whatever a backend does then cannot change a result."""
        self._sessions.close()

    # One case

    def run(self, case: Case) -> Outcome:
        """Run one case. Never raises for what a backend does; an interruption from the keyboard goes through."""
        with quiet():
            return self._run(case)

    def _run(self, case: Case) -> Outcome:
        start = time.perf_counter()
        outcome, earlier = self._attempt(case)
        if outcome.status in ("fail", "error"):
            settled = self._company.settled(case, outcome, earlier, self.rule("instances_shared", case))
            if settled is not outcome and settled.kind is Kind.ALONE:
                self.drop(case)
            outcome = settled
        self._company.remember(case)
        outcome = msgspec.structs.replace(outcome, seconds=time.perf_counter() - start)
        for observer in self.observers:
            observer.ended(case, outcome)
        return outcome

    def first(self, case: Case) -> Outcome:
        """The outcome of one case as it comes: without asking whether it needs others to come before."""
        with quiet():
            return self._attempt(case)[0]

    def _again(self, cases: Sequence[Case], *, fresh: bool = False) -> Outcome:
        """The outcome of the last of some cases, run in this order on a fresh session; with `fresh`, on fresh ones."""
        if fresh:
            self.close()
        for case in cases:
            if case is cases[-1] and len(cases) == 1:
                self.drop(case)
            outcome, _ = self._attempt(case)
        return outcome

    def _attempt(self, case: Case) -> tuple[Outcome, list[str]]:
        run = Run(case)
        earlier: list[str] = []
        stop: Stop | None = None
        try:
            check_support(case, self.operation, self.info, self.readings)
            if case.refusal:
                refused(self, run, case.refusal)
            else:
                to = self.session(case)
                earlier = list(to.served)
                if self.free:
                    self._relations_only(run, to)
                else:
                    self._calls(run, to)
                to.served.append(case.id)
        except Stop as ending:
            stop = ending
        except KeyboardInterrupt:
            raise
        except Lost as lost:
            stop = Stop("error", run.serves or self.rule("serves", case), plain(str(lost)), Kind.LOST, lost=lost.kind)
            earlier = earlier or self._latest  # other sessions were in the same process
        except BaseException as error:  # a plug-in may raise SystemExit, too
            stop = raised(error, run.serves or self.rule("serves", case))
        stop = stop or run.warning
        self._latest = [] if stop and stop.lost else [case.id]
        if stop and stop.status in ("fail", "error") and not stop.lost and case.level == "recommended":
            stop.status = "quality-warning"
        if stop and stop.status in ("fail", "error"):
            # Nothing is known of a session that failed: the next case gets a fresh one.
            self.drop(case)
        return decided(run, stop), earlier

    def rule(self, name: str, case: Case) -> str:
        """The clause of a rule of the operation; the case's first one where the operation has no such rule."""
        return str(getattr(self.operation.rules, name)) or case.clauses[0]

    def rows(self, case: Case) -> list[dict[str, Any]]:
        """The per-sequence symbols of a case's single call."""
        return Geometry(case, self.operation).rows

    # Sessions and references

    def config(self, case: Case) -> OperationConfig:
        """The configuration a case is prepared with."""
        return OperationConfig(
            operation=case.operation,
            attributes=dict(case.attributes),
            element_type=case.element_type,
            length_type=case.length_type,
            disabled=frozenset(case.disabled),
        )

    def prepare(self, config: OperationConfig) -> Open:
        """A session of its own."""
        return self._sessions.prepare(config)

    def session(self, case: Case) -> Open:
        """The shared session of a configuration."""
        return self._sessions.shared(self.config(case))

    def drop(self, case: Case) -> None:
        """Close the session of a case's configuration: the next case gets a fresh one."""
        self._sessions.drop(self.config(case))

    def oracle(self, case: Case) -> Reference:
        """The reference for a case's attributes."""
        return self.source.oracle(case)

    def inputs(self, case: Case) -> Inputs:
        """The ports of a case's single call."""
        return self.source.inputs(case)

    # Calls

    def _calls(self, run: Run, to: Open) -> None:
        case = run.case
        whole = self.inputs(case)
        run.where = Where("single")
        expected: Mapping[str, Expected] = self.oracle(case).expect(whole)
        if not self.readings:  # values are written for the default readings; under others the reference speaks
            expected = with_values(case, expected)
        single = self._single(run, to, whole, expected)
        for number in range(len(case.streams)):
            stream(self, run, to, whole, number, single)
        for audit in case.audits:
            run.where = Where("audit", (audit,))
            try:
                AUDITS[audit](self, run, to, whole, single)
            except Inapplicable as reason:
                run.skipped[audit] = str(reason)
            run.serves = ""
        if case.relations:
            relations.check(case.relations, self, run, to, whole, single)
        self._repeat(run, to, whole, single)

    def _single(self, run: Run, to: Open, whole: Inputs, expected: Mapping[str, Expected]) -> Answer:
        """The single call; a wrong number that came from an element that is not read is traced to it."""
        try:
            return self.call(run, to, whole, expected)
        except Stop as stop:
            if stop.kind is Kind.VALUE and stop.worst:
                told = poison.source(self, run.case, to.session, whole, expected, stop.worst)
                if told:
                    stop.reason += f"; it comes from poison in {told}, which is not read"
                    stop.about = told
            raise

    def _relations_only(self, run: Run, to: Open) -> None:
        """Of the reference only which elements are specified, their bounds and shapes."""
        whole = self.inputs(run.case)
        run.where = Where("single")
        single = self.call(run, to, whole, self.oracle(run.case).expect(whole), check=False)
        relations.check_free(run.case.relations or tuple(self.operation.relation), self, run, to, whole, single)
        self._repeat(run, to, whole, single)

    def _repeat(self, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
        run.where = Where("repeated")
        again = self.call(run, to, whole, single.expected, check=False)
        clause = self.rule("repeatable", run.case)
        self.same(run, again, single, clause, "the same call gives different bits the second time")
        run.where = Where("after")
        if isinstance(self.backend, Mirrored):
            self.backend.refresh()
        for name, array, before in run.watched:
            if array.tobytes() != before:
                reason = f"{name} of an earlier call changed after it was returned"
                raise Stop("fail", self.rule("outputs_untouched", run.case), reason, Kind.CHANGED, about=name)

    def call(
        self, run: Run, to: Open, inputs: Inputs, expected: Mapping[str, Expected], *, check: bool = True
    ) -> Answer:
        """One call with fresh copies of the inputs. Raises `Stop` when something is wrong with it."""
        return self._made(run, to, {name: array.copy() for name, array in inputs.items()}, inputs, expected, check)

    def hand_over(
        self, run: Run, to: Open, handed: Mapping[str, Any], expected: Mapping[str, Expected], *, check: bool = True
    ) -> Answer:
        """One call with these very arrays."""
        before = {name: np.array(array, copy=True, order="C", subok=False) for name, array in handed.items()}
        return self._made(run, to, handed, before, expected, check)

    def offer(self, run: Run, to: Open, inputs: Inputs) -> None:
        """One call that ought to be refused; whether it is, and how, is for the cases of refusals."""
        run.offered = True
        for observer in self.observers:
            observer.called(run, to.config, inputs, {})
        run.offered = False
        with suppress(Rejected):
            to.session.run({name: array.copy() for name, array in inputs.items()})

    def _made(
        self,
        run: Run,
        to: Open,
        handed: Mapping[str, Any],
        before: Inputs,
        expected: Mapping[str, Expected],
        check: bool,
    ) -> Answer:
        """Make a call, see that its inputs were left as they were before, and judge its outputs."""
        for observer in self.observers:
            observer.called(run, to.config, before, expected)
        try:
            raw = to.session.run(handed)
            got = taken(raw, self.info.outputs, self.operation.output, run.serves or self.rule("serves", run.case))
        except BaseException as error:
            for observer in self.observers:
                observer.answered(run, error)
            raise
        for observer in self.observers:
            observer.answered(run, got)
        untouched(before, handed, self.rule("inputs_untouched", run.case))
        answer = Answer(got, after(expected, got), raw)
        if check:
            self.judge(run, answer)
        for name, array in got.items():
            if isinstance(array, np.ndarray) and array.nbytes <= WATCHED:
                run.watched.append((name, array, array.tobytes()))
        return answer

    def judge(self, run: Run, answer: Answer, clause: str = "") -> None:
        """Judge all declared outputs; the first failing one decides the case. A `clause` is blamed in any event."""
        for output in self.operation.outputs:
            if output.name not in self.info.outputs:
                continue
            verdict = judge(output.name, answer.got[output.name], answer.expected[output.name], output.shape_clause)
            run.verdicts += 1
            for name, ratio in verdict.headroom.items():
                run.headroom[name] = max(run.headroom.get(name, 0.0), ratio)
            if verdict.status == "pass":
                continue
            stop = stopped(verdict, clause or verdict.clause or run.case.clauses[0])
            if verdict.status == "fail":
                raise stop
            run.warning = run.warning or stop

    def same(self, run: Run, answer: Answer, other: Answer, clause: str, reason: str, status: str = "fail") -> None:
        """Two answers to the same question have the same bits in every specified element."""
        for name in self.info.outputs:
            a, b = answer.got[name], other.got[name]
            run.verdicts += 1
            problem = _unlike(a, b)
            if problem:
                raise Stop("fail", clause, f"{reason}: {name} {problem}", Kind.DIFFERS, about=name)
            for part in other.expected[name].parts:
                differ = part.differing(a[part.index], b[part.index], recommended=status != "fail")
                if differ.any():
                    text = f"{reason}: {name}, {part.region}, {int(differ.sum())} elements"
                    stop = Stop(status, clause, text, Kind.DIFFERS, about=name)
                    if status == "fail":
                        raise stop
                    run.warning = run.warning or stop
                    return


def _unlike(a: object, b: object) -> str:
    """How an output is not an array of the type and shape of the one before; empty when it is."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return f"is a {text_of(type(a if isinstance(b, np.ndarray) else b).__name__)}, not an array"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"has shape {list(a.shape)}, then {list(b.shape)}"
    return ""


__all__ = ["Engine", "Outcome", "Source"]
