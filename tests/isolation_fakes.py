"""Backends that harm their process, each in one way: a class, and a line on how.

They do so in calls of `AT` new tokens alone, so that one case is hit and the others are not.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

from fakes import Honest

AT = 5


class Harmful(Honest):
    """Does what the reference does, until it does harm."""

    class session(Honest.session):  # noqa: N801  a factory
        def answer(self, inputs):
            if inputs["raw_index_keys"].shape[1] == AT:
                self.harm()
            return self.inner.run(inputs)


class Segfaults(Harmful):
    """Reads address zero."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            ctypes.string_at(0)


class Aborts(Harmful):
    """Calls abort(), with a word on standard output."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            os.write(1, b"terminate called without an active exception\n")
            os.abort()


class Exits(Harmful):
    """Ends its process with exit code 0, as if all were well."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            os._exit(0)


class Sleeps(Harmful):
    """Never comes back."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            time.sleep(600)


class HoldsTheLock(Harmful):
    """Never comes back, and lets no other thread of its process run."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            ctypes.PyDLL(None).sleep(600)


class Allocates(Harmful):
    """Takes memory without end."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            blocks = []
            while True:
                blocks.append(bytearray(b"x" * (16 << 20)))


class FloodsStdout(Harmful):
    """Prints without end on standard output."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            while True:
                os.write(1, b"x" * 65536)


class FloodsStderr(Harmful):
    """Prints without end on standard error."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            while True:
                os.write(2, b"x" * 65536)


class Tires(Harmful):
    """Crashes in its process's second harmful call, not in the first."""

    calls = 0

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            Tires.calls += 1
            if Tires.calls > 2:  # a case makes two calls
                os.abort()


class IsKilled(Harmful):
    """Is killed from outside once, as by a system that is out of memory."""

    class session(Harmful.session):  # noqa: N801
        def harm(self):
            mark = Path(os.environ["QSA_TEST_MARK"])
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)


class DiesInDescribe(Honest):
    """Crashes as soon as it is asked who it is."""

    def describe(self):
        print("no licence found", file=sys.stderr, flush=True)
        os.abort()


class Slow(Honest):
    """Takes some time for every call, so that a run can be interrupted."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            time.sleep(0.01)
            return self.inner.run(inputs)
