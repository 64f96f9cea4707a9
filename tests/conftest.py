"""Shared by the tests of the harness."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from conformance.cli import main
from conformance.library.operations import load_operation
from conformance.library.reading import Library, load_library
from conformance.spec.operation import Operation

# Processes that tests start are interrupted as from a terminal, also where this one was started to ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester"]

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(scope="session")
def operation() -> Operation:
    return load_operation()


@pytest.fixture(scope="session")
def library() -> Library:
    return load_library()


@pytest.fixture
def cli(capsys):
    """Runs the command line in this process: gives exit code, output and errors, which never are a traceback."""

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return caught.value.code, out, err

    return run
