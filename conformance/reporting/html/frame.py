"""The page as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jinja2

from conformance.record.log import Log
from conformance.reporting import plots, table
from conformance.reporting.html.cases import Described, topics
from conformance.reporting.html.columns import SIGNS, VERDICTS, column
from conformance.reporting.html.described import facts
from conformance.reporting.html.environment import environment, unsupported
from conformance.reporting.html.failures import failures
from conformance.reporting.html.headroom import rooms
from conformance.reporting.html.matrix import clause_groups, facts_of
from conformance.reporting.html.performance import HEADS, performance
from conformance.reporting.plain import presentable
from conformance.spec.operation import Operation

LARGEST = 950_000  # bytes that a page should stay below
# Failures that are drilled down into, failures that get a line, in all logs together, and whether cases that passed are
# shown with what sets them apart; the first that fits is taken.
ROOM = ((120, 600, True), (60, 300, True), (30, 100, True), (30, 100, False), (10, 30, False))


@cache
def templates() -> jinja2.Environment:
    """The templates of this package, escaping everything."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("conformance.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals["VERDICTS"] = VERDICTS
    return made


def page(logs: Sequence[Log], operation: Operation, *, home: str = "", largest: int | None = LARGEST) -> str:
    """The whole page over one or more logs. Fewer failures are drilled down into when it would exceed `largest` bytes.

    `home` is the address of the page over all operations, where there is one.
    """
    text = ""
    logs = [presentable(log) for log in logs]
    cases = {name: record.case for log in reversed(logs) for name, record in log.cases.items() if name in log.results}
    described = {name: facts(case, operation) for name, case in cases.items()}
    for details, lines, apart in ROOM:
        text = _page(logs, operation, described, details // len(logs), lines // len(logs), apart, home)
        if largest is None or len(text.encode()) <= largest:
            break
    return text


def _page(
    logs: Sequence[Log],
    operation: Operation,
    described: Described,
    details: int,
    lines: int,
    apart: bool,
    home: str,
) -> str:
    columns = [
        column(index, log, title, operation)
        for index, (log, title) in enumerate(zip(logs, table.titles(logs), strict=True))
    ]
    wrong = [failures(c, operation, max(details, 1), max(lines, 1)) for c in columns]
    return (
        templates()
        .get_template("report.html")
        .render(
            operation=operation,
            columns=columns,
            clauses=clause_groups(columns, operation),
            rooms=rooms(columns),
            wrong=wrong,
            unsupported=unsupported(columns),
            performance=performance(columns),
            environment=environment(columns),
            topics=topics(columns, described, {f.id for one in wrong for f in one.details}),
            apart=apart,
            signs=SIGNS,
            key=plots.key([c.title for c in columns]),
            heads=HEADS,
            facts=facts_of(columns),
            home=home,
        )
    )
