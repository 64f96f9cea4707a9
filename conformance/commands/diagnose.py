"""`diagnose`: the readings an implementation follows, and the known mistakes that explain its failures."""

from __future__ import annotations

import click

from conformance.commands.options import POSITIVE, operation_option


@click.command("diagnose")
@click.option("-b", "--backend", "connect", required=True, metavar="CONNECT", help="Backend to diagnose.")
@click.option("--case", "ids", multiple=True, metavar="ID", help="A case that fails, besides the probes; repeatable.")
@click.option("--seconds", type=POSITIVE, default=120, show_default=True, help="Time for trying suspects.")
@operation_option
def command(connect: str, ids: tuple[str, ...], seconds: float, operation: str) -> int:
    """Run the fewest cases that tell all known mistakes apart, then say which of them the backend makes.

    Exit code 0 when nothing fails, 1 when something does, explained or not.
    """
    from conformance.backends.connect import usable
    from conformance.failures.diagnose import diagnose, followed_readings, probes, small_cases
    from conformance.library.reading import load_library
    from conformance.reporting.progress import steps

    library = load_library(operation)
    failing = [library.find(name) for name in ids]
    backend, info = usable(connect, operation=library.operation.operation)
    cases = [case for case in probes(library) if case.element_type in info.element_types]
    with steps(f"diagnosing {connect}") as advance:
        result = diagnose(library, backend, info, cases, failing=failing, seconds=seconds, advance=advance)
        followed = followed_readings(library.operation, backend, info, small_cases(library, info))
    click.echo(f"{connect}: {info.version}, {info.vendor}")
    click.echo(f"{len(result.failing)} of {result.tried} probe cases fail\n")
    for reading in library.operation.readings:
        choice = followed[reading.name]
        note = "" if choice in ("", reading.default) else f"  (the contract reads: {reading.default})"
        click.echo(f"reading {reading.name}: {choice or 'could not be told'}{note}")
    click.echo("")
    if not result.failing:
        click.echo("no fault: every probe passes")
        return 0
    for match in result.matches[:5]:
        click.echo(f"matches {match.text}")
    if len(result.matches) > 5:
        click.echo(f"... and {len(result.matches) - 5} others less well")
    if not result.matches:
        click.echo("matches no known mistake")
    if result.stage:
        click.echo(f"first stage that diverges: {result.stage}")
    return 1
