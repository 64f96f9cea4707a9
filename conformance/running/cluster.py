"""Work on the machines of a Dask cluster: every unit is a task.

A unit depends on nothing that ran before, so that one whose worker is lost is simply run again by the scheduler. Urgent
results are sent as they happen, all others with their unit; whoever takes them has to expect one twice.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from conformance import __version__
from conformance.backends.protocol import Backend, Unsupported
from conformance.errors import BackendError, Lost, UsageError
from conformance.running.place import Bench, Ready, Work, received, sent
from conformance.running.worker import Unusable, unusable

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK = 0.5  # seconds between two looks at the clock and at what was sent
AHEAD = 2  # units that are handed out for every thread of the cluster


class Hello(msgspec.Struct, frozen=True):
    """What a worker says of itself and of the backend."""

    version: str
    backend: Ready | Unusable


class Cluster:
    """A connection to a scheduler, and a work that its workers can do."""

    backend: Backend | None = None

    def __init__(self, work: Work, address: str) -> None:
        """Connect, and have one worker make the work ready.

        Raises `UsageError` without the package, the scheduler or a worker, `BackendError` and `Unsupported` when the
        backend cannot be used there.
        """
        try:
            from distributed import Client
        except ImportError:
            raise UsageError(
                "--scheduler needs the package distributed: pip install 'qsa-conformance[distributed]'"
            ) from None
        self.work, self.sent = work, sent(work)
        try:
            self.client: Client = Client(address, timeout=10, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise UsageError(f"no scheduler at {address}: {type(error).__name__}: {error}") from None
        try:
            self.ready = self._greet(address)
        except BaseException:
            self.client.close()
            raise

    def _greet(self, address: str) -> Ready:
        if not self.client.scheduler_info()["workers"]:
            raise UsageError(f"the scheduler at {address} has no workers")
        try:
            hello = msgspec.msgpack.decode(self.client.submit(greet, self.sent, pure=False).result(), type=Hello)
        except ImportError as error:
            raise UsageError(f"the workers of {address} cannot import this suite: {error}") from None
        if hello.version != __version__:
            raise UsageError(f"the workers of {address} have version {hello.version} of this suite, not {__version__}")
        if isinstance(hello.backend, Unusable):
            raise hello.backend.error()
        return hello.backend

    def results(self, units: Iterable[Any], over: Callable[[], bool] = bool) -> Iterator[Any]:
        """Results as they come. Raises `BackendError` when a unit cannot be done at all."""
        rest = iter(units)
        topic = f"qsa-conformance-{id(self)}-{threading.get_ident()}"
        early: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.client.subscribe_topic(topic, lambda event: early.put(event[1]))
        running: dict[Future, Any] = {}
        try:
            while not over():
                self._fill(running, rest, topic)
                if not running:
                    break
                for future in self._finished(running):
                    unit = running.pop(future)
                    error = future.exception()
                    if error is None:
                        yield from map(self._decoded, future.result())
                        continue
                    again, result = self._after(unit, error)
                    if again is not None:
                        running[self._submit(again, topic)] = again
                    else:
                        yield result
                while not early.empty():
                    yield self._decoded(early.get())
        finally:
            self.client.unsubscribe_topic(topic)
            self.client.cancel(list(running))

    def run(self, units: Iterable[Any], give: Callable[[Any], bool], over: Callable[[], bool] = bool) -> None:
        for result in self.results(units, over):
            if give(result):
                return

    def close(self) -> None:
        self.client.close()

    def _decoded(self, result: bytes) -> Any:
        return msgspec.msgpack.decode(result, type=self.work.result)

    def _fill(self, running: dict[Future, Any], units: Iterator[Any], topic: str) -> None:
        threads = sum(worker["nthreads"] for worker in self.client.scheduler_info()["workers"].values())
        for unit in islice(units, max(0, AHEAD * max(threads, 1) - len(running))):
            running[self._submit(unit, topic)] = unit

    def _submit(self, unit: Any, topic: str) -> Future:
        return self.client.submit(do, self.sent, msgspec.msgpack.encode(unit), topic, pure=False)

    def _finished(self, running: dict[Future, Any]) -> list[Future]:
        from distributed import wait

        try:
            with self.client.as_current():
                done = wait(list(running), timeout=LOOK, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return []
        return [future for future in running if future in done]

    def _after(self, unit: Any, error: BaseException) -> tuple[Any, Any]:
        """The unit to do again when it has ended several workers, else its result."""
        from distributed import KilledWorker

        if not isinstance(error, KilledWorker):
            raise BackendError(f"{self.work.name(unit)} cannot be done: {type(error).__name__}: {error}")
        lost = Lost("crash", "ends several workers of the cluster")
        again = self.work.again(unit, lost, "", "")
        return (again, None) if again is not None else (None, self.work.given_up(unit, lost, ""))


# On the workers

_benches: dict[tuple[str, bytes], Bench] = {}
_held = ExitStack()  # backends stay ready as long as the worker lives
_one_at_a_time = threading.Lock()


def _ready(work: tuple[str, bytes]) -> Bench:
    if work not in _benches:
        _benches[work] = _held.enter_context(received(*work).open())
    return _benches[work]


def greet(work: tuple[str, bytes]) -> bytes:
    """Make the work ready on a worker; an encoded `Hello`."""
    with _one_at_a_time:
        try:
            backend: Ready | Unusable = _ready((work[0], work[1])).ready
        except (BackendError, Unsupported) as error:
            backend = unusable(error)
    return msgspec.msgpack.encode(Hello(__version__, backend))


def do(work: tuple[str, bytes], unit: bytes, topic: str) -> list[bytes]:
    """Do a unit on a worker; its encoded results. Urgent ones are sent to the topic as they happen, too."""
    from distributed import get_worker
    from hypothesis.errors import HypothesisWarning

    worker: Any = get_worker()
    kind = received(work[0], work[1])
    results: list[bytes] = []

    def give(result: Any) -> bool:
        results.append(msgspec.msgpack.encode(result))
        if kind.urgent(result):
            worker.log_event(topic, results[-1])
        return False

    with _one_at_a_time, warnings.catch_warnings():
        # The worker's own threads draw random numbers meanwhile, which Hypothesis takes for the strategy's.
        warnings.simplefilter("ignore", HypothesisWarning)
        _ready((work[0], work[1])).do(msgspec.msgpack.decode(unit, type=kind.unit), give)
    return results
