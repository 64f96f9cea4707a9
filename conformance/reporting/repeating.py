"""The command that repeats a result, and how much of a case a reader has to look at."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.errors import UsageError
from conformance.judging.outcome import Kind, Outcome
from conformance.record.log import Log


def repeat(
    connect: str,
    case: str,
    command: str = "qsa-conformance run",
    *,
    log: str = "",
    readings: Mapping[str, str] | None = None,
    operation: str = "",
    after: Sequence[str] = (),
    own: str = "",
) -> str:
    """The command that repeats a case, of the library or of a log; the cases `after` which it fails come first.

    `own` is the folder of a library of one's own.
    """
    source = f" --from-log {shlex.quote(log)}" if log else operation_option(operation, own)
    cases = "".join(f" --case {shlex.quote(name)}" for name in (*after, case) if name)
    return f"{command} -b {shlex.quote(connect)}{source}{cases}{reading_options(readings or {})}"


def operation_option(operation: str, own: str = "") -> str:
    """Operation and library as they stand on the command line, with a space before; nothing for the default."""
    from conformance.library.operations import DEFAULT, is_bundled, located, name_of

    if operation in ("", DEFAULT, name_of(DEFAULT)):
        named = ""
    else:
        named = f" --operation {shlex.quote(operation)}"
        if not own and not is_bundled(operation):
            with suppress(UsageError):
                own = str(located(operation)[0])
    return named + (f" --library {shlex.quote(_shown(own))}" if own else "")


def _shown(folder: str) -> str:
    """A folder as it is reached from here."""
    path, here = Path(folder), Path.cwd()
    return str(path.relative_to(here)) if path != here and path.is_relative_to(here) else folder


def reading_options(readings: Mapping[str, str]) -> str:
    """Readings as they stand on the command line, with a space before each."""
    return "".join(f" --reading {name}={choice}" for name, choice in readings.items())


def repeat_of(log: Log, outcome: Outcome, command: str = "qsa-conformance run") -> str:
    """The command that repeats a result as it came about: in a worker, under the readings of the run."""
    head = log.header
    # A generated case is in its log alone, and so is one that was shrunk.
    elsewhere = head.seed is not None or {"shrink", "--from-log"} & head.filters.keys()
    path = log.origins.get(outcome.case, log.path) or head.filters.get("--from-log", "") if elsewhere else ""
    isolate = " --isolate" if outcome.lost and not head.backend.connect.startswith("cmd:") else ""
    # A case that passes alone, when it is not known after which others it fails, is repeated by the whole run.
    unknown = outcome.kind is Kind.ALONE and not outcome.after and not outcome.lost
    return (
        repeat(
            head.backend.connect,
            "" if unknown else outcome.case,
            command,
            log=path,
            readings=head.readings,
            operation=head.operation,
            after=outcome.after,
            own=head.own,
        )
        + isolate
    )


def size(log: Log, outcome: Outcome) -> int:
    """How much a reader has to look at: elements of the new tokens, and calls."""
    case = log.cases[outcome.case].case
    total = 1
    for value in case.dims.values():
        total *= value + 1
    return total * (1 + sum(len(stream) for stream in case.streams))


def excerpt(text: str, most: int = 6) -> list[str]:
    """The first and the last lines of what a backend printed, cut to a readable length."""
    lines = [line[:160] for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= most else [*lines[: most - 2], "...", *lines[-2:]]
