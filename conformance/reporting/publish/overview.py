"""What the pages over all backends and operations show: who conforms, to what, since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.library.operations import load_operation, recorded
from conformance.record.log import count
from conformance.reporting import groups, table
from conformance.reporting.html.columns import ADDRESS, VERDICTS
from conformance.reporting.html.performance import Performance, of_logs
from conformance.reporting.origin import ORIGINS, origin_of
from conformance.reporting.plain import line, presentable
from conformance.reporting.publish.store import Published
from conformance.spec.operation import Operation
from conformance.spec.types import ELEMENT_TYPES


@dataclass(frozen=True)
class Verdict:
    """A backend on an operation, in a few words."""

    word: str
    share: str
    since: str  # a day
    href: str = ""

    @property
    def sign(self) -> str:
        return VERDICTS[self.word][0]

    @property
    def kind(self) -> str:
        return VERDICTS[self.word][1]


@dataclass(frozen=True)
class Line:
    """A backend on all operations, None where it does not serve one."""

    backend: str
    says: str  # whose it is
    verdicts: tuple[Verdict | None, ...]


@dataclass(frozen=True)
class Kind:
    """Backends of one origin."""

    word: str
    says: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Head:
    """An operation above its column."""

    name: str
    anchor: str
    contract: int


@dataclass(frozen=True)
class Cell:
    """A group of clauses on a backend."""

    text: str
    kind: str  # "good", "bad" or empty
    title: str


@dataclass(frozen=True)
class Row:
    """A backend on one operation, in full."""

    one: Published
    verdict: Verdict
    origin: str
    version: str
    vendor: str
    left_out: tuple[str, ...]
    rounding: str
    shares: tuple[str, ...]  # largest error / bound, for each of the types
    readings: str
    causes: tuple[str, ...]
    cells: tuple[Cell, ...]
    anchor: str


@dataclass(frozen=True)
class Section:
    """One operation: its backends, and the groups of its clauses."""

    head: Head
    operation: Operation
    types: tuple[str, ...]
    groups: Mapping[str, str]
    rows: tuple[Row, ...]
    performance: Performance | None

    @property
    def rounds(self) -> bool:
        return any(row.rounding for row in self.rows)


def operation_of(one: Published) -> Operation:
    """The operation that a published log is of."""
    return load_operation(recorded(one.operation, one.log.header.own))


def anchor_of(one: Published) -> str:
    """The id of a backend's row in the section of an operation."""
    return Path(one.folder).parent.as_posix()


def heads(chosen: Sequence[Published]) -> list[Head]:
    """The operations of these logs, in the order of their folders."""
    found = {}
    for one in sorted(chosen, key=lambda one: one.folder):
        contracts = [other.log.header.contract for other in chosen if other.operation == one.operation]
        found[one.operation] = Head(one.operation, one.folder.partition("/")[0], max(contracts))
    return list(found.values())


def verdict_of(one: Published, contract: int = 0) -> Verdict:
    """The verdict in a few words; of an earlier contract than the given one it says which."""
    found, head = one.standing, one.log.header
    counts = count(one.log.outcomes)
    wrong = counts["fail"] + counts["error"]
    if wrong:
        share = f"{wrong:,} of {found.judged:,} fail"
    elif found.judged < found.cases:
        share = f"{found.judged:,} of {found.cases:,}"
    else:
        share = f"{found.cases:,} cases"
    if head.contract < contract:
        share += f", contract {head.contract}"
    return Verdict(found.verdict, share, one.since, f"#{anchor_of(one)}")


def kinds(chosen: Sequence[Published], columns: Sequence[Head]) -> list[Kind]:
    """Backends by origin, foreign ones first, with a verdict for each operation."""
    backends: dict[tuple[str, str], dict[str, Published]] = {}
    for one in chosen:
        backends.setdefault((origin_of(one.log).name, one.backend), {})[one.operation] = one
    found = []
    for origin in ORIGINS.values():
        lines = []
        for (name, backend), served in sorted(backends.items()):
            if name == origin.name:
                vendor = next(iter(served.values())).log.header.backend.vendor
                verdicts = (
                    verdict_of(served[head.name], head.contract) if head.name in served else None for head in columns
                )
                lines.append(Line(line(backend, 60), line(vendor, 60), tuple(verdicts)))
        if lines:
            found.append(Kind(origin.word, origin.says, tuple(lines)))
    return found


def in_order(entries: Sequence[Published]) -> list[Published]:
    """Foreign backends first, then by name."""
    order = list(ORIGINS)
    return sorted(entries, key=lambda one: (order.index(origin_of(one.log).name), one.backend))


def section(head: Head, chosen: Sequence[Published]) -> Section:
    """All that is shown of one operation; foreign backends first."""
    own = [one for one in chosen if one.operation == head.name]
    operation = operation_of(own[0])
    own = in_order(own)
    shares = [table.headroom_by_type(one.log) for one in own]
    types = tuple(name for name in ELEMENT_TYPES if any(name in used for used in shares))
    rows = tuple(
        Row(
            one,
            verdict_of(one, head.contract),
            origin_of(one.log).word,
            line(one.log.header.backend.version, 80),
            line(one.log.header.backend.vendor, 60),
            left_out(one),
            line(table.rounding(one.log), 60),
            tuple(table.share(used[name]) if name in used else "" for name in types),
            line(table.readings(one.log)),
            tuple(f"{g.count}: {line(g.title, 160)}" for g in groups.groups(one.log) if g.status in groups.WRONG)[:3],
            tuple(cell(one, group) for group in operation.groups),
            anchor_of(one),
        )
        for one, used in zip(own, shares, strict=True)
    )
    performance = of_logs([(one.backend, presentable(one.log)) for one in own])
    return Section(head, operation, types, operation.groups, rows, performance)


def left_out(one: Published) -> tuple[str, ...]:
    """What a backend does not do, without addresses."""
    if not one.standing.left_out:
        return ()
    return tuple(ADDRESS.sub("", text) for text in table.omissions(presentable(one.log), one.standing))


def cell(one: Published, group: str) -> Cell:
    """The cases that cite a clause of the group: how many passed, or how many broke one of its clauses."""
    outcomes = table.of_group(one.log, group)
    if not outcomes:
        return Cell("-", "", "no case")
    counts = count(outcomes)
    broke = sum(table.broke(outcome, group) for outcome in outcomes)
    passed = counts["pass"] + counts["quality-warning"]
    if broke:
        return Cell(f"✗ {broke:,}", "bad", f"{broke:,} break a clause of the group; {table.cell(counts)}")
    wrong = counts["fail"] + counts["error"]
    sign = "" if wrong or not passed else "✓ "
    return Cell(f"{sign}{passed:,}", "good" if sign else "", table.cell(counts))
