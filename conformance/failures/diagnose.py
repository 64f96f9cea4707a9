"""What an implementation looks like: the readings it follows, and the known mistake that explains its failures.

A suspect is an implementation that is wrong, or reads the contract differently, in a known way. Run through the same
case, it explains a failure when every call ends as the backend's did: the same outputs up to rounding, the same
refusals, the same finding. Nothing here knows an operation; suspects and stages come from its catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conformance.backends.protocol import Backend, BackendInfo, OperationConfig, info_for
from conformance.errors import UsageError, text_of
from conformance.faults import catalogue, suspicion
from conformance.faults.entry import Entry
from conformance.faults.matrix import promise
from conformance.faults.trial import Common, Sharing
from conformance.judging.calling import Inputs, Run
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind, Outcome
from conformance.library.operations import cases_root
from conformance.library.reading import Library
from conformance.spec.broken import spoilt, ways
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation, Reading
from conformance.spec.resized import reshaped
from reference.expected import Expected
from reference.parts import elements, same_bits

Array = np.ndarray[Any, np.dtype[Any]]

FAILURES_TRIED = 14  # failing cases that suspects are tried on
PASSES_TRIED = 10  # passing cases that a suspect must pass as well
IDLE = 300  # cases in a row that tell nothing more apart, after which the search for probes ends
TELLING = 12  # cases by which a reading is told from its alternatives
EXPLANATION = 20.0  # seconds that a run gives to explaining its failures
SMALL = 3e4  # product of the dimensions up to which a case may serve as a probe
ROUNDINGS = 4.0  # units in the last place that two implementations of one mistake may lie apart, besides the bounds


# Traces: how a case went, call by call


@dataclass
class Step:
    """One call: what came back, and what the reference expected there."""

    got: Mapping[str, Array] | str  # outputs, or the text of what was raised
    expected: Mapping[str, Expected]


@dataclass
class Tracing:
    """An observer that keeps the steps of the case that is run."""

    steps: list[Step] = field(default_factory=list)

    def called(self, run: Run, config: OperationConfig, inputs: Inputs, expected: Mapping[str, Expected]) -> None:
        """A call begins a step."""
        self.steps.append(Step("", expected))

    def answered(self, run: Run, got: Mapping[str, Any] | BaseException) -> None:
        """Its answer, or what it raised, ends it."""
        if isinstance(got, BaseException):
            self.steps[-1].got = f"{type(got).__name__} {text_of(got)}"
        else:
            self.steps[-1].got = {n: array.copy() for n, array in got.items() if isinstance(array, np.ndarray)}

    def ended(self, case: Case, outcome: Outcome) -> None:
        """The case is over."""


@dataclass(frozen=True)
class Trace:
    """How a case went on an implementation."""

    outcome: Outcome
    steps: tuple[Step, ...]

    def explains(self, other: Trace) -> bool:
        """Whether the other trace is this one up to rounding."""
        mine, theirs = self.outcome, other.outcome
        if (mine.status, mine.where) != (theirs.status, theirs.where) or len(self.steps) != len(other.steps):
            return False
        return all(alike(a, b) for a, b in zip(self.steps, other.steps, strict=True))


def alike(a: Step, b: Step) -> bool:
    """Whether two calls had the same answer: copies to the bit, computed elements within the bounds and rounding."""
    if isinstance(a.got, str) or isinstance(b.got, str):
        return isinstance(a.got, str) and isinstance(b.got, str) and a.got.split()[:1] == b.got.split()[:1]
    return all(
        name in b.got and _alike(a.got[name], b.got[name], expected)
        for name, expected in a.expected.items()
        if name in a.got
    )


def _alike(a: Array, b: Array, expected: Expected) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.shape != expected.shape or a.dtype != expected.dtype:
        return bool(_near(a, b, 0.0).all())
    for part in expected.parts:
        x, y = a[part.index], b[part.index]
        limits = elements(part)
        if limits is None:
            if part.answered(x).compare(y).wrong.any():
                return False
            continue
        value, bound = limits
        # A wrong copy may be a computed number: then rounding is all that may differ.
        near = _near(x, y, 2 * bound) & ((bound > 0) | ~same_bits(x, value.astype(x.dtype)))
        if not (same_bits(x, y) | near | np.isinf(bound)).all():
            return False
    return True


def _near(a: Array, b: Array, slack: Any) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        size = np.maximum(np.abs(x), np.abs(y))
        unit = float(np.finfo(np.float32).eps) if a.dtype.itemsize == 4 else 2.0**-7
        near: Array = (np.abs(x - y) <= slack + ROUNDINGS * unit * size) | (x == y) | (np.isnan(x) & np.isnan(y))
    return near


# Suspects


@dataclass(frozen=True)
class Suspect:
    """A known way to be wrong: a fault, a reading, or both together."""

    fault: Entry | None = None
    readings: tuple[tuple[str, str], ...] = ()
    told: str = field(default="", compare=False)  # what the readings are about, in the operation's words

    @property
    def name(self) -> str:
        """Fault id, reading, or both."""
        parts = [f"reading {name}={choice}" for name, choice in self.readings]
        return " with ".join(filter(None, [self.fault.id if self.fault else "", *parts]))

    @property
    def says(self) -> str:
        """One sentence: what it does."""
        return self.fault.says if self.fault else self.told

    def backend(self, operation: Operation) -> Backend:
        """The suspect as a backend of its own."""
        return suspicion.backend(operation.operation, self.fault, dict(self.readings))


def suspects(operation: Operation) -> list[Suspect]:
    """All single suspects: every alternative reading, then every fault that is not just one of them."""
    found = [
        Suspect(readings=((reading.name, choice),), told=f"{reading.says}: {reading.alternatives[choice]}")
        for reading in operation.readings
        for choice in reading.alternatives
        if reading.by == "values" and choice not in reading.narrower and choice not in reading.without
    ]
    return found + [Suspect(entry) for entry in catalogue.faults(operation.operation) if not entry.reading]


def pairs(singles: Iterable[Suspect]) -> list[Suspect]:
    """Every reading together with every fault."""
    singles = list(singles)
    readings = [s for s in singles if not s.fault]
    return [Suspect(s.fault, reading.readings) for s in singles if s.fault for reading in readings]


class Lab:
    """Runs cases on implementations, tracing them; inputs and expectations of a case are worked out once."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._common: dict[str, Common] = {}
        self._traces: dict[tuple[str, str, tuple[str, ...]], Trace] = {}

    def trace(self, case: Case, backend: Backend, info: BackendInfo | None = None) -> Trace:
        """How a case goes on fresh sessions of a backend."""
        common = self._common.setdefault(case.id, Common(case))
        tracing = Tracing()
        source = Sharing(self.operation, common)
        info = info or info_for(backend, self.operation.operation)
        engine = Engine(self.operation, backend, info=info, source=source, observers=(tracing,))
        try:
            outcome = engine.run(common.case)
        finally:
            engine.close()
        return Trace(outcome, tuple(tracing.steps))

    def of(self, suspect: Suspect, case: Case, info: BackendInfo | None = None) -> Trace:
        """How a case goes on a suspect; `info` makes it declare no more than the backend under test does."""
        key = suspect.name, case.id, info.outputs if info else ()
        if key not in self._traces:
            self._traces[key] = self.trace(case, suspect.backend(self.operation), info)
        return self._traces[key]


