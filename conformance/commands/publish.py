"""`publish`: runs backends and writes their reports below one folder, with an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.options import isolation_options, operation_option

if TYPE_CHECKING:
    from conformance.record.log import Log
    from conformance.running.isolation import Isolation
    from conformance.spec.operation import Operation


@click.command("publish")
@click.option("-b", "--backend", "backends", multiple=True, metavar="CONNECT", help="Backend to run; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False),
              help="Folder of the published reports  [default: reports; reports/OPERATION for others]")  # fmt: skip
@click.option("--quick", is_flag=True, help="Only a varied subset of small cases: to try it out; such reports say so.")
@click.option("--log", "given", multiple=True, type=click.Path(path_type=Path, dir_okay=False), metavar="LOG",
              help="Publish a log that is there already; repeatable.")  # fmt: skip
@click.option("--render", "render_only", is_flag=True, help="Run nothing: write pages and index of what is there anew.")
@click.option("--perf", "timed", multiple=True, metavar="CONNECT",
              help="Time this backend, too; repeatable. Ratios are relative to the first.")  # fmt: skip
@operation_option
@isolation_options
def command(
    backends: tuple[str, ...],
    operation: str,
    output: Path | None,
    quick: bool,
    given: tuple[Path, ...],
    render_only: bool,
    timed: tuple[str, ...],
    isolation: Isolation,
) -> int:
    """Run backends and write log, page and badge of each below FOLDER/BACKEND/VERSION, and an index over all.

    Without -b every backend that this machine can run is run. With --perf those that turn out conformant are timed side
    by side, as `perf` does. Reports of other versions stay. Exit codes as of `run`.
    """
    import tempfile
    from dataclasses import replace

    from conformance.backends.embedded import names, usual_readings
    from conformance.backends.protocol import Unsupported
    from conformance.commands.run import exit_code, run_one
    from conformance.errors import BackendError, UsageError
    from conformance.library.operations import DEFAULT, folder_of
    from conformance.library.reading import load_library
    from conformance.library.selection import select
    from conformance.record.expectations import find
    from conformance.record.verdict import FINE
    from conformance.reporting import publish, table
    from conformance.running.run import Plan

    if timed and (render_only or given):
        raise UsageError("--perf goes with backends that are run")
    library = load_library(operation)
    served = library.operation.operation
    stray = [name for name in timed if name not in (backends or names(served))]
    if stray:
        raise UsageError(f"--perf {stray[0]}: is not among the backends that are run")
    home = folder_of(served)
    output = output or (Path("reports") if home == DEFAULT else Path("reports") / home)
    filters = {"--quick": "yes"} if quick else {}
    chosen = [] if render_only or given else list(backends or names(served))
    cases = select(library, quick=quick)
    logs, unusable = [], []
    taken: set[Path] = set()
    for path in given:
        publish.add(output, path, taken)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(chosen):
            followed = usual_readings(name, library.operation.operation)
            plan = Plan(name, cases, complete=not quick, filters=filters, readings=followed)
            plan = replace(plan, expectations=find(name, None, library, followed))
            path = Path(folder) / f"{number}.jsonl"
            try:
                log = run_one(plan, library, path, isolation=isolation)
            except (BackendError, Unsupported) as error:
                unusable.append(f"{name}: {error}")
                click.echo(f"not run, {name}: {error}", err=True)
                continue
            logs.append(log)
            click.echo(f"{publish.add(output, path)}: {table.verdict_of(log)}")
        conformant = {log.header.backend.connect: log for log in logs if table.verdict_of(log) in FINE}
        for path in timed_logs(
            library.operation, [name for name in timed if name in conformant], conformant, Path(folder)
        ):
            click.echo(f"{publish.add(output, path)}: timed")
    entries = publish.render(output, library.operation)
    click.echo(f"{output / 'index.html'}: {len(entries)} reports")
    return 0 if render_only or given else exit_code(logs, unusable if backends else [])


def timed_logs(operation: Operation, connects: list[str], logs: Mapping[str, Log], folder: Path) -> list[Path]:
    """The logs of these backends with all workloads timed on them, side by side, as files in a folder."""
    if not connects:
        return []
    from conformance.commands.perf import side_by_side
    from conformance.timing.perf import limited_to
    from conformance.timing.workloads import load_workloads

    with limited_to(None) as threads:
        chosen = load_workloads(operation)
        _, paths = side_by_side(operation, connects, chosen, [logs[name] for name in connects], folder, threads)
    return paths
