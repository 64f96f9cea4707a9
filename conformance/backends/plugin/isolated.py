"""A backend in a process of its own: the judge and the reference stay here, there only the plug-in runs.

Nothing that a plug-in does to its process reaches further than the call it does it in: a crash or a hang is a `Lost`,
and the next call finds a new process in which its session is prepared again. Nothing that it replaces there, be it the
engine, the judge or the reference, changes a verdict.
"""

from __future__ import annotations

import base64
import math
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from threading import Condition, RLock
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from conformance.backends.embedded import names
from conformance.backends.plugin import messages
from conformance.backends.plugin.arrays import Area, array_on, next_offset, overwrite
from conformance.backends.plugin.process import Child, Limits, allowed
from conformance.backends.protocol import OperationConfig, Rejected, Unsupported
from conformance.errors import BackendError, Lost
from conformance.judging import border

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

STARTUP = 600.0  # seconds until a bundled backend is there: it may build itself first
LANES = 8  # calls at the same time
# The path is ours, so that the process finds what we find; as a module name would, under -m, not.
BOOT = "import sys; sys.path[:] = {path!r}; from conformance.backends.plugin.isolated_worker import main; main()"


class Isolated:
    """The backend of a connect string, over all the processes that it takes."""

    behind_the_border = True

    def __init__(self, connect: str, limits: Limits | None = None, operation: str = "") -> None:
        """Nothing is started yet."""
        self.connect, self.limits, self.operation = connect, limits or Limits(), operation
        self.environment: dict[str, str] = {}
        self._house: House | None = None
        self._lock = RLock()
        self._said = ""

    def describe(self) -> Any:
        """What the backend says of itself. Raises `BackendError` and `Unsupported` when there is none."""
        try:
            started = self.house().started
        except Lost as lost:
            said = self.stderr().strip()
            raise BackendError(f"'{self.connect}': {lost}" + (f"; it printed:\n{said}" if said else "")) from None
        self.stderr()
        self.environment = dict(started.environment)
        return started.infos if len(started.infos) > 1 else started.infos[0]

    def prepare(self, config: OperationConfig) -> IsolatedSession:
        """A session. Raises what the plug-in raises, as the border gives it, and `Lost`."""
        return IsolatedSession(self, config)

    def refresh(self) -> None:
        """Bring outputs of earlier calls, as far as they are still held, to what they are now on the other side."""
        house = self._house
        if house:
            house.refresh()

    def stderr(self) -> str:
        """The end of what was printed there since this was last asked."""
        with self._lock:
            if self._house:
                self._said += self._house.child.said()
            said, self._said = self._said, ""
            return said

    def house(self) -> House:
        """The process, a new one when there is none. Raises `Lost`, `BackendError` and `Unsupported`."""
        with self._lock:
            if self._house is None:
                house = House(self.connect, self.limits, self.operation)
                try:
                    house.start()
                except BaseException:
                    self._said += house.close()
                    raise
                self._house = house
            return self._house

    def lose(self, house: House) -> None:
        """The process cannot be used any more."""
        with self._lock:
            self._said += house.close()
            if self._house is house:
                self._house = None

    def close(self) -> None:
        """End the process. A session that is used again all the same starts a new one."""
        with self._lock:
            if self._house:
                self.lose(self._house)