# Diagnosis


@dataclass(frozen=True)
class Match:
    """A suspect and how many of the failing and of the passing cases it reproduces."""

    suspect: Suspect
    failures: int
    of_failures: int
    passes: int
    of_passes: int

    @property
    def text(self) -> str:
        """'F23 on 14 of 14: Epsilon is added outside the root.'"""
        return f"{self.suspect.name} on {self.failures} of {self.of_failures}: {self.suspect.says}"


@dataclass
class Diagnosis:
    """What was found out about a backend.

    `readings` gives the choice it follows for each reading, "" where nothing could tell; `matches` are the suspects
    that explain at least one failure, best first; `stage` is the first stage that diverges where none explains all.
    """

    tried: int
    failing: list[str] = field(default_factory=list)
    readings: dict[str, str] = field(default_factory=dict)
    matches: list[Match] = field(default_factory=list)
    stage: str = ""

    @property
    def best(self) -> Match | None:
        return self.matches[0] if self.matches else None

    @property
    def conclusive(self) -> bool:
        """The best suspect reproduces every failure that was tried."""
        return bool(self.best and self.best.failures == self.best.of_failures)


def diagnose(
    library: Library,
    backend: Backend,
    info: BackendInfo,
    cases: Sequence[Case],
    *,
    failing: Sequence[Case] = (),
    seconds: float = 60.0,
    lab: Lab | None = None,
    advance: Callable[[str], None] = lambda title: None,
) -> Diagnosis:
    """Diagnose a backend by probe cases, and by cases that are known to fail. Gives the best answer when time is up.

    A `lab` that is handed on from one diagnosis to the next keeps what is known of the suspects.
    """
    lab = lab or Lab(library.operation)
    deadline = time.monotonic() + seconds
    traces: dict[str, tuple[Case, Trace]] = {}
    for case in [*failing, *cases]:
        if case.id not in traces and (time.monotonic() < deadline or not traces):
            advance(case.id)
            traces[case.id] = case, lab.trace(case, backend, info)
    failed = [(c, t) for c, t in traces.values() if t.outcome.status in ("fail", "error") and not t.outcome.lost]
    passed = [(c, t) for c, t in traces.values() if t.outcome.status in ("pass", "quality-warning")]
    result = Diagnosis(len(traces), [case.id for case, _ in failed])
    failed = sorted(failed, key=lambda pair: _size(pair[0]))[:FAILURES_TRIED]
    if not failed:
        return result
    singles = suspects(library.operation)
    result.matches = _rank(lab, singles, failed, passed, info, deadline, advance)
    if not result.conclusive:
        result.matches = sorted([*result.matches, *_in_one_process(lab, singles, traces, info, advance)], key=_order)
    if not result.conclusive:
        kept = {match.suspect for match in result.matches}
        rest = [s for s in pairs(singles) if {Suspect(s.fault), Suspect(readings=s.readings)} & kept]
        more = _rank(lab, rest, failed, passed, info, deadline, advance)
        result.matches = sorted([*result.matches, *more], key=_order)
    if not result.conclusive:
        result.stage = first_stage(lab, backend, info, failed)
    return result


