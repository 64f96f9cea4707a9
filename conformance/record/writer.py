"""Writing a log: one line a record, flushed as they come, into a file that belongs to this run alone."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from conformance.errors import UsageError
from conformance.record.records import CaseRecord, Footer, Record
from conformance.spec.case import with_words

_DIGEST = re.compile(rb',"digest":"[0-9a-f]{64}"}\n?\Z')
NAMES_TRIED = 10_000


class LogWriter:
    """Appends records to a file, one line each, flushed as they come. The footer gets the digest of all before it.

    A log that is there already is never overwritten: `path` is then another name beside it. A disk that is full, or
    anything else that keeps a line from being written, does not end the run: `problem` says so, and nothing further is
    written. Raises `UsageError` when the file cannot be made.
    """

    def __init__(self, path: Path | None, *, append: bool = False) -> None:
        self.path, self.problem = path, ""
        self._encoder = msgspec.json.Encoder()
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None
        if path is None:
            return
        try:
            if append:
                self._digest.update(path.read_bytes())
                self._file = path.open("ab")
            else:
                self.path, self._file = exclusive(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None

    def write(self, record: Record) -> Record:
        """Append a record; gives it back as it was written."""
        if self._file is None:
            return record
        if isinstance(record, Footer):  # of a log that is written again, it has the digest of that one
            record = msgspec.structs.replace(record, digest="")
        line = self._encoder.encode(_for_json(record)) + b"\n"
        if isinstance(record, Footer):
            self._digest.update(line)
            record = msgspec.structs.replace(record, digest=self._digest.hexdigest())
            line = self._encoder.encode(record) + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
            self._digest.update(line)
        except OSError as error:
            self.problem = f"{self.path}: cannot be written any further: {error.strerror or error}"
            self.close()
        return record

    def close(self) -> None:
        if self._file:
            try:
                self._file.close()
            except OSError as error:
                self.problem = self.problem or f"{self.path}: cannot be written: {error.strerror or error}"
            self._file = None

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def exclusive(path: Path) -> tuple[Path, IO[bytes]]:
    """A new file for writing, under this name or, where that is taken, under one with a number. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    candidate = path
    for number in range(2, NAMES_TRIED):
        try:
            return candidate, os.fdopen(os.open(candidate, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
        except FileExistsError:
            candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    raise FileExistsError(f"{NAMES_TRIED} logs of this name are there already")


def resealed(content: bytes) -> bytes:
    """The content of a log whose lines before the footer were changed, with the digest of what they are now."""
    lines = content.splitlines(keepends=True)
    if not lines or not lines[-1].startswith(b'{"record":"footer"'):
        return content
    plain = without_digest(lines[-1])
    if plain == lines[-1]:
        return content
    before = b"".join(lines[:-1])
    digest = hashlib.sha256(before + plain).hexdigest()
    return before + plain.removesuffix(b"}\n") + f',"digest":"{digest}"}}\n'.encode()


def without_digest(footer: bytes) -> bytes:
    """The line of a footer as it was before it got its digest, which is the last of its fields."""
    return _DIGEST.sub(b"}\n", footer)


def file_name(text: str) -> str:
    """A file name for a connect string or a version, of at most 100 characters."""
    name = re.sub(r"[^\w.+-]+", "_", text).strip("_.") or "backend"
    if len(name.encode()) <= 100:
        return name
    return name.encode()[:90].decode(errors="ignore") + "-" + hashlib.sha256(text.encode()).hexdigest()[:8]


def _for_json(record: Record) -> Record | dict[str, Any]:
    if not isinstance(record, CaseRecord):
        return record
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain | {"case": with_words(plain["case"])}
