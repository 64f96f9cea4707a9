"""`compare`: two logs side by side."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("compare")
@click.argument("old", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("new", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "kind", type=click.Choice(["table", "markdown"]), default="table", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write; else printed.")
def command(old: Path, new: Path, kind: str, output: Path | None) -> int:
    """What changed from OLD to NEW. Exit 1 when something fails now that did not, or passed and is not run any more.

    Headroom is listed when it moved by half, times when both logs have them and are of the same processor.
    """
    from conformance.commands.report import write
    from conformance.record.log import read_log
    from conformance.reporting.compare import compare, render

    logs = read_log(old), read_log(new)
    result = compare(*logs)
    write(render(*logs, result, format="github" if kind == "markdown" else "simple"), output)
    return 1 if result.worse else 0