def explain(
    library: Library,
    backend: Backend,
    info: BackendInfo,
    failures: Sequence[Outcome],
    *,
    seconds: float = EXPLANATION,
    advance: Callable[[str], None] = lambda title: None,
) -> dict[str, str]:
    """The best match for failures of a run, by case id; nothing where none is found in the time."""
    known = {case.id: case for case in library.cases}
    failing = [known[o.case] for o in failures if o.case in known and not o.lost]
    failing = sorted(failing, key=_size)[:FAILURES_TRIED]
    if not failing:
        return {}
    result = diagnose(library, backend, info, failing, seconds=seconds, advance=advance)
    best = result.best
    if best is None:
        return dict.fromkeys(result.failing, f"first wrong in {result.stage}") if result.stage else {}
    return dict.fromkeys(result.failing, best.text)


def _rank(
    lab: Lab,
    tried: Sequence[Suspect],
    failed: Sequence[tuple[Case, Trace]],
    passed: Sequence[tuple[Case, Trace]],
    info: BackendInfo,
    deadline: float,
    advance: Callable[[str], None],
) -> list[Match]:
    """Suspects that explain a failure, best first: those that explain most, then those that pass what passes."""
    explained: dict[Suspect, int] = {}
    for suspect in tried:
        if time.monotonic() > deadline:
            break
        advance(suspect.name)
        hits = 0
        for number, (case, trace) in enumerate(failed):
            hits += lab.of(suspect, case, info).explains(trace)
            if number == 3 and not hits:
                break
        if hits:
            explained[suspect] = hits
    top = max(explained.values(), default=0)
    matches = []
    for suspect, hits in explained.items():
        good = 0
        probes = passed[:PASSES_TRIED] if hits == top else []
        for case, trace in probes:
            good += lab.of(suspect, case, info).outcome.status == trace.outcome.status
        matches.append(Match(suspect, hits, len(failed), good, len(probes)))
    return sorted(matches, key=_order)


def _in_one_process(
    lab: Lab,
    tried: Sequence[Suspect],
    traces: Mapping[str, tuple[Case, Trace]],
    info: BackendInfo,
    advance: Callable[[str], None],
) -> list[Match]:
    """Suspects that keep something from session to session, run through all cases in the order that the backend had."""
    failed = {name for name, (_, trace) in traces.items() if trace.outcome.status in ("fail", "error")}
    matches = []
    for suspect in tried:
        if not suspect.fault or suspect.fault.topic != "runtime":
            continue
        advance(suspect.name)
        backend = suspect.backend(lab.operation)
        hits = good = 0
        for name, (case, trace) in traces.items():
            own = lab.trace(case, backend, info)
            hits += name in failed and own.explains(trace)
            good += name not in failed and own.outcome.status == trace.outcome.status
        if hits:
            matches.append(Match(suspect, hits, len(failed), good, len(traces) - len(failed)))
    return matches


