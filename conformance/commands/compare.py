"""`compare`: two logs side by side."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("compare")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--label", "labels", multiple=True, metavar="TEXT",
              help="Heading of a column; give it twice, for OLD and for NEW.")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(["table", "markdown"]), default="table", show_default=True,
              help="Plain text, or Markdown for a pull request.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; else printed.")
def command(old: Path, new: Path, labels: tuple[str, ...], kind: str, output: Path | None) -> int:
    """What changed from OLD to NEW. Exit 1 when something fails now that did not, or is gone that passed.

    Cases that failed or changed in the same way are one line, with their number. Headroom is listed when it moved by
    half, times when both logs have them and are of the same processor.
    """
    from conformance.commands.report import write
    from conformance.errors import UsageError
    from conformance.record.log import read_log
    from conformance.reporting.compare import compare, render

    if len(labels) not in (0, 2):
        raise UsageError("give --label twice, for OLD and for NEW, or not at all")
    logs = read_log(old), read_log(new)
    if logs[0].header.operation != logs[1].header.operation:
        names = " and ".join(log.header.operation for log in logs)
        raise UsageError(f"the logs are of different operations, {names}, which have no cases in common")
    result = compare(*logs)
    write(render(*logs, result, format="github" if kind == "markdown" else "simple", labels=labels), output)
    return 1 if result.worse else 0
