"""Connect string `cmd:COMMAND LINE`: a plug-in in a process of its own, spoken to in JSON lines.

A plug-in that crashes, hangs, floods or breaks the protocol costs the call it did so in: the next one finds a new
process, in which the sessions that are used again are prepared again.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from conformance import __version__
from conformance.backends.plugin import wire
from conformance.backends.plugin.process import Child, Limits, allowed
from conformance.backends.plugin.wire import ProtocolError
from conformance.backends.protocol import BackendInfo, OperationConfig, Rejected, Unsupported
from conformance.errors import BackendError, Lost

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

AnswerType = TypeVar("AnswerType", bound=wire.Answer)
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "qsa-conformance-"
LOCK = "lock"


class PluginError(Exception):
    """The plug-in answers `error`; the text is its reason."""


class CommandBackend:
    """A plug-in, over all the processes that it takes. Calls from several threads are served one after the other."""

    behind_the_border = True

    def __init__(self, command_line: str, limits: Limits | None = None) -> None:
        """Nothing is started yet. Raises `BackendError` for a command line that is none."""
        try:
            self.command = shlex.split(command_line)
        except ValueError as error:
            raise BackendError(f"'cmd:{command_line}' is not a command line: {error}") from None
        if not self.command:
            raise BackendError("'cmd:' needs a command line, as in cmd:./my-backend --fast")
        self.limits = limits or Limits()
        self.lock = RLock()
        self._plugin: Plugin | None = None
        self._said = ""

    def describe(self) -> BackendInfo | tuple[BackendInfo, ...]:
        """What the plug-in answers to `hello`. Raises `BackendError` when it does not."""
        with self.lock:
            try:
                infos = wire.infos_of(self.plugin().described)
                return infos if len(infos) > 1 else infos[0]
            except (Lost, ProtocolError, PluginError) as error:
                said = self.stderr().strip()
                about = f"; it printed:\n{said}" if said else ""
                raise BackendError(f"'{shlex.join(self.command)}' does not say hello: {error}{about}") from error

    def prepare(self, config: OperationConfig) -> CommandSession:
        """Raises `Unsupported` and `Rejected` as the plug-in does, `PluginError`, `ProtocolError` and `Lost`."""
        with self.lock:
            return CommandSession(self, config)

    def stderr(self) -> str:
        """The end of what the plug-in printed on its standard error since this was last asked."""
        with self.lock:
            if self._plugin:
                self._said += self._plugin.child.said()
            said, self._said = self._said, ""
            return said

    def close(self) -> None:
        """Say `bye`. A session that is used again all the same starts a new process."""
        with self.lock, suppress(Lost, ProtocolError, PluginError):
            if self._plugin:
                plugin, self._plugin = self._plugin, None
                plugin.bye()

    def plugin(self) -> Plugin:
        """The running process, a new one when there is none. Raises `Lost` when it has ended without being asked."""
        if self._plugin is None:
            self._plugin = Plugin(self.command, self.limits)
            try:
                self._plugin.hello()
            except BaseException:
                self._lose()
                raise
        elif not self._plugin.child.running:
            lost = self._plugin.child.gone()
            self._lose()
            raise lost
        return self._plugin

    def ask(self, request: wire.Request, due: type[AnswerType]) -> AnswerType:
        """The answer to a request of the running process when it is the one due; all others are raised."""
        assert self._plugin is not None
        try:
            answer = self._plugin.ask(request)
            if isinstance(answer, due):
                return answer
            raise raised(answer, request)
        except (Lost, ProtocolError):
            self._lose()
            raise

    def runs_in(self, plugin: Plugin) -> bool:
        """Whether this is the process that is running."""
        return plugin is self._plugin and plugin.child.running

    def _lose(self) -> None:
        if self._plugin:
            plugin, self._plugin = self._plugin, None
            plugin.close()
            self._said += plugin.child.said()


class CommandSession:
    """A prepared instance; it is prepared anew in a process that does not know it yet."""

    def __init__(self, backend: CommandBackend, config: OperationConfig) -> None:
        self._backend, self._config = backend, config
        self._prepare()

    def _prepare(self) -> None:
        self._plugin = self._backend.plugin()
        self._number = self._plugin.number()
        self._backend.ask(wire.prepare(self._plugin.number(), self._number, self._config), wire.Prepared)

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call. Raises as `CommandBackend.prepare` does."""
        with self._backend.lock:
            if self._backend.plugin() is not self._plugin:
                self._prepare()
            directory, number = self._plugin.directory.path, self._plugin.number()
            tensors = {
                name: wire.to_tensor(array, directory, f"{number}-{name}.in", self._plugin.inline)
                for name, array in inputs.items()
            }
            answer = self._backend.ask(wire.Run(id=number, session=self._number, inputs=tensors), wire.Done)
            most = allowed(self._backend.limits.memory, sum(array.nbytes for array in inputs.values()))
            outputs = {name: self._array(name, tensor, most) for name, tensor in answer.outputs.items()}
            for name, tensor in tensors.items():
                if isinstance(tensor.file, str):
                    _take_back(name, directory / tensor.file, inputs[name])
            return outputs

    def _array(self, name: str, tensor: wire.Tensor, most: int) -> Array:
        try:
            return wire.to_array(tensor, self._plugin.directory.path, delete=True, most=most)
        except ProtocolError as error:
            raise ProtocolError(f"output '{name}' {error}") from None

    def close(self) -> None:
        """Release the instance, where its process is still there."""
        with self._backend.lock, suppress(Lost, ProtocolError, PluginError):
            if self._backend.runs_in(self._plugin):
                release = wire.Release(id=self._plugin.number(), session=self._number)
                self._backend.ask(release, wire.Released)


