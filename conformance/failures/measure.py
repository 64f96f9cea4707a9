"""How well failures are explained: over a catalogue, with the right answer in it and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from conformance.backends.protocol import info_for
from conformance.failures.explain import SECONDS, explain
from conformance.failures.followed import small_cases
from conformance.failures.suspects import Lab
from conformance.faults import catalogue
from conformance.faults.entry import Entry
from conformance.judging.engine import Engine
from conformance.judging.outcome import Outcome
from conformance.library.reading import Library
from conformance.library.selection import SMALL
from conformance.spec.case import Case

CASES = 400  # that are run on every fault, besides those that are said to kill it or others of its clauses
RIGHT = 0.95  # share of the faults that must be named
FALSE = 0.05  # share of them of which something else may be said when they are not in the catalogue


@dataclass
class Figures:
    """Faults by what was said of them: the right thing, a wrong one or nothing; and without their own entries."""

    right: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    passing: list[str] = field(default_factory=list)  # that none of the cases shows
    misled: dict[str, str] = field(default_factory=dict)  # what was said without the right answer at hand

    @property
    def shown(self) -> int:
        return len(self.right) + len(self.wrong) + len(self.silent)

    @property
    def good(self) -> bool:
        """Whether what is asked of explanations holds."""
        return (
            bool(self.shown) and not self.wrong and len(self.right) >= RIGHT * self.shown
            and len(self.misled) <= FALSE * self.shown
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The figures in words, then every fault that is not named."""
        lines = [
            f"{self.shown} faults: {len(self.right)} named, {len(self.wrong)} taken for another, "
            f"{len(self.silent)} not explained",
            f"without their own entries and twins: {len(self.misled)} of {self.shown} taken for another",
        ]
        lines += [f"  {id} is taken for {text}" for id, text in self.wrong.items()]
        lines += [f"  without {id}: {text}" for id, text in self.misled.items()]
        lines += [f"not explained: {', '.join(self.silent)}"] if self.silent else []
        lines += [f"shown by none of the cases that were run: {', '.join(self.passing)}"] if self.passing else []
        return "\n".join(lines)


def measure(
    library: Library,
    faults: Sequence[Entry],
    *,
    cases: int = CASES,
    advance: Callable[[str], None] = lambda title: None,
) -> Figures:
    """Explain the failures of every fault, once with its entry in the catalogue and once without."""
    figures, lab = Figures(), Lab(library.operation)
    usual = small_cases(library)[:cases]
    ids = {case.id for case in usual}
    everything = catalogue.faults(library.operation.operation)
    for entry in faults:
        advance(entry.id)
        near = {one.id for one in everything if set(one.clauses) & set(entry.clauses)}
        more = [
            case
            for case in library.cases
            if case.id not in ids
            and (entry.id in case.kills or (near.intersection(case.kills) and lab.size(case) <= SMALL))
        ]
        outcomes = run(library, entry, [*usual, *more])
        if not any(outcome.status in ("fail", "error") for outcome in outcomes):
            figures.passing.append(entry.id)
            continue
        backend = catalogue.backend_of(entry)
        info = info_for(backend, library.operation.operation)
        right = {entry.id, f"reading {entry.reading}"} if entry.reading else {entry.id}
        usual_time = partial(explain, library, None, info, outcomes, seconds=SECONDS, lab=lab, clock=time.process_time)
        found = [one.match for one in usual_time() if one.match]
        named = [{suspect.name for suspect in match.suspects} for match in found]
        if any(not names & right for names in named):
            figures.wrong[entry.id] = "; ".join(
                m.text for m, names in zip(found, named, strict=True) if not names & right
            )
        elif named:
            figures.right.append(entry.id)
        else:
            figures.silent.append(entry.id)
        twins = right.union(*(names for names in named if names & right))
        rest = usual_time(without=twins)
        claims = [one.match.text for one in rest if one.match]
        if claims:
            figures.misled[entry.id] = claims[0]
    return figures


def run(library: Library, entry: Entry, cases: Sequence[Case]) -> list[Outcome]:
    """The outcomes of cases on a fault, as a run gives them."""

    def fresh(sequence: Sequence[Case]) -> Outcome:
        engine = Engine(library.operation, catalogue.backend_of(entry))
        try:
            return [engine.first(case) for case in sequence][-1]
        finally:
            engine.close()

    engine = Engine(library.operation, catalogue.backend_of(entry), retry=fresh)
    try:
        return [engine.run(case) for case in cases]
    finally:
        engine.close()
