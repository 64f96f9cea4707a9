"""`report`: views of one or more logs."""

from __future__ import annotations

from pathlib import Path

import click

FORMATS = ["table", "markdown", "html", "junit", "badge"]


@click.command("report")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="LOG...")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "markdown", "html", "junit", "badge"]),
    default="table",
    show_default=True,
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write; else printed.")
def command(logs: tuple[Path, ...], kind: str, output: Path | None) -> int:
    """Render logs: the matrix over backends and versions, Markdown, one HTML page, JUnit XML, or a badge.

    Logs of the shards of one fuzzing campaign are shown as one.

    A badge goes to PATH as SVG, or as the JSON of a badge service when PATH ends in .json; only for complete runs.
    """
    from conformance.library.operations import load_operation
    from conformance.record.log import read_log
    from conformance.record.shards import joined

    read = joined([read_log(path) for path in logs])
    operation = load_operation()
    if kind == "table":
        from conformance.reporting.table import report

        text = report(read, operation)
    elif kind == "markdown":
        from conformance.reporting.markdown import markdown

        text = markdown(read, operation)
    elif kind == "html":
        from conformance.reporting.html import page

        text = page(read, operation)
    elif kind == "junit":
        from conformance.reporting.junit import junit

        text = junit(read)
    else:
        from conformance.errors import UsageError
        from conformance.reporting import badge

        if len(read) != 1:
            raise UsageError("a badge is made of one log")
        text = badge.endpoint(read[0]) if output and output.suffix == ".json" else badge.svg(read[0])
    write(text, output)
    return 0


def write(text: str, output: Path | None) -> None:
    """To a file, or to standard output."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    from conformance.errors import UsageError

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None