class IsolatedSession:
    """A prepared instance; it is prepared anew in a process that does not know it yet."""

    def __init__(self, backend: Isolated, config: OperationConfig) -> None:
        self._backend, self._config = backend, config
        self._house: House | None = None
        self._number = 0
        with self._in():
            pass

    @contextmanager
    def _in(self) -> Iterator[House]:
        house = self._backend.house()
        try:
            if house is not self._house:
                self._number = house.prepare(self._config)
                self._house = house
            yield house
        except Lost:
            self._backend.lose(house)
            raise

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises what the plug-in raises, as the border gives it, and `Lost`."""
        with self._in() as house:
            return house.call(self._number, inputs)

    def close(self) -> None:
        """Release the instance, where its process is still there."""
        if self._house and self._house is self._backend._house:
            with suppress(border.Raised, Unsupported, Rejected, Lost), self._in() as house:
                house.ask(messages.Release(self._number))


class House:
    """One process with a backend in it."""

    def __init__(self, connect: str, limits: Limits, operation: str) -> None:
        self.connect, self.limits, self.operation = connect, limits, operation
        self.areas = [Area() for _ in range(LANES)]
        fds = [area.fd for area in self.areas]
        command = [sys.executable, "-c", BOOT.format(path=sys.path), str(LANES), *map(str, fds)]
        self.child = Child(command, limits, lanes=LANES, pass_fds=fds)
        self._free = list(range(LANES))[::-1]
        self._changed = Condition()
        self._session = 0
        self._held: dict[int, weakref.ref[Array]] = {}
        self._numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._dropped: list[int] = []
        self._end = weakref.finalize(self, _end, self.child, self.areas)

    def start(self) -> None:
        """Have the backend connected. Raises `Lost`, `BackendError` and `Unsupported`."""
        bundled = self.connect.partition(":")[0] in names()
        seconds = max(STARTUP, self.limits.seconds) if bundled else self.limits.seconds * 1.0
        answer = self.ask(messages.Start(self.connect, self.operation), seconds=seconds)
        if not isinstance(answer, messages.Started) or not answer.infos:
            raise self._broken()
        self.started = answer

    def prepare(self, config: OperationConfig) -> int:
        """Prepare a session; its number."""
        with self._changed:
            self._session += 1
            number = self._session
        attributes, disabled = dict(config.attributes), tuple(sorted(config.disabled))
        described = messages.Config(config.operation, attributes, config.element_type, config.length_type, disabled)
        self.ask(messages.Prepare(number, described))
        return number

    def call(self, session: int, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call of a session."""
        with self._lane() as lane:
            area, offset = self.areas[lane], 0
            handed: list[messages.Input] = []
            for name, array in inputs.items():
                kept = self._kept(array)
                laid = area.put(array, offset)
                offset = next_offset(laid)
                handed.append(messages.Input(name, laid, kept))
            answer = self._ask(messages.Call(session, tuple(handed), self._take_dropped()), lane)
            laid_of = {one.name: one.laid for one in handed}
            if isinstance(answer, messages.Returned | messages.NotOutputs):
                for name in answer.touched:
                    if name in laid_of and laid_of[name].span:
                        overwrite(inputs[name], area, laid_of[name])
            if isinstance(answer, messages.NotOutputs):
                return border.stand_in(None, answer.kind)  # type: ignore[no-any-return]
            if not isinstance(answer, messages.Returned):
                raise self._broken()
            for name in answer.reshaped:
                if name in inputs and inputs[name].ndim:
                    inputs[name].shape = (1, *inputs[name].shape)  # it is not any more what it was
            most = allowed(self.limits.memory, offset)
            return {one.name: self._output(one, area, most) for one in answer.outputs}

    def _output(self, one: messages.Output, area: Area, most: int) -> Any:
        if one.laid is None and one.other:
            return border.stand_in(None, one.other)
        shape, span = (one.laid.shape, one.laid.span) if one.laid else (one.shape, 0)
        if max(math.prod(shape), span) > most:
            says = f"output {one.name} has {max(math.prod(shape), span):,} bytes; at most {most:,} are taken"
            raise border.raised("TooLarge", says)
        if one.laid is None:
            return np.empty(one.shape, dtype=object)
        try:
            array = array_on(area.bytes_of(one.laid), one.laid)
        except (ValueError, TypeError, OSError):
            raise self._broken() from None
        self._held[one.number] = weakref.ref(array, partial(self._drop, one.number))
        self._numbers[id(array)] = array
        return array

    def _kept(self, array: Array) -> int:
        """The number of an array that an earlier call returned, 0 of any other."""
        if self._numbers.get(id(array)) is not array:
            return 0
        return next((number for number, ref in list(self._held.items()) if ref() is array), 0)

    def _drop(self, number: int, ref: object = None) -> None:
        self._held.pop(number, None)
        self._dropped.append(number)

    def _take_dropped(self) -> tuple[int, ...]:
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def refresh(self) -> None:
        """As `Isolated.refresh`."""
        if not self._held:
            return
        with self._lane() as lane:
            answer = self._ask(messages.Look(self._take_dropped()), lane)
            if not isinstance(answer, messages.Returned):
                raise self._broken()
            for one in answer.outputs:
                ref = self._held.get(one.number)
                array = ref() if ref else None
                if array is not None and one.laid and array.nbytes == one.laid.span:
                    overwrite(array, self.areas[lane], one.laid)

    def ask(self, request: messages.Request, seconds: float | None = None) -> messages.AnyAnswer:
        """The answer to a request. Raises what the plug-in raises, and `Lost`."""
        with self._lane() as lane:
            return self._ask(request, lane, seconds)

    def _ask(self, request: messages.Request, lane: int, seconds: float | None = None) -> messages.AnyAnswer:
        line = self.child.ask(messages.packed(request), seconds, lane)
        try:
            answer = msgspec.msgpack.decode(base64.b64decode(line, validate=True), type=messages.AnyAnswer)
        except (msgspec.DecodeError, ValueError):
            raise self._broken() from None
        match answer:
            case messages.Unsupported():
                raise Unsupported(answer.feature, answer.reason, answer.url)
            case messages.Rejected():
                raise Rejected(answer.kind, answer.phase, answer.names)
            case messages.Raised():
                raise border.raised(answer.kind, answer.text, answer.trace)
            case messages.Unusable():
                raise BackendError(answer.reason)
            case messages.WasLost():
                raise _lost(answer)
        return answer

    def _broken(self) -> Lost:
        return Lost("crash", "writes to the suite's own connection")

    @contextmanager
    def _lane(self) -> Iterator[int]:
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            lane = self._free.pop()
        try:
            yield lane
        finally:
            with self._changed:
                self._free.append(lane)
                self._free.sort(reverse=True)
                self._changed.notify()

    def close(self) -> str:
        """End the process; what it printed."""
        self._end()
        return self.child.said()


def _lost(answer: messages.WasLost) -> NoReturn:
    kind: Any = answer.kind if answer.kind in ("crash", "killed", "timeout", "memory", "output") else "crash"
    raise Lost(kind, answer.says)


def _end(child: Child, areas: list[Area]) -> None:
    child.kill()
    for area in areas:
        area.close()
