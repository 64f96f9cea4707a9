"""The report as Markdown, for a pull request or a release page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.record.log import Log, count
from conformance.reporting import table, timings
from conformance.spec.operation import Operation


def markdown(logs: Sequence[Log], operation: Operation) -> str:
    """Matrix, a section a log (verdict, environment, what is unsupported, failures with their commands), timings."""
    head = logs[0].header
    lines = [
        f"# Conformance of {head.operation}",
        "",
        f"Contract {head.contract}, {len(operation.clauses)} clauses. A cell counts the cases that cite a clause of "
        "the group, then gives the largest error / bound among them.",
        "",
        table.matrix(logs, operation, format="github"),
        "",
    ]
    for log, title in zip(logs, table.titles(logs), strict=True):
        lines += _section(log, title)
    timed = timings.of_logs(logs, "github")
    lines += ["## Performance", "", timed, ""] if timed else []
    return "\n".join(lines).rstrip() + "\n"


def _section(log: Log, title: str) -> list[str]:
    head, backend = log.header, log.header.backend
    counts = count(log.outcomes)
    lines = [f"## {title}: {table.verdict_of(log)}", ""]
    if log.interrupted:
        lines += [f"**Interrupted**: {len(log.results)} of {head.cases} cases were run.", ""]
    elif not head.complete:
        chosen = ", ".join(f"{name} {value}" for name, value in head.filters.items())
        lines += [f"Not the whole library: {chosen or 'a selection'}.", ""]
    lines += [
        f"- {backend.name} {backend.version}, {backend.vendor}, {backend.device}"
        + (f", {backend.url}" * bool(backend.url)),
        f"- library {head.library}, suite {head.suite}, {head.started}",
        "- " + ", ".join(f"{number} {status}" for status, number in counts.items() if number),
        "- " + ", ".join(f"{name} {value}" for name, value in head.environment.items()),
    ]
    lines += [f"- reading {name} = {choice}" for name, choice in head.readings.items()]
    lines += [f"- {line}" for line in table.unsupported(log).splitlines()]
    lines += [f"- {line}" for line in table.expectation_lines(log)]
    lines.append("")
    wrong = table.failures(log)
    if wrong:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", wrong)), default=0))
        lines += [f"{fence}text", wrong, fence, ""]
    return lines
