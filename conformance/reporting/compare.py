"""Two logs side by side: what fails now, what is fixed, which cases changed, which numbers and times moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tabulate import tabulate

from conformance.errors import plural
from conformance.record.log import Log, PerfRecord
from conformance.reporting.groups import cause
from conformance.reporting.markdown import escaped
from conformance.reporting.plain import line, presentable
from conformance.reporting.plots import duration
from conformance.reporting.table import GOOD, used, verdict_of

BAD = ("fail", "error")
MOVED = 1.5  # factor by which a clause's headroom must change to be listed


@dataclass(frozen=True)
class Timing:
    """A workload that was timed in both logs, in seconds: medians, and the intervals that they lie in."""

    workload: str
    old: float
    new: float
    old_interval: tuple[float, float] | None = None
    new_interval: tuple[float, float] | None = None

    @property
    def says(self) -> str:
        """Slower or faster only where the intervals of the two medians lie apart."""
        if self.old_interval is None or self.new_interval is None:
            return "no interval, so nothing can be said"
        if self.new_interval[0] > self.old_interval[1]:
            return "slower: the intervals lie apart"
        if self.new_interval[1] < self.old_interval[0]:
            return "faster: the intervals lie apart"
        return "no difference shown: the intervals overlap"


@dataclass(frozen=True)
class Comparison:
    """Case ids by what became of them; clauses whose headroom moved (old, new); workloads timed in both."""

    newly_failing: list[str] = field(default_factory=list)
    no_longer_run: list[str] = field(default_factory=list)  # passed, and is unsupported or not run now
    still_failing: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # another digest: not the same case any more
    new: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)  # supported now, warned of or no more
    moved: dict[str, tuple[float, float]] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    untimed: str = ""  # why times are not held against each other

    lost: list[str] = field(default_factory=list)  # of those that are gone, what passed

    @property
    def worse(self) -> bool:
        """Something fails now that did not, or passed and is not run or not there any more."""
        return bool(self.newly_failing or self.no_longer_run or self.lost)


def compare(old: Log, new: Log) -> Comparison:
    """What changed from one log to the other. A case with another digest is listed as changed, and as failing if so."""
    result = Comparison(untimed=_untimed(old, new))
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
        elif then.status in GOOD and now.status not in GOOD:
            result.no_longer_run.append(name)
        elif then.status != now.status:
            result.other.append(name)
    result.gone.extend(name for name in before if name not in after)
    result.lost.extend(name for name in result.gone if before[name].outcome.status in GOOD)
    for clause, (a, b) in _headroom(old, new):
        if max(a, b) > MOVED * min(a, b):
            result.moved[clause] = (a, b)
    if not result.untimed:
        result.timings.extend(_timings(old, new))
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


def _untimed(old: Log, new: Log) -> str:
    if not old.perf or not new.perf:
        return ""
    for what in ("cpu", "cores"):
        then, now = (log.header.environment.get(what, "unknown") for log in (old, new))
        if then != now:
            return f"Times are not compared: {what} was {then}, and is {now}."
    return ""


def _timings(old: Log, new: Log) -> Iterator[Timing]:
    before = {_workload(record): record for record in old.perf}
    for record in new.perf:
        then = before.get(_workload(record))
        times = [_number(r, "median_s") for r in (then, record) if r]
        if then and all(times) and len(times) == 2:
            yield Timing(_workload(record), times[0] or 0.0, times[1] or 0.0, _interval(then), _interval(record))


def _workload(record: PerfRecord) -> str:
    return " ".join(str(part) for part in (record.workload, record.numbers.get("backend")) if part)


def _interval(record: PerfRecord) -> tuple[float, float] | None:
    low, high = _number(record, "low_s"), _number(record, "high_s")
    return None if low is None or high is None else (low, high)


def _number(record: PerfRecord, name: str) -> float | None:
    value = record.numbers.get(name)
    return float(value) if isinstance(value, int | float) else None


TITLES = {
    "newly_failing": "newly failing",
    "no_longer_run": "no longer run",
    "still_failing": "still failing",
    "fixed": "fixed",
    "changed": "case changed",
    "new": "new case",
    "gone": "case gone",
    "other": "other change",
}


@dataclass(frozen=True)
class Table:
    """A part of a comparison: rows of text under heads."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    widths: tuple[int | None, ...] | None = None  # of columns, in characters, where text is folded


