"""Clauses by backends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformance.judging.engine import Outcome
from conformance.record.log import Log, count
from conformance.reporting import table
from conformance.reporting.documents import GROUNDS
from conformance.reporting.html.columns import SIGNS, Column
from conformance.spec.operation import Clause, Operation
from conformance.spec.types import ELEMENT_TYPES


@dataclass(frozen=True)
class Cell:
    """Cases of one clause on one backend."""

    text: str
    good: bool
    room: str = ""
    href: str = ""
    title: str = ""  # the same in words


@dataclass(frozen=True)
class Row:
    """One clause of the matrix."""

    clause: Clause
    ground: str
    written: tuple[str, ...]  # ids of the cases that cite it, without their points
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ClauseGroup:
    """Clauses under one heading."""

    id: str
    says: str
    rows: tuple[Row, ...]


def clause_groups(columns: Sequence[Column], operation: Operation) -> list[ClauseGroup]:
    """The matrix: every clause of the contract, and those that only the logs know."""
    cited = [_by_clause(column.log) for column in columns]
    known = list(operation.clauses)
    foreign = sorted({clause for by_clause in cited for clause in by_clause} - operation.clause.keys())
    known += [Clause(id=c, level="required", ground="", says="not in this version of the contract") for c in foreign]
    groups: dict[str, list[Row]] = {group: [] for group in operation.groups}
    for clause in known:
        written = dict.fromkeys(o.case.partition("[")[0] for by_clause in cited for o in by_clause.get(clause.id, ()))
        row = Row(
            clause,
            ", ".join(GROUNDS.get(letter, letter) for letter in clause.ground),
            tuple(written),
            tuple(
                _cell(c, by_clause.get(clause.id, []), clause.id) for c, by_clause in zip(columns, cited, strict=True)
            ),
        )
        groups.setdefault(clause.group, []).append(row)
    return [ClauseGroup(id, operation.groups.get(id, ""), tuple(rows)) for id, rows in groups.items() if rows]


def facts_of(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Rows above the clauses: whose code it is, where it rounds, the share of the bounds used in each element type."""
    shares = [table.headroom_by_type(c.log) for c in columns]
    rows = [
        ("code", [c.origin for c in columns]),
        ("rounds to its type", [table.rounding(c.log) for c in columns]),
        ("readings", [table.readings(c.log) for c in columns]),
    ]
    rows += [
        (f"largest error / bound, {name}", [table.share(one[name]) if name in one else "" for one in shares])
        for name in ELEMENT_TYPES
    ]
    return [(name, [text or "-" for text in texts]) for name, texts in rows if any(texts)]


def _by_clause(log: Log) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in log.outcomes:
        for clause in log.cases[outcome.case].case.clauses:
            found[clause].append(outcome)
    return found


def _cell(column: Column, outcomes: Sequence[Outcome], clause: str) -> Cell:
    if not outcomes:
        return Cell("-", True)
    counts = count(outcomes)
    top = max((used[clause] for o in outcomes if clause in (used := table.used(o))), default=None)
    wrong = counts["fail"] + counts["error"] + counts["quality-warning"]
    return Cell(
        _signs(counts),
        not counts["fail"] and not counts["error"],
        "" if top is None else f"{top:.2f}",
        f"#failures-{column.index + 1}" if wrong else "",
        table.cell(counts),
    )


def _signs(counts: Mapping[str, int]) -> str:
    """The cases that passed, and each other status with its sign; what fails stands first."""
    passed = counts["pass"] + counts["quality-warning"]
    wrong = [f"{SIGNS[one]} {counts[one]}" for one in ("fail", "error") if counts[one]]
    rest = [f"{SIGNS[one]} {counts[one]}" for one in ("quality-warning", "unsupported", "not-run") if counts[one]]
    judged = passed + counts["fail"] + counts["error"]
    first = [f"{', '.join(wrong)} of {judged}"] if wrong else [str(passed)] * bool(passed)
    return ", ".join([*first, *rest])
