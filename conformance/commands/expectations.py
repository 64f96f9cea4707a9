"""`expectations`: what a backend is known to get wrong, shown, checked against a log, and written."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.options import LibraryChoice, isolation_options, library_options

if TYPE_CHECKING:
    from conformance.library.reading import Library
    from conformance.record.expectations import Entry, Expectations
    from conformance.record.log import Log
    from conformance.running.isolation import Isolation


@click.command("expectations")
@click.argument("log_path", metavar="[LOG]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("-b", "--backend", "connect", default="", metavar="CONNECT", help="Backend to run or to look up.")
@click.option("--expectations", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="The file; for backends of this package cases/*/expectations/BACKEND.yaml.")  # fmt: skip
@click.option("--update", is_flag=True, help="Write the file, from LOG or from a run of the whole library.")
@click.option("--reason", default="", metavar="TEXT", help="Why new failures are to be expected.")
@click.option("--url", default="", help="Where new failures are tracked.")
@click.option("--expires", default="", metavar="DATE", help="The last day on which new entries count, YYYY-MM-DD.")
@library_options
@isolation_options
def command(
    libraries: LibraryChoice,
    log_path: Path | None,
    connect: str,
    file: Path | None,
    update: bool,
    reason: str,
    url: str,
    expires: str,
    isolation: Isolation,
) -> int:
    """Show what BACKEND is expected to fail, check LOG against it, or with --update write it.

    Writing takes a complete run: a log of a filtered or interrupted one, or of generated cases, is refused. Entries
    that still hold are kept as they are. Exit code 1 when LOG is not as expected.
    """
    from conformance.errors import UsageError
    from conformance.library.operations import recorded
    from conformance.record.expectations import Expectations, Ground, check_updatable, default_file, load, updated
    from conformance.record.log import read_log

    try:
        datetime.date.fromisoformat(expires or "2000-01-01")
    except ValueError:
        raise UsageError(f"--expires '{expires}' is not a date such as 2027-01-31") from None
    if bool(log_path) == bool(connect):
        raise UsageError("give either a LOG or -b BACKEND")
    log = read_log(log_path) if log_path else None
    libraries.include()
    library = libraries.load(recorded(log.header.operation, log.header.own) if log else "")
    name = log.header.backend.connect if log else connect
    path = file or default_file(name, library.operation.operation)
    if path is None:
        raise UsageError(f"'{name}' is not a bundled backend; name a file: --expectations FILE")
    known = load(path, library) if path.is_file() else Expectations(str(path))
    if not update:
        return _check(log, known) if log else _show(known)
    if log is None:
        log = _run(connect, library, isolation)
    check_updatable(log, library)
    ground = Ground(reason, url, expires)
    entries = updated(known, log.outcomes, ground)
    _write(path, entries, known.says or f"What {name} is known to get wrong.", library)
    return 0


def _run(connect: str, library: Library, isolation: Isolation) -> Log:
    from conformance.backends.embedded import usual_readings
    from conformance.commands.run import run_one
    from conformance.running.run import Plan

    plan = Plan(connect, library.cases, complete=True, readings=usual_readings(connect, library.operation.operation))
    return run_one(plan, library, None, isolation=isolation, explain=False)


def _show(known: Expectations) -> int:
    from tabulate import tabulate

    rows = [
        (entry.case, len(cases), str(entry.signature), entry.reason, entry.url, entry.expires)
        for entry, cases in zip(known.entries, known.cases, strict=True)
    ]
    if rows:
        widths = [None, None, 40, 40, None, None]
        click.echo(tabulate(rows, ["case", "cases", "signature", "reason", "url", "expires"], maxcolwidths=widths))
    click.echo(f"{known.path}: {len(rows)} entries for {len(known.by_case)} cases")
    return 0


def _check(log: Log, known: Expectations) -> int:
    from conformance.record.expectations import assess

    result = assess(known, log.outcomes)
    for surprise in result.surprises:
        click.echo(f"{surprise.kind}: {surprise.case + ', ' if surprise.case else ''}{surprise.says}")
    click.echo(f"{len(result.expected)} failures as expected by {known.path}, {len(result.surprises)} surprises")
    return 0 if result.as_expected else 1


def _write(path: Path, entries: tuple[Entry, ...], says: str, library: Library) -> None:
    """Write the file and read it back, so that nothing is written that a run would refuse."""
    from conformance.commands.report import write
    from conformance.record.expectations import load, text

    if not entries:
        path.unlink(missing_ok=True)
        click.echo(f"nothing fails: no {path}")
        return
    write(text(entries, says), path)
    written = load(path, library)
    click.echo(f"{path}: {len(written.entries)} entries for {len(written.by_case)} cases")
