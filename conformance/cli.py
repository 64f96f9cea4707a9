"""Command line: verbs are loaded when they are used, so that listing is quick."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import click

from conformance import __version__
from conformance.errors import BackendError, UsageError

UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
# verb: (module below conformance.commands, one line for the help)
VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run the library on one or more backends and print the matrix."),
    "diagnose": ("diagnose", "Which readings a backend follows, and which known mistake explains its failures."),
    "report": ("report", "Render logs as table, Markdown, HTML, JUnit XML or badge."),
    "compare": ("compare", "What changed from one log to another; fails when something newly fails."),
    "faults": ("faults", "Which case kills which planted fault; survivors and false alarms make it fail."),
    "perf": ("perf", "Time conformant backends side by side: latency, bandwidth, growth."),
    "fuzz": ("fuzz", "Run generated examples with all relations, until something fails."),
    "shrink": ("shrink", "Make a failing case of a log as small and plain as it can be."),
    "repro": ("repro", "Write a script that shows a failure of a log; it needs NumPy only."),
    "promote": ("promote", "Write a failing case of a log as a case of the library."),
    "expectations": ("expectations", "What a backend is known to get wrong: show, check, write."),
    "publish": ("publish", "Run backends and write their logs, pages and badges below one folder with an index."),
    "cases": ("cases", "List, show and check the cases of the library."),
    "coverage": ("coverage", "Clauses by number of cases; fails when a required clause has none."),
    "new-backend": ("new_backend", "Write the skeleton of a backend of your own."),
    "backend": ("backend", "Check that a plug-in keeps to the protocol."),
    "backends": ("backends", "The backends of this machine, and why others are not usable."),
    "build-native": ("build_native", "Build the C++ operation ahead of its first use."),
    "docs": ("docs", "Write the pages of the documentation that follow from operation.yaml and the library."),
    "doctor": ("doctor", "Check that the suite itself works here."),
}


class Verbs(click.Group):
    """A group that imports a verb's module only when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"conformance.commands.{VERBS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, says) for name, (_, says) in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        from conformance.errors import nearest

        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise UsageError(f"no command '{args[0]}'{nearest(args[0], list(VERBS))}; known: {', '.join(VERBS)}")
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qsa-conformance")
def cli() -> None:
    """Does an implementation of a block-sparse attention operation conform to its contract?

    \b
    qsa-conformance run                        every backend that this machine can run
    qsa-conformance run -b py:mine.py:Mine     your own
    """


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit 0 as expected, 1 not, 2 usage, 3 backend unusable, 4 incomplete."""
    from conformance.backends.protocol import Unsupported

    if sys.stdout is None:  # closed by whoever started this: files opened later would take its place
        fail("standard output is closed, so that nothing could be said")
        sys.exit(2)
    try:
        with harmless_output():
            code = cli.main(arguments, standalone_mode=False)
            sys.stdout.flush()
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        with suppress(OSError, ValueError):
            click.echo(harmless(f"{usage_of(error)}Error: {error.format_message()}"), err=True)
        code = 2
    except Unsupported as error:
        fail(f"backend cannot be used here: {error}")
        code = 3
    except (UsageError, BackendError) as error:
        fail(str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        lose_output()
        code = 141
    except MemoryError as error:
        fail(f"out of memory: {error or 'an allocation failed'}")
        code = 3
    except OSError as error:
        if error.filename is None and error.errno not in UNWRITABLE:
            raise
        where = f"{error.filename}: " if error.filename else "standard output cannot be written: "
        lose_output()
        fail(f"{where}{error.strerror or error}")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def usage_of(error: click.ClickException) -> str:
    """How the command is called, where an error is about that."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n\n" if context else ""


def fail(text: str) -> None:
    """One sentence on the error stream, if there is one."""
    with suppress(OSError, ValueError):
        click.echo(f"error: {harmless(text)}", err=True)


def harmless(text: str) -> str:
    """The text without what a terminal would act on, cut to what can be read."""
    from conformance.reporting.plain import clean, cut

    return cut(clean(text), 4_000)


def lose_output() -> None:
    """Nothing more is written to standard output, also not what is still in its buffer when the process ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def harmless_output() -> Iterator[None]:
    """Whatever is printed, by us or by a plug-in in this process, is without control characters.

    Verbs clean what they show; this is for what a verb forgot.
    """
    real = sys.stdout
    sys.stdout = cast(TextIO, _Harmless(real))
    try:
        yield
    finally:
        sys.stdout = real


class _Harmless:
    """A text stream in front of another."""

    def __init__(self, real: TextIO) -> None:
        self._real = real

    def write(self, text: str) -> int:
        if text.replace("\n", "").isprintable():  # what cleans it is not needed by most verbs, and takes long to load
            return self._real.write(text)
        from conformance.reporting.plain import clean

        self._real.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
