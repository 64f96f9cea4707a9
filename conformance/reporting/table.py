"""The matrix of clause groups by backends, and the failures, as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from tabulate import tabulate

from conformance.errors import plural
from conformance.judging.engine import Outcome
from conformance.record.log import Log, count
from conformance.record.verdict import Standing, is_whole, standing
from conformance.reporting import timings
from conformance.reporting.groups import SHOWN, SHOWN_GROUPS, WRONG, failures, groups, overview
from conformance.reporting.origin import origin_of
from conformance.reporting.plain import line, presentable
from conformance.reporting.repeating import excerpt, operation_option, reading_options, repeat, repeat_of, size
from conformance.spec.operation import Operation
from conformance.spec.types import ELEMENT_TYPES

__all__ = [
    "SHOWN",
    "excerpt",
    "failures",
    "matrix",
    "reading_options",
    "repeat",
    "repeat_of",
    "report",
    "size",
    "titles",
]

SHOWN_SURPRISES = 12
LEFT_OUT = 6  # reasons that are printed
WIDE = 120  # columns of a terminal
GOOD = ("pass", "quality-warning")
CELLS = (
    "A cell counts the cases that cite a clause of the group, and of those that fail the ones in which it is\n"
    "the clause that broke; then the largest error / bound among them."
)


def group_of(clause: str) -> str:
    """The group of a clause id: what stands before its number."""
    return clause.partition("-")[0]


def of_group(log: Log, group: str) -> list[Outcome]:
    """Outcomes of the cases that cite a clause of the group, or broke one."""
    return [
        o for o in log.outcomes if any(group_of(c) == group for c in log.cases[o.case].case.clauses) or broke(o, group)
    ]


def broke(outcome: Outcome, group: str) -> bool:
    """Whether the clause that broke is one of the group, and not merely cited by the case."""
    return outcome.status in WRONG and group_of(outcome.clause) == group


def headroom(outcomes: Sequence[Outcome], group: str = "") -> float | None:
    """Largest error / bound among passing outcomes, of the clauses of a group or of all; None without numbers."""
    ratios = [r for o in outcomes for clause, r in used(o).items() if not group or group_of(clause) == group]
    return max(ratios, default=None)


def headroom_by_type(log: Log) -> dict[str, float]:
    """Largest error / bound among passing outcomes, by element type."""
    found: dict[str, float] = {}
    for outcome in log.outcomes:
        kind = log.cases[outcome.case].case.element_type
        for ratio in used(outcome).values():
            found[kind] = max(found.get(kind, 0.0), ratio)
    return {name: found[name] for name in ELEMENT_TYPES if name in found}


def share(ratio: float) -> str:
    """Error / bound as a text; what is very small is not rounded to nothing."""
    return f"{ratio:.2f}" if ratio >= 0.01 or not ratio else f"{ratio:.1g}"


def rounding(log: Log) -> str:
    """Where the backend rounds to the element type, as the run told it; empty where it could not."""
    return log.footer.rounding if log.footer else ""


def used(outcome: Outcome) -> Mapping[str, float]:
    """Error / bound by clause of an outcome that passed, where within the bound.

    A case of a recommended clause never fails: however far it is off, it is a warning.
    """
    return {c: ratio for c, ratio in outcome.headroom.items() if ratio <= 1} if outcome.status in GOOD else {}


def cell(counts: Mapping[str, int]) -> str:
    """'37' when all pass, else '35/37' with what is not a pass spelled out."""
    passed = counts["pass"] + counts["quality-warning"]
    total = sum(counts.values())
    asked = total - counts["unsupported"] - counts["not-run"]
    if not asked:
        return f"unsupported {total}" if counts["unsupported"] else "-"
    text = str(passed) if passed == asked else f"{passed}/{asked}"
    notes = [
        f"{counts[status]} {word if counts[status] > 1 else word.removesuffix('s')}"
        for status, word in (
            ("fail", "failed"), ("error", "errors"), ("unsupported", "unsupported"), ("quality-warning", "warned"),
            ("not-run", "not run"),
        )
        if counts[status]
    ]  # fmt: skip
    return text + (f" ({', '.join(notes)})" if notes else "")


def verdict_of(log: Log) -> str:
    """The verdict of a log, by its results; an interrupted one cannot be conformant."""
    return standing(log).verdict


def readings(log: Log) -> str:
    """The readings of the contract that were switched for a run, as in "ties=free"; empty where there are none."""
    return ", ".join(f"{name}={choice}" for name, choice in log.header.readings.items())


def titles(logs: Sequence[Log]) -> list[str]:
    """A heading for every log: its connect string, with version, day, time and number where that says too little."""
    heads = [line(log.label) or log.header.backend.connect for log in logs]
    for more in (
        [log.header.backend.version for log in logs],
        [log.header.started[:10] for log in logs],
        [log.header.started[11:19] for log in logs],
        [f"({number})" for number in range(1, len(logs) + 1)],
    ):
        alike = [heads.count(head) > 1 for head in heads]
        heads = [f"{head} {extra}" if twice else head for head, extra, twice in zip(heads, more, alike, strict=True)]
    return heads


def expectation_lines(log: Log) -> Iterator[str]:
    """What the expectations say of a run, a line each: as expected, or every surprise."""
    assessment = log.assessment
    if assessment is None:
        return
    known = len(assessment.expected)
    if assessment.as_expected:
        yield f"As expected: {plural(known, 'failure')}, all of them in {assessment.file}."
        return
    # Unexpected failures stand among the failures.
    others = [surprise for surprise in assessment.surprises if surprise.kind != "unexpected failure"]
    yield (
        f"Not as expected: {plural(known, 'failure')} in {assessment.file}, "
        f"{len(assessment.surprises) - len(others)} are not."
    )
    for surprise in others[:SHOWN_SURPRISES]:
        yield f"{surprise.kind}: {surprise.case + ', ' if surprise.case else ''}{surprise.says}"
    if len(others) > SHOWN_SURPRISES:
        yield f"... and {len(others) - SHOWN_SURPRISES} more; all of them are in the log"


def matrix(logs: Sequence[Log], operation: Operation, *, format: str = "simple") -> str:
    """Clause groups by backends: cases passed, failed, unsupported, and the headroom where numbers are bounded.

    As text, in as many tables one below the other as it takes to fit into a terminal.
    """
    heads, rows = ["clauses", *titles(logs)], _rows(logs, operation)
    parts = _abreast([heads, *rows]) if format == "simple" else [range(len(logs) + 1)]
    tables = [
        tabulate(
            [[row[column] for column in part] for row in rows],
            [heads[column] for column in part],
            tablefmt=format,
            disable_numparse=True,
            stralign="left",
        )
        for part in parts
    ]
    return "\n\n".join(tables)


def _rows(logs: Sequence[Log], operation: Operation) -> list[list[str]]:
    rows = []
    for group, says in operation.groups.items():
        row = [f"{group}  {says}"]
        for log in logs:
            outcomes = of_group(log, group)
            text = cell(count(outcomes)) if outcomes else "-"
            if any(o.status in WRONG for o in outcomes):
                text += f", {sum(broke(o, group) for o in outcomes)} broke here"
            top = headroom(outcomes, group)
            row.append(text + (f"  {top:.2f}" if top is not None else ""))
        rows.append(row)
    rows.append(["all cases", *(cell(count(log.outcomes)) for log in logs)])
    rows.append(["verdicts", *(f"{sum(o.verdicts for o in log.outcomes):,}" for log in logs)])
    rows.append(["seconds", *(f"{sum(o.seconds for o in log.outcomes):.1f}" for log in logs)])
    by_type = [headroom_by_type(log) for log in logs]
    for name in ELEMENT_TYPES:
        if any(name in one for one in by_type):
            shares = (share(one[name]) if name in one else "-" for one in by_type)
            rows.append([f"error / bound, {name}", *shares])
    for name, texts in (
        ("rounds to its type", [rounding(log) for log in logs]),
        ("readings", [readings(log) for log in logs]),
        ("code", [origin_of(log).word for log in logs]),
    ):
        if any(texts) and (name != "code" or len(set(texts)) > 1):
            rows.append([name, *(text or "-" for text in texts)])
    rows.append(["", *(verdict_of(log) for log in logs)])
    return rows


def _abreast(rows: Sequence[Sequence[str]]) -> list[list[int]]:
    """Columns in groups that fit into a terminal, each with the first one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    groups: list[list[int]] = []
    for column in range(1, len(widths)):
        wide = widths[0] + sum(2 + widths[one] for one in (*groups[-1][1:], column)) if groups else WIDE + 1
        if wide > WIDE:
            groups.append([0, column])
        else:
            groups[-1].append(column)
    return groups


