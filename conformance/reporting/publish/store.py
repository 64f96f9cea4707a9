"""The published logs: where each of them is, and how another one comes to them without any being lost."""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conformance.errors import UsageError
from conformance.library.operations import folder_of, recorded
from conformance.record.log import Log, file_name, read_log, unpacked
from conformance.record.verdict import Standing, standing
from conformance.record.writer import resealed
from conformance.reporting.publish import history
from conformance.reporting.publish.timed import together

LOG = "log.jsonl.gz"
LARGEST = 1 << 20  # bytes that a published file may have
MOST = 1000  # logs of one backend and version


@dataclass(frozen=True)
class Published:
    """A published log, and its folder below the root."""

    root: Path
    folder: str
    log: Log

    @property
    def operation(self) -> str:
        return self.log.header.operation

    @property
    def backend(self) -> str:
        return self.log.header.backend.connect

    @property
    def whole(self) -> bool:
        """Whether it is of a complete run that came to its end."""
        return self.log.header.complete and not self.log.interrupted

    @cached_property
    def standing(self) -> Standing:
        """The verdict, and how much of the contract it covers."""
        return standing(self.log)

    @cached_property
    def since(self) -> str:
        """The day since which every published run has had this verdict."""
        return history.since(history.read(self.home), self.log)

    @property
    def home(self) -> Path:
        """The folder of the backend, on the operation."""
        return self.root / Path(self.folder).parent


def find(root: Path) -> list[Published]:
    """All published logs, by operation, backend and time, newest first. Raises `UsageError` when there is none."""
    found = [
        Published(root, path.parent.relative_to(root).as_posix(), read_log(path))
        for path in sorted(root.glob(f"*/*/*/{LOG}"))
    ]
    if not found:
        raise UsageError(f"{root}: holds no published log")
    found.sort(key=lambda one: one.log.header.started, reverse=True)
    return sorted(found, key=lambda one: (one.operation, one.backend))


def current(found: Iterable[Published]) -> list[Published]:
    """The log that stands for a backend now, on each operation: the newest of a whole run, else the newest."""
    chosen: dict[tuple[str, str], Published] = {}
    for one in sorted(found, key=lambda one: (one.whole, one.log.header.started)):
        chosen[one.operation, one.backend] = one
    return sorted(chosen.values(), key=lambda one: (one.operation, one.backend))


def logs_of(paths: Sequence[Path]) -> list[Path]:
    """The logs that are meant: files as they are, of a folder all logs in it. Raises `UsageError` for an empty one."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(one for one in path.rglob("*") if one.name.endswith((".jsonl", ".jsonl.gz")) and one.is_file())
        inside = [one for one in inside if one.name != history.FILE]
        if path.is_dir() and not inside:
            raise UsageError(f"{path}: holds no log (*.jsonl or *.jsonl.gz)")
        found += inside if path.is_dir() else [path]
    return found


def add(root: Path, source: Path, *, replace: bool = False) -> Path:
    """Put a log to the published ones, without what is of this machine alone; gives the path of the published log.

    A log of a backend and version that is there already gets a folder of its own beside it, unless it is of the same
    run: then what it has been timed on is added to the log that is there. With `replace` it takes the place of an
    earlier one of the same version of suite and library. Raises `UsageError` for a log that cannot be published, and
    for one that would replace a later one.
    """
    log = read_log(source)
    head = log.header
    if head.seed is not None:
        raise UsageError(f"{source}: is of generated cases; only runs of the library are published")
    home = _home(root, log)
    target, there = _target(home, log, source, replace=replace)
    text = _impersonal(unpacked(source))
    if there and _same_run(there, log):
        text = together(unpacked(target), text)
    # Without a time, so that the same log is the same file.
    content = gzip.compress(resealed(text), compresslevel=9, mtime=0)
    if len(content) > LARGEST:
        raise UsageError(f"{target}: would have {len(content):,} bytes; a published file may have {LARGEST:,}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    remember(home, log)
    return target


def remember(home: Path, log: Log) -> None:
    """Add a log to the history of its backend, if it is of a whole run."""
    if log.header.complete and not log.interrupted:
        history.add(home, log)


def _home(root: Path, log: Log) -> Path:
    """The folder of a backend on an operation, not shared with another one whose name gives the same file name."""
    head = log.header
    above = root / file_name(folder_of(recorded(head.operation, head.own)))
    name = file_name(head.backend.connect)
    for number in range(1, MOST):
        home = above / (name if number == 1 else f"{name}_{number}")
        there = next(iter(sorted(home.glob(f"*/{LOG}"))), None)
        if there is None or read_log(there).header.backend.connect == head.backend.connect:
            return home
    raise UsageError(f"{above / name}: {MOST} backends share this name")


def _target(home: Path, log: Log, source: Path, *, replace: bool) -> tuple[Path, Log | None]:
    """Where a log goes: to its own run, where that is published, with `replace` to its like, else to a free folder.

    With the log that is there already.
    """
    name = file_name(log.header.backend.version)
    free = None
    alike: list[tuple[str, Path, Log]] = []
    for number in range(1, MOST):
        path = home / (name if number == 1 else f"{name}_{number}") / LOG
        if not path.is_file():
            free = path
            break
        there = read_log(path)
        if _same_run(there, log):
            return path, there
        if replace and _alike(there, log):
            alike.append((there.header.started, path, there))
    if alike:
        started, path, there = max(alike, key=lambda one: one[:2])
        if started > log.header.started:
            raise UsageError(f"{source}: {path} is of a later run ({started}), and is kept")
        return path, there
    if free is None:
        raise UsageError(f"{home / name}: holds {MOST} logs of one version")
    return free, None


def _same_run(one: Log, other: Log) -> bool:
    """Whether two logs hold the same results: no two runs take the same times."""
    times = [{o.case: (o.status, o.seconds) for o in log.outcomes} for log in (one, other)]
    return times[0] == times[1] and one.header.backend.version == other.header.backend.version


def _alike(one: Log, other: Log) -> bool:
    """Whether two logs answer the same question: backend, version, suite, library, readings, filters."""
    parts = ("operation", "suite", "library", "readings", "filters", "complete")
    told = [[getattr(log.header, part) for part in parts] for log in (one, other)]
    names = [(log.header.backend.connect, log.header.backend.version) for log in (one, other)]
    return told[0] == told[1] and names[0] == names[1]


def _impersonal(text: bytes) -> bytes:
    """A log without the folders of this machine, which tracebacks and arguments may name."""
    for path, name in ((Path.cwd(), "."), (Path(sys.prefix), "python"), (Path.home(), "~")):
        if len(path.parts) > 1:  # whole paths only: a short one also stands within case ids
            text = re.sub(rb"(?<![\w.~-])" + re.escape(str(path).encode()) + rb"(?![\w.-])", name.encode(), text)
    return text
