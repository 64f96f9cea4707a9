"""Backends that harm their process, each in one way: a function, and a line on how.

They do so in calls of `AT` new tokens alone, so that one case is hit and the others are not.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

from fakes import Honest, backend, lie

AT = 5


def harm(function):
    """A backend that does what the reference does, until it does this."""

    def answer(session, inputs):
        if inputs["raw_index_keys"].shape[1] == AT:
            function()
        return session.inner.run(inputs)

    return backend(function, session=type("session", (Honest.session,), {"answer": answer}))


def describing(function):
    """A backend that describes itself by this function."""
    return backend(function, describe=function)


@harm
def Segfaults():
    """Reads address zero."""
    ctypes.string_at(0)


@harm
def Aborts():
    """Calls abort(), with a word on standard output."""
    os.write(1, b"terminate called without an active exception\n")
    os.abort()


@harm
def Exits():
    """Ends its process with exit code 0, as if all were well."""
    os._exit(0)


@harm
def Sleeps():
    """Never comes back."""
    time.sleep(600)


@harm
def HoldsTheLock():
    """Never comes back, and lets no other thread of its process run."""
    ctypes.PyDLL(None).sleep(600)


@harm
def Allocates():
    """Takes memory without end."""
    blocks = []
    while True:
        blocks.append(bytearray(b"x" * (16 << 20)))


@harm
def FloodsStdout():
    """Prints without end on standard output."""
    while True:
        os.write(1, b"x" * 65536)


@harm
def FloodsStderr():
    """Prints without end on standard error."""
    while True:
        os.write(2, b"x" * 65536)


@harm
def Tires():
    """Crashes in its process's second harmful call, not in the first."""
    Tires.calls += 1
    if Tires.calls > 2:  # a case makes two calls
        os.abort()


Tires.calls = 0


@harm
def IsKilled():
    """Is killed from outside once, as by a system that is out of memory."""
    mark = Path(os.environ["QSA_TEST_MARK"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)


@describing
def DiesInDescribe(backend):
    """Crashes as soon as it is asked who it is."""
    print("no licence found", file=sys.stderr, flush=True)
    os.abort()


@lie
def Slow(session, inputs):
    """Takes some time for every call, so that a run can be interrupted."""
    time.sleep(0.01)
    return session.inner.run(inputs)
