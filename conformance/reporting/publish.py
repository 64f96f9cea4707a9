"""Published reports: below one folder, for every backend and version, log, page and badge, and an index over all."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from conformance.errors import UsageError
from conformance.record.log import Log, count, file_name, read_log, unpacked
from conformance.record.writer import resealed
from conformance.reporting import badge, html, table
from conformance.spec.operation import Operation

LOG = "log.jsonl.gz"
LARGEST = 1 << 20  # bytes that a published file may have


@dataclass(frozen=True)
class Published:
    """A published log: its folder below the root, as address, and what the index says of it."""

    folder: str
    log: Log
    verdict: str
    cases: str
    badge: bool

    @property
    def backend(self) -> str:
        return self.log.header.backend.connect


def folder_of(log: Log) -> str:
    """Backend and version as a path."""
    return f"{file_name(log.header.backend.connect)}/{file_name(log.header.backend.version)}"


def add(root: Path, source: Path, taken: set[Path] | None = None) -> Path:
    """Put a log into its folder, without what is of this machine alone. Gives the path of the published log.

    With `taken`, the folders that were written to before, another log of the same backend and version gets a folder of
    its own, and a published log that is of a later run is kept. Raises `UsageError` for that.
    """
    log = read_log(source)
    folder = root / folder_of(log)
    if taken is not None:
        number = 2
        while folder in taken:
            folder = root / f"{folder_of(log)}_{number}"
            number += 1
        taken.add(folder)
        if (folder / LOG).is_file() and (there := read_log(folder / LOG)).header.started > log.header.started:
            raise UsageError(f"{source}: {folder / LOG} is of a later run ({there.header.started}), and is kept")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LOG
    # Without a time, so that the same log is the same file.
    content = gzip.compress(resealed(_impersonal(unpacked(source))), compresslevel=9, mtime=0)
    if len(content) > LARGEST:
        raise UsageError(f"{target}: would have {len(content):,} bytes; a published file may have {LARGEST:,}")
    target.write_bytes(content)
    return target


def _impersonal(text: bytes) -> bytes:
    """A log without the folders of this machine, which tracebacks and arguments may name."""
    for path, name in ((Path.cwd(), "."), (Path(sys.prefix), "python"), (Path.home(), "~")):
        if len(path.parts) > 1:
            text = text.replace(str(path).encode(), name.encode())
    return text


def render(root: Path, operation: Operation) -> list[Published]:
    """Write the pages and badges of all published logs, and the index. Newest first within a backend."""
    logs = [(path.parent, read_log(path)) for path in sorted(root.glob(f"*/*/{LOG}"))]
    if not logs:
        raise UsageError(f"{root}: holds no published log")
    other = next((log for _, log in logs if log.header.operation != operation.operation), None)
    if other:
        raise UsageError(f"{other.path}: is of {other.header.operation}; {root} is for {operation.operation}")
    entries = [_render_one(root, folder, log, operation) for folder, log in logs]
    entries.sort(key=lambda entry: entry.log.header.started, reverse=True)
    entries.sort(key=lambda entry: entry.backend)
    newest = [entry.log for entry in {entry.backend: entry for entry in reversed(entries)}.values()]
    write(root / "latest.html", html.page(newest, operation))
    for backend in {entry.backend for entry in entries}:
        versions = [entry.log for entry in entries if entry.backend == backend]
        if len(versions) > 1:
            write(root / file_name(backend) / "history.html", html.page(versions, operation))
    write(root / "index.html", index(root, entries, operation))
    write(root / "README.md", readme(entries, operation))
    return entries


def _render_one(root: Path, folder: Path, log: Log, operation: Operation) -> Published:
    write(folder / "report.html", html.page([log], operation))
    complete = log.header.complete and not log.interrupted
    for name, make in (("badge.svg", badge.svg), ("badge.json", badge.endpoint)):
        if complete:
            write(folder / name, make(log))
        else:
            (folder / name).unlink(missing_ok=True)
    counts = ", ".join(f"{number} {status}" for status, number in count(log.outcomes).items() if number)
    return Published(folder.relative_to(root).as_posix(), log, table.verdict_of(log), counts, complete)


def write(path: Path, text: str) -> None:
    """Write a page; raises `UsageError` when it would be too large to be published."""
    if len(text.encode()) > LARGEST:
        raise UsageError(f"{path}: would have {len(text.encode()):,} bytes; a published file may have {LARGEST:,}")
    path.write_text(text, encoding="utf-8")


def index(root: Path, entries: Sequence[Published], operation: Operation) -> str:
    """The index as a page of its own."""
    histories = {e.backend for e in entries if (root / file_name(e.backend) / "history.html").is_file()}
    return (
        html.templates()
        .get_template("index.html")
        .render(operation=operation, entries=entries, histories=histories, file_name=file_name, log_name=LOG)
    )


def readme(entries: Sequence[Published], operation: Operation) -> str:
    """The index as Markdown, for those who browse the repository."""
    rows = [
        (
            e.backend,
            e.log.header.backend.version,
            e.verdict,
            e.cases,
            e.log.header.library,
            e.log.header.environment.get("cpu", ""),
            e.log.header.started[:10],
            f"[log]({e.folder}/{LOG})",
        )
        for e in entries
    ]
    heads = ["backend", "version", "verdict", "cases", "library", "CPU", "run on", ""]
    return (
        f"# Published reports of {operation.operation}\n\n"
        "Written by `qsa-conformance publish`. [All backends side by side](latest.html). The page of each backend is "
        "built from its log: `qsa-conformance publish --render`.\n\n"
        + tabulate(rows, heads, tablefmt="github", disable_numparse=True)
        + "\n"
    )
