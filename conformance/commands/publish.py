"""`publish`: a folder with the logs of all backends on all operations, their badges, and the pages over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.options import described_option, isolation_options

if TYPE_CHECKING:
    from conformance.library.reading import Library
    from conformance.record.log import Log
    from conformance.running.isolation import Isolation
    from conformance.spec.operation import Operation


@click.command("publish")
@click.argument("given", nargs=-1, type=click.Path(path_type=Path), metavar="[LOG]...")
@click.option("-b", "--backend", "backends", multiple=True, metavar="CONNECT", help="Backend to run; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("reports"),
              show_default=True, help="Folder of the published reports.")  # fmt: skip
@click.option("--operation", "named", multiple=True, metavar="NAME",
              help="Operation to run, by name or folder in the library; repeatable  [default: all]")  # fmt: skip
@click.option("--quick", is_flag=True, help="Only a varied subset of small cases: to try it out; such reports say so.")
@click.option("--replace", is_flag=True,
              help="Put a log in the place of an earlier one of the same backend, version and library.")  # fmt: skip
@click.option("--render", "render_only", is_flag=True, help="Run nothing: make all pages of what is there anew.")
@click.option("--no-pages", is_flag=True, help="Leave out the large page of each log.")
@click.option("--perf", "timed", multiple=True, metavar="CONNECT",
              help="Time this backend, too; repeatable. Ratios are relative to the first.")  # fmt: skip
@described_option
@isolation_options
def command(
    given: tuple[Path, ...],
    backends: tuple[str, ...],
    output: Path,
    named: tuple[str, ...],
    quick: bool,
    replace: bool,
    render_only: bool,
    no_pages: bool,
    timed: tuple[str, ...],
    isolation: Isolation,
) -> int:
    """Add logs to the published ones, and make the pages, badges and indexes over all of them.

    Each LOG, or each log in a folder LOG, is added: logs of several environments come together in this way. Without LOG
    the backends are run, on every operation they serve; without -b all backends that this machine can run. With --perf
    those that turn out conformant are timed side by side, as `perf` does. Logs of `perf -o` are added as any other:
    their times go to the published log of the same run.

    No published log is lost: another log of the same backend and version is kept beside it, unless --replace is given.
    Exit codes as of `run`; 2 when a LOG was refused, after all others were added.
    """
    import tempfile

    from conformance.backends.embedded import names
    from conformance.commands.run import exit_code
    from conformance.errors import UsageError, plural
    from conformance.library.reading import load_library
    from conformance.reporting import publish
    from conformance.reporting.progress import steps

    if given and (backends or render_only or named or quick):
        raise UsageError("logs are added as they are; give them without -b, --operation, --quick and --render")
    if timed and (render_only or given):
        raise UsageError("--perf goes with backends that are run")
    stray = [name for name in timed if name not in (backends or names())]
    if stray:
        raise UsageError(f"--perf {stray[0]}: is not among the backends that are run")
    refused: list[UsageError] = []
    added = publish.logs_of(given)
    for path in added:
        try:
            click.echo(publish.add(output, path, replace=replace))
        except UsageError as error:
            refused.append(error)
    if refused and len(refused) == len(added):
        raise refused[0]
    logs: list[Log] = []
    unusable: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for operation, connects in wanted(named, backends, isolation) if not (given or render_only) else ():
            place = Path(folder) / operation
            library = load_library(operation)
            for path in run_all(library, connects, place, quick, timed, isolation, logs, unusable):
                click.echo(publish.add(output, path, replace=replace))
    with steps("pages") as say:
        entries = publish.render(output, pages=not no_pages, say=say)
    click.echo(f"{output / 'latest.html'}: {plural(len(entries), 'report')}")
    for one in refused:
        click.echo(f"error: {one}", err=True)
    if refused:
        return 2
    return 0 if render_only or given else exit_code(logs, unusable if backends else [])


def wanted(named: Sequence[str], backends: Sequence[str], isolation: Isolation) -> Iterable[tuple[str, Sequence[str]]]:
    """The operations that are run, with the backends that serve them."""
    from conformance.backends.embedded import names
    from conformance.commands.run import operations_wanted, served_by
    from conformance.library.operations import load_operation

    served = {text: served_by(text, isolation) for text in dict.fromkeys(backends)}
    operations = [load_operation(name).operation for name in named] or operations_wanted(served, (), None)
    for operation in operations:
        serving = [text for text in served if operation in served[text] or named]
        yield operation, serving or names(operation)


def run_all(
    library: Library,
    connects: Sequence[str],
    folder: Path,
    quick: bool,
    timed: Sequence[str],
    isolation: Isolation,
    logs: list[Log],
    unusable: list[str],
) -> list[Path]:
    """Run backends on an operation, and time those that are to be; gives the logs as files in a folder.

    `logs` and `unusable` get what came out, and what could not be run.
    """
    from dataclasses import replace

    from conformance.backends.embedded import usual_readings
    from conformance.backends.protocol import Unsupported
    from conformance.commands.run import run_one
    from conformance.errors import BackendError
    from conformance.library.selection import select
    from conformance.record.expectations import find
    from conformance.record.verdict import FINE
    from conformance.reporting import table
    from conformance.running.run import Plan

    operation = library.operation.operation
    cases, filters = select(library, quick=quick), {"--quick": "yes"} if quick else {}
    written: dict[str, Path] = {}
    conformant: dict[str, Log] = {}
    for number, name in enumerate(connects):
        readings = usual_readings(name, operation)
        plan = Plan(name, cases, complete=not quick, filters=filters, readings=readings)
        plan = replace(plan, expectations=find(name, None, library, readings))
        path = folder / f"{number}.jsonl"
        try:
            log = run_one(plan, library, path, isolation=isolation)
        except (BackendError, Unsupported) as error:
            unusable.append(f"{name}: {error}")
            click.echo(f"not run, {name} on {operation}: {error}", err=True)
            continue
        click.echo(f"{name} on {operation}: {table.verdict_of(log)}")
        logs.append(log)
        written[name] = path
        if table.verdict_of(log) in FINE:
            conformant[name] = log
    chosen = [name for name in timed if name in conformant]
    paths = timed_logs(library.operation, chosen, conformant, folder / "timed")
    return [*paths, *(path for name, path in written.items() if not paths or name not in chosen)]


def timed_logs(operation: Operation, connects: list[str], logs: Mapping[str, Log], folder: Path) -> list[Path]:
    """The logs of these backends with all workloads timed on them, side by side, as files in a folder."""
    from conformance.timing.workloads import has_workloads

    if not connects or not has_workloads(operation):
        return []
    from conformance.commands.perf import side_by_side
    from conformance.timing.sampling import limited_to
    from conformance.timing.workloads import load_workloads

    with limited_to(None) as threads:
        chosen = load_workloads(operation)
        _, paths = side_by_side(operation, connects, chosen, [logs[name] for name in connects], folder, threads)
    return paths
