"""The cases, listed once for all logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from conformance.reporting.html.columns import SIGNS, Column
from conformance.reporting.html.failures import anchor
from conformance.spec.case import Case

Described = Mapping[str, Mapping[str, str]]  # case id to its facts


@dataclass(frozen=True)
class Instance:
    """One case of a written one: what sets it apart, and how it fared, a sign for each log."""

    id: str
    label: str
    facts: str
    signs: tuple[tuple[str, str], ...]  # sign, and a link to the failure
    only: str = ""  # logs that hold it, where not all do


@dataclass(frozen=True)
class WrittenCase:
    """The cases that were written as one."""

    id: str
    says: str
    clauses: tuple[str, ...]
    level: str
    place: str
    common: str
    instances: tuple[Instance, ...]
    result: str
    uniform: bool  # all passed, in all logs that hold them
    alike: tuple[tuple[str, tuple[int, ...]], ...] = ()  # where all fared the same: signs, and by which logs


@dataclass(frozen=True)
class Topic:
    """A folder of the library."""

    name: str
    cases: tuple[WrittenCase, ...]
    number: int = field(default=0)


def topics(columns: Sequence[Column], described: Described, detailed: Collection[str]) -> list[Topic]:
    """All cases that occur in a log, by topic and written case; `detailed` are the ids of the failures on the page."""
    records: dict[str, Case] = {}
    for c in columns:
        for name, record in c.log.cases.items():
            if name in c.log.results:
                records.setdefault(name, record.case)
    groups: dict[str, dict[str, list[Case]]] = {}
    for name, case in records.items():
        groups.setdefault(case.topic, {}).setdefault(name.partition("[")[0], []).append(case)
    return [
        Topic(
            topic,
            tuple(_written(name, cases, columns, described, detailed) for name, cases in written.items()),
            sum(map(len, written.values())),
        )
        for topic, written in groups.items()
    ]


def _written(
    name: str, cases: Sequence[Case], columns: Sequence[Column], described: Described, detailed: Collection[str]
) -> WrittenCase:
    told = [described[case.id] for case in cases]
    keys = dict.fromkeys(key for one in told for key in one)
    common = [key for key in keys if len({one.get(key, "") for one in told}) == 1]
    instances = []
    for case, one in zip(cases, told, strict=True):
        apart = {key: text for key, text in one.items() if key not in common}
        instances.append(_instance(case, apart, columns, detailed))
    held = [sign for instance in instances for sign, _ in instance.signs if sign]
    passed = held.count(SIGNS["pass"])
    first = cases[0]
    return WrittenCase(
        name,
        first.says,
        first.clauses,
        first.level,
        first.place.removeprefix("cases/").partition("/")[2],
        " ".join(told[0][key] for key in common if told[0].get(key)),
        tuple(instances),
        f"✓ {len(cases)}" if passed == len(held) else f"{passed} of {len(held)} ✓",
        passed == len(held),
        _alike(instances),
    )


def _alike(instances: Sequence[Instance]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What every log says of all these cases, where each says one thing and links to no failure."""
    if len({one.signs for one in instances}) > 1 or any(link for _, link in instances[0].signs):
        return ()
    found: dict[str, list[int]] = {}
    for index, (sign, _) in enumerate(instances[0].signs):
        if sign:
            found.setdefault(sign, []).append(index)
    return tuple((sign, tuple(logs)) for sign, logs in found.items())


def _instance(case: Case, apart: Mapping[str, str], columns: Sequence[Column], detailed: Collection[str]) -> Instance:
    label = case.id.partition("[")[2].removesuffix("]")
    said = set(label.split(","))  # what the label says already
    rest = [text for key, text in apart.items() if not {text, f"{key}={text}"} & said]
    signs = tuple(_sign(column, case.id, detailed) for column in columns)
    holding = [column.title for column, (sign, _) in zip(columns, signs, strict=True) if sign]
    return Instance(case.id, label, " ".join(rest), signs, ", ".join(holding) * (len(holding) < len(columns)))


def _sign(column: Column, case: str, detailed: Collection[str]) -> tuple[str, str]:
    record = column.log.results.get(case)
    if record is None:
        return "", ""
    sign = SIGNS[record.outcome.status]
    link = "#" + quote(name, safe="/:=,") if (name := anchor(column, case)) in detailed else ""
    return (f"({sign})" if case in column.log.expected else sign), link
