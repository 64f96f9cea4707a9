"""How fast the harness itself is, against its targets: ``python -m conformance.timing.bench [BACKEND...]``.

Verdicts a second over the whole library, where the time goes, and how long `cases list` takes in a process of its own.
A verdict is one judged output of one call. The parts are the backend, the reference, the inputs ("data"), the log, and
the engine with all its judging; what a part spends in another part is the other's. A target that is missed makes the
exit code 1. CPU seconds are those of all threads: on a busy machine they tell more than the clock.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tabulate import tabulate

from conformance.backends.connect import usable
from conformance.backends.protocol import Backend, BackendInfo, OperationConfig, Session, Unsupported, close
from conformance.errors import BackendError
from conformance.judging.calling import Inputs
from conformance.judging.engine import Source
from conformance.judging.outcome import Outcome
from conformance.library.reading import Library, load_library
from conformance.running.run import Plan, execute, outcomes
from conformance.spec.case import Case
from conformance.spec.operation import Operation, Reference

STARTUP = 0.3  # seconds of `cases list`
STARTS = 5


@dataclass(frozen=True)
class Target:
    """Verdicts a second, and seconds in all."""

    verdicts: float
    seconds: float | None = None


TARGETS: Mapping[str, Target] = {"numpy": Target(1000), "openvino-cpu-op": Target(400, 30.0)}


@dataclass
class Stopwatch:
    """Seconds by part; the part that was begun last is the one that runs."""

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The time within goes to this part."""
        self._turn()
        self._running.append(name)
        self.calls[name] = self.calls.get(name, 0) + 1
        try:
            yield
        finally:
            self._turn()
            self._running.pop()

    def _turn(self) -> None:
        now = self.clock()
        if self._running:
            self.seconds[self._running[-1]] = self.seconds.get(self._running[-1], 0.0) + now - self._since
        self._since = now


class TimedBackend:
    """A backend whose time is told apart from the harness's."""

    def __init__(self, backend: Backend, watch: Stopwatch) -> None:
        self._backend, self._watch = backend, watch

    def close(self) -> None:
        """Close the backend itself."""
        close(self._backend)

    def describe(self) -> BackendInfo | tuple[BackendInfo, ...]:
        """As the backend itself."""
        return self._backend.describe()

    def prepare(self, config: OperationConfig) -> Session:
        """A session whose calls are timed."""
        with self._watch.part("backend"):
            return _TimedSession(self._backend.prepare(config), self._watch)


class _TimedSession:
    def __init__(self, session: Session, watch: Stopwatch) -> None:
        self._session, self._watch = session, watch

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        # Calls from several threads at once are not told apart: they go to whatever waits for them.
        if threading.current_thread() is not threading.main_thread():
            return self._session.run(inputs)
        with self._watch.part("backend"):
            return self._session.run(inputs)

    def close(self) -> None:
        with self._watch.part("backend"):
            self._session.close()


class TimedSource(Source):
    """Where the engine takes inputs and the reference from, each a part of its own."""

    def __init__(self, operation: Operation, readings: Mapping[str, str], watch: Stopwatch) -> None:
        super().__init__(operation, readings)
        self._watch = watch

    def inputs(self, case: Case) -> Inputs:
        """The ports of a case's single call, made in the part "data"."""
        with self._watch.part("data"):
            return super().inputs(case)

    def oracle(self, case: Case) -> Reference:
        """The reference for a case's attributes, which computes in the part "reference"."""
        with self._watch.part("reference"):
            return _TimedReference(super().oracle(case), self._watch)


class _TimedReference:
    def __init__(self, reference: Reference, watch: Stopwatch) -> None:
        self._reference, self._watch = reference, watch

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with self._watch.part("reference"):
            return self._reference.run(inputs)

    def expect(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with self._watch.part("reference"):
            return self._reference.expect(inputs)


def engaged(results: Iterator[Outcome], watch: Stopwatch) -> Iterator[Outcome]:
    """The outcomes, each made in the part "engine"; what is done with one goes to the part that asks for it."""
    while True:
        with watch.part("engine"):
            outcome = next(results, None)
        if outcome is None:
            return
        yield outcome


@dataclass(frozen=True)
class Result:
    """One backend's run of the library."""

    connect: str
    verdicts: int
    cases: int
    seconds: float
    cpu: float  # seconds of all threads
    parts: Mapping[str, float]

    @property
    def speed(self) -> float:
        """Verdicts a second."""
        return self.verdicts / self.seconds


def measure(connect: str, library: Library, clock: Callable[[], float] = time.perf_counter) -> Result:
    """Run the library on a backend, its log in a temporary folder. Raises `BackendError` and `Unsupported`."""
    backend, info = usable(connect, operation=library.operation.operation)
    watch = Stopwatch(clock)
    plan = Plan(connect, library.cases, True)
    begin = time.process_time()
    source = TimedSource(library.operation, {}, watch)
    with tempfile.TemporaryDirectory() as folder, watch.part("log"):
        results = engaged(outcomes(plan, library, TimedBackend(backend, watch), info, source), watch)
        log = execute(plan, library, info, results, Path(folder) / "log.jsonl")
    verdicts = log.footer.verdicts if log.footer else 0
    cpu = time.process_time() - begin
    return Result(connect, verdicts, len(log.results), sum(watch.seconds.values()), cpu, watch.seconds)


def startup(command: tuple[str, ...] = (sys.executable, "-m", "conformance", "cases", "list")) -> float:
    """Seconds of the quickest of some starts, each a process of its own."""
    times = []
    for _ in range(STARTS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


def tables(results: list[Result], start: float) -> tuple[str, bool]:
    """What was measured against the targets, where the time went, and whether all targets are met."""
    rows, met = [], start <= STARTUP
    for result in results:
        target = TARGETS.get(result.connect)
        wanted, good = "", True
        if target:
            good = result.speed >= target.verdicts and result.seconds <= (target.seconds or result.seconds)
            wanted = f"{target.verdicts:,g} a second" + (f", {target.seconds:g} s" if target.seconds else "")
        met &= good
        told = f"{result.speed:,.0f} verdicts a second, {result.verdicts / result.cpu:,.0f} of CPU"
        spent = [f"{result.seconds:.1f} s", f"{result.cpu:.1f} s"]
        rows.append([result.connect, told, *spent, wanted, ("yes" if good else "no") if target else ""])
    rows.append(["cases list", "", f"{start:.2f} s", "", f"{STARTUP} s", "yes" if start <= STARTUP else "no"])
    names = list(dict.fromkeys(name for result in results for name in ("backend", *result.parts)))
    shares = [[name, *(f"{result.parts.get(name, 0.0) / result.seconds:.1%}" for result in results)] for name in names]
    first = tabulate(rows, ["", "speed", "in all", "CPU", "target", "met"], disable_numparse=True)
    second = tabulate(shares, ["time", *(result.connect for result in results)], disable_numparse=True)
    return f"{first}\n\n{second}", met


def main(connects: list[str]) -> int:
    """Measure and print. Exit code 1 when a target is missed, 3 when a backend cannot be used."""
    library, results = load_library(), []
    for connect in connects or list(TARGETS):
        try:
            results.append(measure(connect, library))
        except (BackendError, Unsupported) as error:
            print(f"{connect}: {error}", file=sys.stderr)
            return 3
    text, met = tables(results, startup())
    print(text)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
