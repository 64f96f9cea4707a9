"""`promote`: a failing case of a log becomes a case of the library."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands.options import LibraryChoice, library_options


@click.command("promote")
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("case_id", metavar="CASE")
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Folder to write the file to; its name is the topic of the case.")  # fmt: skip
@library_options
@click.option("--id", "id", default="", metavar="ID", help="Id in the folder  [default: clause, output, digest]")
@click.option("--says", default="", metavar="SENTENCE", help="What the case shows  [default: what its clause says]")
def command(libraries: LibraryChoice, log: Path, case_id: str, folder: Path, id: str, says: str) -> int:
    """Write CASE as DIR/ID.yaml, with where it was found and what is expected. Nothing is overwritten.

    A case that was found by fuzz is best shrunk before: `qsa-conformance shrink LOG CASE -o SMALL`.
    """
    from conformance.errors import UsageError
    from conformance.failures.promote import promote
    from conformance.record.recorded import recorded

    found = recorded(log, case_id)
    libraries.include()
    library = libraries.load(found.operation.operation)
    text, name = promote(found, library, folder, id, says)
    path = folder / f"{name.partition('/')[2]}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path}: is there already; give another --id") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    click.echo(f"{path}: {name}")
    return 0
