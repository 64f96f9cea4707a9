"""The history of a published backend: a line for every change of verdict, version, contract or library.

Logs of one version replace each other; these lines stay, so that a report can say since when a verdict holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from conformance.errors import UsageError
from conformance.record.log import Log
from conformance.record.verdict import standing

FILE = "history.jsonl"


class Entry(msgspec.Struct, frozen=True):
    """One published run, as far as the history is concerned."""

    started: str  # ISO 8601, UTC
    version: str
    suite: str
    contract: int
    library: str  # digest
    verdict: str
    judged: int  # cases
    cases: int


def entry(log: Log) -> Entry:
    """The line of a log."""
    head, found = log.header, standing(log)
    version, suite = head.backend.version, head.suite
    return Entry(
        head.started, version, suite, head.contract, head.library, found.verdict, found.judged, len(log.results)
    )


def read(folder: Path) -> list[Entry]:
    """The lines of a backend's folder, oldest first. Raises `UsageError` for a file that cannot be read."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        lines = [msgspec.json.decode(line, type=Entry) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path}: is not a history of published runs: {error}") from None
    return sorted(lines, key=lambda one: one.started)


def add(folder: Path, log: Log) -> None:
    """Add a log's line, unless nothing but the time differs from the latest one before it."""
    known, new = read(folder), entry(log)
    before = [one for one in known if one.started <= new.started]
    if before and msgspec.structs.replace(before[-1], started=new.started) == new:
        return
    lines = sorted([*known, new], key=lambda one: one.started)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))


def since(lines: Sequence[Entry], log: Log) -> str:
    """The day from which on every published run had the verdict of this log, in the contract it is of."""
    now = entry(log)
    day = now.started[:10]
    for one in reversed([one for one in lines if one.started <= now.started]):
        if (one.verdict, one.contract) != (now.verdict, now.contract):
            break
        day = one.started[:10]
    return day
