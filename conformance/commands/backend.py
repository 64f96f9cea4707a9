"""`backend check`: does a plug-in keep to the protocol?"""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import suppress

import click

from conformance.commands.options import POSITIVE, operation_option

STARTUP = 600.0  # seconds until a backend is there: it may build itself first


@click.group("backend")
def command() -> None:
    """About one backend."""


@command.command("check")
@click.argument("connect")
@operation_option
@click.option(
    "--time-limit",
    type=POSITIVE,
    default=10.0,
    metavar="SECONDS",
    show_default=True,
    help="For one answer.",
)
def check(connect: str, operation: str, time_limit: float) -> int:
    """Check that a backend follows the protocol: its messages, names, types, sessions, and how it ends.

    Says nothing of the numbers; `run` does. Exit code 0: nothing is wrong; 1: something is; 3: there is no such
    backend, or it cannot be started.
    """
    from conformance.backends.plugin.check import check as findings
    from conformance.backends.plugin.process import Limits
    from conformance.errors import BackendError, plural
    from conformance.library.reading import load_library
    from conformance.reporting.table import excerpt

    kind, _, line = connect.partition(":")
    own_process = kind == "cmd"
    try:
        words = shlex.split(line) if own_process else _served(connect)
    except ValueError as error:
        raise BackendError(f"'{connect}' is not a command line: {error}") from None
    if not words:
        raise BackendError("'cmd:' needs a command line, as in cmd:./my-backend --fast")
    counts = {"ok": 0, "note": 0, "wrong": 0}
    finding = None
    for finding in findings(words, Limits(seconds=time_limit), load_library(operation), own_process=own_process):
        counts[finding.status] += 1
        click.echo(f"{finding.status:<6} {finding.check}: {finding.says}")
        for printed in excerpt(finding.printed):
            click.echo(f"       printed: {printed}")
    if finding and finding.status == "wrong" and finding.check in ("says hello", "answers calls"):
        click.echo("The other checks need this one, and were not made.")
    click.echo(
        f"\n{plural(sum(counts.values()), 'check')}: "
        + ", ".join(f"{number} {name}" for name, number in counts.items())
    )
    return 1 if counts["wrong"] else 0


def _served(connect: str) -> list[str]:
    """The command line that serves a Python backend. Raises `BackendError` when there is no such backend.

    Tried in a process of its own, where its code is run: whoever is there ends with the end of its input.
    """
    from conformance.errors import BackendError

    words = [sys.executable, "-m", "conformance.backends.plugin.serve", connect]
    with suppress(subprocess.TimeoutExpired):  # a backend that hangs is for the checks to tell
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=STARTUP, check=False)
        if done.returncode == BackendError.exit_code:
            raise BackendError(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    return words
