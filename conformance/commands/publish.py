"""`publish`: runs backends and writes their reports below one folder, with an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.options import isolation_options

if TYPE_CHECKING:
    from conformance.isolation import Isolation


@click.command("publish")
@click.option("-b", "--backend", "backends", multiple=True, metavar="CONNECT", help="Backend to run; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("reports"),
              show_default=True, help="Folder of the published reports.")  # fmt: skip
@click.option("--quick", is_flag=True, help="A spread of small cases: to try it out; such reports say so.")
@click.option("--log", "given", multiple=True, type=click.Path(path_type=Path, dir_okay=False), metavar="LOG",
              help="Publish a log that is there already; repeatable.")  # fmt: skip
@click.option("--render", "render_only", is_flag=True, help="Run nothing: write pages and index of what is there anew.")
@isolation_options
def command(
    backends: tuple[str, ...],
    output: Path,
    quick: bool,
    given: tuple[Path, ...],
    render_only: bool,
    isolation: Isolation,
) -> int:
    """Run backends and write log, page and badge of each below FOLDER/BACKEND/VERSION, and an index over all.

    Without -b every backend that this machine can run is run. Reports of other versions stay. Exit codes as of `run`.
    """
    import tempfile
    from dataclasses import replace

    from conformance.backends.connect import EMBEDDED
    from conformance.backends.protocol import Unsupported
    from conformance.commands.run import exit_code, run_one
    from conformance.errors import BackendError
    from conformance.expectations import find
    from conformance.library import load_library
    from conformance.reporting import publish, table
    from conformance.runner import Plan
    from conformance.selection import select

    library = load_library()
    filters = {"--quick": "yes"} if quick else {}
    chosen = [] if render_only or given else list(backends or EMBEDDED)
    cases = select(library, quick=quick)
    logs, unusable = [], []
    for path in given:
        publish.add(output, path)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(chosen):
            plan = Plan(name, cases, complete=not quick, filters=filters)
            plan = replace(plan, expectations=find(name, None, library, {}))
            path = Path(folder) / f"{number}.jsonl"
            try:
                log = run_one(plan, library, path, isolation=isolation)
            except (BackendError, Unsupported) as error:
                unusable.append(f"{name}: {error}")
                click.echo(f"not run, {name}: {error}", err=True)
                continue
            logs.append(log)
            click.echo(f"{publish.add(output, path)}: {table.verdict_of(log)}")
    entries = publish.render(output, library.operation)
    click.echo(f"{output / 'index.html'}: {len(entries)} reports")
    return 0 if render_only or given else exit_code(logs, unusable if backends else [])
