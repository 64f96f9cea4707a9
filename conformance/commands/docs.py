"""`docs`: writes the pages of the documentation that follow from data."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands.options import described_option


@click.command("docs")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path("docs"),
              show_default=True, help="Folder of the pages.")  # fmt: skip
@click.option("--operation", default="", metavar="NAME", help="Only the pages of this operation.")
@described_option
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a page is out of date.")
def command(operation: str, output: Path, check: bool) -> int:
    """Write the contracts, the cases of their clauses, and the JSON Schema of the log."""
    from conformance.commands.report import write
    from conformance.library.operations import operations, own_roots
    from conformance.library.reading import load_library
    from conformance.reporting.documents import documents, outdated

    own = [name for root in own_roots() for name in operations(root)]
    libraries = [load_library(name) for name in ([operation] if operation else own or operations())]
    late = outdated(libraries, output)
    if not check:
        pages = documents(libraries)
        for name in late:
            write(pages[name], output / name)
    for name in late:
        click.echo(f"{output / name}: " + ("out of date; run: qsa-conformance docs" if check else "written"))
    return 1 if late and check else 0
