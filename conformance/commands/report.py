"""`report`: views of one or more logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.options import described_option

if TYPE_CHECKING:
    from conformance.record.log import Log
    from conformance.spec.operation import Operation

KINDS = ["table", "markdown", "html", "junit", "badge", "github"]


@click.command("report")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG...")
@click.option("--format", "kind", type=click.Choice(KINDS), default="table", show_default=True,
              help="What to write: text, Markdown, one HTML page, JUnit XML, a badge, annotations.")  # fmt: skip
@click.option("--label", "labels", multiple=True, metavar="TEXT", help="Heading of a log's column; one for each log.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; else printed.")
@described_option
def command(logs: tuple[Path, ...], kind: str, labels: tuple[str, ...], output: Path | None) -> int:
    """Render logs: the matrix over backends and versions, Markdown, one HTML page, JUnit XML, or a badge.

    The verdict is computed from the results; a log that contradicts itself is refused. Logs of the shards of one
    fuzzing campaign are shown as one. A badge goes to PATH as SVG, or as the JSON of a badge service when PATH ends in
    .json; only for complete runs.
    """
    from conformance.errors import UsageError
    from conformance.record.log import read_log
    from conformance.record.shards import joined

    read = joined([read_log(path) for path in logs])
    if labels and len(labels) != len(read):
        raise UsageError(f"give --label once for each log: there are {len(read)}, and {len(labels)} labels")
    read = [labelled(log, label) for log, label in zip(read, labels, strict=True)] if labels else read
    write(rendered(read, kind, output), output)
    return 0


def labelled(log: Log, label: str) -> Log:
    """The log under another heading."""
    import msgspec

    return msgspec.structs.replace(log, label=label)


def rendered(logs: Sequence[Log], kind: str, output: Path | None) -> str:
    """The logs in a format. Raises `UsageError` for logs that it cannot show."""
    from conformance.errors import UsageError

    if kind == "junit":
        from conformance.reporting.junit import junit

        return junit(logs)
    if kind == "github":
        from conformance.reporting.annotations import github

        return github(logs)
    if kind == "badge":
        from conformance.reporting import badge

        if len(logs) != 1:
            raise UsageError("a badge is made of one log")
        return badge.endpoint(logs[0]) if output and output.suffix == ".json" else badge.svg(logs[0])
    groups: dict[str, list[Log]] = {}
    for log in logs:
        groups.setdefault(log.header.operation, []).append(log)
    if kind == "html":
        from conformance.reporting.html import page

        if len(groups) > 1:
            raise UsageError(f"a page is of one operation, and the logs are of {' and '.join(groups)}")
        return page(logs, operation_of(logs[0]))
    from conformance.reporting.markdown import markdown
    from conformance.reporting.table import report

    render = report if kind == "table" else markdown
    return "\n".join(render(group, operation_of(group[0])) for group in groups.values())


def operation_of(log: Log) -> Operation:
    """The operation that a log is of. Raises `UsageError` when the library has none of this name."""
    from conformance.errors import UsageError
    from conformance.library.operations import load_operation, recorded

    try:
        return load_operation(recorded(log.header.operation, log.header.own))
    except UsageError as error:
        raise UsageError(f"{log.path}: {error}") from None


def write(text: str, output: Path | None) -> None:
    """To a file, or to standard output. Raises `UsageError` when the file cannot be written."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    from conformance.errors import UsageError

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None
