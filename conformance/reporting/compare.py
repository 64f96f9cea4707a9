"""Two logs side by side: what fails now, what is fixed, which cases changed, which numbers moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tabulate import tabulate

from conformance.reporting.log import Log
from conformance.reporting.table import GOOD, used, verdict_of

BAD = ("fail", "error")
MOVED = 1.5  # factor by which a clause's headroom must change to be listed


@dataclass(frozen=True)
class Comparison:
    """Case ids by what became of them, and clauses whose headroom moved (old, new)."""

    newly_failing: list[str] = field(default_factory=list)
    still_failing: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # another digest: not the same case any more
    other: list[str] = field(default_factory=list)  # supported now or no more, warned, not run
    moved: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def worse(self) -> bool:
        """Something that passed fails now."""
        return bool(self.newly_failing)


def compare(old: Log, new: Log) -> Comparison:
    """What changed from one log to the other. A case with another digest counts as changed, failing or not."""
    result = Comparison()
    before, after = old.results, new.results
    for name, record in after.items():
        now = record.outcome
        if name not in before:
            result.new.append(name)
            if now.status in BAD:
                result.newly_failing.append(name)
            continue
        then = before[name].outcome
        if then.digest != now.digest:
            result.changed.append(name)
        if now.status in BAD:
            (result.still_failing if then.status in BAD else result.newly_failing).append(name)
        elif then.status in BAD and now.status in GOOD:
            result.fixed.append(name)
        elif then.status != now.status:
            result.other.append(f"{name}: {then.status} -> {now.status}")
    result.gone.extend(name for name in before if name not in after)
    for clause, (a, b) in _headroom(old, new):
        if max(a, b) > MOVED * min(a, b):
            result.moved[clause] = (a, b)
    return result


def _headroom(old: Log, new: Log) -> Iterator[tuple[str, tuple[float, float]]]:
    tops: list[dict[str, float]] = [{}, {}]
    for top, log in zip(tops, (old, new), strict=True):
        for outcome in log.outcomes:
            for clause, ratio in used(outcome).items():
                top[clause] = max(top.get(clause, 0.0), ratio)
    for clause in sorted(tops[0].keys() & tops[1].keys()):
        if tops[0][clause] or tops[1][clause]:
            yield clause, (tops[0][clause], tops[1][clause])


TITLES = {
    "newly_failing": "newly failing",
    "still_failing": "still failing",
    "fixed": "fixed",
    "changed": "case changed",
    "new": "new case",
    "gone": "case gone",
    "other": "other change",
}


def render(old: Log, new: Log, result: Comparison, *, format: str = "simple", limit: int = 40) -> str:
    """The comparison as text tables or, with format `github`, as Markdown."""
    heads = ["", old.header.backend.connect, new.header.backend.connect]
    rows: list[list[object]] = [
        ["version", old.header.backend.version, new.header.backend.version],
        ["library", old.header.library, new.header.library],
        ["started", old.header.started, new.header.started],
        ["cases run", len(old.results), len(new.results)],
        ["verdict", verdict_of(old), verdict_of(new)],
    ]
    parts = [tabulate(rows, heads, tablefmt=format, disable_numparse=True)]
    listed: list[list[str]] = []
    for name, title in TITLES.items():
        ids = getattr(result, name)
        listed += [[title, case, _reason(new, case)] for case in ids[:limit]]
        if len(ids) > limit:
            listed.append([title, f"... and {len(ids) - limit} more", ""])
    if listed:
        widths = [None, None, 80] if format == "simple" else None
        parts.append(tabulate(listed, ["", "case", "now"], tablefmt=format, maxcolwidths=widths))
    if result.moved:
        moved = [[clause, f"{a:.3f}", f"{b:.3f}"] for clause, (a, b) in result.moved.items()]
        parts.append(tabulate(moved, ["error / bound", "was", "is"], tablefmt=format, disable_numparse=True))
    if not listed and not result.moved:
        parts.append("No difference.")
    return "\n\n".join(parts)


def _reason(log: Log, case: str) -> str:
    record = log.results.get(case)
    if record is None or record.outcome.status not in BAD:
        return ""
    return f"{record.outcome.clause} {record.outcome.reason}"
