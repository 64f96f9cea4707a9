"""What is shown while something runs: a bar or a line on a terminal, and nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from conformance.judging.engine import Outcome
from conformance.reporting.plain import line

SHOWN = 100  # characters of a title


def progress(title: str, total: int) -> Any:
    """A context that gives a function to call for every result; silent unless the error stream is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext(lambda outcome: None)
    return _Bar(title, total)


@contextmanager
def steps(title: str) -> Iterator[Callable[[str], None]]:
    """A context that gives a function to call with what is being done; silent unless the error stream is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as status:
        yield lambda text: status.update(line(f"{title}: {text}", SHOWN))


class _Bar:
    def __init__(self, title: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        title = line(title, SHOWN)
        self._task = self._progress.add_task(title, total=total)
        self._title, self._wrong = title, 0

    def __enter__(self) -> Callable[[Outcome], None]:
        self._progress.start()
        return self._advance

    def _advance(self, outcome: Outcome) -> None:
        self._wrong += outcome.status in ("fail", "error")
        wrong = f" [red]{self._wrong} failing[/red]" if self._wrong else ""
        self._progress.update(self._task, advance=1, description=self._title + wrong)

    def __exit__(self, *args: object) -> None:
        self._progress.stop()
