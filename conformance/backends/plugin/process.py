"""A process that is asked by lines and answers by lines, within limits, and that never outlives this one.

Plug-ins (`cmd:`), isolated backends and workers are all children. Whatever a child does reaches no further than
a `Lost`. What a process pool of a library lacks is here: limits on memory and on what is printed, the words on how a
process ended, and an end for everything that a child started, in whatever session.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import psutil

from conformance.errors import BackendError, Lost

MIB = 1 << 20
CHUNK = 1 << 16
TAIL = 8 << 10  # bytes of noise kept
LOOK = 0.05  # seconds between two looks at the clock and at the memory of a child that is being waited for
TREE_LOOK = 0.5  # seconds between two looks at the memory of what a child has started, which takes longer
GRACE = 2.0  # seconds a child gets to end by itself once its input is closed
SWEEPS = 5  # times that what a child has started is looked for, as it may be starting more meanwhile
MARK = "QSA_CONFORMANCE_CHILD"  # in the environment of a child and of all that it starts

LEAST = 256 * MIB  # bytes of outputs that a call may always return
TIMES = 16  # ... and how many times the bytes of its inputs

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Limits:
    """What a child may use for one answer."""

    seconds: float = 60.0
    memory: int = 4096 * MIB  # bytes resident in the child and in what it started
    output: int = 16 * MIB  # bytes of noise: of what it writes that is not an answer
    answer: int = 64 * MIB  # bytes of the answer


def allowed(memory: int, inputs: int) -> int:
    """Bytes of outputs that are taken for a call with so many bytes of inputs, before any memory is given for them."""
    return min(memory, max(LEAST, TIMES * inputs))


class Channel:
    """One connection to a child, with what has been read of an answer so far. Used by one thread at a time."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.buffer = bytearray()
        self.complete = False  # whether there is a whole line in it
        for end in {requests, answers}:
            os.set_blocking(end, False)

    def line(self) -> bytes:
        """Take the first line."""
        line, _, self.buffer = self.buffer.partition(b"\n")
        self.complete = b"\n" in self.buffer
        return bytes(line)

    def send(self, data: memoryview) -> memoryview:
        """Send what the connection takes, and give back the rest."""
        try:
            return data[os.write(self.requests, data) :]
        except BlockingIOError:
            return data
        except OSError:  # it reads no more; what has become of it shows when an answer is read
            return data[:0]

    def shut(self) -> None:
        """Close the requests: the child sees their end."""
        if self.requests != self.answers and self.requests >= 0:
            os.close(self.requests)
            self.requests = -1
        elif self.requests >= 0:
            with suppress(OSError), socket.socket(fileno=os.dup(self.requests)) as one:
                one.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in {self.requests, self.answers}:
            if end >= 0:
                os.close(end)
        self.requests = self.answers = -1


