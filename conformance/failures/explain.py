"""What failures look like: for each group of them the known mistake that explains it, what is not checked, or a stage.

A suspect explains a group when it fails nearly all of what the backend fails there, with the same numbers up to
rounding, and passes what the backend passes. Nothing is said when the time was too short to try all suspects, or when
too many do as well.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from conformance.backends.protocol import Backend, BackendInfo
from conformance.failures.resemblance import BAD, GOOD, alike
from conformance.failures.stages import first_stage
from conformance.failures.suspects import Lab, Suspect, pairs
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind, Outcome
from conformance.library.reading import Library
from conformance.library.selection import SMALL, select
from conformance.reporting.groups import cause
from conformance.spec.broken import broken_rule, due
from conformance.spec.case import Case
from conformance.spec.operation import Operation

SECONDS = 20.0  # that a run gives to explaining its failures
SAMPLE = 10  # failures of a group that suspects are tried on
CONFIRMED = 40  # failures of a group that a suspect is held against before it is named
FEW = 3  # failures of a group below which a suspect must explain those of all groups
MISSED = 10  # one in so many of them may go another way
HIDING = (Kind.RAISED, Kind.LOST, Kind.REFUSES)  # a backend that fails like this shows no values
FIRST = 12  # passing cases that are tried before a dear failure
PASSES = 60  # passing cases that a suspect must pass as well
MORE = 160  # when several suspects do as well as each other
PARTIAL = 12  # suspects that explain something, of which pairs are made
TWINS = 3  # suspects that are named together; more say nothing
GROUPS = 8  # that are looked into
NAMED = 6  # rules that are named
ENOUGH = 40  # passing cases without which others are run

FIXED = 1000  # bytes that a case is taken to have besides its own: what every call takes

Seen = tuple[Case, Outcome]


class TimeUp(Exception):  # noqa: N818  an answer, not a failure
    """There was not the time to try all suspects."""


@dataclass(frozen=True)
class Match:
    """Suspects that explain a group, none better than the other, and on how many of the cases that were tried."""

    suspects: tuple[Suspect, ...]
    failures: int
    of_failures: int
    passes: int
    of_passes: int

    @property
    def names(self) -> str:
        return " or ".join(suspect.name for suspect in self.suspects)

    @property
    def text(self) -> str:
        """'F23 on 10 of 10 failures and 60 of 60 passing cases tried: Epsilon is added outside the root.'"""
        tried = f"{self.failures} of {self.of_failures} failures and {self.passes} of {self.of_passes} passing cases"
        return f"{self.names} on {tried} tried: {self.suspects[0].says}"


@dataclass(frozen=True)
class Finding:
    """A group of failures and what is known of it."""

    title: str
    failures: tuple[Seen, ...]
    match: Match | None = None
    unchecked: tuple[str, ...] = ()  # rules of refusals
    stage: str = ""

    @property
    def text(self) -> str:
        """One line, empty when nothing is known."""
        rules = ", ".join(self.unchecked[:NAMED])
        more = f" and {len(self.unchecked) - NAMED} more" if len(self.unchecked) > NAMED else ""
        parts = [
            f"not checked: {rules}{more}" if rules else "",
            f"looks like: {self.match.text}" if self.match else "",
            f"first wrong stage: {self.stage}" if self.stage and not self.match else "",
        ]
        return "; ".join(filter(None, parts))


def texts(findings: Iterable[Finding]) -> dict[str, str]:
    """What is known of failures, by case."""
    return {case.id: one.text for one in findings if one.text for case, _ in one.failures}


def explain(
    library: Library,
    backend: Backend | None,
    info: BackendInfo,
    outcomes: Sequence[Outcome],
    *,
    cases: Mapping[str, Case] | None = None,
    seconds: float = SECONDS,
    lab: Lab | None = None,
    without: Collection[str] = (),
    advance: Callable[[str], None] = lambda title: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Finding]:
    """Findings for the failures among the outcomes of a run, the largest group first.

    `cases` are those that the library does not have. Where few cases passed, others are run on the `backend`. Suspects
    named in `without` are not tried. It takes about so many `seconds` of the `clock`.
    """
    deadline, lab = clock() + seconds, lab or Lab(library.operation)
    known = {case.id: case for case in library.cases} | dict(cases or {})
    seen = [(known[o.case], o) for o in outcomes if o.case in known and not o.lost]
    failed = [one for one in seen if one[1].status in BAD]
    passed = [one for one in seen if one[1].status in GOOD]
    if not failed:
        return []
    if backend and sum(lab.size(case) <= SMALL for case, _ in passed) < ENOUGH:
        passed += _more(library, backend, info, {case.id for case, _ in seen}, seconds / 4, lab, clock)
    found = [Finding("  ".join(filter(None, key)), tuple(cell)) for key, cell in _cells(failed)]
    search = _Search(lab, info, passed, known, deadline, advance, frozenset(without), clock)
    samples = [sample(finding.failures, lab) for finding in found[:GROUPS]]
    for number, finding in enumerate(found):
        match, stage = None, ""
        if number < GROUPS:
            others = [one for i, some in enumerate(samples) if i != number for one in some]
            match = search.match(samples[number], sample(finding.failures, lab, CONFIRMED), others)
            if not match and backend:
                stage = first_stage(library.operation, backend, info, samples[number], deadline, clock)
        found[number] = replace(
            finding, match=match, stage=stage, unchecked=unchecked(finding.failures, library.operation)
        )
    return found


def _cells(failed: Sequence[Seen]) -> list[tuple[tuple[str, str, str], list[Seen]]]:
    cells: dict[tuple[object, ...], list[Seen]] = defaultdict(list)
    for case, outcome in failed:
        cells[outcome.sort, case.refusal is None, *cause(case, outcome)].append((case, outcome))
    ordered = sorted(cells.items(), key=lambda item: (not item[0][1], -len(item[1])))
    return [(key[2:], cell) for key, cell in ordered]  # type: ignore[misc]


def until(case: Case, outcome: Outcome) -> Case:
    """The case up to where it failed: what would have come later tells nothing of a suspect."""
    if outcome.status not in BAD or case.refusal:
        return case
    if outcome.place.at == "single":
        return msgspec.structs.replace(case, streams=(), audits=(), relations=())
    if outcome.place.at == "stream":
        return msgspec.structs.replace(case, audits=(), relations=())
    return case


def _price(case: Case, lab: Lab) -> float:
    """What it takes to run a case, roughly: by its size and its calls."""
    return (FIXED + lab.size(case)) * (
        1 + sum(map(len, case.streams)) + 20 * len(case.audits) + 4 * len(case.relations)
    )


def sample(failures: Sequence[Seen], lab: Lab, most: int = SAMPLE) -> list[Seen]:
    """A few failures, cheap ones if there are any, of as many kinds as there are."""
    cheap = [one for one in failures if lab.size(one[0]) <= SMALL]
    ordered = sorted(cheap or failures, key=lambda one: (not one[1].after, _price(until(*one), lab), one[0].id))
    return _spread(ordered, most, lambda case: (case.element_type, case.disabled, case.topic))


def _spread(ordered: Sequence[Seen], most: int, kind: Callable[[Case], object]) -> list[Seen]:
    kinds: dict[object, list[Seen]] = defaultdict(list)
    for one in ordered:
        kinds[kind(one[0])].append(one)
    rows = [
        some[i] for i in range(max(map(len, kinds.values()), default=0)) for some in kinds.values() if i < len(some)
    ]
    return rows[:most]


def _more(
    library: Library,
    backend: Backend,
    info: BackendInfo,
    run: Collection[str],
    seconds: float,
    lab: Lab,
    clock: Callable[[], float],
) -> list[Seen]:
    """Passing cases of a quick run of the library."""
    until = clock() + seconds
    engine = Engine(library.operation, backend, info=info)
    found = []
    try:
        for case in select(library, quick=True):
            if case.id in run or lab.size(case) > SMALL:
                continue
            if clock() > until:
                break
            outcome = engine.first(case)
            if outcome.status in GOOD:
                found.append((case, outcome))
    finally:
        engine.close()
    return found


def unchecked(failures: Sequence[Seen], operation: Operation) -> tuple[str, ...]:
    """The rules whose breach was not refused."""
    rules = [rule_of(case, operation) for case, outcome in failures if outcome.sort is Kind.COMPUTES and case.refusal]
    return tuple(dict.fromkeys(rules))


def rule_of(case: Case, operation: Operation) -> str:
    """The rule that a refusal case breaks, in the operation's words."""
    assert case.refusal
    known = broken_rule(case, operation)
    if known:
        return known[0].id
    same = [rule for rule in operation.refusals if due(rule) == case.refusal]
    by_value = [rule for rule in same if any(case.attributes.get(n) in values for n, values in rule.attributes.items())]
    for rules in (by_value, same):
        if len(rules) == 1:
            return rules[0].id
    return f"{case.refusal.kind} of {', '.join(case.refusal.names)}"


