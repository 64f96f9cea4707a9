"""Cases in worker processes: what a backend does to its process costs one case, not the run.

Each worker is a fresh interpreter that holds the backend and runs whole cases, so that every check is made as it is
in one process. A case that ends its worker is tried once more, alone in a new one, before it is blamed.
"""

from __future__ import annotations

import base64
import queue
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

import msgspec

from conformance.backends.connect import usable
from conformance.backends.protocol import Backend, BackendInfo, Unsupported, environment_of
from conformance.errors import BackendError, Lost
from conformance.judging.company import in_company
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.library.reading import Library
from conformance.running import replay
from conformance.running.process import Child, Limits
from conformance.running.run import Plan, outcomes
from conformance.spec.case import Case
from conformance.spec.operation import Operation

STARTUP = 600.0  # seconds until a backend is there: it may build itself first
RESTARTS = 3  # failures in a row to start a worker again, after which there is no use in going on
# The path is ours, so that the worker finds what we find; as a module name would, under -m, not.
BOOT = "import sys; sys.path[:] = {path!r}; from conformance.running.worker import main; main()"


@dataclass(frozen=True)
class Isolation:
    """How a backend is run: in this process, or in `jobs` workers; the limits are those of one case."""

    isolate: bool = False
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)

    @property
    def workers(self) -> int:
        """Number of worker processes, 0 for none."""
        return self.jobs if self.isolate or self.jobs > 1 else 0


@dataclass(frozen=True)
class Running:
    """A backend at work: who it is, what it says of its environment, and what comes out of it."""

    info: BackendInfo
    environment: Mapping[str, str]
    outcomes: Iterator[Outcome]
    backend: Backend | None = None  # where it is in this process
    recording: replay.Recording | None = None  # where it is a log


@contextmanager
def running(plan: Plan, library: Library, isolation: Isolation) -> Iterator[Running]:
    """The cases of a plan on its backend, as `isolation` says. Raises `BackendError` and `Unsupported`."""
    if plan.connect.startswith(replay.PREFIX):
        recording = replay.recording(plan.connect, plan.readings)
        yield Running(recording.info, recording.environment, recording.outcomes(plan.cases), recording=recording)
    elif isolation.workers:
        pool = Pool(plan, library.operation, isolation)
        try:
            yield Running(pool.ready.info, pool.ready.environment, pool.outcomes())
        finally:
            pool.close()
    else:
        backend, info = usable(plan.connect, isolation.limits)
        results = outcomes(plan, library, backend, info)
        yield Running(info, environment_of(backend), results, backend)


# What is said between the harness and a worker: a setup first, and then cases.


class Setup(msgspec.Struct, frozen=True):
    """What a worker is to run on."""

    connect: str
    readings: dict[str, str]
    operation: Operation
    limits: Limits


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The backend is there."""

    info: BackendInfo
    environment: dict[str, str]


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """There is no backend: `BackendError`, or with a feature `Unsupported`."""

    reason: str
    feature: str = ""
    url: str = ""


def packed(message: msgspec.Struct) -> bytes:
    """A message as a line. Not JSON, which has no NaN."""
    return base64.b64encode(msgspec.msgpack.encode(message))


class Worker:
    """One worker process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.latest = ""  # the case before, none when the worker is new
        self.child = Child([sys.executable, "-c", BOOT.format(path=sys.path)], setup.limits, private=True)
        # A plug-in has limits of its own, within those of the worker; there it is tried twice.
        self._seconds = setup.limits.seconds * (3 if setup.connect.startswith("cmd:") else 1)

    def start(self) -> Ready:
        """Start its backend. Raises `BackendError` and `Unsupported`."""
        try:
            line = self.child.ask(packed(self.setup), STARTUP)
        except Lost as lost:
            said = self.child.said().strip()
            raise BackendError(f"'{self.setup.connect}': {lost}" + (f"; it printed:\n{said}" if said else "")) from None
        answer = msgspec.msgpack.decode(base64.b64decode(line), type=Ready | Unusable)
        self.child.said()
        if isinstance(answer, Ready):
            return answer
        self.child.kill()
        raise Unsupported(answer.feature, answer.reason, answer.url) if answer.feature else BackendError(answer.reason)

    def run(self, case: Case) -> Outcome:
        """The outcome of a case. Raises `Lost`."""
        line = self.child.ask(packed(case), self._seconds)
        outcome = msgspec.msgpack.decode(base64.b64decode(line), type=Outcome)
        said = self.child.said()
        if outcome.status in ("fail", "error") and not outcome.stderr:
            outcome = msgspec.structs.replace(outcome, stderr=said)
        self.latest = case.id
        return outcome


