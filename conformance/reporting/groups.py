"""Failures grouped by cause: kind, clause, output and region, and what they resemble.

A backend that is wrong in one place fails hundreds of cases. A reader needs each cause once, with the number of cases
and the simplest of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.errors import article, plural
from conformance.judging.outcome import Kind, Outcome
from conformance.record.log import Log
from conformance.record.verdict import JUDGED
from conformance.reporting.repeating import excerpt, repeat_of, size
from conformance.spec.case import Case
from conformance.spec.operation import Operation

WRONG = ("fail", "error")
SHOWN = ("fail", "error", "quality-warning")  # what a reader has to look at
SHOWN_GROUPS = 3  # that are printed in full
LISTED = 6  # that are printed in a line each
KIND = 120  # characters by which what was raised is told apart
PHASES = {"prepare": "preparation", "call": "call"}
_NUMBER = re.compile(r"\d+")
FEW = 3  # groups of clauses that fail, up to which those that pass are named


@dataclass(frozen=True)
class Group:
    """Failures of one cause, the simplest first."""

    status: str  # the worst of them
    clause: str
    output: str
    region: str  # or, without an output, the kind of failure
    refusal: bool
    suspect: str  # what is known of them: what they look like, what is not checked, a stage
    resembling: int  # failures of which that was found
    expected: str  # why they are expected
    outcomes: tuple[Outcome, ...]

    @property
    def simplest(self) -> Outcome:
        return self.outcomes[0]

    @property
    def title(self) -> str:
        """Clause, output and region."""
        region = f" ({self.region})" if self.output and self.region else self.region
        return "  ".join(part for part in (self.clause, self.output + region) if part) or "no reason given"

    @property
    def count(self) -> str:
        return plural(len(self.outcomes), "case")


def groups(log: Log) -> list[Group]:
    """What did not pass, by cause: expected ones last, warnings before those; required arithmetic before refusals."""
    cells: dict[tuple[object, ...], list[Outcome]] = defaultdict(list)
    for outcome in log.outcomes:
        if outcome.status in SHOWN:
            case = log.cases[outcome.case].case
            expected = log.expected.get(outcome.case, "")
            warned = outcome.status == "quality-warning"
            cells[expected, warned, case.refusal is None, outcome.kind, *cause(case, outcome)].append(outcome)
    found = [group for outcomes in cells.values() for group in _by_suspect(log, outcomes)]
    return sorted(
        found, key=lambda g: (bool(g.expected), g.status == "quality-warning", g.refusal, -len(g.outcomes), g.clause)
    )


def cause(case: Case, outcome: Outcome) -> tuple[str, str, str]:
    """Clause, output, and region or kind: what failures of one cause have in common.

    What is raised breaks no clause that could be named, so that its text says more; of a refusal that is missing the
    ports differ from case to case, and the rule does not.
    """
    clause, output, region = outcome.signature
    if outcome.status == "error":
        return "", "", _NUMBER.sub("#", outcome.reason)[:KIND]
    if case.refusal and not outcome.worst:
        due = f"{article(case.refusal.kind)} refusal is due at the {PHASES[case.refusal.phase]}"
        told = outcome.sort.value if outcome.sort else ""
        if outcome.sort is Kind.OTHERWISE:
            told += f" ({outcome.about})"
        return clause, "", f"{told}; {due}"
    return clause, output, region


def _by_suspect(log: Log, outcomes: Sequence[Outcome]) -> Iterator[Group]:
    """One group, or one for every suspect where failures that look the same resemble several."""
    ordered = sorted(outcomes, key=lambda o: (size(log, o), o.case))
    suspects = Counter(text for o in ordered if (text := log.results[o.case].diagnosis))
    most = next((suspect for suspect, _ in suspects.most_common(1)), "")
    for suspect in suspects or [""]:
        # Failures that nothing is known of stay with the most frequent suspect.
        own = [o for o in ordered if (log.results[o.case].diagnosis or most) == suspect]
        # The simplest one that the suspect was found for is what its name is read next to.
        # One of which it is known after which cases it fails can be repeated.
        own.sort(key=lambda o: (not log.results[o.case].diagnosis, not o.after))
        first = own[0]
        clause, output, region = cause(log.cases[first.case].case, first)
        yield Group(
            status="error" if all(o.status == "error" for o in own) else first.status,
            clause=clause,
            output=output,
            region=region,
            refusal=log.cases[first.case].case.refusal is not None,
            suspect=suspect,
            resembling=suspects[suspect],
            expected=log.expected.get(first.case, ""),
            outcomes=tuple(own),
        )


def told(log: Log, group: Group, command: str = "qsa-conformance run") -> list[str]:
    """A group in full: how many, what they look like, and the simplest case with the line that repeats it."""
    outcome = group.simplest
    record = log.cases[outcome.case]
    expected = f"  expected: {group.expected}" if group.expected else ""
    lines = [f"{group.status}, {group.count}: {group.title}{expected}"]
    if group.suspect:
        share = "" if len(group.outcomes) == 1 else f" ({group.resembling} of {plural(len(group.outcomes), 'case')})"
        lines.append(f"    {group.suspect}{share}")
    lines.append(f"    {outcome.case}: {record.case.says}")
    lines.append(f"    {outcome.where}: {outcome.reason}" if outcome.where else f"    {outcome.reason}")
    lines.append(f"    {record.summary}")
    lines += [f"    printed: {line}" for line in excerpt(outcome.stderr, 3)]
    lines.append(f"    {repeat_of(log, outcome, command)}")
    return lines


def listed(group: Group) -> str:
    """A group in one line."""
    looks = f"; {group.suspect}" if group.suspect else ""
    expected = f"; expected: {group.expected}" if group.expected else ""
    return f"{group.status}, {group.count}: {group.title}, such as {group.simplest.case}{looks}{expected}"


def failures(log: Log, *, full: int = SHOWN_GROUPS, command: str = "qsa-conformance run") -> str:
    """The groups: the first in full, others in a line each, expected ones in one together. Empty when all is well."""
    found = groups(log)
    expected = [group for group in found if group.expected]
    others = [group for group in found if not group.expected]
    lines = [line for group in others[:full] for line in told(log, group, command)]
    rest = others[full:]
    lines += [listed(group) for group in rest[: max(LISTED, full)]]
    left = rest[max(LISTED, full) :]
    if left:
        cases = sum(len(group.outcomes) for group in left)
        more = plural(len(left), "more group")
        lines.append(f"... and {more}, of {plural(cases, 'case')}; all of them are in the log")
    if expected:
        cases = sum(len(group.outcomes) for group in expected)
        reasons = "; ".join(dict.fromkeys(group.expected for group in expected))
        lines.append(f"expected: {reasons} ({plural(cases, 'failure')})")
    return "\n".join(lines)


def overview(log: Log, operation: Operation) -> str:
    """Which groups of clauses fail and which pass, where that says more than the number of failures."""
    wrong = [o for o in log.outcomes if o.status in WRONG]
    if not wrong:
        return ""
    broken = Counter(_group(o.clause) for o in wrong)
    judged = _judged(log)
    parts = [f"{operation.groups.get(name, name)}: {n:,} of {judged[name]:,} fail" for name, n in broken.most_common()]
    passing = [says for name, says in operation.groups.items() if judged[name] and name not in broken]
    if len(broken) > FEW or not passing:
        return ""
    return f"{', '.join(passing)}: all pass; " + "; ".join(parts)


def _judged(log: Log) -> Mapping[str, int]:
    """Judged cases by group of clauses: those that cite one of its clauses, or broke one."""
    found: Counter[str] = Counter()
    for outcome in log.outcomes:
        if outcome.status in JUDGED:
            cited = {_group(clause) for clause in log.cases[outcome.case].case.clauses}
            found.update(cited | ({_group(outcome.clause)} if outcome.status in WRONG else set()))
    return found


def _group(clause: str) -> str:
    return clause.partition("-")[0]