class _Search:
    """Tries suspects, as long as there is time."""

    def __init__(
        self,
        lab: Lab,
        info: BackendInfo,
        passed: Sequence[Seen],
        known: Mapping[str, Case],
        deadline: float,
        advance: Callable[[str], None],
        without: frozenset[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lab, self.info, self.known, self.advance = lab, info, known, advance
        self.deadline, self.clock = deadline, clock
        self.singles = [one for one in lab.singles if one.name not in without]
        self.passed = sorted((one for one in passed if lab.size(one[0]) <= SMALL), key=lambda one: _price(one[0], lab))
        self._proven: list[Suspect] = []
        self._took: dict[str, float] = {}

    def match(self, tried: Sequence[Seen], group: Sequence[Seen], others: Sequence[Seen]) -> Match | None:
        """The suspects that explain these failures; None when there are none, too many, or not the time.

        All suspects are tried on a few failures, and those that explain them are held against more of the group.
        """
        try:
            proven = [one for one in self._proven if self._explains(one, tried)[1]]
            good, partial = (proven, []) if proven else self._candidates(self.singles, tried)
            found = self._best(good, group, others)
            if not found and not good and partial:
                best = max(self._explains(one, tried)[0] for one in partial)
                both = [one for one in self._candidates(pairs(self.singles, partial[:PARTIAL]), tried)[0]
                        if self._explains(one, tried)[0] > best]  # fmt: skip
                found = self._best(both, group, others)
        except TimeUp:
            return None
        if found:
            self._proven += [one for one in found.suspects if one not in self._proven]
        return found

    def _like(self, suspect: Suspect, seen: Seen) -> bool | None:
        case, outcome = seen
        start = self.clock()
        if start + self._took.get(case.id, 0.0) > self.deadline:
            raise TimeUp
        after = tuple(self.known[name] for name in outcome.after if name in self.known)
        if outcome.sort is Kind.ALONE:
            if not after:
                return None
            if self.lab.of(suspect, until(case, outcome), self.info).outcome.status in BAD:
                return False  # it does not need the others
        found = alike(outcome, self.lab.of(suspect, until(case, outcome), self.info, after))
        self._took[case.id] = max(self._took.get(case.id, 0.0), self.clock() - start)
        return found

    def _candidates(self, tried: Iterable[Suspect], failures: Sequence[Seen]) -> tuple[list[Suspect], list[Suspect]]:
        """Those that explain the failures, and those that explain some of them."""
        if any(self.lab.size(case) > SMALL for case, _ in failures):
            tried = self._few(tried, failures)
        good, partial = [], []
        for suspect in tried:
            self.advance(suspect.name)
            hits, explains = self._explains(suspect, failures)
            if explains:
                good.append(suspect)
            elif hits:
                partial.append(suspect)
        return good, partial

    def _few(self, tried: Iterable[Suspect], failures: Sequence[Seen]) -> list[Suspect]:
        """Those left over by passing cases, which are cheap, and then by one dear failure after the other."""
        left = []
        for suspect in tried:
            self.advance(suspect.name)
            if not any(self._like(suspect, one) is False for one in self._near(failures, FIRST, suspect)):
                left.append(suspect)
        if len(failures) >= MISSED:
            return left  # some may be missed
        for one in failures:  # all suspects on one case, as what is worked out for it is kept
            left = [suspect for suspect in left if self._like(suspect, one) is not False]
        return left

    def _explains(self, suspect: Suspect, failures: Sequence[Seen]) -> tuple[int, bool]:
        """How many failures it explains, as far as it was tried, and whether that is nearly all."""
        hits = misses = 0
        for number, one in enumerate(failures):
            like = self._like(suspect, one)
            hits += like is True
            misses += like is False
            if misses > len(failures) // MISSED and (hits or number >= 2):
                break
        return hits, hits > 0 and misses <= len(failures) // MISSED

    def _best(self, good: Sequence[Suspect], tried: Sequence[Seen], others: Sequence[Seen]) -> Match | None:
        """Of those that explain the failures, the ones that no other outdoes; on more cases where several are left."""
        matches = [one for suspect in good for one in [self._checked(suspect, tried, others, PASSES)] if one]
        if not matches:
            return None
        top = max(score for score, _ in matches)
        best = [match for score, match in matches if score == top]
        if len(best) > 1:
            again = [one for match in best for one in [self._checked(match.suspects[0], tried, others, MORE)] if one]
            top = max((score for score, _ in again), default=0)
            best = [match for score, match in again if score == top]
        if not best or len(best) > TWINS:
            return None
        return replace(best[0], suspects=tuple(match.suspects[0] for match in best))

    def _checked(
        self, suspect: Suspect, tried: Sequence[Seen], others: Sequence[Seen], most: int
    ) -> tuple[int, Match] | None:
        """How well a suspect explains all that is known, and the match; None when it fails what passes.

        Where the suspect fails in another way than the backend does, the backend does not have its mistake, unless the
        backend raised before anybody saw its values.
        """
        self.advance(suspect.name)
        passes = [like for one in self._near(tried, most, suspect) if (like := self._like(suspect, one)) is not None]
        good = sum(passes)
        if good < len(passes):
            return None
        likes = [self._like(suspect, one) for one in tried]
        hits, score = likes.count(True), 0
        if likes.count(False) > len(tried) // MISSED:
            return None
        conflicts, missed = 0, likes.count(False)
        for one in others:
            like = self._like(suspect, one)
            score += like is True
            missed += like is False
            after = tuple(self.known[name] for name in one[1].after if name in self.known)
            theirs = self.lab.of(suspect, until(*one), self.info, after).outcome
            hidden = one[1].sort in HIDING and theirs.sort is Kind.VALUE
            conflicts += like is False and theirs.status in BAD and not hidden
        if conflicts > len(others) // MISSED:
            return None
        if hits < FEW and missed > (score + hits + missed) // MISSED:
            return None  # of so few cases anything may be the cause, unless it is that of all others too
        return score + hits, Match((suspect,), hits, hits + likes.count(False), good, len(passes))

    def _near(self, failures: Sequence[Seen], most: int, suspect: Suspect | None = None) -> list[Seen]:
        """Passing cases: those that are to show the suspect, those written as one with the failures, and a spread."""
        written = {case.id.partition("[")[0] for case, _ in failures}
        clauses = {clause for _, outcome in failures for clause in (outcome.clause,)}
        fault = suspect.fault if suspect else None
        if fault:
            clauses |= set(fault.clauses)
        kinds: tuple[Callable[[Case], bool], ...] = (
            lambda case: bool(fault and fault.id in case.kills),
            lambda case: case.id.partition("[")[0] in written,
            lambda case: bool(clauses.intersection(case.clauses)),
            lambda case: True,
        )
        found: dict[str, Seen] = {}
        for number, belongs in enumerate(kinds, 1):
            some = [one for one in self.passed if one[0].id not in found and belongs(one[0])]
            room = most * number // len(kinds) - len(found)
            found |= {
                one[0].id: one for one in _spread(some, max(room, 0), lambda case: (case.topic, case.element_type))
            }
        return list(found.values())
