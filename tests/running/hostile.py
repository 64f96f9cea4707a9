"""Plug-ins that raise, print or write what no plug-in should; each in one way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from conformance.backends.protocol import Rejected, Unsupported
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference


class Plain(NumPyReference):
    """The reference, with something done in every call."""

    def prepare(self, config):
        return Session(super().prepare(config), self)

    def act(self, outputs):
        return outputs


class Session:
    def __init__(self, inner, owner):
        self.inner, self.owner = inner, owner

    def run(self, inputs):
        return self.owner.act(self.inner.run(inputs))

    def close(self):
        self.inner.close()


class Forges(Plain):
    """Wrong by a factor, and replaces the judge in its process by one that passes everything."""

    def __init__(self):
        super().__init__()
        import conformance.judging.engine as engine
        import conformance.judging.judge as judge

        def passes(name, got, expected, *more, **named):
            return judge.Verdict(name, "pass")

        judge.judge = engine.judge = passes
        engine.Engine.same = engine.Engine.judge = lambda *arguments, **named: None

    def act(self, outputs):
        return {name: array * 2 for name, array in outputs.items()}


def raising(error):
    def act(self, outputs):
        raise error

    return act


class Unprintable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text")


class RaisesSystemExit(Plain):
    act = raising(SystemExit(0))


class RaisesGeneratorExit(Plain):
    act = raising(GeneratorExit())


class RaisesKeyboardInterrupt(Plain):
    act = raising(KeyboardInterrupt())


class RaisesUnprintable(Plain):
    act = raising(Unprintable())


class RaisesSurrogate(Plain):
    act = raising(ValueError("\ud800 \x1b[31m red \u202e"))


class UnsupportedByNumber(Plain):
    act = raising(Unsupported(3, None, 4))


class RejectedByNumber(Plain):
    act = raising(Rejected(3, None, ("a", 4)))


class BadMapping(Plain):
    """Returns a mapping that raises when it is looked at."""

    def act(self, outputs):
        class Bad(Mapping):
            def __getitem__(self, key):
                raise SystemExit(0)

            def __iter__(self):
                raise SystemExit(0)

            def __len__(self):
                return 3

        return Bad()


class Exits(Plain):
    def act(self, outputs):
        os._exit(0)


class ClosesDescriptors(Plain):
    def act(self, outputs):
        os.closerange(3, 256)
        return outputs


class WritesDescriptors(Plain):
    def act(self, outputs):
        for end in range(3, 64):
            try:
                os.set_blocking(end, False)
                os.write(end, b"noise\n")
            except OSError:
                continue
        return outputs


class Prints(Plain):
    """Harmless: prints on standard output, and throws in a thread."""

    def act(self, outputs):
        print("hello from the plug-in")
        sys.__stdout__.flush()
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        return outputs


class ExitsInInit(Plain):
    def __init__(self):
        sys.exit(0)


class DiesInInit(Plain):
    def __init__(self):
        os._exit(0)


class HangsInInit(Plain):
    def __init__(self):
        time.sleep(600)


class HangsInDescribe(Plain):
    def describe(self):
        while True:
            time.sleep(1)


class LeavesAChild(Plain):
    """Starts a process in a session of its own, which says who it is in a file."""

    def __init__(self, mark):
        super().__init__()
        self.mark = mark

    def prepare(self, config):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with Path(self.mark).open("w") as file:
            file.write(str(child.pid))
        return super().prepare(config)
