"""What failed in the latest run of a backend, kept in the user's cache for `run --lf`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from conformance.record.log import Log, file_name

FAILED = ("fail", "error")


class Latest(msgspec.Struct, frozen=True):
    """The cases that failed, by id, and when that was."""

    connect: str
    operation: str
    started: str
    failed: tuple[str, ...]


def remember(log: Log, root: Path | None = None) -> None:
    """Keep what failed. A run of part of the library changes what is known of the cases it ran, and nothing else."""
    head = log.header
    if head.seed is not None:
        return
    before = latest(head.backend.connect, head.operation, root)
    run = {outcome.case for outcome in log.outcomes}
    kept = [name for name in before.failed if name not in run] if before else []
    now = [outcome.case for outcome in log.outcomes if outcome.status in FAILED]
    record = Latest(head.backend.connect, head.operation, head.started, (*kept, *now))
    with suppress(OSError):
        path = _path(head.backend.connect, head.operation, root)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(record))


def latest(connect: str, operation: str, root: Path | None = None) -> Latest | None:
    """What is known of the latest run; None where there was none, or it cannot be read."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_path(connect, operation, root).read_bytes(), type=Latest)
    return None


def connects(operation: str, root: Path | None = None) -> Sequence[str]:
    """The backends of which something failed, the one that was run last first."""
    found = []
    for path in _folder(root).glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):
            record = msgspec.json.decode(path.read_bytes(), type=Latest)
            if record.operation == operation and record.failed:
                found.append((path.stat().st_mtime, record.connect))
    return [connect for _, connect in sorted(found, reverse=True)]


def _path(connect: str, operation: str, root: Path | None) -> Path:
    digest = hashlib.sha256(f"{connect}\0{operation}".encode(errors="replace")).hexdigest()[:12]
    return _folder(root) / f"{file_name(connect)[:60]}-{digest}.json"


def _folder(root: Path | None) -> Path:
    from platformdirs import user_cache_path

    return (root or user_cache_path("qsa-conformance")) / "latest"
