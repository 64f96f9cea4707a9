"""Where work is done: in this process, in several, or on a cluster. `run`, `fuzz` and `faults` all use this.

A `Work` says what is to be made ready and how a unit of it is done; a `Place` does units and gives results. A unit that
ends its process is done again in a way in which it can be seen why, and costs no other unit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol

import msgspec

from conformance.backends.embedded import names
from conformance.backends.plugin.process import Limits
from conformance.backends.protocol import Backend, BackendInfo
from conformance.errors import Lost
from conformance.judging.border import watched_keyboard

WORTHWHILE = 200  # cases for which another process is worth its start


class Ready(msgspec.Struct, frozen=True, tag=True):
    """What is needed is there: the description of the backend, and what it says of its environment."""

    info: BackendInfo | None = None
    environment: dict[str, str] = {}

    @property
    def backend(self) -> BackendInfo:
        """The description, where the work is on a backend."""
        assert self.info is not None
        return self.info


class Bench(Protocol):
    """A work made ready in some process."""

    @property
    def ready(self) -> Ready:
        """What came of making it ready."""
        ...

    @property
    def backend(self) -> Backend | None:
        """The backend, where the work is on one."""
        ...

    def do(self, unit: Any, give: Callable[[Any], bool]) -> None:
        """Do a unit, and give its results as they come, until there are no more or `give` says that it is enough."""
        ...


class Work(Protocol):
    """What is to be done, as a message that can be sent anywhere: a `msgspec.Struct`."""

    unit: ClassVar[Any]  # type of its units
    result: ClassVar[Any]  # type of their results

    @property
    def about(self) -> str:
        """What it is on, for a message: a property, or a field of the class."""
        ...

    def open(self) -> AbstractContextManager[Bench]:
        """Make ready, in this process. Raises `BackendError` and `Unsupported`."""
        ...

    def limits(self) -> Limits:
        """What a process may use for one result."""
        ...

    def again(self, unit: Any, lost: Lost, said: str, before: str) -> Any:
        """The unit to do again, in a new process, when a process was lost in it; None when that would not help.

        `said` is what the process printed, `before` names the unit that it did before.
        """
        ...

    def given_up(self, unit: Any, lost: Lost, said: str) -> Any:
        """The result of a unit that is not done again. Raises `BackendError` when there is none."""
        ...

    def urgent(self, result: Any) -> bool:
        """Whether a result is to be known before its unit is done."""
        ...

    def name(self, unit: Any) -> str:
        """What a unit is called."""
        ...


class Place(Protocol):
    """Where units are done."""

    @property
    def ready(self) -> Ready:
        """What came of making the work ready."""
        ...

    @property
    def backend(self) -> Backend | None:
        """The backend, where it is in this process."""
        ...

    def results(self, units: Iterable[Any], over: Callable[[], bool] = bool) -> Iterator[Any]:
        """Results as they come; stops when there are no more units or `over` says so."""
        ...

    def run(self, units: Iterable[Any], give: Callable[[Any], bool], over: Callable[[], bool] = bool) -> None:
        """Hand every result to `give` as it comes, until it says that it is enough, or `over` does."""
        ...

    def close(self) -> None:
        """End what was started, also in the middle of a unit."""
        ...


@dataclass(frozen=True)
class Isolation:
    """How work is spread and how a backend is run.

    With `isolate` the backend runs in a process of its own, within `limits`; 0 `jobs` are as many as are worthwhile.
    """

    isolate: bool = False
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    scheduler: str = ""  # of a Dask cluster

    @property
    def workers(self) -> int:
        """Processes that were asked for beside this one, 0 for none."""
        return max(self.jobs, 1) if self.isolate or self.jobs > 1 or self.scheduler else 0

    def for_cases(self, connect: str, count: int) -> Isolation:
        """With a number of jobs: each for enough cases, none in this process for what is not bundled."""
        if self.jobs:
            return self
        useful = min(cores(), math.ceil(count / WORTHWHILE))
        return replace(self, jobs=max(1, useful), isolate=self.isolate or (useful <= 1 and not bundled(connect)))


def bundled(connect: str) -> bool:
    """Whether a connect string names a backend of this package, which ends no process and hangs in none."""
    return connect.partition(":")[0] in (*names(), "fault", "variant")


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Here:
    """This process."""

    def __init__(self, work: Work) -> None:
        """Make ready. Raises `BackendError` and `Unsupported`."""
        with ExitStack() as stack:
            stack.enter_context(watched_keyboard())
            self._bench = stack.enter_context(work.open())
            self._stack = stack.pop_all()
        self.ready, self.backend = self._bench.ready, self._bench.backend

    def results(self, units: Iterable[Any], over: Callable[[], bool] = bool) -> Iterator[Any]:
        for unit in units:
            if over():
                return
            found: list[Any] = []
            self._bench.do(unit, lambda result, found=found: bool(found.append(result)))  # type: ignore[misc]
            yield from found

    def run(self, units: Iterable[Any], give: Callable[[Any], bool], over: Callable[[], bool] = bool) -> None:
        enough = False

        def take(result: Any) -> bool:
            nonlocal enough
            enough = give(result) or over()
            return enough

        for unit in units:
            if enough or over():
                return
            self._bench.do(unit, take)

    def close(self) -> None:
        self._stack.close()


def place(work: Work, isolation: Isolation) -> Place:
    """The place for a work, made ready. Raises `BackendError`, `Unsupported`, and `UsageError` without a cluster."""
    if isolation.scheduler:
        from conformance.running.cluster import Cluster

        return Cluster(work, isolation.scheduler)
    if isolation.jobs > 1:
        from conformance.running.processes import Processes

        return Processes(work, isolation.jobs)
    return Here(work)


# Works as messages


def sent(work: Any) -> tuple[str, bytes]:
    """A work as the name of its type and a message."""
    return f"{type(work).__module__}:{type(work).__qualname__}", msgspec.msgpack.encode(work)


def received(name: str, message: bytes) -> Work:
    """The work of a message from `sent`."""
    module, _, type_name = name.partition(":")
    found: Work = msgspec.msgpack.decode(message, type=getattr(import_module(module), type_name))
    return found