class Child:
    """One process, in a group of its own. Every channel is used by one thread at a time.

    Answers come on its standard output, noise on its standard error. With `lanes` the messages have that many
    connections of their own, whose descriptors are added to the command, and all that the process prints is noise.
    `pass_fds` are further descriptors that it inherits.
    """

    def __init__(self, command: Sequence[str], limits: Limits, *, lanes: int = 0, pass_fds: Sequence[int] = ()) -> None:
        """Start it. Raises `BackendError` when there is no such program."""
        self.limits = limits
        self.mark = f"{os.getpid()}.{next(_numbers)}.{secrets.token_hex(8)}"
        self._tail = b""  # of noise
        self._loud = 0  # bytes of noise since the last request
        self._lock = Lock()  # of the noise, and of who closes the connections
        self._asking = 0  # threads that wait for an answer
        self._ended = False
        self._noise, noise = os.pipe()
        lifeline, self._life = os.pipe()
        theirs = [noise, lifeline]
        self.channels: list[Channel] = []
        ask = answer = -1
        if lanes:
            for _ in range(lanes):
                ours, their = socket.socketpair()
                self.channels.append(Channel(end := ours.detach(), end))
                theirs.append(their.detach())
        else:
            (ask, requests), (answers, answer) = os.pipe(), os.pipe()
            self.channels.append(Channel(requests, answers))
            theirs += [ask, answer]
        os.set_blocking(self._noise, False)
        given = theirs[2:] if lanes else []
        marks = ":".join(filter(None, (os.environ.get(MARK), self.mark)))
        try:
            self.process = subprocess.Popen(
                [*command, *map(str, given)],
                stdin=subprocess.DEVNULL if lanes else ask,
                stdout=noise if lanes else answer,
                stderr=noise,
                pass_fds=(lifeline, *given, *pass_fds),
                start_new_session=True,
                env={**os.environ, MARK: marks},
            )
            _kill_when_we_end(lifeline, self.process.pid)
        except (OSError, ValueError) as error:
            self._close()
            reason = getattr(error, "strerror", None) or str(error)
            raise BackendError(f"'{command[0]}' cannot be started: {reason}") from None
        finally:
            for end in theirs:
                os.close(end)

    # Messages

    def ask(self, line: bytes | None, seconds: float | None = None, lane: int = 0) -> bytes:
        """Send a line and wait for one that answers it, both without their ends; None sends nothing. Raises `Lost`."""
        with self._lock:
            if self._ended:
                raise Lost("crash", "it was ended before")
            self._asking += 1
            self._loud = 0
        try:
            return self._ask(line, self.limits.seconds if seconds is None else seconds, self.channels[lane])
        except Lost:
            raise
        except BaseException:  # an interruption: the answer that is still to come would be taken for another one
            self.kill()
            raise
        finally:
            with self._lock:
                self._asking -= 1
                if self._ended and not self._asking:
                    self._close()

    def _ask(self, line: bytes | None, limit: float, channel: Channel) -> bytes:
        seen = looked = start = time.monotonic()
        unsent = memoryview(b"") if line is None else channel.send(memoryview(line + b"\n"))
        with selectors.DefaultSelector() as selector:
            selector.register(self._noise, selectors.EVENT_READ)
            waits = selectors.EVENT_READ
            if channel.requests == channel.answers:
                selector.register(channel.answers, waits | (selectors.EVENT_WRITE if unsent else 0))
            else:
                selector.register(channel.answers, waits)
                if unsent:
                    selector.register(channel.requests, selectors.EVENT_WRITE)
            while unsent or not channel.complete:
                wait = max(0.0, min(LOOK, start + limit - time.monotonic()))
                for key, events in selector.select(wait):
                    if key.fd == self._noise:
                        if not self._listen():
                            selector.unregister(self._noise)
                        continue
                    if events & selectors.EVENT_READ and not self._read(channel):
                        raise self.gone()
                    if events & selectors.EVENT_WRITE:
                        unsent = channel.send(unsent)
                        if not unsent and channel.requests == channel.answers:
                            selector.modify(channel.answers, selectors.EVENT_READ)
                        elif not unsent:
                            selector.unregister(channel.requests)
                now = time.monotonic()
                if now > start + limit:
                    raise self._end_for("timeout", f"no answer within {limit:g} s")
                if now > looked + LOOK:
                    looked = now
                    # What it started may hold the connections open.
                    if not self.running and self._read(channel) and not channel.complete:
                        raise self.gone()
                    whole = now > seen + TREE_LOOK
                    seen = now if whole else seen
                    if resident(self.process.pid, whole=whole) > self.limits.memory:
                        raise self._end_for("memory", f"takes more than {self.limits.memory // MIB} MiB")
        return channel.line()

    def unasked(self) -> bytes | None:
        """A line that it sent without being asked, None when there is none so far."""
        channel = self.channels[0]
        with suppress(Lost):
            self._read(channel)
        return channel.line() if channel.complete else bytes(channel.buffer) or None

    def said(self) -> str:
        """The end of what it printed since this was last asked."""
        self._listen(limited=False)
        with self._lock:
            text, self._tail = self._tail.decode(errors="replace"), b""
        return text

    def _read(self, channel: Channel) -> bool:
        """Take in what there is of answers; False at their end."""
        if channel.answers < 0:
            return False
        try:
            data = os.read(channel.answers, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        channel.buffer += data
        channel.complete = channel.complete or b"\n" in data
        if len(channel.buffer) > self.limits.answer:
            raise self._end_for("output", f"writes an answer of more than {self.limits.answer // MIB} MiB")
        return bool(data)

    def _listen(self, *, limited: bool = True) -> bool:
        """Take in what there is of noise; False at its end."""
        with self._lock:
            if self._noise < 0:
                return False
            try:
                data = os.read(self._noise, CHUNK)
            except BlockingIOError:
                return True
            self._tail = (self._tail + data)[-TAIL:]
            self._loud += len(data)
            loud = limited and self._loud > self.limits.output
        if loud:
            raise self._end_for("output", f"prints more than {self.limits.output // MIB} MiB")
        return bool(data)

    # Its end

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def close(self, grace: float = GRACE) -> int | None:
        """Close its input and let it end by itself; its exit code, None when it does not end and has to be killed."""
        if not self._ended:
            for channel in self.channels:
                channel.shut()
        try:
            return self.process.wait(grace)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def end(self) -> None:
        """End it, and what it started; whoever waits for an answer learns that it is gone. For any thread."""
        if self.process.returncode is not None:
            return  # its number can be that of a stranger by now; what it left behind is known by its mark
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it, and what it started in whatever session, at once; what it printed can still be asked for."""
        if not self._ended:
            self.end()
            self.process.wait()
            sweep(self.mark)
            self._listen(limited=False)
        with self._lock:
            self._ended = True
            if not self._asking:
                self._close()

    def _end_for(self, kind: Literal["timeout", "memory", "output"], says: str) -> Lost:
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

    def _close(self) -> None:
        for channel in self.channels:
            channel.close()
        for end in (self._noise, self._life):
            if end >= 0:
                os.close(end)
        self._noise = self._life = -1


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


def resident(pid: int, *, whole: bool = True) -> int:
    """Bytes of memory that a process holds, with `whole` also all that it started; 0 when it is gone."""
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        total = process.memory_info().rss
        for one in process.children(recursive=True) if whole else ():
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total


def sweep(mark: str) -> None:
    """Kill every process that carries a mark in its environment: also what has left its group, session and parent."""
    for _ in range(SWEEPS):
        found = list(marked(mark))
        if not found:
            return
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=0.2)


def marked(mark: str) -> Iterator[psutil.Process]:
    """Processes that carry a mark and have not ended."""
    everything: Iterable[psutil.Process] = psutil.process_iter()
    for process in everything:
        with suppress(psutil.Error, OSError):
            marks = process.environ().get(MARK, "").split(":")
            if mark in marks and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                yield process
