"""`new-backend`: the skeleton of a backend of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands.options import operation_option

PYTHON, CPP = (".py",), (".cpp", ".cc", ".cxx")


@click.command("new-backend")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@operation_option
@click.option("--force", is_flag=True, help="Overwrite the file when it is there already.")
def command(file: Path, operation: str, force: bool) -> int:
    """Write a backend to fill in: FILE.py is a class, FILE.cpp a program that speaks the plug-in protocol.

    It runs at once: it refuses what the contract forbids, and every valid call counts as unsupported.
    """
    from conformance.backends.skeleton.render import class_name, cpp_skeleton, python_skeleton
    from conformance.errors import UsageError
    from conformance.library.operations import load_operation

    if file.suffix not in (*PYTHON, *CPP):
        raise UsageError(f"'{file}' has to end in {', '.join(PYTHON)} (a class) or {', '.join(CPP)} (a program)")
    described, name = load_operation(operation), class_name(file.stem)
    text = (python_skeleton if file.suffix in PYTHON else cpp_skeleton)(described, file.name, name)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise UsageError(f"'{file}' is there already; --force overwrites it") from None
    except OSError as error:
        raise UsageError(f"'{file}' cannot be written: {error.strerror}") from None
    click.echo(f"wrote {file}, a backend of {described.operation} that computes nothing yet")
    if file.suffix in PYTHON:
        click.echo(f"next: qsa-conformance run -b py:{file}:{name} --quick")
    else:
        program = file.with_suffix("")
        shown = program if program.is_absolute() else f"./{program}"
        click.echo(f"next: c++ -std=c++17 -O2 -o {program} {file}")
        click.echo(f'      qsa-conformance run -b "cmd:{shown}" --quick')
    return 0
