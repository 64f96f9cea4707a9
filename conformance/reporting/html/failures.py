"""What did not pass, drilled down into."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from conformance.judging.engine import Outcome
from conformance.record.log import ResultRecord
from conformance.reporting import table
from conformance.reporting.html.columns import SIGNS, Column
from conformance.reporting.html.described import expanded, shapes, streams
from conformance.spec.operation import Operation


@dataclass(frozen=True)
class Failure:
    """One case that did not pass, drilled down into."""

    id: str
    sign: str
    outcome: Outcome
    says: str
    summary: str
    clause_says: str
    shapes: tuple[tuple[str, str], ...]
    streams: str
    worst: tuple[tuple[str, str], ...]
    diagnosis: str
    expected: str
    printed: tuple[str, ...]
    repeat: str
    case: str


@dataclass(frozen=True)
class Failures:
    """What did not pass on one backend: in detail, in a line each, and how many more there are."""

    column: Column
    details: tuple[Failure, ...] = ()
    lines: tuple[Outcome, ...] = ()
    more: int = 0


def failures(column: Column, operation: Operation, details: int, lines: int) -> Failures:
    """Failures of a backend: in turn the smallest of every kind that is left."""
    log = column.log
    wrong = [o for o in log.outcomes if o.status in ("fail", "error", "quality-warning")]
    kinds: dict[Any, list[Outcome]] = defaultdict(list)
    for outcome in sorted(wrong, key=lambda o: (o.status == "quality-warning", table.size(log, o), o.case)):
        kinds[outcome.status == "quality-warning", outcome.signature].append(outcome)
    ordered = [o for turn in zip_longest(*kinds.values()) for o in turn if o is not None]
    chosen = sorted(ordered[:details], key=lambda o: (o.status == "quality-warning", o.clause, table.size(log, o)))
    return Failures(
        column,
        tuple(failure(column, log.results[o.case], operation) for o in chosen),
        tuple(ordered[details : details + lines]),
        max(len(ordered) - details - lines, 0),
    )


def failure(column: Column, result: ResultRecord, operation: Operation) -> Failure:
    """One failure with all that the log knows of it."""
    log, outcome = column.log, result.outcome
    record = log.cases[outcome.case]
    clause = operation.clause.get(outcome.clause)
    return Failure(
        id=anchor(column, outcome.case),
        sign=SIGNS[outcome.status],
        outcome=outcome,
        says=record.case.says,
        summary=record.summary,
        clause_says=clause.says if clause else "",
        shapes=tuple(shapes(record.case, operation).items()),
        streams=streams(record.case, 200),
        worst=tuple(_worst(outcome)),
        diagnosis=result.diagnosis,
        expected=log.expected.get(outcome.case, ""),
        printed=tuple(table.excerpt(outcome.stderr)),
        repeat=table.repeat_of(log, outcome),
        case=expanded(record.case),
    )


def anchor(column: Column, case: str) -> str:
    """The id of a failure on the page."""
    return f"{column.index + 1}:{case}"


def _worst(outcome: Outcome) -> Iterator[tuple[str, str]]:
    worst = outcome.worst
    if worst is None:
        return
    yield "element", f"{worst.output}[{', '.join(map(str, worst.index))}], {worst.region}"
    yield "got", f"{worst.got} ({worst.got_hex})"
    yield "wanted", f"{worst.want} ({worst.want_hex})" + ("" if worst.bound is not None else ", bit for bit")
    for name, value in (("error", worst.error), ("bound", worst.bound), ("error / bound", worst.ratio)):
        if value is not None and (worst.bound is not None or name == "error"):
            yield name, f"{value:.4g}"
    if worst.ulps is not None:
        yield "units in the last place", f"{worst.ulps:.3g}"
