"""How much of the bounds on errors was used."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from conformance.reporting import plots, table
from conformance.reporting.html.columns import Column


def rooms(columns: Sequence[Column]) -> list[tuple[str, Markup]]:
    """For every clause that bounds an error, the picture of how much of the bound was used."""
    clauses = sorted({clause for c in columns for o in c.log.outcomes for clause in o.headroom})
    return [(clause, plots.headroom(clause, [_room(c, clause) for c in columns])) for clause in clauses]


def _room(column: Column, clause: str) -> plots.Room:
    outcomes = column.log.outcomes
    good = sorted(used[clause] for o in outcomes if clause in (used := table.used(o)))
    bad = [o.worst for o in outcomes if o.status == "fail" and o.clause == clause and o.worst and o.worst.bound]
    failed = max((w.ratio if w.ratio is not None else float("inf") for w in bad), default=None)
    if not good:
        return plots.Room(column.title, failed=failed)
    return plots.Room(column.title, good[len(good) // 2], good[-1], failed)
