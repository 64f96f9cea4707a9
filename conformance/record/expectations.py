"""What a backend is known to get wrong: entries with a reason, held against the results of a run.

A file of expectations lists cases, by id or by a bounded pattern, with the signature of the failure that is due. A run
is as expected when exactly those cases fail, in exactly that way; the verdict on the backend stays what it is.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from conformance.errors import LibraryError, UsageError, nearest
from conformance.judging.outcome import Outcome
from conformance.library.operations import DEFAULT, located
from conformance.library.reading import Library
from conformance.record.log import Assessment, Log, Surprise
from conformance.spec.operation import Strict

MOST = 20  # cases that one pattern may stand for
FAILED = ("fail", "error")


class Signature(Strict, frozen=True, omit_defaults=True):
    """What failures of one cause have in common: clause, output, and the region or the kind of failure."""

    clause: str
    output: str = ""
    region: str = ""

    @staticmethod
    def of(outcome: Outcome) -> Signature:
        """The signature of an outcome that failed."""
        clause, output, region = outcome.signature
        return Signature(clause=clause, output=output, region=region)

    def matches(self, outcome: Outcome, cited: Sequence[str] = ()) -> bool:
        """Whether it is the signature of an outcome, or the one that version 0.1.0 gave it.

        Then a failure was headed by the first clause that its case cites, unless it cites the one that broke.
        """
        clause, output, region = outcome.earlier_signature
        known = self.clause == clause or self.clause in cited[:1]
        return self == Signature.of(outcome) or (known and (self.output, self.region) == (output, region))

    def __str__(self) -> str:
        return ", ".join(part for part in (self.clause, self.output, self.region) if part)


class Entry(Strict, frozen=True, omit_defaults=True):
    """One expected failure: `case` is an id, or a pattern with at most one `*` in each part between slashes."""

    case: str
    signature: Signature
    reason: str
    url: str
    expires: str = ""  # ISO date: the last day on which the entry counts


class File(Strict, frozen=True):
    """A file of expectations."""

    entries: list[Entry]
    says: str = ""


@dataclass(frozen=True)
class Expectations:
    """The entries of one file, and the cases of the library that each stands for."""

    path: str
    entries: tuple[Entry, ...] = ()
    cases: tuple[tuple[str, ...], ...] = ()
    says: str = ""
    by_case: Mapping[str, Entry] = field(default_factory=dict)
    cited: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # clauses of these cases

    def met(self, outcome: Outcome, today: datetime.date | None = None) -> bool:
        """Whether the outcome is a failure that an entry expects, in this way and still."""
        entry = self.by_case.get(outcome.case)
        return (
            entry is not None
            and outcome.status in FAILED
            and entry.signature.matches(outcome, self.cited.get(outcome.case, ()))
            and not expired(entry, today)
        )


def expired(entry: Entry, today: datetime.date | None = None) -> bool:
    """Whether an entry's last day is over."""
    now = today or datetime.datetime.now(datetime.UTC).date()
    return bool(entry.expires) and datetime.date.fromisoformat(entry.expires) < now


def default_file(connect: str, operation: str = DEFAULT, root: Path | None = None) -> Path | None:
    """Where the expectations of a bundled backend of an operation are kept; the file need not be there yet."""
    if not re.fullmatch("[a-z][a-z0-9-]*", connect):
        return None
    where, folder = located(operation, root)
    return where / folder / "expectations" / f"{connect}.yaml"


def find(connect: str, given: Path | None, library: Library, readings: Mapping[str, str]) -> Expectations | None:
    """The expectations for a backend: a file that was named, or else the library's own, if it has one.

    The library's own are of the default readings of the contract.
    """
    if given is not None:
        return load(given, library)
    path = None if readings else default_file(connect, library.operation.operation)
    return load(path, library) if path and path.is_file() else None


