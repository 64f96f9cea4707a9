"""A campaign on the machines of a Dask cluster: every round is a task.

A round depends on the seed and its number alone, so that one whose worker is lost is simply run again by the
scheduler; its examples have the same keys, and the ledger counts each once. Failures are sent as they happen, all other
examples with their round.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis.errors import HypothesisWarning

from conformance import __version__
from conformance.backends.protocol import Unsupported
from conformance.errors import BackendError, UsageError
from conformance.fuzzing.campaign import Campaign, Ledger, Order, Stage, stage
from conformance.fuzzing.rounds import FAILED, Example
from conformance.judging.engine import Outcome
from conformance.running.isolation import Ready, Setup, Unusable
from conformance.spec.case import Case

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK = 0.5  # seconds between two looks at the clock and at what was sent
AHEAD = 2  # rounds that are handed out for every thread of the cluster


class Record(msgspec.Struct, frozen=True):
    """An example on its way to the ledger."""

    key: str
    case: Case
    outcome: Outcome


class Hello(msgspec.Struct, frozen=True):
    """What a worker says of itself and of the backend."""

    version: str
    backend: Ready | Unusable


class Cluster:
    """A connection to a scheduler, and a backend that its workers can use."""

    def __init__(self, address: str, setup: Setup) -> None:
        """Connect, and have one worker make the backend ready.

        Raises `UsageError` without the package, the scheduler or a worker, `BackendError` and `Unsupported` when the
        backend cannot be used there.
        """
        try:
            from distributed import Client
        except ImportError:
            raise UsageError(
                "--scheduler needs the package distributed: pip install 'qsa-conformance[distributed]'"
            ) from None
        self.setup = msgspec.msgpack.encode(setup)
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
            hello = msgspec.msgpack.decode(self.client.submit(greet, self.setup, pure=False).result(), type=Hello)
        except ImportError as error:
            raise UsageError(f"the workers of {address} cannot import this suite: {error}") from None
        if hello.version != __version__:
            raise UsageError(f"the workers of {address} have version {hello.version} of this suite, not {__version__}")
        if isinstance(hello.backend, Unusable):
            missing = hello.backend
            if missing.feature:
                raise Unsupported(missing.feature, missing.reason, missing.url)
            raise BackendError(missing.reason)
        return hello.backend

    def conduct(self, campaign: Campaign, ledger: Ledger) -> None:
        """Play all rounds, the saved cases first. Raises `BackendError` when a round cannot be played at all."""
        saved = tuple(ledger.saved.cases()) if ledger.saved else ()
        first = [Order(saved=saved)] if saved else []
        orders = chain(first, campaign.orders())
        topic = f"qsa-conformance-{campaign.seed}-{id(ledger)}"
        sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.client.subscribe_topic(topic, lambda event: sent.put(event[1]))
        running: dict[Future, Order] = {}
        try:
            while not ledger.over:
                self._fill(running, orders, campaign.seed, topic)
                if not running:
                    break
                for future in self._finished(running):
                    order = running.pop(future)
                    again = self._take(future, order, ledger)
                    if again is not None:
                        running[self._submit(again, campaign.seed, topic)] = again
                while not sent.empty():
                    _enter(sent.get(), ledger)
        finally:
            self.client.unsubscribe_topic(topic)
            self.client.cancel(list(running))

    def close(self) -> None:
        self.client.close()

    def _fill(self, running: dict[Future, Order], orders: Iterator[Order], seed: int, topic: str) -> None:
        threads = sum(worker["nthreads"] for worker in self.client.scheduler_info()["workers"].values())
        for order in islice(orders, max(0, AHEAD * max(threads, 1) - len(running))):
            running[self._submit(order, seed, topic)] = order

    def _submit(self, order: Order, seed: int, topic: str) -> Future:
        return self.client.submit(play, self.setup, seed, msgspec.msgpack.encode(order), topic, pure=False)

    def _finished(self, running: dict[Future, Order]) -> list[Future]:
        from distributed import wait

        try:
            with self.client.as_current():
                done = wait(list(running), timeout=LOOK, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return []
        return [future for future in running if future in done]

    def _take(self, future: Future, order: Order, ledger: Ledger) -> Order | None:
        """Enter a round into the ledger; the order to give again when the round has ended several workers."""
        from distributed import KilledWorker

        error = future.exception()
        if error is None:
            for record in future.result():
                _enter(record, ledger)
            return None
        if isinstance(error, KilledWorker) and not order.isolate:
            return msgspec.structs.replace(order, isolate=True)
        raise BackendError(f"round {order.round} cannot be played: {type(error).__name__}: {error}")


def _enter(record: bytes, ledger: Ledger) -> None:
    example = msgspec.msgpack.decode(record, type=Record)
    ledger.begin(example.key, example.case)
    ledger.done(Example(example.key, example.case, example.outcome))


# On the workers

_stages: dict[tuple[bytes, bool], Stage] = {}
_held = ExitStack()  # backends stay ready as long as the worker lives
_one_at_a_time = threading.Lock()


def _ready(setup: bytes, isolate: bool) -> Stage:
    if (setup, isolate) not in _stages:
        made = _held.enter_context(stage(msgspec.msgpack.decode(setup, type=Setup), isolate=isolate))
        _stages[setup, isolate] = made
    return _stages[setup, isolate]


def greet(setup: bytes) -> bytes:
    """Make the backend ready on a worker; an encoded `Hello`."""
    with _one_at_a_time:
        try:
            here = _ready(setup, False)
            backend: Ready | Unusable = Ready(here.info, here.environment)
        except Unsupported as missing:
            backend = Unusable(missing.reason, missing.feature, missing.url)
        except BackendError as error:
            backend = Unusable(str(error))
    return msgspec.msgpack.encode(Hello(__version__, backend))


def play(setup: bytes, seed: int, order: bytes, topic: str) -> list[bytes]:
    """Play a round on a worker; its encoded `Record`s. Failures are sent to the topic as they happen."""
    from distributed import get_worker

    worker: Any = get_worker()
    work = msgspec.msgpack.decode(order, type=Order)
    records: list[bytes] = []

    def done(example: Example) -> bool:
        record = msgspec.msgpack.encode(Record(example.key, example.case, example.outcome))
        records.append(record)
        if example.outcome.status in FAILED:
            worker.log_event(topic, record)
        return False

    with _one_at_a_time, warnings.catch_warnings():
        # The worker's own threads draw random numbers meanwhile, which Hypothesis takes for the strategy's.
        warnings.simplefilter("ignore", HypothesisWarning)
        _ready(setup, work.isolate).play(seed, work, done, lambda key, case: None)
    return records