def _take_back(name: str, path: Path, array: Array) -> None:
    """Remove an input's file; what the plug-in wrote into it goes into the array, where the caller sees it.

    A file of another size was written to in any case. Raises `ProtocolError` when there is something else in its place.
    """
    before = wire.as_bytes(array)
    try:
        data, size = wire.contents(path, before.size)
        path.unlink()
    except OSError as error:
        raise ProtocolError(f"leaves the file of input '{name}' unreadable: {error.strerror or error}") from None
    now = np.frombuffer(data, np.uint8) if size == before.size else ~before
    if not np.array_equal(now, before):
        array[...] = now.view(array.dtype).reshape(array.shape)


def raised(answer: wire.AnyAnswer, request: wire.Request) -> Exception:
    """What an answer other than the one due is in the Python protocol."""
    if isinstance(answer, wire.Failed):
        error = PluginError(answer.reason)
        if answer.detail:
            error.add_note(answer.detail)
        return error
    if isinstance(request, wire.Prepare | wire.Run):
        if isinstance(answer, wire.Unsupported):
            return Unsupported(answer.feature, answer.reason, answer.url)
        if isinstance(answer, wire.Rejected):
            return Rejected(answer.kind, answer.phase, answer.names)
    return ProtocolError(f"answers '{wire.tag(request)}' with '{wire.tag(answer)}'")


class Plugin:
    """One process of a plug-in, and the directory it shares with us."""

    def __init__(self, command: Sequence[str], limits: Limits, inline: int = wire.INLINE) -> None:
        """Start it; `hello` comes next. Raises `BackendError` when there is no such program."""
        self.inline = inline
        self.child = Child(command, limits)
        self.directory = RunDirectory()
        self._numbers = itertools.count(1)
        # One that nobody closes is closed with its owner, at the latest when this process ends.
        self._closer = weakref.finalize(self, _close, self.child, self.directory)

    def number(self) -> int:
        """A number that was not used before, for a request or for a session."""
        return next(self._numbers)

    def hello(self) -> None:
        """Exchange `hello`. Raises `Lost`, `PluginError` and, for another version too, `ProtocolError`."""
        request = wire.Hello(
            id=self.number(),
            suite=f"qsa-conformance {__version__}",
            directory=str(self.directory.path),
            inline=self.inline,
        )
        answer = self.ask(request)
        if not isinstance(answer, wire.Described):
            raise raised(answer, request)
        if answer.protocol != wire.PROTOCOL:
            raise ProtocolError(f"speaks version {answer.protocol} of the protocol, this suite {wire.PROTOCOL}")
        self.described = answer

    def ask(self, request: wire.Request) -> wire.AnyAnswer:
        """The answer to a request, whatever it says. Raises `Lost`, or `ProtocolError` for anything but an answer."""
        kind = wire.tag(request)
        early = self.child.unasked()
        if early is not None:
            raise ProtocolError(f"writes what nobody asked for, before '{kind}': {wire.shown(early)}")
        line = self.child.ask(wire.encode(request))
        try:
            answer = wire.decode_answer(line)
        except ProtocolError as error:
            raise ProtocolError(f"answers '{kind}' with {error}") from None
        if answer.id != request.id:
            raise ProtocolError(f"answers '{kind}' number {request.id} under the number {answer.id}")
        extra = self.child.unasked()
        if extra is not None:
            raise ProtocolError(f"writes more than one answer to '{kind}': {wire.shown(extra)}")
        return answer

    def bye(self) -> int | None:
        """Say `bye` and wait for the end; the exit code, None when it has to be killed."""
        try:
            request = wire.Bye(id=self.number())
            answer = self.ask(request)
            if not isinstance(answer, wire.Farewell):
                raise raised(answer, request)
            return self.child.close()
        finally:
            self.close()

    def close(self) -> None:
        """End the process, now, and remove the directory."""
        self.child.kill()
        self._closer()


def _close(child: Child, directory: RunDirectory) -> None:
    child.close()
    directory.close()


class RunDirectory:
    """A directory for tensor files, in shared memory where there is such, locked as long as its owner lives."""

    def __init__(self) -> None:
        root = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
        for old in root.glob(PREFIX + "*"):
            _remove_if_left(old)
        new = Path(tempfile.mkdtemp(prefix="." + PREFIX, dir=root))  # found by nobody before it is locked
        self._lock = (new / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = new.rename(root / new.name[1:])

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_left(path: Path) -> None:
    """Remove the directory of a run that was killed: its lock is free."""
    with suppress(OSError), (path / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