def load(path: Path, library: Library) -> Expectations:
    """Read a file of expectations. Raises `LibraryError` with the place of what is wrong in it."""
    from conformance.library import strict_yaml

    data, places = strict_yaml.load(path, str(path))
    file = strict_yaml.convert(data, File, places.at)
    ids = [case.id for case in library.cases]
    cases: list[tuple[str, ...]] = []
    by_case: dict[str, Entry] = {}
    for index, entry in enumerate(file.entries):
        problem = _problem(entry, library)
        matched = matching(entry.case, ids) if not problem else ()
        if len(matched) > MOST:
            problem = f"'{entry.case}' stands for {len(matched)} cases; an entry may stand for {MOST}"
        twice = [name for name in matched if name in by_case]
        if twice:
            problem = f"'{twice[0]}' is already expected by '{by_case[twice[0]].case}'"
        if problem:
            raise LibraryError(problem, places.at("entries", index))
        cases.append(matched)
        by_case |= dict.fromkeys(matched, entry)
    cited = {case.id: case.clauses for case in library.cases if case.id in by_case}
    return Expectations(str(path), tuple(file.entries), tuple(cases), file.says, by_case, cited)


def _problem(entry: Entry, library: Library) -> str:
    """What is wrong with an entry by itself, empty when nothing is."""
    operation = library.operation
    if any(part.count("*") > 1 for part in entry.case.split("/")):
        return f"'{entry.case}' has more than one * between two slashes"
    if entry.signature.clause not in operation.clause:
        clause = entry.signature.clause
        return f"unknown clause '{clause}'{nearest(clause, list(operation.clause))}"
    if entry.signature.output and entry.signature.output not in operation.output:
        output = entry.signature.output
        return f"unknown output '{output}'{nearest(output, list(operation.output))}"
    if not entry.reason.strip():
        return "an entry needs a reason"
    if not entry.url.startswith(("https://", "http://")):
        return f"url '{entry.url}' does not begin with https://; it is where the failure is tracked"
    try:
        datetime.date.fromisoformat(entry.expires or "2000-01-01")
    except ValueError:
        return f"expires '{entry.expires}' is not a date such as 2027-01-31"
    return ""


def matching(pattern: str, ids: Sequence[str]) -> tuple[str, ...]:
    """The ids that a pattern stands for: `*` is any text without a slash."""
    if "*" not in pattern:
        return (pattern,) if pattern in ids else ()
    test = re.compile("[^/]*".join(map(re.escape, pattern.split("*"))))
    return tuple(name for name in ids if test.fullmatch(name))


def assess(expectations: Expectations, outcomes: Iterable[Outcome], today: datetime.date | None = None) -> Assessment:
    """Results against expectations. Entries for cases that were not run are left alone."""
    expected: dict[str, str] = {}
    surprises: list[Surprise] = []
    for outcome in outcomes:
        entry = expectations.by_case.get(outcome.case)
        failed = outcome.status in FAILED
        if entry is None:
            if failed:
                text = f"{Signature.of(outcome)}: {outcome.reason}"
                surprises.append(Surprise("unexpected failure", text, outcome.case))
        elif found := surprise(entry, outcome, expectations.cited.get(outcome.case, ())):
            surprises.append(found)
        elif failed and not expired(entry, today):
            expected[outcome.case] = entry.reason
    for entry, cases in zip(expectations.entries, expectations.cases, strict=True):
        if not cases:
            surprises.append(Surprise("unused", f"'{entry.case}' stands for no case of the library"))
        elif expired(entry, today):
            surprises.append(Surprise("expired", f"'{entry.case}' ({entry.reason}) ended on {entry.expires}"))
    return Assessment(expectations.path, expected, tuple(surprises))


def surprise(entry: Entry, outcome: Outcome, cited: Sequence[str] = ()) -> Surprise | None:
    """What is not as an entry expects in a case that it stands for; None for what was not run, too."""
    if outcome.status == "not-run":
        return None
    if outcome.status not in FAILED:
        text = f"expected to fail ({entry.reason}), and is {outcome.status} now: remove it from '{entry.case}'"
        return Surprise("unexpected pass", text, outcome.case)
    if not entry.signature.matches(outcome, cited):
        text = f"expected: {entry.signature}; now: {Signature.of(outcome)}: {outcome.reason}"
        return Surprise("changed signature", text, outcome.case)
    return None


# Writing a file


@dataclass(frozen=True)
class Ground:
    """Why new failures are to be expected."""

    reason: str = ""
    url: str = ""
    expires: str = ""


