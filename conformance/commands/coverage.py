"""`coverage`: clauses by number of cases."""

from __future__ import annotations

import click

from conformance.commands.options import LibraryChoice, library_options


@click.command("coverage")
@library_options
def command(libraries: LibraryChoice) -> int:
    """Print every clause with its number of cases. Fails when a required clause has no case."""
    from tabulate import tabulate

    from conformance.library.lint import uncovered

    library = libraries.load()
    rows = []
    for clause in library.operation.clauses:
        cases = [case for case in library.cases if clause.id in case.clauses]
        by_hand = sum(bool(case.values) for case in cases)
        rows.append((clause.id, clause.level, len(cases), by_hand, clause.says))
    click.echo(
        tabulate(rows, ["clause", "level", "cases", "by hand", "says"], maxcolwidths=[None, None, None, None, 80])
    )
    missing = uncovered(library)
    click.echo(f"\n{len(rows)} clauses, {len(library.cases)} cases, library {library.digest}")
    for clause_id in missing:
        click.echo(f"required clause {clause_id} has no case")
    return 1 if missing else 0
