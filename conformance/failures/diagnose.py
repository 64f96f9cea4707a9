"""A diagnosis: the library is run on a backend, and its failures are explained as those of a run are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from conformance.backends.protocol import BackendInfo
from conformance.failures.explain import Finding, explain
from conformance.failures.followed import followed_readings, small_cases
from conformance.failures.suspects import Lab
from conformance.judging.outcome import Outcome
from conformance.library.reading import Library
from conformance.library.selection import SMALL, size
from conformance.running.cases import CaseBench, Setup
from conformance.spec.case import Case

RUNNING = 0.5  # of the time, for running cases


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about a backend; `readings` gives the choice it follows, "" where nothing could tell."""

    info: BackendInfo
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    readings: dict[str, str]

    @property
    def failing(self) -> list[str]:
        """Ids of the cases that fail."""
        return [outcome.case for outcome in self.outcomes if outcome.status in ("fail", "error")]


def diagnose(
    library: Library,
    connect: str,
    first: Sequence[Case] = (),
    *,
    seconds: float = 60.0,
    lab: Lab | None = None,
    advance: Callable[[str], None] = lambda title: None,
) -> Diagnosis:
    """Run the library, the cases `first` before all others, and explain what fails.

    Large cases are run last, as far as there is time. Raises `BackendError` and `Unsupported`.
    """
    until = time.monotonic() + RUNNING * seconds
    with closing(CaseBench(Setup(connect, {}, library.operation))) as bench:
        outcomes: list[Outcome] = []
        for case in _ordered(library, first):
            if outcomes and time.monotonic() > until:
                break
            advance(case.id)
            outcomes.append(bench.run(case))
        backend, info = bench.backend, bench.info
        left = max(seconds * (1 - RUNNING), until - time.monotonic())
        findings = explain(library, backend, info, outcomes, seconds=left, lab=lab, advance=advance)
        assert backend is not None
        readings = followed_readings(library.operation, backend, info, small_cases(library, info))
    return Diagnosis(info, tuple(outcomes), tuple(findings), readings)


def _ordered(library: Library, first: Sequence[Case]) -> Iterator[Case]:
    """Every case once: those named, then small ones in the library's order, then the others by their size."""
    named = {case.id for case in first}
    yield from first
    rest = [case for case in library.cases if case.id not in named]
    sizes = {case.id: size(case, library.operation) for case in rest}
    yield from (case for case in rest if sizes[case.id] <= SMALL)
    yield from sorted((case for case in rest if sizes[case.id] > SMALL), key=lambda case: sizes[case.id])