class Stopped(Exception):  # noqa: N818  no error
    """The run is left: no case is begun any more."""


class Lane:
    """One worker after another. Takes every case to an outcome, whatever it does to its worker."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.worker: Worker | None = None
        self.stopped = False
        self._refused = 0

    def start(self) -> Ready:
        """Start a worker. Raises as `Worker.start`."""
        self.worker = Worker(self.setup)
        try:
            return self.worker.start()
        except BaseException:
            self.worker = None
            raise

    def run(self, case: Case) -> Outcome:
        """The outcome of a case. Raises `BackendError` when there is no starting a worker any more."""
        before = self.worker.latest if self.worker else ""
        outcome = self._attempt(case)
        if self.worker is None and before:
            clause = self.setup.operation.rules.instances_shared
            return in_company(outcome, self._attempt(case), before, clause)
        return outcome

    def _attempt(self, case: Case) -> Outcome:
        start = time.perf_counter()
        if self.stopped:
            raise Stopped
        try:
            if self.worker is None:
                self.start()
                self._refused = 0
            assert self.worker is not None
            return self.worker.run(case)
        except Lost as lost:
            reason, kind = str(lost), lost.kind
            said = self.worker.child.said() if self.worker else ""
            self.worker = None
        except (BackendError, Unsupported) as error:
            self._refused += 1
            if self._refused == RESTARTS:
                raise BackendError(f"cannot be started again: {error}") from error
            reason, kind, said = f"cannot be started again: {error}", "crash", ""
        return Outcome(
            case=case.id,
            digest=case.digest,
            status="error",
            clause=case.clauses[0],
            where=Where("worker"),
            kind=Kind.LOST,
            reason=reason,
            seconds=time.perf_counter() - start,
            lost=kind,
            stderr=said,
        )

    def end(self) -> None:
        """End the worker; whoever waits for it learns so. For any thread."""
        self.stopped = True
        worker = self.worker
        if worker:
            worker.child.end()


class Pool:
    """Lanes side by side that take the next case when they are done with one."""

    def __init__(self, plan: Plan, operation: Operation, isolation: Isolation) -> None:
        """Start the first worker. Raises `BackendError` and `Unsupported`."""
        setup = Setup(plan.connect, dict(plan.readings), operation, isolation.limits)
        self._lanes = [Lane(setup) for _ in range(isolation.workers)]
        self.ready = self._lanes[0].start()
        self._waiting = deque(plan.cases)
        self._results: queue.SimpleQueue[Outcome | Exception | None] = queue.SimpleQueue()
        self._threads: list[Thread] = []

    def outcomes(self) -> Iterator[Outcome]:
        """Outcomes as they come."""
        self._threads = [Thread(target=self._serve, args=(lane,), daemon=True) for lane in self._lanes]
        for thread in self._threads:
            thread.start()
        served = 0
        while served < len(self._lanes):
            result = self._results.get()
            if isinstance(result, Exception):
                raise result
            if result is None:
                served += 1
            else:
                yield result

    def _serve(self, lane: Lane) -> None:
        try:
            while self._waiting:
                self._results.put(lane.run(self._waiting.popleft()))
        except (IndexError, Stopped):  # another lane took the last one, or nobody waits for it
            pass
        except Exception as error:
            self._results.put(error)
        self._results.put(None)

    def close(self) -> None:
        """End all workers, also in the middle of a start or of a case."""
        self._waiting.clear()
        while True:
            for lane in self._lanes:
                lane.end()
            for thread in self._threads:
                thread.join(0.1)
            if not any(thread.is_alive() for thread in self._threads):
                break
        for lane in self._lanes:
            if lane.worker:
                lane.worker.child.kill()
