"""A process that is asked by lines and answers by lines, within limits, and that never outlives this one.

Plug-ins (`cmd:`) and isolated workers are both children. Whatever a child does, it reaches no further than a `Lost`.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from conformance.errors import BackendError, Lost

MIB = 1 << 20
CHUNK = 1 << 16
TAIL = 8 << 10  # bytes of noise kept
LOOK = 0.05  # seconds between two looks at the clock and at the memory of a child that is being waited for
GRACE = 2.0  # seconds a child gets to end by itself once its input is closed
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """What a child may use for one answer."""

    seconds: float = 60.0
    memory: int = 4096 * MIB  # bytes resident in the child and in what it started
    output: int = 16 * MIB  # bytes of noise: of what it writes that is no answer
    answer: int = 64 * MIB  # bytes of the answer


class Child:
    """One process, in a group of its own. Not for use from several threads at once.

    Answers come on its standard output, noise on its standard error. With `private` the messages have pipes of their
    own, whose numbers are added to the command, and all that the process prints is noise.
    """

    def __init__(self, command: Sequence[str], limits: Limits, *, private: bool = False) -> None:
        """Start it. Raises `BackendError` when there is no such program."""
        self.limits = limits
        self._buffer = bytearray()  # of answers
        self._complete = False  # whether there is a whole line in it
        self._tail = b""  # of noise
        self._loud = 0  # bytes of noise since the last request
        pipes = [os.pipe() for _ in range(4)]
        (ask, self._requests), (self._answers, answer), (self._noise, noise), (lifeline, self._life) = pipes
        theirs = (ask, answer, noise, lifeline)
        try:
            self.process = subprocess.Popen(
                [*command, str(ask), str(answer)] if private else command,
                stdin=subprocess.DEVNULL if private else ask,
                stdout=noise if private else answer,
                stderr=noise,
                pass_fds=(ask, answer, lifeline) if private else (lifeline,),
                start_new_session=True,
            )
            _kill_when_we_end(lifeline, self.process.pid)
        except OSError as error:
            self._close_pipes()
            raise BackendError(f"'{command[0]}' cannot be started: {error.strerror}") from None
        finally:
            for end in theirs:
                os.close(end)
        for end in (self._requests, self._answers, self._noise):
            os.set_blocking(end, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._selector.register(self._noise, selectors.EVENT_READ)

    # Messages

    def ask(self, line: bytes, seconds: float | None = None) -> bytes:
        """Send a line and wait for the one that answers it, both without their ends. Raises `Lost`."""
        if self._life < 0:
            raise Lost("crash", "it was ended before")
        limit = self.limits.seconds if seconds is None else seconds
        looked = start = time.monotonic()
        self._loud = 0
        unsent = self._send(memoryview(line + b"\n"))
        if unsent:
            self._selector.register(self._requests, selectors.EVENT_WRITE)
        while unsent or not self._complete:
            wait = max(0.0, min(LOOK, start + limit - time.monotonic()))
            for key, _ in self._selector.select(wait):
                if key.fd == self._noise:
                    self._listen()
                elif key.fd == self._answers:
                    if not self._read():
                        raise self.gone()
                else:
                    unsent = self._send(unsent)
                    if not unsent:
                        self._selector.unregister(self._requests)
            now = time.monotonic()
            if now > start + limit:
                raise self._ended("timeout", f"no answer within {limit:g} s")
            if now > looked + LOOK:
                looked = now
                if not self.running and self._read() and not self._complete:  # what it started holds the pipes open
                    raise self.gone()
                if resident(self.process.pid) > self.limits.memory:
                    raise self._ended("memory", f"takes more than {self.limits.memory // MIB} MiB")
        return self._line()

    def unasked(self) -> bytes | None:
        """A line that it sent without being asked, None when there is none so far."""
        with suppress(Lost):
            self._read()
        return self._line() if self._complete else bytes(self._buffer) or None

    def said(self) -> str:
        """The end of what it printed since this was last asked."""
        self._listen(limited=False)
        text, self._tail = self._tail.decode(errors="replace"), b""
        return text

    def _line(self) -> bytes:
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._complete = b"\n" in self._buffer
        return bytes(line)

    def _send(self, data: memoryview) -> memoryview:
        """Send what the pipe takes, and give back the rest."""
        try:
            return data[os.write(self._requests, data) :]
        except BlockingIOError:
            return data
        except OSError:  # it reads no more; what has become of it shows at the other pipes
            return data[:0]

    def _read(self) -> bool:
        """Take in what there is of answers; False at their end."""
        if self._answers < 0:
            return False
        try:
            data = os.read(self._answers, CHUNK)
        except BlockingIOError:
            return True
        self._buffer += data
        self._complete = self._complete or b"\n" in data
        if len(self._buffer) > self.limits.answer:
            raise self._ended("output", f"writes an answer of more than {self.limits.answer // MIB} MiB")
        return bool(data)

    def _listen(self, *, limited: bool = True) -> None:
        """Take in what the pipe holds of noise."""
        if self._noise < 0:
            return
        try:
            data = os.read(self._noise, CHUNK)
        except BlockingIOError:
            return
        self._tail = (self._tail + data)[-TAIL:]
        self._loud += len(data)
        if not data and self._noise in self._selector.get_map():
            self._selector.unregister(self._noise)
        if limited and self._loud > self.limits.output:
            raise self._ended("output", f"prints more than {self.limits.output // MIB} MiB")

    # Its end

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def close(self, grace: float = GRACE) -> int | None:
        """Close its input and let it end by itself; its exit code, None when it does not end and has to be killed."""
        if self._requests >= 0:
            os.close(self._requests)
            self._requests = -1
        try:
            return self.process.wait(grace)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def end(self) -> None:
        """End it, and what it started; whoever waits for an answer learns that it is gone. For any thread."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it, and what it started, at once; what it printed can still be asked for."""
        self.end()
        self.process.wait()
        self._listen(limited=False)
        self._selector.close()
        self._close_pipes()

    def _ended(self, kind: Literal["timeout", "memory", "output"], says: str) -> Lost:
        self.kill()
        return Lost(kind, says)

    def gone(self) -> Lost:
        """Why there are no more answers; it is not there any more afterwards."""
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            return Lost("crash", "closes its output instead of answering")
        self.kill()
        return Lost("killed" if code == -signal.SIGKILL else "crash", epitaph(code))

    def _close_pipes(self) -> None:
        for end in (self._requests, self._answers, self._noise, self._life):
            if end >= 0:
                os.close(end)
        self._requests = self._answers = self._noise = self._life = -1


def epitaph(code: int) -> str:
    """How a process with this exit code ended, in words."""
    if code < 0:
        return f"ended by {_signal_name(-code)}"
    if code > 128:  # a shell between us and the program says it this way
        return f"exits with code {code}, which is a shell's word for {_signal_name(code - 128)}"
    return f"exits with code {code} without being asked to"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


def _kill_when_we_end(lifeline: int, group: int) -> None:
    """Have the kernel kill a process group when the other end of a pipe closes, as it does however we end.

    The child holds the reading end open and need not know of it. Unlike a parent-death signal this does not depend on
    the thread that started the child, and it reaches what the child has started.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -group)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def resident(group: int) -> int:
    """Bytes of memory that the processes of a group hold; 0 where the system does not say."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may have ended meanwhile
            if os.getpgid(int(folder.name)) == group:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * PAGE
