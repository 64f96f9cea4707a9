"""One backend at work on a plan, in whatever place: who it is, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from conformance.backends.protocol import Backend, BackendInfo
from conformance.judging.outcome import Outcome
from conformance.library.reading import Library
from conformance.running import replay
from conformance.running.cases import CaseWork, One, Setup
from conformance.running.place import Isolation, place
from conformance.running.run import Plan

__all__ = ["Isolation", "Running", "running"]


@dataclass(frozen=True)
class Running:
    """A backend at work: who it is, what it says of its environment, and what comes out of it."""

    info: BackendInfo
    environment: Mapping[str, str]
    outcomes: Iterator[Outcome]
    setup: Setup | None = None  # how to have the backend once more
    backend: Backend | None = None  # where it is in this process
    recording: replay.Recording | None = None  # where it is a log
    jobs: int = 1


@contextmanager
def running(plan: Plan, library: Library, isolation: Isolation) -> Iterator[Running]:
    """The cases of a plan on its backend, as `isolation` says. Raises `BackendError` and `Unsupported`."""
    if plan.connect.startswith(replay.PREFIX):
        recording = replay.recording(plan.connect, plan.readings)
        yield Running(recording.info, recording.environment, recording.outcomes(plan.cases), recording=recording)
        return
    isolation = isolation.for_cases(plan.connect, len(plan.cases))
    setup = Setup(plan.connect, dict(plan.readings), library.operation, isolation.limits, isolation.isolate)
    there = place(CaseWork(setup), isolation)
    try:
        results = there.results(map(One, plan.cases))
        info, environment = there.ready.backend, there.ready.environment
        yield Running(info, environment, results, setup, there.backend, jobs=isolation.jobs)
    finally:
        there.close()
