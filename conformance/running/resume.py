"""Taking up a run that was interrupted, from its log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import msgspec

from conformance import __version__
from conformance.backends.protocol import BackendInfo
from conformance.errors import UsageError
from conformance.library.reading import Library
from conformance.library.selection import select
from conformance.record.log import Log, decode, read_log
from conformance.record.recorded import cases_of
from conformance.running.run import Plan


def take_up(path: Path, library: Library) -> tuple[Plan, Log]:
    """The plan of an interrupted run, and what it has done so far.

    A line that was cut off is removed from the file. Raises `UsageError` when the log is of another library or suite,
    as its results and those to come would not be of one kind.
    """
    log = read_log(path)
    head = log.header
    if "--from-log" in head.filters:
        library = cases_of(Path(head.filters["--from-log"]), library)
    for what, then, now in (
        ("version of the suite", head.suite, __version__),
        ("case library", head.library, library.digest),
    ):
        if then != now:
            raise UsageError(f"{path}: was made with another {what} ({then}, here {now}); run it anew")
    given = head.filters
    cases = select(
        library,
        expression=given.get("-k", ""),
        clauses=given.get("--clause", "").split(),
        level=given.get("--level", ""),
        ids=given.get("--case", "").split(),
        quick="--quick" in given,
    )
    cut_to_lines(path)
    return Plan(head.backend.connect, cases, head.complete, given, head.readings), log


def check_same(log: Log, info: BackendInfo) -> None:
    """Raises `UsageError` when a backend is not the one that a log is of."""
    for name, now in asdict(info).items():
        then = getattr(log.header.backend, name, now)
        if then != now:
            raise UsageError(f"{log.path}: is of another backend: its {name} was {then}, and is {now}; run it anew")


def cut_to_lines(path: Path) -> None:
    """Remove a last line that is not whole: the one that was being written when the run was killed."""
    *lines, last = path.read_bytes().splitlines(keepends=True)
    try:
        decode(last)
        whole = last.endswith(b"\n")
    except msgspec.DecodeError:
        whole = False
    if not whole:
        with path.open("r+b") as file:
            file.truncate(sum(map(len, lines)))
