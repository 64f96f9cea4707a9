"""`cases`: list, show and lint the library."""

from __future__ import annotations

import click

from conformance.commands.options import operation_option, selection_options


@click.group("cases")
def command() -> None:
    """List, show and check the cases of the library."""


@command.command("list")
@operation_option
@selection_options
@click.option("--long", "long", is_flag=True, help="With the sentence and the place of every case.")
def list_(
    operation: str, expression: str, clauses: tuple[str, ...], level: str, ids: tuple[str, ...], quick: bool, long: bool
) -> int:
    """Print the ids of the cases."""
    from conformance.library.reading import load_library
    from conformance.library.selection import select

    library = load_library(operation)
    lines = []
    for case in select(library, expression=expression, clauses=clauses, level=level, ids=ids, quick=quick):
        lines.append(case.id)
        if long:
            lines.append(f"    {case.says} [{', '.join(case.clauses)}] {case.place}")
    click.echo("\n".join(lines))
    return 0


@command.command("show")
@operation_option
@click.argument("case_id", metavar="CASE")
@click.option("--tensors", "show_tensors", is_flag=True, help="With the input arrays and the expected outputs.")
def show(operation: str, case_id: str, show_tensors: bool) -> int:
    """Print one case with everything worked out."""
    import yaml

    from conformance.library.reading import load_library
    from conformance.spec.case import as_plain, lengths, summary

    library = load_library(operation)
    case = library.find(case_id)
    click.echo(f"{case.id}\n{case.says}\n{summary(case, library.operation)}")
    counted = library.operation.lengths or "lengths"
    told = f"{counted}: {list(lengths(case, library.operation))}   " if library.operation.history else ""
    click.echo(f"{told}digest {case.digest}\n")
    click.echo(yaml.safe_dump(dict(as_plain(case)), sort_keys=False, allow_unicode=True, width=100), nl=False)
    if show_tensors:
        import numpy as np

        from conformance.spec.inputs import inputs_of

        np.set_printoptions(linewidth=120, precision=7, suppress=False, threshold=400)
        inputs = inputs_of(case, library.operation)
        for name, array in inputs.items():
            click.echo(f"\n{name} {list(array.shape)} {array.dtype}\n{array}")
        if case.refusal:
            return 0
        expected = library.operation.oracle(case.attributes).expect(inputs)
        for name, one in expected.items():
            click.echo(f"\nexpected {name} {list(one.shape)}, nan where unspecified\n{one.fill(np.nan)}")
    return 0


@command.command("lint")
@operation_option
def lint(operation: str) -> int:
    """Check the rules of the library; prints file:line for every problem."""
    from conformance.library.lint import problems
    from conformance.library.reading import load_library

    library = load_library(operation)
    found = problems(library)
    for problem in found:
        click.echo(problem)
    click.echo(
        f"{len(library.cases)} cases from {library.written} written ones, library {library.digest}: "
        + (f"{len(found)} problems" if found else "no problem")
    )
    return 1 if found else 0
