"""`backend check`: does a plug-in keep to the protocol?"""

from __future__ import annotations

import shlex
import sys

import click

from conformance.commands.options import POSITIVE


@click.group("backend")
def command() -> None:
    """About one backend."""


@command.command("check")
@click.argument("connect")
@click.option(
    "--time-limit",
    type=POSITIVE,
    default=10.0,
    metavar="SECONDS",
    show_default=True,
    help="For one answer.",
)
def check(connect: str, time_limit: float) -> int:
    """Check the manners of a backend: whether its messages, names, types, sessions and its end are as they are to be.

    Says nothing of the numbers; `run` does. Exit code 0: nothing is wrong; 1: something is; 3: it cannot be started.
    """
    from conformance.backends.plugin.check import check as findings
    from conformance.errors import BackendError
    from conformance.library.reading import load_library
    from conformance.reporting.table import excerpt
    from conformance.running.process import Limits

    kind, _, line = connect.partition(":")
    own_process = kind == "cmd"
    try:
        words = (
            shlex.split(line) if own_process else [sys.executable, "-m", "conformance.backends.plugin.serve", connect]
        )
    except ValueError as error:
        raise BackendError(f"'{connect}' is no command line: {error}") from None
    if not words:
        raise BackendError("'cmd:' needs a command line, as in cmd:./my-backend --fast")
    counts = {"ok": 0, "note": 0, "wrong": 0}
    finding = None
    for finding in findings(words, Limits(seconds=time_limit), load_library(), own_process=own_process):
        counts[finding.status] += 1
        click.echo(f"{finding.status:<6} {finding.check}: {finding.says}")
        for printed in excerpt(finding.printed):
            click.echo(f"       printed: {printed}")
    if finding and finding.status == "wrong" and finding.check in ("says hello", "answers calls"):
        click.echo("The other checks need this one, and were not made.")
    click.echo(f"\n{sum(counts.values())} checks: " + ", ".join(f"{number} {name}" for name, number in counts.items()))
    return 1 if counts["wrong"] else 0