def _order(match: Match) -> tuple[float, float, bool]:
    both = bool(match.suspect.fault and match.suspect.readings)
    return -match.failures / match.of_failures, -match.passes / max(match.of_passes, 1), both


def first_stage(lab: Lab, backend: Backend, info: BackendInfo, failed: Sequence[tuple[Case, Trace]]) -> str:
    """The first stage that diverges in the smallest failing case whose outputs show it; "" when none does.

    partition: the wrong blocks, or wrong with history only; mean, normalization, rotation: wrong with the later stages
    switched off; placement: a right key in a wrong row; carried state: another output than the first is wrong.
    """
    for case, trace in failed:
        worst = trace.outcome.worst
        if case.refusal or not trace.steps or isinstance(trace.steps[-1].got, str):
            continue
        first = lab.operation.outputs[0].name
        if worst is None:
            return "partition" if trace.outcome.about == first else "carried state"
        if worst.output != first:
            return "carried state"
        if worst.bound is None or _misplaced(trace.steps[-1], first):
            return "placement"
        return _arithmetic(lab, backend, info, case)
    return ""


def _misplaced(step: Step, output: str) -> bool:
    """Whether a row that is wrong stands, right, somewhere else in the output."""
    expected = step.expected[output]
    if isinstance(step.got, str) or step.got[output].shape != expected.shape:
        return False
    rows = step.got[output].reshape(-1, expected.shape[-1]).astype(np.float64)
    wanted = expected.fill(np.nan).reshape(rows.shape).astype(np.float64)
    bounds = np.full(expected.shape, 0.0)
    for part in expected.parts:
        limits = elements(part)
        bounds[part.index] = 0.0 if limits is None else limits[1]
    bounds = bounds.reshape(rows.shape)
    for want, bound, there in zip(wanted, bounds, rows, strict=True):
        if np.isnan(want).any() or (np.abs(there - want) <= bound).all():
            continue
        if (np.abs(rows - want) <= bound).all(axis=1).any():
            return True
    return False


def _arithmetic(lab: Lab, backend: Backend, info: BackendInfo, case: Case) -> str:
    """The first stage that fails on this case when all later ones are switched off."""
    names = [stage.name for stage in lab.operation.stages]
    found = names[-1]
    for stage in lab.operation.stages:
        alone = msgspec.structs.replace(
            case, id=f"{case.id}, {stage.name} alone", disabled=tuple(sorted({*case.disabled, *stage.off})),
            values={}, change={}, audits=(), relations=(),
        )  # fmt: skip
        if set(alone.disabled) - set(info.features):
            continue
        if lab.trace(alone, backend, info).outcome.status in ("fail", "error"):
            found = stage.name
            break
    if found != names[0]:
        return found
    fresh = reshaped(msgspec.structs.replace(case, past=(0,) * len(case.past)), lab.operation, {})
    fresh = msgspec.structs.replace(fresh, id=f"{case.id}, no history")
    return found if lab.trace(fresh, backend, info).outcome.status in ("fail", "error") else "partition"


def followed_readings(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case]
) -> dict[str, str]:
    """For every switchable reading the choice that the backend follows, "" when no case could tell.

    It is the choice under which it passes most of the telling cases: those in which the reference's answer is another
    one under an alternative. The default is preferred, but for an alternative that asks for more and is met as well.
    """
    return {reading.name: _followed(operation, backend, info, cases, reading) for reading in operation.readings}


def _followed(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case], reading: Reading
) -> str:
    if reading.by == "declaration":
        everything = {output.name for output in operation.outputs} <= set(info.outputs)
        return reading.default if everything else next(iter(reading.alternatives))
    if set(reading.without.values()) & operation.features.keys():
        return _followed_refusal(operation, backend, info, cases, reading)
    if reading.without:
        return _followed_leniency(operation, backend, info, cases, reading)
    choices = [reading.default, *reading.alternatives]
    telling = list(islice((case for case in cases if told_apart(operation, case, reading.name, choices)), TELLING))
    scores = dict.fromkeys(choices, 0)
    for choice in choices:
        engine = Engine(operation, backend, {} if choice == reading.default else {reading.name: choice}, info)
        try:
            scores[choice] = sum(engine.run(case).status in ("pass", "quality-warning") for case in telling)
        finally:
            engine.close()
    best = max(scores.values())
    if not best:
        return ""
    at_best = [choice for choice in choices if scores[choice] == best]
    return next((choice for choice in at_best if choice in reading.narrower), at_best[0])


