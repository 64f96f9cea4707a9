"""The matrix of clause groups by backends, and the failures, as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from tabulate import tabulate

from conformance.judging.engine import Outcome
from conformance.record.log import Log, count
from conformance.record.verdict import standing
from conformance.reporting import timings
from conformance.spec.operation import Operation

SHOWN_FAILURES = 12
GOOD = ("pass", "quality-warning")
SHOWN = ("fail", "error", "quality-warning")  # what a reader has to look at


def group_of(clause: str) -> str:
    """The group of a clause id: LEN of LEN-1."""
    return clause.partition("-")[0]


def of_group(log: Log, group: str) -> list[Outcome]:
    """Outcomes of the cases that cite a clause of the group."""
    return [o for o in log.outcomes if any(group_of(c) == group for c in log.cases[o.case].case.clauses)]


def headroom(outcomes: Sequence[Outcome], group: str = "") -> float | None:
    """Largest error / bound among passing outcomes, of the clauses of a group or of all; None without numbers."""
    ratios = [r for o in outcomes for clause, r in used(o).items() if not group or group_of(clause) == group]
    return max(ratios, default=None)


def used(outcome: Outcome) -> Mapping[str, float]:
    """Error / bound by clause of an outcome that passed, where within the bound.

    A case of a recommended clause is warned of, and not failed, whatever it is off by.
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
        f"{counts[status]} {word}"
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


def titles(logs: Sequence[Log]) -> list[str]:
    """A heading for every log: its connect string, with version, day, time and number where that says too little."""
    heads = [log.header.backend.connect for log in logs]
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
        yield f"As expected: all failures ({known}) are in {assessment.file}."
        return
    # Unexpected failures stand among the failures.
    others = [surprise for surprise in assessment.surprises if surprise.kind != "unexpected failure"]
    yield (
        f"Not as expected: of the failures {known} are in {assessment.file}, "
        f"{len(assessment.surprises) - len(others)} are not."
    )
    for surprise in others[:SHOWN_FAILURES]:
        yield f"{surprise.kind}: {surprise.case + ', ' if surprise.case else ''}{surprise.says}"
    if len(others) > SHOWN_FAILURES:
        yield f"... and {len(others) - SHOWN_FAILURES} more; all of them are in the log"


def matrix(logs: Sequence[Log], operation: Operation, *, format: str = "simple") -> str:
    """Clause groups by backends: cases passed, failed, unsupported, and the headroom where numbers are bounded."""
    rows = []
    for group, says in operation.groups.items():
        row = [f"{group}  {says}"]
        for log in logs:
            outcomes = of_group(log, group)
            text = cell(count(outcomes)) if outcomes else "-"
            top = headroom(outcomes, group)
            row.append(text + (f"  {top:.2f}" if top is not None else ""))
        rows.append(row)
    rows.append(["all cases", *(cell(count(log.outcomes)) for log in logs)])
    rows.append(["verdicts", *(f"{sum(o.verdicts for o in log.outcomes):,}" for log in logs)])
    rows.append(["seconds", *(f"{sum(o.seconds for o in log.outcomes):.1f}" for log in logs)])
    rows.append(["", *(verdict_of(log) for log in logs)])
    heads = ["clauses", *titles(logs)]
    return tabulate(rows, heads, tablefmt=format, disable_numparse=True, stralign="left")


def failures(log: Log, *, limit: int = SHOWN_FAILURES, command: str = "qsa-conformance run") -> str:
    """What did not pass, smallest cases first, each with a line that repeats it. Empty when all is well."""
    wrong = [o for o in log.outcomes if o.status in ("fail", "error")]
    wrong += [o for o in log.outcomes if o.status == "quality-warning"]
    if not wrong:
        return ""
    rank = {"fail": 0, "error": 0, "quality-warning": 1}
    wrong.sort(key=lambda o: (o.case in log.expected, rank[o.status], size(log, o), o.case))
    lines = []
    for outcome in wrong[:limit]:
        record = log.cases[outcome.case]
        known = log.expected.get(outcome.case)
        lines.append(f"{outcome.status}  {outcome.case}  {outcome.clause}" + (f"  expected: {known}" * bool(known)))
        lines.append(f"    {record.case.says}")
        lines.append(f"    {outcome.where}: {outcome.reason}")
        lines.append(f"    {record.summary}")
        diagnosis = log.results[outcome.case].diagnosis
        if diagnosis:
            lines.append(f"    looks like: {diagnosis}")
        lines += [f"    printed: {line}" for line in excerpt(outcome.stderr)]
        lines.append(f"    {repeat_of(log, outcome, command)}")
    if len(wrong) > limit:
        lines.append(f"... and {len(wrong) - limit} more; all of them are in the log")
    return "\n".join(lines)


