"""The log: JSON lines, appended as things happen; every report is a view of it.

A log is one run of one backend: a `header`, for every case a `case` and then a `result`, `perf` lines, and a `footer`.
A log without footer is of a run that was interrupted; all its results count.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import msgspec

from conformance.errors import UsageError
from conformance.judging.engine import STATUSES, Outcome
from conformance.spec.case import WORDS, Case, with_numbers, with_words

SCHEMA = 1


class BackendRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`BackendInfo` and the connect string it was reached by."""

    connect: str
    name: str
    version: str
    vendor: str
    element_types: tuple[str, ...]
    outputs: tuple[str, ...]
    features: tuple[str, ...] = ()
    device: str = "cpu"
    url: str = ""


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="record"):
    """First line: what was run, on what, and whether it is the whole library."""

    schema: int
    suite: str
    operation: str
    contract: int
    library: str  # digest
    cases: int
    complete: bool
    backend: BackendRecord
    environment: dict[str, str]
    argv: tuple[str, ...]
    started: str  # ISO 8601, UTC
    filters: dict[str, str] = {}
    readings: dict[str, str] = {}
    seed: int | None = None
    shard: str = ""


class CaseRecord(msgspec.Struct, frozen=True, tag="case", tag_field="record"):
    """A case as it was run."""

    digest: str
    summary: str
    case: Case


class ResultRecord(msgspec.Struct, frozen=True, tag="result", tag_field="record"):
    """What came out of a case.

    `diagnosis` is what the outputs look like, when something is known; `example` names a generated case within its
    campaign: seed, round and number.
    """

    outcome: Outcome
    diagnosis: str = ""
    example: str = ""


class PerfRecord(msgspec.Struct, frozen=True, tag="perf", tag_field="record"):
    """One timed workload."""

    workload: str
    numbers: dict[str, float | str | None]
    says: str = ""


class Surprise(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result that is not as expected, or an entry of the expectations that is out of date."""

    kind: Literal["unexpected failure", "unexpected pass", "changed signature", "expired", "unused"]
    says: str
    case: str = ""


class Assessment(msgspec.Struct, frozen=True):
    """Results against what was expected: failures that were (case id to reason), and all that is not as expected."""

    file: str
    expected: dict[str, str]
    surprises: tuple[Surprise, ...] = ()

    @property
    def as_expected(self) -> bool:
        return not self.surprises


class Footer(msgspec.Struct, frozen=True, tag="footer", tag_field="record", omit_defaults=True):
    """Last line: counts by status, verdicts, the verdict on the backend, and how far that was expected."""

    counts: dict[str, int]
    verdicts: int
    seconds: float
    verdict: str
    expectations: Assessment | None = None


Record = Header | CaseRecord | ResultRecord | PerfRecord | Footer


class LogWriter:
    """Appends records to a file, one line each, flushed as they come."""

    def __init__(self, path: Path | None, *, append: bool = False) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab" if append else "wb")

    def write(self, record: Record) -> None:
        if self._file:
            self._file.write(self._encoder.encode(_for_json(record)) + b"\n")
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Log(msgspec.Struct, frozen=True):
    """A log in memory. `results` are in the order they came; a later result of a case replaces an earlier one."""

    path: str
    header: Header
    cases: dict[str, CaseRecord]
    results: dict[str, ResultRecord]
    perf: tuple[PerfRecord, ...]
    footer: Footer | None
    origins: dict[str, str] = {}  # case to the file it is from, where that is not `path`

    @property
    def interrupted(self) -> bool:
        return self.footer is None

    @property
    def outcomes(self) -> list[Outcome]:
        return [record.outcome for record in self.results.values()]

    @property
    def assessment(self) -> Assessment | None:
        """Against expectations, None for a run without."""
        return self.footer.expectations if self.footer else None

    @property
    def expected(self) -> Mapping[str, str]:
        """Failing cases that were expected to fail in this way, and why."""
        return self.assessment.expected if self.assessment else {}


_decoder = msgspec.json.Decoder(Record)


def records(path: Path) -> Iterator[Record]:
    """The records of a log, plain or gzipped. A last line that was cut off is left out.

    Raises `UsageError` with the line for anything else that cannot be read.
    """
    try:
        lines = unpacked(path.read_bytes()).splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except zlib.error as error:
        raise UsageError(f"{path}: cannot be unpacked: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield decode(line)
        except msgspec.DecodeError as error:
            if number == len(lines) and number > 1:
                return
            raise UsageError(f"{path}:{number}: is no line of a log of this suite: {error}") from None


def unpacked(content: bytes) -> bytes:
    """The content of a gzip file, as far as it goes; anything else as it is. Raises `zlib.error`."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(content)


def decode(line: bytes) -> Record:
    """One line of a log. Raises `msgspec.DecodeError`."""
    if not line[:24].replace(b" ", b"").startswith(b'{"record":"case"'):
        return _decoder.decode(line)
    plain = msgspec.json.decode(line)
    if isinstance(plain.get("case"), dict):
        plain["case"] = with_numbers(plain["case"])
    return msgspec.convert(plain, CaseRecord)


def _for_json(record: Record) -> Record | dict[str, Any]:
    if not isinstance(record, CaseRecord):
        return record
    plain: dict[str, Any] = msgspec.to_builtins(record)
    return plain | {"case": with_words(plain["case"])}


def read_log(path: Path) -> Log:
    """A whole log. Raises `UsageError` when it is none, or of a newer schema."""
    header: Header | None = None
    cases: dict[str, CaseRecord] = {}
    results: dict[str, ResultRecord] = {}
    perf: list[PerfRecord] = []
    footer: Footer | None = None
    for record in records(path):
        if isinstance(record, Header):
            if record.schema > SCHEMA:
                problem = f"has schema {record.schema}, this version reads up to {SCHEMA}; update the suite"
                raise UsageError(f"{path}: {problem}")
            header = header or record
            footer = None
        elif isinstance(record, CaseRecord):
            cases[record.case.id] = record
        elif isinstance(record, ResultRecord):
            results.pop(record.outcome.case, None)
            results[record.outcome.case] = record
        elif isinstance(record, PerfRecord):
            perf.append(record)
        else:
            footer = record
    if header is None:
        raise UsageError(f"{path}: is no log of this suite: it has no header")
    return Log(str(path), header, cases, results, tuple(perf), footer)


def file_name(text: str) -> str:
    """A file name for a connect string or a version."""
    return re.sub(r"[^\w.+-]+", "_", text).strip("_.") or "backend"


def count(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Outcomes by status, every status present."""
    counts = dict.fromkeys(STATUSES, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
    return counts


def verdict(counts: dict[str, int], *, complete: bool, assessment: Assessment | None = None) -> str:
    """CONFORMANT, NOT CONFORMANT or INCOMPLETE.

    A failure or error is one whatever was run, expected or not, and so is a pass that was not expected; conformance is
    said only of a complete run.
    """
    passes = any(surprise.kind == "unexpected pass" for surprise in assessment.surprises) if assessment else False
    if counts["fail"] or counts["error"] or passes:
        return "NOT CONFORMANT"
    if not complete or counts["not-run"]:
        return "INCOMPLETE"
    return "CONFORMANT" if counts["pass"] + counts["quality-warning"] else "NOT CONFORMANT"


def json_schema() -> dict[str, Any]:
    """JSON Schema of one line of a log."""
    schema = dict(msgspec.json.schema(Record))
    attributes = schema["$defs"]["Case"]["properties"]["attributes"]["additionalProperties"]
    attributes["anyOf"] = [*attributes["anyOf"], {"enum": list(WORDS)}]
    return schema
