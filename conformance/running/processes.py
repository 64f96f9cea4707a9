"""Work in several processes of this machine, each of which takes the next unit when it is done with one."""

from __future__ import annotations

import base64
import queue
import sys
from collections.abc import Callable, Iterable, Iterator
from threading import Lock, Thread
from typing import Any

import msgspec

from conformance.backends.plugin.process import Child
from conformance.backends.protocol import Backend, Unsupported
from conformance.errors import BackendError, Lost
from conformance.running.place import Ready, Work, sent
from conformance.running.worker import Given, Over, Setup, Unusable, decoded, packed

STARTUP = 600.0  # seconds until a backend is there: it may build itself first
RESTARTS = 3  # failures in a row to start a process again, after which there is no use in going on
LOOK = 0.2  # seconds between two looks at the clock
# The path is ours, so that the worker finds what we find; as a module name would, under -m, not.
BOOT = "import sys; sys.path[:] = {path!r}; from conformance.running.worker import main; main()"


class Stopped(Exception):  # noqa: N818  not an error
    """The work is left: no unit is begun any more."""


class Worker:
    """One worker process."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.latest = ""  # the unit before, none when the process is new
        self.child = Child([sys.executable, "-c", BOOT.format(path=sys.path)], work.limits(), lanes=1)

    def start(self) -> Ready:
        """Make the work ready there. Raises `BackendError` and `Unsupported`."""
        try:
            answer = self._decoded(self.child.ask(packed(Setup(*sent(self.work))), STARTUP))
        except Lost as lost:
            self.child.kill()
            said = self.child.said().strip()
            about = f"; it printed:\n{said}" if said else ""
            raise BackendError(f"{self.work.about}: {lost}{about}") from None
        self.child.said()
        if isinstance(answer, Ready):
            return answer
        self.child.kill()
        raise (
            answer.error()
            if isinstance(answer, Unusable)
            else BackendError(f"{self.work.about}: its process does not get ready")
        )

    def do(self, unit: Any, give: Callable[[Any], None]) -> None:
        """Do a unit. Raises `Lost`."""
        line: bytes | None = packed(unit)
        while True:
            answer = self._decoded(self.child.ask(line))
            line = None
            if isinstance(answer, Over):
                break
            if not isinstance(answer, Given):
                raise self._broken()
            try:
                give(msgspec.msgpack.decode(answer.result, type=self.work.result))
            except msgspec.DecodeError:
                raise self._broken() from None
        self.latest = self.work.name(unit)

    def _decoded(self, line: bytes) -> Any:
        try:
            return decoded(base64.b64decode(line, validate=True))
        except (msgspec.DecodeError, ValueError):
            raise self._broken() from None

    def _broken(self) -> Lost:
        self.child.kill()
        return Lost("crash", "writes to the suite's own connection")


class Lane:
    """One worker after another. Takes every unit to its results, whatever that does to its worker."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.worker: Worker | None = None
        self.stopped = False
        self._refused = 0

    def start(self) -> Ready:
        """Start a worker. Raises as `Worker.start`."""
        self.worker = worker = Worker(self.work)
        try:
            return worker.start()
        except BaseException:
            self.worker = None
            raise

    def do(self, unit: Any, give: Callable[[Any], None]) -> None:
        """Do a unit. Raises `BackendError` when no worker can be started any more."""
        if self.stopped:
            raise Stopped
        before = self.worker.latest if self.worker else ""
        try:
            if self.worker is None:
                self.start()
                self._refused = 0
            assert self.worker is not None
            return self.worker.do(unit, give)
        except Lost as lost:
            assert self.worker is not None
            self.worker.child.kill()
            said, reason = self.worker.child.said(), lost
            self.worker = None
        except (BackendError, Unsupported) as error:
            if self.stopped:
                raise Stopped from None
            self._refused += 1
            if self._refused == RESTARTS:
                raise BackendError(f"cannot be started again: {error}") from error
            return self.do(unit, give)
        if self.stopped:
            raise Stopped
        again = self.work.again(unit, reason, said, before)
        if again is None:
            return give(self.work.given_up(unit, reason, said))
        return self.do(again, give)

    def end(self) -> None:
        """End the worker; whoever waits for it learns so. For any thread."""
        self.stopped = True
        worker = self.worker
        if worker:
            worker.child.end()


class Processes:
    """Lanes side by side."""

    backend: Backend | None = None

    def __init__(self, work: Work, jobs: int) -> None:
        """Start the workers; the first has to be ready. Raises `BackendError` and `Unsupported`."""
        self._lanes = [Lane(work) for _ in range(jobs)]
        self._queue: queue.SimpleQueue[tuple[Any] | Exception | None] = queue.SimpleQueue()
        self._threads: list[Thread] = []
        self._lock = Lock()
        self._units: Iterator[Any] = iter(())
        self.ready = self._lanes[0].start()

    def results(self, units: Iterable[Any], over: Callable[[], bool] = bool) -> Iterator[Any]:
        self._units = iter(units)
        self._threads = [Thread(target=self._serve, args=(lane,), daemon=True) for lane in self._lanes]
        for thread in self._threads:
            thread.start()
        served = 0
        while served < len(self._lanes) and not over():
            try:
                result = self._queue.get(timeout=LOOK)
            except queue.Empty:
                continue
            if isinstance(result, Exception):
                raise result
            if result is None:
                served += 1
            else:
                yield result[0]

    def run(self, units: Iterable[Any], give: Callable[[Any], bool], over: Callable[[], bool] = bool) -> None:
        for result in self.results(units, over):
            if give(result):
                return

    def _next(self) -> Any:
        with self._lock:
            return next(self._units)

    def _serve(self, lane: Lane) -> None:
        try:
            while True:
                lane.do(self._next(), lambda result: self._queue.put((result,)))
        except (StopIteration, Stopped):  # there are no more units, or nobody waits for them
            pass
        except Exception as error:
            self._queue.put(error)
        self._queue.put(None)

    def close(self) -> None:
        """End all workers, also in the middle of a start or of a unit."""
        self._units = iter(())
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
