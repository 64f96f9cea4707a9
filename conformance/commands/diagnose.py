"""`diagnose`: the readings an implementation follows, and the known mistakes that explain its failures."""

from __future__ import annotations

import click

from conformance.commands.options import POSITIVE, operation_option
from conformance.errors import plural

SHOWN = 8  # groups of failures


@click.command("diagnose")
@click.option("-b", "--backend", "connect", required=True, metavar="CONNECT", help="Backend to diagnose.")
@click.option("--case", "ids", multiple=True, metavar="ID", help="A case to run before all others; repeatable.")
@click.option("--seconds", type=POSITIVE, default=120, show_default=True, help="Time, for running cases and suspects.")
@operation_option
def command(connect: str, ids: tuple[str, ...], seconds: float, operation: str) -> int:
    """Run the library, then say for each group of failures which known mistake the backend makes, as `run` does.

    Exit code 0 when nothing fails, 1 when something does, explained or not.
    """
    from conformance.failures.diagnose import diagnose
    from conformance.library.reading import load_library
    from conformance.reporting.plain import line
    from conformance.reporting.progress import steps

    library = load_library(operation)
    with steps(f"diagnosing {connect}") as advance:
        result = diagnose(library, connect, [library.find(name) for name in ids], seconds=seconds, advance=advance)
    click.echo(line(f"{connect}: {result.info.version}, {result.info.vendor}"))
    click.echo(f"{len(result.failing):,} of {plural(len(result.outcomes), 'case')} fail\n")
    for reading in library.operation.readings:
        choice = result.readings[reading.name]
        note = "" if choice in ("", reading.default) else f"  (the contract reads: {reading.default})"
        click.echo(f"reading {reading.name}: {choice or 'could not be told'}{note}")
    click.echo("")
    if not result.failing:
        click.echo("no case fails")
        return 0
    for finding in result.findings[:SHOWN]:
        click.echo(line(f"{plural(len(finding.failures), 'case')}: {finding.title}"))
        click.echo(line(f"    {finding.text or 'matches no known mistake'}"))
    if len(result.findings) > SHOWN:
        click.echo(f"... and {plural(len(result.findings) - SHOWN, 'more group')}")
    return 1