def _followed_leniency(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case], reading: Reading
) -> str:
    """A reading that computes what the default refuses: break the rules of the attribute or port."""
    choice, name = next(iter(reading.without.items()))
    valid = [case for case in cases if not case.refusal][:TELLING]
    rules = [rule for rule in operation.refusals if name in rule.names]
    broken = [spoilt(case, operation, rule, way) for case in valid for rule in rules for way in range(ways(rule))]
    engine = Engine(operation, backend, info=info)
    try:
        outcomes = [engine.run(case) for case in broken if case]
    finally:
        engine.close()
    if any(outcome.kind is Kind.COMPUTES for outcome in outcomes):
        return choice
    return reading.default if any(outcome.status in ("pass", "quality-warning") for outcome in outcomes) else ""


def _followed_refusal(
    operation: Operation, backend: Backend, info: BackendInfo, cases: Sequence[Case], reading: Reading
) -> str:
    """A reading that refuses what the default computes: ask for a case that needs the feature."""
    choice, feature = next(iter(reading.without.items()))
    if feature not in info.features:
        return choice
    condition = operation.features[feature].when
    engine = Engine(operation, backend, info=info)
    try:
        for case in cases:
            if not case.refusal and any(evaluate(condition, row) for row in engine.rows(case)):
                outcome = engine.run(case)
                if outcome.status in ("pass", "quality-warning"):
                    return reading.default
                if outcome.kind is Kind.REFUSES:
                    return choice
    finally:
        engine.close()
    return ""


def told_apart(operation: Operation, case: Case, name: str, choices: Sequence[str]) -> bool:
    """Whether the reference answers the single call of a case in another way under one of the choices."""
    if case.refusal or case.values or case.change:
        return False
    answers = []
    for choice in choices:
        readings = {name: choice}
        under = operation.under(readings)
        try:
            inputs = inputs_of(case, under)
            answers.append(operation.oracle(case.attributes, readings).expect(inputs))
        except (IndexError, ValueError):
            return False  # the case cannot be put under this choice
    return any(_differ(answers[0], answer) for answer in answers[1:])


def _differ(a: Mapping[str, Expected], b: Mapping[str, Expected]) -> bool:
    for name, one in a.items():
        other = b[name]
        if one.shape != other.shape or one.dtype != other.dtype or len(one.parts) != len(other.parts):
            return True
        for p, q in zip(one.parts, other.parts, strict=True):
            if len(p.index) != len(q.index) or any(
                x != y if isinstance(x, slice) else not np.array_equal(x, y)
                for x, y in zip(p.index, q.index, strict=True)
            ):
                return True
            mine, theirs = elements(p), elements(q)
            if mine and theirs:
                with np.errstate(invalid="ignore"):
                    apart = np.abs(mine[0] - theirs[0]) > 4 * (mine[1] + theirs[1])
                    if (apart & (mine[1] > 0) & (theirs[1] > 0)).any():
                        return True
    return False


# Probes


def small_cases(library: Library, info: BackendInfo | None = None) -> list[Case]:
    """Cases that may serve as probes: small, without planted values, spread evenly over the library's topics."""
    topics: dict[str, list[Case]] = {}
    for case in library.cases:
        if _size(case) <= SMALL and (info is None or case.element_type in info.element_types):
            topics.setdefault(case.topic, []).append(case)
    order: list[Case] = []
    for i in range(max(map(len, topics.values()), default=0)):
        order += [cases[i] for cases in topics.values() if i < len(cases)]
    return order


def _size(case: Case) -> int:
    size = 1 + sum(map(len, case.streams))
    for value in case.dims.values():
        size *= max(value, 1)
    return size


def fingerprint(trace: Trace) -> str:
    """What a trace looks like, coarsely: equal for traces that explain each other, nearly always."""
    outcome = trace.outcome
    worst = outcome.worst
    where = (worst.output, worst.index, worst.got[:4]) if worst else ()
    return repr((outcome.status, outcome.where, outcome.clause, where, outcome.reason[:60]))


