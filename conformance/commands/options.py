"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def selection_options(function: Command) -> Command:
    """-k, --clause, --level, --case and --quick: which cases are meant."""
    options = [
        click.option("-k", "expression", default="", metavar="EXPR", help="Cases whose id matches, as pytest's -k."),
        click.option("--clause", "clauses", multiple=True, metavar="ID", help="Cases that cite a clause or group."),
        click.option("--level", type=click.Choice(["required", "recommended", "informative"]), default=None),
        click.option("--case", "ids", multiple=True, metavar="ID", help="The case with exactly this id; repeatable."),
        click.option("--quick", is_flag=True, help="A spread of small cases; never enough to be conformant."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def reading_options(function: Command) -> Command:
    """--reading NAME=CHOICE: readings of the contract that are switched."""
    return click.option(
        "--reading", "readings", multiple=True, metavar="NAME=CHOICE", callback=_readings, help="Switch a reading."
    )(function)


def _readings(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    if not value:
        return {}
    from conformance.operation import chosen_readings, load_operation

    return chosen_readings(load_operation(), value)