def check_updatable(log: Log, library: Library) -> None:
    """Raises `UsageError` unless a log is of a complete run of this library: anything else says too little."""
    what = log.path or "the run"
    if log.interrupted or not log.header.complete or any(o.status == "not-run" for o in log.outcomes):
        raise UsageError(f"{what}: is not complete; expectations come from a run without filters")
    digests = {case.id: case.digest for case in library.cases}
    foreign = [o.case for o in log.outcomes if digests.get(o.case) != o.digest]
    if foreign:
        raise UsageError(f"{what}: '{foreign[0]}' is not a case of this library; expectations are kept for those alone")
    missing = digests.keys() - log.results.keys()
    if missing:
        raise UsageError(f"{what}: {len(missing)} cases of this library are not in it; run it anew")


def updated(old: Expectations, outcomes: Sequence[Outcome], ground: Ground) -> tuple[Entry, ...]:
    """Entries for exactly the failures there are: old ones that still hold, then new ones, as patterns where they fit.

    An old entry holds while all its cases fail with its signature. Raises `UsageError` when there are new failures
    and nothing says why they are to be expected.
    """
    failed = {o.case: o for o in outcomes if o.status in FAILED}
    failing = {case: Signature.of(outcome) for case, outcome in failed.items()}

    def holds(entry: Entry, case: str) -> bool:
        return case in failed and entry.signature.matches(failed[case], old.cited.get(case, ()))

    kept = [
        entry
        for entry, cases in zip(old.entries, old.cases, strict=True)
        if cases and all(holds(entry, case) for case in cases) and not expired(entry)
    ]
    covered = {case for case, entry in old.by_case.items() if entry in kept}
    new = []
    for case, signature in failing.items():
        if case in covered:
            continue
        before = old.by_case.get(case)
        same = before is not None and holds(before, case) and not expired(before)
        source = before if before and same else ground
        new.append(Entry(case=case, signature=signature, reason=source.reason, url=source.url, expires=source.expires))
    unexplained = [entry for entry in new if not entry.reason or not entry.url]
    if unexplained:
        count = f"{len(unexplained)} failures are new, such as '{unexplained[0].case}'"
        raise UsageError(f"{count}; say why they are to be expected: --reason TEXT --url URL")
    return (*kept, *as_patterns(new, [outcome.case for outcome in outcomes]))


def as_patterns(entries: Sequence[Entry], ids: Sequence[str]) -> list[Entry]:
    """The entries, with a pattern in place of those that differ in their case alone, where it stands for no other.

    `ids` are all cases that a pattern could stand for; it may stand for as many as an entry may.
    """
    alike: dict[Entry, list[str]] = {}
    for entry in entries:
        alike.setdefault(msgspec.structs.replace(entry, case=""), []).append(entry.case)
    found = []
    for common, cases in alike.items():
        left = dict.fromkeys(cases)
        standing = {
            pattern: matching(pattern, ids) for pattern in dict.fromkeys(p for c in cases for p in _patterns(c))
        }
        fitting = {p: set(names) for p, names in standing.items() if len(names) <= MOST and set(names) <= left.keys()}
        while fitting:
            # The pattern that stands for most; of equal ones the one that says most.
            best = max(fitting, key=lambda p: (len(fitting[p]), len(p)))
            names = fitting.pop(best)
            if len(names) < 2:
                break
            found.append(msgspec.structs.replace(common, case=best))
            for name in names:
                del left[name]
            fitting = {p: others for p, others in fitting.items() if not others & names}
        found += [msgspec.structs.replace(common, case=name) for name in left]
    return found


def _patterns(case: str) -> Iterator[str]:
    """Patterns that stand for a case and its neighbours: with some of its points left open, or its name."""
    name, bracket, label = case.partition("[")
    topic = name.rpartition("/")[0]
    yield f"{topic}/*" if topic else "*"
    if not bracket:
        return
    yield f"{name}[*]"
    points = label.removesuffix("]").split(",")
    for number in range(1, len(points)):
        yield f"{name}[{','.join(points[:number])},*]"
        yield f"{name}[*,{','.join(points[number:])}]"
    for number in range(1, len(points) - 1):
        yield f"{name}[{','.join(points[:number])},*,{','.join(points[number + 1 :])}]"


def text(entries: Collection[Entry], says: str) -> str:
    """The file that holds these entries."""
    import yaml

    body: dict[str, Any] = {"says": says, "entries": [msgspec.to_builtins(entry) for entry in entries]}
    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=110)
