"""`cases`: list, show and lint the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from conformance.commands.options import LibraryChoice, library_options, selection_options

if TYPE_CHECKING:
    from conformance.spec.case import Case
    from conformance.spec.operation import Operation


@click.group("cases")
def command() -> None:
    """List, show and check the cases of the library."""


@command.command("list")
@library_options
@selection_options
@click.option("--long", "long", is_flag=True, help="With the sentence and the place of every case.")
def list_(
    libraries: LibraryChoice,
    expression: str,
    clauses: tuple[str, ...],
    level: str,
    ids: tuple[str, ...],
    quick: bool,
    long: bool,
) -> int:
    """Print the ids of the cases."""
    from conformance.library.selection import select

    library = libraries.load()
    lines = []
    for case in select(library, expression=expression, clauses=clauses, level=level, ids=ids, quick=quick):
        lines.append(case.id)
        if long:
            lines.append(f"    {case.says} [{', '.join(case.clauses)}] {case.place}")
    click.echo("\n".join(lines))
    return 0


@command.command("show")
@library_options
@click.argument("case_id", metavar="CASE")
@click.option("--tensors", "show_tensors", is_flag=True, help="With the input arrays and the expected outputs.")
def show(libraries: LibraryChoice, case_id: str, show_tensors: bool) -> int:
    """Print a case with everything worked out, or all cases of a group such as rotation/widths."""
    from conformance.library.selection import named_by

    library = libraries.load()
    for number, name in enumerate(named_by(library, case_id)):
        if number:
            click.echo("\n" + "-" * 100 + "\n")
        _show(library.find(name), library.operation, show_tensors)
    return 0


def _show(case: Case, operation: Operation, show_tensors: bool) -> None:
    import yaml

    from conformance.spec.case import as_plain, lengths, summary

    click.echo(f"{case.id}\n{case.says}\n{summary(case, operation)}")
    told = f"{operation.lengths or 'lengths'}: {list(lengths(case, operation))}   " if operation.history else ""
    click.echo(f"{told}digest {case.digest}\n")
    click.echo(yaml.safe_dump(dict(as_plain(case)), sort_keys=False, allow_unicode=True, width=100), nl=False)
    if not show_tensors:
        return
    import numpy as np

    from conformance.spec.inputs import inputs_of

    np.set_printoptions(linewidth=120, precision=7, suppress=False, threshold=400)
    inputs = inputs_of(case, operation)
    for name, array in inputs.items():
        click.echo(f"\n{name} {list(array.shape)} {array.dtype}\n{array}")
    if case.refusal:
        return
    for name, one in operation.oracle(case.attributes).expect(inputs).items():
        rest: float = np.nan if one.dtype.kind in "fV" else 0
        unsaid = "nan" if one.dtype.kind in "fV" else "0"
        click.echo(f"\nexpected {name} {list(one.shape)}, {unsaid} where unspecified\n{one.fill(rest)}")


@command.command("lint")
@library_options
def lint(libraries: LibraryChoice) -> int:
    """Check the rules of the library; prints file:line for every problem.

    A file that cannot be read is a problem like any other; the rest is checked all the same.
    """
    from conformance.errors import LibraryError
    from conformance.library.lint import problems
    from conformance.library.operations import DEFAULT
    from conformance.library.reading import read_library, source_of

    source = source_of(libraries.operation or DEFAULT, extra=libraries.folder, only=libraries.only)
    unread: list[LibraryError] = []
    library = read_library(source, unread)
    found = [str(error) for error in unread] + problems(library, whole=not source.own and not unread)
    for problem in found:
        click.echo(problem)
    click.echo(f"read: {', '.join(map(str, source.folders))}")
    click.echo(
        f"{library.operation.operation}: {len(library.cases)} cases from {library.written} written ones, "
        f"library {library.digest}: " + (f"{len(found)} problem{'s' * (len(found) > 1)}" if found else "no problem")
    )
    return 1 if found else 0