def excerpt(text: str, most: int = 6) -> list[str]:
    """The first and the last lines of what a backend printed, cut to a readable length."""
    lines = [line[:160] for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= most else [*lines[: most - 2], "...", *lines[-2:]]


def repeat(
    connect: str,
    case: str,
    command: str = "qsa-conformance run",
    *,
    log: str = "",
    readings: Mapping[str, str] | None = None,
) -> str:
    """The command that repeats a case, of the library or of a log."""
    source = f" --from-log {shlex.quote(log)}" if log else ""
    return f"{command} -b {shlex.quote(connect)}{source} --case {shlex.quote(case)}{reading_options(readings or {})}"


def reading_options(readings: Mapping[str, str]) -> str:
    """Readings as they stand on the command line, with a space before each."""
    return "".join(f" --reading {name}={choice}" for name, choice in readings.items())


def repeat_of(log: Log, outcome: Outcome, command: str = "qsa-conformance run") -> str:
    """The command that repeats a result as it came about: in a worker, under the readings of the run."""
    head = log.header
    # A generated case is in its log alone, and so is one that was shrunk.
    elsewhere = head.seed is not None or {"shrink", "--from-log"} & head.filters.keys()
    path = log.origins.get(outcome.case, log.path) or head.filters.get("--from-log", "") if elsewhere else ""
    isolate = " --isolate" if outcome.lost and not head.backend.connect.startswith("cmd:") else ""
    return repeat(head.backend.connect, outcome.case, command, log=path, readings=head.readings) + isolate


def size(log: Log, outcome: Outcome) -> int:
    """How much a reader has to look at: elements of the new tokens, and calls."""
    case = log.cases[outcome.case].case
    total = 1
    for value in case.dims.values():
        total *= value + 1
    return total * (1 + sum(len(stream) for stream in case.streams))


def report(logs: Sequence[Log], operation: Operation, *, limit: int = SHOWN_FAILURES) -> str:
    """All of it: what was run, the matrix, for every log what is unsupported and what failed, and the timings."""
    head = logs[0].header
    lines = [f"{head.operation}, contract {head.contract}, library {head.library}, {len(operation.clauses)} clauses"]
    lines += [f"reading: {name} = {choice}" for name, choice in head.readings.items()]
    lines += ["", matrix(logs, operation)]
    lines += ["", "A cell counts the cases that cite a clause of the group, then the largest error / bound among them."]
    for log, title in zip(logs, titles(logs), strict=True):
        backend = log.header.backend
        lines += ["", f"{title}: {backend.version}, {backend.vendor}, {backend.device}"]
        if log.interrupted:
            lines.append(f"interrupted: {len(log.results)} of {log.header.cases} cases were run")
        elif not log.header.complete:
            chosen = ", ".join(f"{name} {value}" for name, value in log.header.filters.items())
            lines.append(f"{len(log.results)} cases, not the whole library: {chosen}")
        lines += [text for text in (unsupported(log), failures(log, limit=limit)) if text]
        lines += expectation_lines(log)
    timed = timings.of_logs(logs)
    return "\n".join([*lines, *(["", timed] if timed else [])])


def unsupported(log: Log) -> str:
    """What the backend says it cannot do, with the number of cases, one line a reason."""
    reasons: dict[str, int] = {}
    for outcome in log.outcomes:
        if outcome.status == "unsupported":
            reasons[outcome.reason] = reasons.get(outcome.reason, 0) + 1
    return "\n".join(f"unsupported, {number} cases: {reason}" for reason, number in reasons.items())