def tables(old: Log, new: Log, result: Comparison, labels: Sequence[str] = (), limit: int = 12) -> list[Table]:
    """The comparison as tables: what was run, what became of cases, what moved; alike failures or changes in a row."""
    first, second = labels or ("old", "new")
    runs = (
        ("backend", *(log.header.backend.connect for log in (old, new))),
        ("version", *(log.header.backend.version for log in (old, new))),
        ("suite", *(log.header.suite for log in (old, new))),
        ("contract", *(str(log.header.contract) for log in (old, new))),
        ("library", *(log.header.library for log in (old, new))),
        ("started", *(log.header.started for log in (old, new))),
        ("cases run", f"{len(old.results):,}", f"{len(new.results):,}"),
        ("verdict", verdict_of(old), verdict_of(new)),
    )
    found = [Table(("", line(first), line(second)), runs)]
    listed = tuple(
        (title, f"{len(ids):,}", _such_as(ids), says)
        for name, title in TITLES.items()
        for says, ids in _alike(old, new, getattr(result, name), limit)
    )
    if listed:
        found.append(Table(("", "cases", "such as", "now"), listed, (None, None, None, 70)))
    if result.moved:
        moved = tuple((clause, f"{a:.3f}", f"{b:.3f}") for clause, (a, b) in result.moved.items())
        found.append(Table(("error / bound", "was", "is"), moved))
    if result.timings:
        times = tuple(
            (t.workload, _time(t.old, t.old_interval), _time(t.new, t.new_interval), f"{t.new / t.old:.3g}", t.says)
            for t in result.timings
        )
        found.append(Table(("time", "was", "is", "ratio", ""), times))
    return found


def render(
    old: Log,
    new: Log,
    result: Comparison,
    *,
    format: str = "simple",
    limit: int = 12,
    labels: Sequence[str] = (),
) -> str:
    """The comparison as text tables or, with format `github`, as Markdown; what failed or changed alike is one line."""
    old, new = presentable(old), presentable(new)
    safe: Callable[[str], str] = escaped if format == "github" else str
    parts = []
    for one in tables(old, new, result, labels, limit):
        rows = [[safe(text) for text in row] for row in one.rows]
        heads = [safe(text) for text in one.heads]
        widths = list(one.widths) if one.widths and format == "simple" else None
        parts.append(tabulate(rows, heads, tablefmt=format, maxcolwidths=widths, disable_numparse=True))
    if result.untimed:
        parts.append(safe(result.untimed))
    return "\n\n".join([*parts, summary(result)])


def summary(result: Comparison) -> str:
    """In one line, whether it is worse, and by what."""
    counts = [
        f"{len(ids):,} {title.removeprefix('case ').removesuffix(' case')}"
        for name, title in TITLES.items()
        if (ids := getattr(result, name)) and name != "still_failing"
    ]
    if not any(getattr(result, name) for name in TITLES) and not result.moved:
        return "No case and no number differs."
    lost = f"; {plural(len(result.lost), 'case')} that passed {'is' if len(result.lost) == 1 else 'are'} gone"
    word = "Worse" if result.worse else "Not worse"
    return f"{word}: {', '.join(counts) or 'no case differs'}{lost * bool(result.lost)}."


def _alike(old: Log, new: Log, ids: Sequence[str], limit: int) -> Iterator[tuple[str, list[str]]]:
    """What is said of the cases, and the cases it is said of, most cases first."""
    groups: dict[str, list[str]] = {}
    for name in ids:
        groups.setdefault(_reason(old, new, name), []).append(name)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    yield from ordered[:limit]
    rest = [name for _, names in ordered[limit:] for name in names]
    if rest:
        yield f"... and {plural(len(ordered) - limit, 'more group')}", rest


def _such_as(ids: Sequence[str]) -> str:
    return min(ids, key=lambda name: (len(name), name))


def _time(median: float, interval: tuple[float, float] | None) -> str:
    return duration(median) + (f" ({duration(interval[0])} to {duration(interval[1])})" if interval else "")


def _reason(old: Log, new: Log, case: str) -> str:
    """What the new log says of a case: the cause of the failure, or the change of its status."""
    record, before = new.results.get(case), old.results.get(case)
    if record is None:
        return f"{before.outcome.status} -> gone" if before else "gone"
    now = record.outcome
    if now.status in BAD:
        expected = f"expected: {new.expected[case]}; " if case in new.expected else ""
        clause, output, region = cause(new.cases[case].case, now)
        what = f"{output} ({region})" if output else region
        return expected + " ".join(part for part in (clause, what) if part)
    if before and before.outcome.status != now.status:
        return f"{before.outcome.status} -> {now.status}" + (f": {now.reason}" if now.reason else "")
    return now.status
