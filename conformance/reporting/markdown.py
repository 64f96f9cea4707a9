"""The report as Markdown, for a pull request or a release page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.errors import plural
from conformance.record.log import Log, count
from conformance.record.verdict import standing
from conformance.reporting import table, timings
from conformance.reporting.groups import failures, overview
from conformance.reporting.plain import presentable
from conformance.spec.operation import Operation

_SPECIAL = re.compile(r"([\\`*|]|\](?=[(\[:]))")  # of brackets, the one that makes a link of them


def markdown(logs: Sequence[Log], operation: Operation) -> str:
    """The matrix, a section a log (verdict, environment, failures by cause with their commands), timings."""
    logs = [presentable(log) for log in logs]
    head = logs[0].header
    lines = [
        f"# Conformance of {escaped(head.operation)}",
        "",
        f"Contract {head.contract}, {plural(len(operation.clauses), 'clause')}. A cell counts the cases that cite a "
        "clause of the group, then gives the largest error / bound among them.",
        "",
        table.matrix([_escaped_names(log) for log in logs], operation, format="github"),
        "",
    ]
    for log, title in zip(logs, table.titles(logs), strict=True):
        lines += _section(log, title, operation)
    timed = timings.of_logs(logs, "github")
    lines += ["## Performance", "", timed, ""] if timed else []
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    """Text in which Markdown and HTML see nothing but text."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", plain)


def fenced(text: str) -> list[str]:
    """A block of text that its content cannot end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{fence}text", text, fence, ""]


def _escaped_names(log: Log) -> Log:
    """The log with a connect string and a version that can stand in a cell of a table."""
    import msgspec

    backend = log.header.backend
    names = msgspec.structs.replace(backend, connect=escaped(backend.connect), version=escaped(backend.version))
    return msgspec.structs.replace(log, header=msgspec.structs.replace(log.header, backend=names))


def _section(log: Log, title: str, operation: Operation) -> list[str]:
    head, backend = log.header, log.header.backend
    counts = count(log.outcomes)
    found = standing(log)
    lines = [f"## {escaped(title)}: {found.verdict}", ""]
    if log.interrupted:
        lines += [f"**Interrupted**: {len(log.results)} of {plural(head.cases, 'case')} were run.", ""]
    elif not head.complete:
        chosen = ", ".join(f"{name} {value}" for name, value in head.filters.items())
        lines += [f"Not the whole library: {escaped(chosen) or 'a selection'}.", ""]
    url = f", <{backend.url}>" if re.fullmatch(r"https?://[^\s<>]+", backend.url) else ""
    lines += [f"- {found.share} judged: {', '.join(f'{n:,} {status}' for status, n in counts.items() if n)}"]
    lines += [f"- {escaped(text)}" for text in table.omissions(log, found)]
    lines += [f"- {escaped(text)}" for text in [overview(log, operation)] if text]
    lines += [f"- {escaped(line)}" for line in table.expectation_lines(log)]
    lines += [f"- reading {escaped(name)} = {escaped(choice)}" for name, choice in head.readings.items()]
    lines += [
        f"- {escaped(f'{backend.name} {backend.version}, {backend.vendor}, {backend.device}')}{url}",
        f"- library {escaped(head.library)}, suite {escaped(head.suite)}, {escaped(head.started)}",
        "- " + escaped(", ".join(f"{name} {value}" for name, value in head.environment.items())),
        "",
    ]
    wrong = failures(log)
    return lines + (fenced(wrong) if wrong else [])