def discriminating(
    library: Library, info: BackendInfo | None = None, advance: Callable[[str], None] = lambda title: None
) -> list[Case]:
    """The fewest cases, found greedily, by which all suspects that the library can tell apart are told apart.

    Every suspect starts in one group; a case that splits a group is taken; at the end, cases without which the groups
    stay the same are left out again.
    """
    lab = Lab(library.operation)
    everybody = [Suspect(), *suspects(library.operation)]  # the first one is right: probes must fail all others
    groups: list[list[Suspect]] = [everybody]
    prints: dict[str, dict[str, str]] = {}
    taken: list[Case] = []
    idle = 0
    for case in small_cases(library, info):
        open_groups = [group for group in groups if len(group) > 1]
        if not open_groups or idle == IDLE:
            break
        idle += 1
        advance(case.id)
        marks = {s.name: fingerprint(lab.of(s, case)) for group in open_groups for s in group}
        lab._common.pop(case.id, None)
        split = _split(groups, marks)
        if len(split) > len(groups):
            groups, idle = split, 0
            prints[case.id] = marks
            taken.append(case)
    unseen = [s for group in groups if group[0] == everybody[0] for s in group[1:] if s.fault]
    for suspect in unseen:
        killer = _killer(lab, library, suspect, advance)
        if killer and killer not in taken:
            marks = {s.name: fingerprint(lab.of(s, killer)) for s in [everybody[0], *unseen]}
            groups = _split(groups, marks)
            prints[killer.id] = marks
            taken.append(killer)
    # A suspect that was alone already has no mark by the later cases: without its own case it might not be alone.
    for case in taken:
        missing = [s for s in everybody if s.name not in prints[case.id]]
        prints[case.id] |= {s.name: fingerprint(lab.of(s, case)) for s in missing}
    groups = [everybody]
    for case in taken:
        groups = _split(groups, prints[case.id])
    for case in list(taken):
        rest = [c for c in taken if c is not case]
        again: list[list[Suspect]] = [everybody]
        for other in rest:
            again = _split(again, prints[other.id])
        if len(again) == len(groups):
            taken = rest
    return taken


def _killer(lab: Lab, library: Library, suspect: Suspect, advance: Callable[[str], None]) -> Case | None:
    """A case of the whole library that a suspect fails, the most promising ones tried first."""
    assert suspect.fault is not None
    entry = suspect.fault
    order = sorted(library.cases, key=lambda case: (entry.id not in case.kills, promise(entry, case)))
    for case in order:
        advance(f"{suspect.name} on {case.id}")
        if lab.of(suspect, case).outcome.status in ("fail", "error"):
            return case
    return None


def _split(groups: Sequence[Sequence[Suspect]], marks: Mapping[str, str]) -> list[list[Suspect]]:
    """Groups divided by what a case shows; a suspect without a mark was alone already."""
    result = []
    for group in groups:
        parts: dict[str, list[Suspect]] = {}
        for suspect in group:
            parts.setdefault(marks.get(suspect.name, ""), []).append(suspect)
        result += list(parts.values())
    return result


class Probes(msgspec.Struct):
    """The discriminating cases of a library, and what they were worked out from."""

    library: str
    catalogue: str
    cases: list[str]


def probes(library: Library) -> list[Case]:
    """The discriminating cases, as they were last worked out and kept beside the library."""
    known = {case.id: case for case in library.cases}
    return [known[name] for name in stored(library).cases if name in known]


def stored(library: Library) -> Probes:
    """The kept set. Raises `UsageError` where it is missing or damaged."""
    path = probes_path(library.operation)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Probes)
    except (OSError, msgspec.DecodeError):
        raise UsageError(f"{path} is missing or damaged; work it out again: qsa-conformance faults --probes") from None


def work_out_probes(library: Library, advance: Callable[[str], None] = lambda title: None) -> Probes:
    """Work the discriminating set out and keep it beside the library."""
    found = Probes(library.digest, suspicion.digest(), [case.id for case in discriminating(library, None, advance)])
    path = probes_path(library.operation)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return found


def probes_path(operation: Operation) -> Path:
    """Where the probes of an operation are kept."""
    return (
        next(path.parent for path in cases_root().glob("*/operation.yaml") if _names(path, operation)) / "probes.json"
    )


def _names(path: Path, operation: Operation) -> bool:
    return f"operation: {operation.operation}\n" in path.read_text(encoding="utf-8")
