"""How a backend fared over its versions, and what changed from one published log to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from conformance.record.log import Log
from conformance.reporting import compare
from conformance.reporting.plain import presentable
from conformance.reporting.publish.store import Published


@dataclass(frozen=True)
class Change:
    """From one published log to the next."""

    old: str
    new: str
    command: str
    tables: tuple[compare.Table, ...]
    untimed: str
    summary: str
    worse: bool


def changes(entries: Sequence[Published], log_name: str) -> list[Change]:
    """What changed between the published logs of a backend on an operation, given newest first; the latest first."""
    found = []
    for new, old in pairwise(entries):
        before, after = presentable(old.log), presentable(new.log)
        result = compare.compare(before, after)
        first, second = titles([before, after])
        found.append(
            Change(
                first,
                second,
                f"qsa-conformance compare {old.folder}/{log_name} {new.folder}/{log_name}",
                tuple(compare.tables(before, after, result, ("before", "after"))),
                result.untimed,
                compare.summary(result),
                result.worse,
            )
        )
    return found


def titles(logs: Sequence[Log]) -> list[str]:
    """What tells two logs apart: their versions, else the suites by which they were judged, else their times."""
    heads = [log.header.backend.version for log in logs]
    if len(set(heads)) == 1:
        heads = [f"suite {log.header.suite}" for log in logs]
    return heads if len(set(heads)) > 1 else [log.header.started[:16].replace("T", " ") for log in logs]
