"""Failures as annotations of GitHub Actions, one a cause: they stand beside the changes of a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.record.log import Log
from conformance.record.verdict import standing
from conformance.reporting.groups import groups, told
from conformance.reporting.plain import presentable
from conformance.reporting.table import titles

MOST = 10  # annotations of one level that GitHub shows of a step
LEVELS = {"fail": "error", "error": "error", "quality-warning": "warning"}


def github(logs: Sequence[Log]) -> str:
    """One annotation for each cause of failure and, as a notice, the verdict on every backend."""
    lines = []
    logs = [presentable(log) for log in logs]
    for log, title in zip(logs, titles(logs), strict=True):
        found = standing(log)
        for group in groups(log)[:MOST]:
            level = "notice" if group.expected else LEVELS[group.status]
            head, *rest = told(log, group)
            text = "\n".join(line.strip() for line in rest)
            lines.append(f"::{level} title={_property(f'{title}: {head}')}::{_data(text)}")
        lines.append(f"::notice title={_property(title)}::{_data(f'{found.verdict}, {found.share} judged')}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
