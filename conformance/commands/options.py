"""Options that several verbs share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.library.operations import DEFAULT

if TYPE_CHECKING:
    from conformance.library.reading import Library

Command = Callable[..., Any]


class Positive(click.FloatRange):
    """A number above 0, and a finite one: `nan` seconds would never be over."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


POSITIVE = Positive()
MOST_MEMORY = 1 << 40  # MiB, far beyond any machine and within 64 bits as bytes


def selection_options(function: Command) -> Command:
    """-k, --clause, --level, --case and --quick: which cases are meant."""
    options = [
        click.option("-k", "expression", default="", metavar="EXPR", help="Cases whose id matches, like pytest's -k."),
        click.option("--clause", "clauses", multiple=True, metavar="ID", help="Cases that cite a clause or group."),
        click.option(
            "--level",
            type=click.Choice(["required", "recommended", "informative"]),
            default=None,
            help="Cases of one level.",
        ),
        click.option(
            "--case",
            "ids",
            multiple=True,
            metavar="CASE",
            help="A case, or a group of cases such as rotation/widths; repeatable.",
        ),
        click.option("--quick", is_flag=True, help="A varied subset of small cases; cannot prove conformance."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def operation_option(function: Command) -> Command:
    """--operation NAME, by its name or its folder in the library, and --library DIR, where one's own is described."""
    named = click.option(
        "--operation",
        default=DEFAULT,
        metavar="NAME",
        is_eager=True,
        show_default=True,
        help="Operation, by its name or its folder in the library.",
    )
    return described_option(named(function))


def described_option(function: Command) -> Command:
    """--library DIR: where operations of one's own are described, DIR/NAME/operation.yaml."""
    return click.option(
        "--library",
        type=click.Path(path_type=Path),
        metavar="DIR",
        is_eager=True,
        expose_value=False,
        callback=_included,
        help="Folder with operations of your own, DIR/NAME/operation.yaml.",
    )(function)


def _included(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    from conformance.errors import UsageError
    from conformance.library.operations import include, operations

    if not operations(value):
        raise UsageError(f"--library {value}: describes no operation; this needs {value}/NAME/operation.yaml")
    include(value)


@dataclass(frozen=True)
class LibraryChoice:
    """Which library is meant: the bundled one, or one's own beside it or in place of it."""

    operation: str  # empty where none was named
    folder: Path | None = None
    only: bool = False

    def load(self, operation: str = "") -> Library:
        """The library of an operation: this one, the one that was named, or else the default."""
        from conformance.library.reading import load_library

        self.include()
        return load_library(operation or self.operation or DEFAULT, extra=self.folder, only=self.only)

    def include(self) -> None:
        """Know the operations that the folder describes by their names."""
        from conformance.library.operations import include, operations

        if self.folder and operations(self.folder):
            include(self.folder)

    @property
    def is_bundled(self) -> bool:
        """Whether nothing but the bundled library is meant."""
        return self.folder is None and not self.only


def library_options(function: Command) -> Command:
    """--operation, --library and --no-bundled, handed over together as `libraries`."""
    options = [
        click.option("--operation", default="", metavar="NAME", is_eager=True,
                     help="Operation, by its name or its folder."),
        click.option("--library", "own_library", type=click.Path(path_type=Path), metavar="DIR",
                     help="Your own case files, DIR/TOPIC/*.yaml, beside the bundled ones."),
        click.option("--no-bundled", "without_bundled", is_flag=True, help="Only the cases of --library."),
    ]  # fmt: skip

    @wraps(function)
    def together(*args: Any, operation: str, own_library: Path | None, without_bundled: bool, **others: Any) -> Any:
        return function(*args, libraries=LibraryChoice(operation, own_library, without_bundled), **others)

    for option in reversed(options):
        together = option(together)
    return together


def reading_options(function: Command) -> Command:
    """--reading NAME=CHOICE: readings of the contract that are switched."""
    return click.option(
        "--reading", "readings", multiple=True, metavar="NAME=CHOICE", callback=_readings, help="Switch a reading."
    )(function)


def isolation_options(function: Command) -> Command:
    """--isolate, --jobs, --scheduler and the limits of a case, handed over together as `isolation`."""
    options = [
        click.option("--isolate", is_flag=True,
                     help="Run the implementation in a process of its own: a crash costs one case."),
        click.option("--jobs", type=click.IntRange(1, 1024), default=None, metavar="J",
                     help="Processes side by side; 1 is this one alone.  [default: run: the cores, else 1]"),
        click.option("--scheduler", default="", metavar="ADDRESS", help="Run on the workers of a Dask scheduler."),
        click.option("--time-limit", type=POSITIVE, default=60.0, metavar="SECONDS", show_default=True,
                     help="Time allowed per case in a worker, and per call of an isolated or cmd: plug-in."),
        click.option("--memory-limit", type=click.IntRange(1, MOST_MEMORY), default=4096, metavar="MIB",
                     show_default=True, help="Memory allowed per worker, isolated implementation or cmd: plug-in."),
    ]  # fmt: skip

    @wraps(function)
    def together(
        *args: Any, isolate: bool, jobs: int | None, scheduler: str, time_limit: float, memory_limit: int, **others: Any
    ) -> Any:
        from conformance.backends.plugin.process import MIB, Limits
        from conformance.errors import UsageError
        from conformance.running.place import Isolation

        if scheduler and jobs:
            raise UsageError("with --scheduler the cluster says how many processes there are; leave out --jobs")
        limits = Limits(seconds=time_limit, memory=memory_limit * MIB)
        return function(*args, isolation=Isolation(isolate, jobs or 0, limits, scheduler), **others)

    for option in reversed(options):
        together = option(together)
    return together


def _readings(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    if not value:
        return {}
    from conformance.library.operations import load_operation
    from conformance.spec.operation import chosen_readings

    return chosen_readings(load_operation(ctx.params.get("operation") or DEFAULT), value)
