"""Inside a worker process: one work made ready, units in and results out (see `processes`)."""

from __future__ import annotations

import base64
import faulthandler
import os
import signal
import sys
from typing import Any

import msgspec

from conformance.backends.protocol import Unsupported
from conformance.errors import BackendError
from conformance.judging.border import watched_keyboard
from conformance.running.place import Ready, received


class Setup(msgspec.Struct, frozen=True):
    """What a worker is to do, from `place.sent`."""

    name: str
    work: bytes


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """It cannot be made ready: `BackendError`, or with a feature `Unsupported`."""

    reason: str
    feature: str = ""
    url: str = ""

    def error(self) -> Exception:
        """As the exception it was."""
        return Unsupported(self.feature, self.reason, self.url) if self.feature else BackendError(self.reason)


def unusable(error: BackendError | Unsupported) -> Unusable:
    """The message for an exception."""
    if isinstance(error, Unsupported):
        return Unusable(error.reason, error.feature, error.url)
    return Unusable(str(error))


class Given(msgspec.Struct, frozen=True, tag=True):
    """A result of the unit, encoded."""

    result: bytes


class Over(msgspec.Struct, frozen=True, tag=True):
    """The unit is done."""


Answer = Ready | Unusable | Given | Over
decoded = msgspec.msgpack.Decoder(Answer).decode


def packed(message: Any) -> bytes:
    """A message as a line. Not JSON, which has no NaN."""
    return base64.b64encode(msgspec.msgpack.encode(message))


def main() -> None:
    """Serve until there are no more units. The argument is the descriptor of the connection."""
    faulthandler.enable()  # says where a crash was, on the standard error that the suite keeps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the suite decides
    lane = int(sys.argv[1])
    os.set_inheritable(lane, False)  # nothing that a backend starts may hold it open
    with os.fdopen(os.dup(lane), "rb") as requests, os.fdopen(os.dup(lane), "wb") as answers:

        def answer(message: msgspec.Struct) -> None:
            answers.write(packed(message) + b"\n")
            answers.flush()

        def give(result: Any) -> bool:
            answer(Given(msgspec.msgpack.encode(result)))
            return False

        setup = msgspec.msgpack.decode(base64.b64decode(requests.readline()), type=Setup)
        work = received(setup.name, setup.work)
        try:
            with watched_keyboard(), work.open() as bench:
                answer(bench.ready)
                for line in requests:
                    bench.do(msgspec.msgpack.decode(base64.b64decode(line), type=work.unit), give)
                    answer(Over())
        except (BackendError, Unsupported) as error:
            answer(unusable(error))
