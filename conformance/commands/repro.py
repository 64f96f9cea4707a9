"""`repro`: a failure of a log as a script that needs NumPy only."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands.options import described_option


@click.command("repro")
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("case_id", metavar="CASE")
@click.option("--function", default="", metavar="MODULE:NAME",
              help="Function that the script imports and calls, as NAME(**inputs, **attributes); also FILE.py:NAME  "
              "[default: a place to put one in].")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="File to write the script to; else it is printed.")  # fmt: skip
@described_option
def command(log: Path, case_id: str, function: str, output: Path | None) -> int:
    """Write a script of at most 66 lines that shows the failure of CASE: inputs, what is due, and the worst element.

    It runs wherever NumPy is. It calls the function with every input and every attribute by its name, as
    FUNCTION(**inputs, **attributes); an optional input that the case leaves out is not given, and bf16 numbers come and
    go as uint16 bits. The function returns a dict of its outputs by name, or the outputs in the contract's order. The
    script's exit code is 0 when the function is right, 1 when it is wrong, and 2 as long as there is none in it.
    """
    from conformance.errors import UsageError
    from conformance.failures.reproduce import script
    from conformance.record.recorded import recorded

    if output and output.exists():
        raise UsageError(f"{output}: is there already; give another name")
    found = recorded(log, case_id)
    text = script(found, found.operation, function)
    if output is None:
        click.echo(text, nl=False)
        return 0
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from None
    click.echo(f"{output}: {len(text.splitlines())} lines; run it with: python {output}")
    return 0
