"""Reading a log, plain or gzipped, and checking that it is what a run wrote.

A log is evidence, so nothing in it is taken on trust that can be worked out: counts, verdicts and the verdict are
computed again from the results, and a log whose header, footer or lines contradict them is refused. Memory is bounded
whatever a file holds.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from conformance.errors import UsageError
from conformance.judging.outcome import STATUSES, Outcome
from conformance.record.records import (
    SCHEMA,
    Assessment,
    BackendRecord,
    CaseRecord,
    Footer,
    Full,
    Header,
    Log,
    PerfRecord,
    Record,
    ResultRecord,
    Resumed,
    Surprise,
    count,
    json_schema,
)
from conformance.record.verdict import standing_of, verdict, verdict_before
from conformance.record.writer import LogWriter, file_name, without_digest
from conformance.spec.case import with_numbers

__all__ = [
    "SCHEMA", "Assessment", "BackendRecord", "CaseRecord", "Footer", "Full", "Header", "Log", "LogWriter",
    "PerfRecord", "Record", "ResultRecord", "Resumed", "Surprise", "count", "decode", "file_name", "json_schema",
    "read_log", "records", "unpacked", "verdict",
]  # fmt: skip

LARGEST = 256 << 20  # bytes of a log, unpacked; a run of the whole library writes about two million
LONGEST = 16 << 20  # bytes of one line
MOST_TIMED = 100_000  # perf lines
CHUNK = 1 << 16

_decoder = msgspec.json.Decoder(Record)


@dataclass(frozen=True)
class Line:
    """One line of a log, as it is in the file."""

    number: int
    content: bytes
    record: Record


def records(path: Path) -> Iterator[Record]:
    """The records of a log, plain or gzipped. A last line that was cut off is left out.

    Raises `UsageError` with the line for anything else that cannot be read.
    """
    return (line.record for line in _lines(path))


def _lines(path: Path) -> Iterator[Line]:
    number, broken, cut = 0, "", False
    for number, content in enumerate(_raw_lines(path), 1):
        if broken:  # it was not the last line
            raise UsageError(broken)
        try:
            yield Line(number, content, decode(content))
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError, AttributeError) as error:
            says = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            broken, cut = f"{path}:{number}: is not a line of a log of this suite: {says}", not content.endswith(b"\n")
    if broken and (number == 1 or not cut):
        raise UsageError(broken)


def _raw_lines(path: Path) -> Iterator[bytes]:
    """Lines with their ends, also a last one without. Raises `UsageError`."""
    rest = b""
    for piece in _pieces(path):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > LONGEST:
            raise UsageError(f"{path}: is not a log of this suite: it has a line of more than {LONGEST >> 20} MiB")
    if rest:
        yield rest


def _pieces(path: Path) -> Iterator[bytes]:
    """The content piece by piece, unpacked as far as it goes, up to the largest size that a log may have."""
    total = 0
    try:
        # Without blocking: opening a FIFO would wait for somebody to write to it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: is not a log of this suite: it is not a regular file")
            first = file.read(CHUNK)
            unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16) if first.startswith(b"\x1f\x8b") else None
            piece = first
            while piece:
                if unpack is None:
                    parts: Iterator[bytes] = iter([piece])
                else:
                    parts = _unpacked(unpack, piece)
                for part in parts:
                    total += len(part)
                    if total > LARGEST:
                        raise UsageError(f"{path}: is not a log of this suite: it has more than {LARGEST >> 20} MiB")
                    yield part
                piece = file.read(CHUNK)
    except (OSError, ValueError) as error:
        says = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{path}: cannot be read: {says or error}") from None
    except zlib.error as error:
        raise UsageError(f"{path}: cannot be unpacked: {error}") from None


def unpacked(path: Path) -> bytes:
    """The content of a log that was read before, without packing."""
    return b"".join(_pieces(path))


def _unpacked(unpack: Any, piece: bytes) -> Iterator[bytes]:
    while piece:
        yield unpack.decompress(piece, CHUNK)
        piece = unpack.unconsumed_tail


def decode(line: bytes) -> Record:
    """One line of a log. Raises `msgspec.DecodeError`."""
    if not line[:24].replace(b" ", b"").startswith(b'{"record":"case"'):
        return _decoder.decode(line)
    plain = msgspec.json.decode(line)
    if isinstance(plain.get("case"), dict):
        plain["case"] = with_numbers(plain["case"])
    return msgspec.convert(plain, CaseRecord)


def read_log(path: Path) -> Log:
    """A whole log. Raises `UsageError` when it is not one, of a newer schema, or contradicts itself."""
    reading = _Reading(path)
    digest = hashlib.sha256()
    for line in _lines(path):
        digest.update(without_digest(line.content) if isinstance(line.record, Footer) else line.content)
        reading.take(line)
    return reading.log(digest.hexdigest())


@dataclass
class _Reading:
    """A log as far as it was read."""

    path: Path
    header: Header | None = None
    cases: dict[str, CaseRecord] = field(default_factory=dict)
    results: dict[str, ResultRecord] = field(default_factory=dict)
    counted: dict[str, Outcome] = field(default_factory=dict)  # by case, of a campaign by example
    perf: list[PerfRecord] = field(default_factory=list)
    footer: Footer | None = None

    def refuse(self, problem: str, number: int = 0) -> UsageError:
        return UsageError(f"{self.path}{f':{number}' if number else ''}: {problem}")

    def take(self, line: Line) -> None:
        """Take the next line. Raises `UsageError` when it cannot follow those before."""
        record = line.record
        if self.header is None and not isinstance(record, Header):
            raise self.refuse("is not a log of this suite: it has no header", line.number)
        if self.footer is not None:
            raise self.refuse("goes on after its footer; a log is of one run, so read logs one by one", line.number)
        if isinstance(record, Header):
            self._begin(record, line.number)
        elif isinstance(record, CaseRecord):
            self._case(record, line.number)
        elif isinstance(record, ResultRecord):
            self._result(record, line.number)
        elif isinstance(record, PerfRecord):
            self.perf.append(record)
            if len(self.perf) > MOST_TIMED:
                raise self.refuse(f"has more than {MOST_TIMED:,} timings", line.number)
        elif isinstance(record, Footer):
            self.footer = record

    def _begin(self, header: Header, number: int) -> None:
        if header.schema > SCHEMA:
            problem = f"has schema {header.schema}, this version reads up to {SCHEMA}; update the suite"
            raise self.refuse(problem, number)
        if header.cases < 0 or header.schema < 1:
            raise self.refuse("has a header that no run writes", number)
        if self.header is None:
            self.header = header
        elif header.schema > 1 or not _resumes(self.header, header):
            raise self.refuse("has a second header; a log is of one run, so read logs one by one", number)

    def _case(self, record: CaseRecord, number: int) -> None:
        name = record.case.id
        before = self.cases.get(name)
        if before and before.digest != record.digest:
            raise self.refuse(f"has two different cases '{name}'", number)
        self.cases[name] = record
        if self._whole and len(self.cases) > self.header_cases:
            raise self.refuse(f"has more cases than its header says ({self.header_cases:,})", number)

    def _result(self, record: ResultRecord, number: int) -> None:
        outcome = record.outcome
        name = outcome.case
        if name not in self.cases:
            raise self.refuse(f"has a result of '{name}' and not the case itself", number)
        if outcome.status not in STATUSES:
            raise self.refuse(f"has the unknown status '{outcome.status}'", number)
        if outcome.digest != self.cases[name].digest:
            raise self.refuse(f"has a result of another case than the '{name}' before it", number)
        before = self.results.pop(name, None)
        if before and self._whole and before.outcome != outcome:
            raise self.refuse(f"has two different results of '{name}'", number)
        self.results[name] = record
        self.counted[record.example or name] = outcome

    @property
    def header_cases(self) -> int:
        return self.header.cases if self.header else 0

    @property
    def _whole(self) -> bool:
        """Whether the header says exactly which number of cases is run, as it does but for generated ones."""
        return self.header is not None and self.header.seed is None

    def log(self, digest: str) -> Log:
        """The log, once all was read. Raises `UsageError` when its footer contradicts the lines before."""
        if self.header is None:
            raise self.refuse("is not a log of this suite: it has no header")
        if self.footer:
            self._check(self.header, self.footer, digest)
        return Log(str(self.path), self.header, self.cases, self.results, tuple(self.perf), self.footer)

    def _check(self, header: Header, footer: Footer, digest: str) -> None:
        outcomes = list(self.counted.values())
        counts = count(outcomes)
        if self._whole and len(outcomes) != header.cases:
            raise self.refuse(f"has {len(outcomes):,} results, and its header says {header.cases:,} cases")
        stray = [name for name, number in footer.counts.items() if number != counts.get(name, 0)]
        if stray or any(number and name not in footer.counts for name, number in counts.items()):
            name = stray[0] if stray else next(n for n in counts if n not in footer.counts)
            raise self.refuse(
                f"its footer counts {footer.counts.get(name, 0):,} {name}, its results are {counts.get(name, 0):,}"
            )
        if footer.verdicts != sum(outcome.verdicts for outcome in outcomes):
            raise self.refuse("its footer and its results differ in the number of verdicts")
        due = self._due(header, footer, counts, outcomes)
        if footer.verdict != due:
            raise self.refuse(f"its footer says {footer.verdict}, and by its results it is {due}")
        if header.schema > 1 and footer.digest != digest:
            raise self.refuse("was changed after it was written: the digest in its footer is of other lines")

    def _due(self, header: Header, footer: Footer, counts: Mapping[str, int], outcomes: list[Outcome]) -> str:
        if header.schema == 1:
            return verdict_before(counts, complete=header.complete, assessment=footer.expectations)
        cited = {name: record.case.clauses for name, record in self.cases.items()}
        return standing_of(header, outcomes, cited, footer.expectations).verdict


def _resumes(first: Header, second: Header) -> bool:
    """Whether a second header is of the same run taken up again, as schema 1 wrote it."""
    parts = ("schema", "suite", "operation", "library", "cases", "complete", "backend", "filters", "readings", "seed")
    return all(getattr(first, name) == getattr(second, name) for name in parts)