def report(logs: Sequence[Log], operation: Operation, *, full: int = SHOWN_GROUPS, next_command: bool = False) -> str:
    """All of it: what was run, the matrix, the timings, and at the end, for every log, the verdict and what failed."""
    logs = [presentable(log) for log in logs]
    head = logs[0].header
    lines = [
        f"{head.operation}, contract {head.contract}, library {head.library}, "
        f"{plural(len(operation.clauses), 'clause')}"
    ]
    lines += ["", matrix(logs, operation)]
    lines += ["", CELLS]
    timed = timings.of_logs(logs)
    lines += ["", timed] if timed else []
    # What needs reading stands last, where a terminal shows it.
    order = sorted(zip(logs, titles(logs), strict=True), key=lambda pair: bool(failures(pair[0], full=0)))
    wrong = sum(verdict_of(log) == "NOT CONFORMANT" for log in logs)
    for log, title in order:
        lines += ["", *ending(log, operation, title, full=max(1, full // max(wrong, 1)) if full else 0)]
    if next_command:
        lines += ["", f"next: {following(order[-1][0])}"]
    return "\n".join(lines)


def ending(log: Log, operation: Operation, title: str, *, full: int = SHOWN_GROUPS) -> list[str]:
    """The end of a report on one log: verdict, what was left out, which clauses fail, the failures by cause."""
    backend = log.header.backend
    found = standing(log)
    lines = [f"{title}: {found.verdict}{_extent(log, found)}"]
    lines.append(f"    {backend.version}, {backend.vendor}, {backend.device}")
    lines += [f"    judged under the readings {text} of the contract" for text in [readings(log)] if text]
    lines += [f"    {text}" for text in omissions(log, found)]
    lines += [f"    {text}" for text in [overview(log, operation)] if text]
    lines += expectation_lines(log)
    lines += failures(log, full=full).splitlines()
    return lines


def _extent(log: Log, found: Standing) -> str:
    """How much of the library the verdict is about, and how many cases failed."""
    counts = count(log.outcomes)
    wrong = counts["fail"] + counts["error"]
    parts = [f"{wrong:,} of {plural(found.judged, 'case')} fail"] if wrong else []
    if counts["quality-warning"]:
        parts.append(f"{plural(counts['quality-warning'], 'warning')}")
    if log.interrupted:
        parts.append(f"interrupted: {len(log.results):,} of {plural(log.header.cases, 'case')} were run")
    elif log.header.own and not is_whole(log.header):
        parts.append(f"{plural(len(log.results), 'case')} of the library {log.header.own}, not the bundled one")
    elif not log.header.complete:
        chosen = ", ".join(f"{name} {value}" for name, value in log.header.filters.items())
        parts.append(f"{plural(len(log.results), 'case')}, not the whole library: {chosen or 'a selection'}")
    elif found.judged < found.cases:
        parts.append(f"{found.share} judged")
    elif not wrong:
        parts.append(f"all {plural(found.cases, 'case')} judged")
    return f", {'; '.join(parts)}" if parts else ""


def omissions(log: Log, found: Standing | None = None) -> list[str]:
    """What the backend does not do, and the clauses for which nothing was judged, a line each."""
    found = found or standing(log)
    lines = [line(text, 300) for text in found.left_out[:LEFT_OUT]]
    if len(found.left_out) > LEFT_OUT:
        lines.append(f"... and {plural(len(found.left_out) - LEFT_OUT, 'reason')} more; all of them are in the log")
    if found.unjudged and log.header.complete and not log.interrupted:
        lines.append(f"nothing judged for {plural(len(found.unjudged), 'clause')}: {', '.join(found.unjudged)}")
    return lines


def following(log: Log) -> str:
    """The command that a reader of this log most likely wants next."""
    head = log.header
    wrong = [group for group in groups(log) if group.status in WRONG and not group.expected]
    if wrong:
        return repeat_of(log, wrong[0].simplest)
    name = shlex.quote(head.backend.connect)
    options = operation_option(head.operation, head.own) + reading_options(head.readings)
    if log.interrupted and log.path:
        return f"qsa-conformance run --resume {shlex.quote(log.path)}"
    if not head.complete or log.interrupted:
        return f"qsa-conformance run -b {name}{options}    (the whole library)"
    return f"qsa-conformance fuzz -b {name}{options}    (generated cases)"
