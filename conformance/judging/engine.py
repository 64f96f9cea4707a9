"""Runs a case on a backend: the single call, the streams, the audits, the refusals; an `Outcome` comes back.

Every call is judged against the reference for that call's own inputs; by induction over a stream's calls, and by a
last comparison with the single call, a stream is judged against the single call (STA-4).
"""

from __future__ import annotations

import re
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from conformance.backends.protocol import (
    UNCHECKED,
    Backend,
    BackendInfo,
    OperationConfig,
    Rejected,
    Session,
    Unsupported,
    info_for,
)
from conformance.errors import Lost
from conformance.judging.judge import Verdict, Worst, judge, same_bits
from conformance.spec.broken import spoilt
from conformance.spec.case import Case, Refusal
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import Poison, inputs_of
from conformance.spec.operation import Operation, Reference
from conformance.spec.resized import reshaped, with_other_attributes
from conformance.spec.streams import call_inputs, spans

if TYPE_CHECKING:
    from reference.expected import Expected

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = dict[str, Array]

STATUSES = ("pass", "quality-warning", "fail", "error", "unsupported", "not-run")
SESSIONS_KEPT = 320  # more than the library has configurations: preparing is what costs most on some runtimes
# Audits that every case gets, and those that a case asks for by name.
AUDITS = ("interleave", "shapes", "sessions", "concurrent", "strided", "refused")


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one case on one backend.

    `verdicts` counts judged outputs; `headroom` is the largest error / bound by clause; `where` names the call;
    `feature` is what an unsupported case would need; `lost` is the kind of end that the process took which ran the
    case, and `stderr` the end of what it printed, kept when the case did not pass; `skipped` says of relations why they
    could not be checked.
    """

    case: str
    digest: str
    status: str
    clause: str = ""
    where: str = ""
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

    @property
    def signature(self) -> tuple[str, str, str]:
        """What failures of one cause have in common: clause, output, and the region or the kind of failure."""
        if self.worst:
            return self.clause, self.worst.output, self.worst.region
        kind = self.reason.partition(":")[0] if self.status == "error" else _without_numbers(self.reason)
        return self.clause, "", kind


class Stop(Exception):  # noqa: N818  not an error of ours: it ends a case early
    """The case is decided."""

    def __init__(self, status: str, clause: str, reason: str, *, worst: Worst | None = None, feature: str = "") -> None:
        super().__init__(reason)
        self.status, self.clause, self.reason, self.worst, self.feature = status, clause, reason, worst, feature
        self.detail = self.lost = ""


@dataclass
class Run:
    """What is gathered while a case runs."""

    case: Case
    verdicts: int = 0
    headroom: dict[str, float] = field(default_factory=dict)
    where: str = "prepare"
    warning: Stop | None = None
    watched: list[tuple[str, Array, bytes]] = field(default_factory=list)  # outputs that must not change any more
    skipped: dict[str, str] = field(default_factory=dict)  # relations that could not be checked


@dataclass(frozen=True)
class Answer:
    """What a call returned, and what was expected of it."""

    got: Mapping[str, Array]
    expected: Mapping[str, Expected]


class Engine:
    """Runs cases of one operation on one backend.

    Sessions are kept and shared between cases of one configuration, as a plug-in's users share them (PLG-3). A case
    that fails on a session that served others before is run again on a fresh one; if it passes there, the failure is
    one of PLG-3.
    """

    doubted = ""  # a relation that is asked by itself, too, where several were asked together without a finding

    def __init__(
        self,
        operation: Operation,
        backend: Backend,
        readings: Mapping[str, str] | None = None,
        info: BackendInfo | None = None,
    ) -> None:
        self.readings = dict(readings or {})
        self.operation = operation.under(self.readings)
        self.backend = backend
        self.info = info or info_for(backend, operation.operation)
        self._sessions: OrderedDict[Any, tuple[Session, list[str]]] = OrderedDict()
        self._oracles: dict[Any, Reference] = {}
        self._latest: list[str] = []  # the case before this one, unless a process was lost in it

    def close(self) -> None:
        """Close all sessions; whatever a backend does then cannot change a result."""
        while self._sessions:
            self._drop(next(iter(self._sessions)))

    # One case

    def run(self, case: Case) -> Outcome:
        """Run one case. Never raises for what a backend does, but for KeyboardInterrupt and the like."""
        start = time.perf_counter()
        outcome, earlier = self._attempt(case)
        if outcome.status in ("fail", "error") and earlier:
            self._drop(_key(self.config(case)))
            alone, _ = self._attempt(case)
            outcome = in_company(outcome, alone, earlier[-1])
            if outcome is not alone:
                self._drop(_key(self.config(case)))
        return msgspec.structs.replace(outcome, seconds=time.perf_counter() - start)

    def _attempt(self, case: Case) -> tuple[Outcome, list[str]]:
        run = Run(case)
        earlier: list[str] = []
        stop: Stop | None = None
        try:
            self._check_support(case)
            if case.refusal:
                self._refusal(run, case.refusal)
            else:
                session, earlier = self.session(case)
                earlier = list(earlier)
                self._calls(run, session)
                self._sessions[_key(self.config(case))][1].append(case.id)
        except Stop as decided:
            stop = decided
        except Unsupported as unsupported:
            stop = Stop("unsupported", "", str(unsupported), feature=unsupported.feature)
        except Rejected as rejected:
            stop = Stop("fail", self._blame(case), f"refuses a valid case ({rejected})")
        except Lost as lost:
            stop = Stop("error", self._blame(case), str(lost))
            stop.lost = lost.kind
            earlier = earlier or self._latest  # other sessions were in the same process
        except Exception as error:
            stop = Stop("error", self._blame(case), f"raises {type(error).__name__}: {first_line(error)}")
            stop.detail = trace(error)
        stop = stop or run.warning
        self._latest = [] if stop and stop.lost else [case.id]
        if stop and stop.status == "fail" and case.level == "recommended":
            stop.status = "quality-warning"
        if stop and stop.status in ("fail", "error"):
            # Nothing is known of a session that failed: the next case gets a fresh one.
            self._drop(_key(self.config(case)))
        outcome = Outcome(
            case=case.id,
            digest=case.digest,
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
        )
        return outcome, earlier

    def _blame(self, case: Case, clause: str = "") -> str:
        """The clause to report: the one that broke when the case is about it, else the case's first."""
        return clause if clause in case.clauses else case.clauses[0]

    def _check_support(self, case: Case) -> None:
        info, operation = self.info, self.operation
        if case.element_type not in info.element_types:
            types = ", ".join(info.element_types)
            raise Unsupported(case.element_type, f"{info.name} takes {types} only", info.url)
        if case.refusal and UNCHECKED in info.features:
            raise Unsupported(UNCHECKED, f"{info.name} leaves checking its inputs to its callers", info.url)
        needed = list(case.disabled) + [
            name
            for name, feature in operation.features.items()
            if feature.when and Geometry(case, operation).holds_somewhere(feature.when)
        ]
        for feature in needed:
            if feature not in info.features:
                raise Unsupported(feature, f"{info.name} does not declare the feature '{feature}'", info.url)
        for reading in operation.readings:
            without = reading.without.get(self.readings.get(reading.name, reading.default))
            if without in needed:
                raise Unsupported(without, f"not asked for when {reading.says} is read as '{reading.name}'")
        missing = [o for o in operation.outputs if o.name not in info.outputs]
        spoken_of = {c for o in operation.outputs if o.name in info.outputs for c in o.clauses}
        lost = {c for o in missing for c in o.clauses} - spoken_of
        if not case.refusal and set(case.clauses) <= lost:
            names = ", ".join(o.name for o in missing)
            raise Unsupported(names, f"{info.name} does not return {names}", info.url)

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

    def session(self, case: Case) -> tuple[Session, list[str]]:
        """The shared session of a configuration and the ids of the cases that it served."""
        config = self.config(case)
        key = _key(config)
        if key not in self._sessions:
            self._sessions[key] = (self.backend.prepare(config), [])
            while len(self._sessions) > SESSIONS_KEPT:
                self._drop(next(iter(self._sessions)))
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def drop(self, case: Case) -> None:
        """Close the session of a case's configuration: the next case gets a fresh one."""
        self._drop(_key(self.config(case)))

    def _drop(self, key: Any) -> None:
        kept = self._sessions.pop(key, None)
        if kept:
            try:
                kept[0].close()
            except Exception:
                return  # a session that cannot be closed is of no further use either way

    def oracle(self, case: Case) -> Reference:
        """The reference for a case's attributes."""
        key = tuple(sorted(case.attributes.items()))
        if key not in self._oracles:
            self._oracles[key] = self.operation.oracle(case.attributes, self.readings)
        return self._oracles[key]

    def inputs(self, case: Case) -> Inputs:
        """The ports of a case's single call."""
        return inputs_of(case, self.operation)

    # Calls

    def _calls(self, run: Run, session: Session) -> None:
        case = run.case
        whole = self.inputs(case)
        run.where = "single call"
        expected = self._with_values(case, self.oracle(case).expect(whole))
        single = self.call(run, session, whole, expected)
        for stream in case.streams:
            self._stream(run, session, whole, stream, single)
        for audit in case.audits:
            run.where = f"audit {audit}"
            getattr(self, f"_audit_{audit}")(run, session, whole, single)
        if case.relations:
            from conformance.judging import relations

            relations.check(case.relations, self, run, session, whole, single)
        run.where = "repeated call"
        again = self.call(run, session, whole, expected, check=False)
        self.same(run, again, single, "PLG-1", "the same call gives other bits the second time")
        self._unchanged(run)

    def call(
        self, run: Run, session: Session, inputs: Inputs, expected: Mapping[str, Expected], *, check: bool = True
    ) -> Answer:
        """One call: run it, see that the inputs were left alone, and judge its outputs."""
        handed = {name: array.copy() for name, array in inputs.items()}
        got = session.run(handed)
        for name, array in inputs.items():
            if handed[name].shape != array.shape or handed[name].tobytes() != array.tobytes():
                raise Stop("fail", "PLG-2", f"the call modifies its input {name}")
        answer = Answer(got, expected)
        self._check_names(run.case, got)
        if check:
            self._judge(run, answer)
        for name, array in got.items():
            if isinstance(array, np.ndarray):
                run.watched.append((name, array, array.tobytes()))
        return answer

    def _check_names(self, case: Case, got: object) -> None:
        if not isinstance(got, Mapping):
            raise Stop("error", self._blame(case), f"run() returns a {type(got).__name__}, not a mapping of outputs")
        missing = [name for name in self.info.outputs if name not in got]
        unknown = [str(name) for name in got if name not in self.operation.output]
        if missing or unknown:
            parts = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(unknown)}"] * bool(unknown)
            raise Stop("error", self._blame(case), f"run() returns outputs {' and '.join(parts)}")

    def _judge(self, run: Run, answer: Answer, clause: str = "") -> None:
        """Judge all declared outputs; the first failing one decides the case."""
        for output in self.operation.outputs:
            if output.name not in self.info.outputs:
                continue
            verdict = judge(output.name, answer.got[output.name], answer.expected[output.name], output.shape_clause)
            run.verdicts += 1
            for name, ratio in verdict.headroom.items():
                run.headroom[name] = max(run.headroom.get(name, 0.0), ratio)
            if verdict.status == "pass":
                continue
            stop = self._stop(run, verdict, clause)
            if verdict.status == "fail":
                raise stop
            run.warning = run.warning or stop

    def _stop(self, run: Run, verdict: Verdict, clause: str = "") -> Stop:
        blamed = clause or self._blame(run.case, verdict.clause)
        return Stop(verdict.status, blamed, verdict.reason, worst=verdict.worst)

    def _with_values(self, case: Case, expected: Mapping[str, Expected]) -> Mapping[str, Expected]:
        """The expectation with values written in the case put in place of the reference's.

        They are written for the default readings; under others the reference speaks.
        """
        if self.readings:
            return expected
        return {name: with_literal(case.values[name], e) if name in case.values else e for name, e in expected.items()}

    def _stream(self, run: Run, session: Session, whole: Inputs, stream: Sequence[int], single: Answer) -> None:
        case, oracle = run.case, self.oracle(run.case)
        carried: dict[str, Array] = {}
        answer = single
        label = "+".join(map(str, stream)) if len(stream) <= 12 else f"{len(stream)} calls"
        for number, (start, end) in enumerate(spans(stream), 1):
            run.where = f"stream {label}, call {number}"
            inputs = call_inputs(whole, case, self.operation, start, end, carried)
            answer = self.call(run, session, inputs, oracle.expect(inputs))
            carried = self.carry(answer)
        run.where = f"stream {label}, end"
        # Under a reading the number of rows, and what stands where the contract specifies nothing, may follow from the
        # cuts; the last call was judged for it.
        lasting = self._lasting(case, whole) or single.expected
        due = {name: replace(one, shape=answer.expected[name].shape) for name, one in lasting.items()}
        self._judge(run, Answer(answer.got, due), "STA-4" if "STA-4" in case.clauses else "")
        if "PLG-4" in case.clauses:
            cut = {name: array[tuple(map(slice, single.got[name].shape))] for name, array in answer.got.items()}
            reason = "the stream's bits differ from the single call's"
            self.same(run, Answer(cut, due), Answer(single.got, lasting), "PLG-4", reason, "quality-warning")

    def _lasting(self, case: Case, whole: Inputs) -> Mapping[str, Expected] | None:
        """The single call's expectation without readings that specify more than the contract; None without such."""
        narrower = {r.name for r in self.operation.readings if self.readings.get(r.name) in r.narrower}
        if not narrower:
            return None
        readings = {name: choice for name, choice in self.readings.items() if name not in narrower}
        return self.operation.oracle(case.attributes, readings).expect(whole)

    def carry(self, answer: Answer) -> dict[str, Array]:
        """Ports of the next call: the outputs as they came, or the reference's where a backend returns none.

        Copies, so that a backend that writes into its old outputs is not taken for one that modifies its inputs.
        """
        carried = {}
        for port, output in self.operation.carried.items():
            got = answer.got.get(output)
            carried[port] = answer.expected[output].fill(np.nan) if got is None else got.copy()
        return carried

    def same(self, run: Run, answer: Answer, other: Answer, clause: str, reason: str, status: str = "fail") -> None:
        """Two answers to the same question have the same bits in every specified element."""
        for name in self.info.outputs:
            a, b = answer.got[name], other.got[name]
            run.verdicts += 1
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Stop("fail", clause, f"{reason}: {name} has shape {list(a.shape)}, then {list(b.shape)}")
            for part in other.expected[name].parts:
                differ = ~same_bits(a[part.index], b[part.index])
                if differ.any():
                    stop = Stop(status, clause, f"{reason}: {name}, {part.region}, {int(differ.sum())} elements")
                    if status == "fail":
                        raise stop
                    run.warning = run.warning or stop
                    return

    def _unchanged(self, run: Run) -> None:
        run.where = "after the last call"
        for name, array, before in run.watched:
            if array.tobytes() != before:
                raise Stop("fail", "PLG-2", f"{name} of an earlier call changed after it was returned")

    # Audits

    def _audit_interleave(self, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
        """PLG-1: another call in between does not show."""
        other = reshaped(run.case, self.operation, {}, seed=run.case.seed + 1)
        self._judged(run, session, other)
        again = self.call(run, session, whole, single.expected)
        self.same(run, again, single, "PLG-1", "a call in between changes the bits")

    def _audit_shapes(self, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
        """PLG-3: one session serves other shapes, smaller and larger, and then the first again."""
        batch, tokens = self.operation.batch, self.operation.tokens
        N, L = run.case.dims[batch], run.case.dims[tokens]
        for dims in ({tokens: 1}, {tokens: 3 * L + 2}, {batch: N + 3}, {batch: 1, tokens: 2}, {tokens: 0}):
            run.where = "audit shapes, " + ", ".join(f"{k}={v}" for k, v in dims.items())
            self._judged(run, session, reshaped(run.case, self.operation, dims))
        run.where = "audit shapes, the first again"
        again = self.call(run, session, whole, single.expected)
        self.same(run, again, single, "PLG-3", "calls of other shapes in between change the bits")

    def _audit_sessions(self, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
        """PLG-3: two instances with other attributes do not affect each other."""
        other = reshaped(with_other_attributes(run.case, self.operation), self.operation, {})
        second = self.backend.prepare(self.config(other))
        try:
            for _ in range(2):
                self._judged(run, second, other)
                again = self.call(run, session, whole, single.expected)
                self.same(run, again, single, "PLG-3", "an instance with other attributes changes the bits")
        finally:
            second.close()

    def _audit_concurrent(self, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
        """PLG-1: two requests at the same time, on sessions and numbers of their own, give the bits of each alone."""
        other = reshaped(run.case, self.operation, {}, seed=run.case.seed + 1)
        inputs = inputs_of(other, self.operation)
        requests = [(whole, single), (inputs, self.call(run, session, inputs, self.oracle(other).expect(inputs)))]
        sessions = [self.backend.prepare(self.config(run.case)) for _ in requests]
        answers: list[tuple[Answer, Mapping[str, Array] | Exception]] = []

        def serve(one: Session, arrays: Inputs, alone: Answer) -> None:
            for _ in range(6):
                try:
                    answers.append((alone, one.run({name: array.copy() for name, array in arrays.items()})))
                except Exception as error:
                    answers.append((alone, error))
                    return

        threads = [Thread(target=serve, args=(one, *request)) for one, request in zip(sessions, requests, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in sessions:
            one.close()
        for alone, got in answers:
            if isinstance(got, Exception):
                raise got
            self._check_names(run.case, got)
            self.same(run, Answer(got, alone.expected), alone, "PLG-1", "concurrent requests give other bits")

    def _audit_strided(self, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
        """PLG-1: inputs that are regions of larger arrays give the bits of dense ones."""
        views = {name: region(array, run.case.poison) for name, array in whole.items()}
        got = session.run(views)
        self._check_names(run.case, got)
        self.same(run, Answer(got, single.expected), single, "PLG-1", "inputs with strides give other bits")
        for name, array in whole.items():
            if not same_bits(views[name], array).all():
                raise Stop("fail", "PLG-2", f"the call modifies its input {name}")

    def _audit_refused(self, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
        """PLG-3: a call that is refused in between does not show."""
        broken = (spoilt(run.case, self.operation, rule) for rule in self.operation.refusals if rule.shapes)
        refused = next((case for case in broken if case), run.case)
        with suppress(Rejected):  # whether it is refused, and how, is for the cases of refusals
            session.run({name: array.copy() for name, array in self.inputs(refused).items()})
        again = self.call(run, session, whole, single.expected)
        self.same(run, again, single, "PLG-3", "a refused call in between changes the bits")

    def _judged(self, run: Run, session: Session, case: Case) -> None:
        inputs = self.inputs(case)
        self.call(run, session, inputs, self.oracle(case).expect(inputs))

    # Refusals

    def _refusal(self, run: Run, due: Refusal) -> None:
        """The refusal that is due, on the shared session: one that has refused a call serves the next as ever."""
        case = run.case
        phase = "prepare"
        try:
            session, served = self.session(case)
            phase = run.where = "call"
            served.append(case.id)
            session.run(self.inputs(case))
        except Rejected as rejected:
            self._check_refusal(run, due, rejected, phase)
            return
        kind = f"a {due.kind} refusal of {', '.join(due.names)}"
        raise Stop("fail", self._blame(case), f"computes instead of refusing; {kind} is due at the {due.phase}")

    def _check_refusal(self, run: Run, due: Refusal, rejected: Rejected, phase: str) -> None:
        run.verdicts += 1
        clause = self._blame(run.case)
        if due.phase == "call" and phase == "prepare":
            raise Stop("fail", clause, f"refuses at the preparation what is wrong with the call ({rejected})")
        got = rejected
        if got.kind != due.kind:
            run.warning = Stop("quality-warning", clause, f"refuses as '{got.kind}', not as '{due.kind}'")
        elif not set(got.names) & set(due.names):
            names = ", ".join(got.names) or "nothing"
            run.warning = Stop("quality-warning", clause, f"names {names} as the culprit, not {', '.join(due.names)}")


def in_company(first: Outcome, alone: Outcome, before: str) -> Outcome:
    """What to say of a case that failed after others, the last of them `before`, and was then run alone.

    If it passes alone, the failure is one of PLG-3; a warning only when its process was ended from outside or for what
    it took, as that can be the machine's fault.
    """
    if alone.status not in ("pass", "quality-warning"):
        return alone
    same = "in the same process" if first.lost else "on the same one"
    reason = f"passes on a fresh session, fails after {before} {same}: {first.reason}"
    told = first if first.lost in ("", "crash") else msgspec.structs.replace(alone, status="quality-warning")
    return msgspec.structs.replace(
        told, clause="PLG-3", where=first.where, reason=reason, lost=first.lost, stderr=first.stderr
    )


def with_literal(literal: Any, expected: Expected) -> Expected:
    """An expectation whose values are those written in the case; bounds stay, a null leaves the reference's value."""
    array = np.array(literal, dtype=object).reshape(expected.shape)
    parts = []
    for part in expected.parts:
        value = array[part.index]
        known = np.array([v is not None for v in value.flat], dtype=bool).reshape(value.shape)
        numbers = np.where(known, value, part.value).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = numbers.astype(expected.dtype) if part.bound is None else numbers
        parts.append(replace(part, value=numbers))
    return replace(expected, parts=tuple(parts))


def region(array: Array, poison: str) -> Array:
    """The same values as a region of a larger, poisoned array: rows further apart, or every other element."""
    if not array.ndim:
        return array
    shape = (2 * len(array),) if array.ndim == 1 else (*array.shape[:-1], array.shape[-1] + 3)
    if array.dtype.kind == "i":
        larger = np.full(shape, -1, dtype=array.dtype)
    else:
        larger = Poison(poison).values(shape, array.dtype)
    view: Array = larger[::2] if array.ndim == 1 else larger[..., : array.shape[-1]]
    view[...] = array
    return view


def _key(config: OperationConfig) -> Any:
    attributes = tuple(sorted((name, repr(value)) for name, value in config.attributes.items()))
    return config.operation, attributes, config.element_type, config.length_type, config.disabled


def _without_numbers(text: str) -> str:
    return re.sub(r"-?\d[\d.,e+-]*", "#", text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, cut to a readable length."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "no message"


def trace(error: BaseException) -> str:
    """The last steps of a traceback, for the log; never printed by default."""
    return "".join(traceback.format_exception(error)[-4:])[-2000:]
