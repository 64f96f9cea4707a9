"""The columns of a page: one log each, and what a reader must know of it before the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conformance.record.log import Log, count
from conformance.reporting import groups, table
from conformance.reporting.origin import origin_of
from conformance.spec.operation import Operation

SIGNS = {"pass": "✓", "quality-warning": "≈", "fail": "✗", "error": "‼", "unsupported": "○", "not-run": "·"}
# The sign of a verdict, and the class by which a page shows it.
VERDICTS = {
    "CONFORMANT": ("✓", "good"),
    "PARTIAL": ("◐", "part"),
    "NOT CONFORMANT": ("✗", "bad"),
    "INCOMPLETE": ("…", "warn"),
}
ADDRESS = re.compile(r"\s*\(https?://[^\s)]*\)")  # which stands among the facts of the environment
CAUSES = 12  # of the failures of a backend, above the matrix


@dataclass(frozen=True)
class Column:
    """One log, and how it is called on the page."""

    index: int
    title: str
    log: Log
    verdict: str
    counts: Mapping[str, int]
    remarks: tuple[str, ...]  # why it is not the whole truth
    overview: str = ""  # groups of clauses that fail and that pass
    causes: tuple[groups.Group, ...] = ()  # of failures
    origin: str = ""  # whose code it is

    @property
    def fails(self) -> bool:
        return any(cause.status != "quality-warning" for cause in self.causes)


def column(index: int, log: Log, title: str, operation: Operation) -> Column:
    """The column of a log."""
    return Column(
        index,
        title,
        log,
        table.verdict_of(log),
        count(log.outcomes),
        tuple(remarks(log)),
        groups.overview(log, operation),
        tuple(groups.groups(log)[:CAUSES]),
        origin_of(log).word,
    )


def remarks(log: Log) -> Iterator[str]:
    """What a reader must know before the numbers: interrupted, filtered, other readings, not as expected."""
    head = log.header
    if log.interrupted:
        yield f"Interrupted: {len(log.results)} of {head.cases} cases were run."
    if not head.complete:
        chosen = " ".join(f"{name} {value}" for name, value in head.filters.items())
        yield f"Not the whole library: {chosen or 'a selection of cases'}."
    for name, choice in head.readings.items():
        yield f"Reading of the contract: {name} = {choice}."
    yield from (ADDRESS.sub("", text) for text in table.omissions(log))
    yield from table.expectation_lines(log)
