"""What a log consists of: JSON lines, appended as things happen; every report is a view of them.

A log is one run of one backend: a `header`, for every case a `case` and then a `result`, `perf` lines, and a `footer`.
A log without footer belongs to an interrupted run; all its results count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import msgspec

from conformance.backends.protocol import BackendInfo
from conformance.judging.outcome import STATUSES, Outcome
from conformance.spec.case import WORDS, Case

SCHEMA = 2  # 1: no digest in the footer, CONFORMANT also of what was supported in part


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
    origin: str = ""  # whose code is judged; empty in earlier logs and where the vendor says it


def info_of(header: Header) -> BackendInfo:
    """What the backend of a log said of itself for its operation."""
    said = msgspec.structs.asdict(header.backend) | {"operation": header.operation}
    return BackendInfo(**{field.name: said[field.name] for field in fields(BackendInfo)})


class Full(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the whole contract asks of an implementation: outputs with their clauses, element types, features."""

    outputs: dict[str, tuple[str, ...]]
    element_types: tuple[str, ...]
    features: tuple[str, ...] = ()


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="record"):
    """First line: what was run, on what, and whether it is the whole library.

    `own` names the folder of a library that is not the bundled one; CONFORMANT is not said of a run of it.
    """

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
    full: Full | None = None
    own: str = ""


class Resumed(msgspec.Struct, frozen=True, tag="resumed", tag_field="record"):
    """From here on an interrupted run was taken up again."""

    started: str  # ISO 8601, UTC
    environment: dict[str, str]
    argv: tuple[str, ...]


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
    """Last line: counts by status, verdicts, the verdict on the backend, and how far that was expected.

    `judged` counts the cases that came to a verdict, `left_out` says what the backend does not do, `unjudged` names the
    clauses for which nothing was judged. `rounding` is where the backend rounds to the element type, as far as the bits
    of some calls told. `digest` is the SHA-256 of all lines, this one without it included.
    """

    counts: dict[str, int]
    verdicts: int
    seconds: float
    verdict: str
    expectations: Assessment | None = None
    judged: int | None = None
    left_out: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    rounding: str = ""
    digest: str = ""


Record = Header | Resumed | CaseRecord | ResultRecord | PerfRecord | Footer


class Log(msgspec.Struct, frozen=True):
    """A log in memory. `results` are in the order they came; a later result of a case replaces an earlier one."""

    path: str
    header: Header
    cases: dict[str, CaseRecord]
    results: dict[str, ResultRecord]
    perf: tuple[PerfRecord, ...]
    footer: Footer | None
    origins: dict[str, str] = {}  # case to the file it is from, where that is not `path`
    problem: str = ""  # why the file does not hold all of this
    label: str = ""  # what it is called in a report, by default its connect string

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


def count(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Outcomes by status, every status present."""
    counts = dict.fromkeys(STATUSES, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
    return counts


def json_schema() -> dict[str, Any]:
    """JSON Schema of one line of a log."""
    schema = dict(msgspec.json.schema(Record))
    attributes = schema["$defs"]["Case"]["properties"]["attributes"]["additionalProperties"]
    attributes["anyOf"] = [*attributes["anyOf"], {"enum": list(WORDS)}]
    return schema
