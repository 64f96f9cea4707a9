"""Timed workloads: pictures, and the numbers behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from conformance.record.log import Log, PerfRecord
from conformance.reporting import plots
from conformance.reporting.html.columns import Column


@dataclass(frozen=True)
class Heat:
    """A workload on a backend: its time, how many times that of another it is, and the share of a plain copy."""

    time: str = ""
    factor: str = ""  # to the fastest backend, or to the one named
    share: str = ""
    level: int = -1  # 0 the fastest, up to LEVELS; below 0 without a colour
    says: str = ""


@dataclass(frozen=True)
class Performance:
    """Timed workloads: a row each with a cell for every backend, pictures, and the numbers behind them."""

    names: tuple[str, ...] = ()
    whole: tuple[bool, ...] = ()  # whether a name is that of a backend, not of a part of one
    heat: tuple[tuple[str, tuple[Heat, ...]], ...] = ()
    latency: tuple[tuple[str, Markup], ...] = ()
    key: Markup | None = None
    rows: tuple[tuple[str, ...], ...] = ()

    @property
    def shared(self) -> tuple[tuple[str, tuple[Heat, ...]], ...]:
        """The workloads that most backends were timed on."""
        backends = sum(self.whole)
        return tuple(
            (workload, cells)
            for workload, cells in self.heat
            if 2 * sum(bool(cell.time) for cell, whole in zip(cells, self.whole, strict=True) if whole) > backends
        )

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The workloads that most backends were timed on, then the others; whoever has no time in one is left out."""
        shared = self.shared
        rest = tuple(row for row in self.heat if row not in shared)
        return tuple(_grid(self.names, rows) for rows in (shared, rest) if rows)


@dataclass(frozen=True)
class Grid:
    """Workloads by backends, or backends by workloads where there are many backends, and more of them."""

    title: str  # of the rows
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Heat, ...]], ...]


HEADS = (
    "workload", "backend", "tokens", "sequences", "type", "block", "time", "interval", "moved", "of a copy", "ratio",
    "peak", "growth", "",
)  # fmt: skip
COLUMNS = 8  # backends that have room beside each other
LEVELS = (1.1, 2.0, 5.0, 20.0, 100.0)  # times the fastest, up to which a colour goes


def performance(columns: Sequence[Column]) -> Performance | None:
    """All perf records, None when there is none. A record is of the backend it names, else of its log's."""
    return of_logs([(column.title, column.log) for column in columns])


def of_logs(logs: Sequence[tuple[str, Log]]) -> Performance | None:
    """The perf records of logs under their titles, None when there is none."""
    timed = [(title, record) for title, log in logs for record in log.perf]
    if not timed:
        return None
    connects = {log.header.backend.connect for _, log in logs} | {title for title, _ in logs}
    names = list(dict.fromkeys(_backend(title, record) for title, record in timed))
    return Performance(
        tuple(names),
        tuple(name in connects for name in names),
        tuple(_heat(timed, names, connects)),
        tuple(_latency(timed, names)),
        plots.key(names),
        tuple(_numbers(title, record) for title, record in timed),
    )


def seconds(record: PerfRecord) -> float | None:
    """The time of a call: of the fastest tenth, the median in logs of 0.1.0."""
    return number(record, "fast_s") or number(record, "median_s")


def _heat(
    timed: Sequence[tuple[str, PerfRecord]], names: Sequence[str], connects: Collection[str]
) -> Iterator[tuple[str, tuple[Heat, ...]]]:
    """A row a workload; backends are compared as wholes, parts of one that are timed alone are not."""
    workloads: dict[str, dict[str, PerfRecord]] = {}
    for title, record in timed:
        workloads.setdefault(record.workload, {})[_backend(title, record)] = record
    for workload, records in workloads.items():
        factors = _factors({name: one for name, one in records.items() if name in connects and seconds(one)})
        yield workload, tuple(_heated(records.get(name), factors.get(name)) for name in names)


def _grid(names: Sequence[str], rows: Sequence[tuple[str, tuple[Heat, ...]]]) -> Grid:
    used = [i for i in range(len(names)) if any(cells[i].time for _, cells in rows)] or [*range(len(names))]
    heads = tuple(names[i] for i in used)
    if len(used) <= max(COLUMNS, len(rows)):
        return Grid("workload", heads, tuple((name, tuple(cells[i] for i in used)) for name, cells in rows))
    turned = tuple((names[i], tuple(cells[i] for _, cells in rows)) for i in used)
    return Grid("backend", tuple(workload for workload, _ in rows), turned)


def times(value: float) -> str:
    """A factor in three digits, a large one in whole numbers."""
    return f"{value:.3g} x" if value < 1000 else f"{value:,.0f} x"


def _factors(records: Mapping[str, PerfRecord]) -> dict[str, tuple[float, str]]:
    """How many times the time of the fastest that of each backend is; of a backend alone, that of whom it was timed by.

    Times are compared within one run. Those of several runs are compared by their ratios to one backend that was timed
    in each of them. The second of a pair is a name where it is not the fastest that is meant.
    """
    numbers = {name: one.numbers for name, one in records.items()}
    runs, beside = ({of.get(name) for of in numbers.values()} for name in ("timed", "ratio_to"))
    other = next(iter(beside)) if len(beside) == 1 else None
    by_ratio = {name: number(one, "ratio") or 0.0 for name, one in records.items()}
    if len(records) == 1 and other and other not in records and all(by_ratio.values()):
        return {name: (ratio, str(other)) for name, ratio in by_ratio.items()}
    weights = {name: seconds(one) or 0.0 for name, one in records.items()}
    if len(runs) > 1 and other and all(by_ratio.values()):
        weights = by_ratio
    best = min(weights.values(), default=1.0)
    return {name: (weight / best, "") for name, weight in weights.items()}


def _heated(record: PerfRecord | None, factor: tuple[float, str] | None) -> Heat:
    time = seconds(record) if record else None
    if record is None or not time:
        return Heat(says=record.says if record else "")
    share = number(record, "share")
    value, other = factor or (0.0, "")
    return Heat(
        ("~" if record.numbers.get("busy") else "") + plots.duration(time),
        f"{times(value)}{' ' * bool(other)}{other}" if factor else "",
        "" if share is None else f"{share:.2f} of a copy",
        sum(value > level for level in LEVELS) if factor else -1,
        record.says,
    )


def _backend(title: str, record: PerfRecord) -> str:
    return str(record.numbers.get("backend") or title)


def number(record: PerfRecord, name: str) -> float | None:
    """A number of a record, None where it has none."""
    value = record.numbers.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _latency(timed: Sequence[tuple[str, PerfRecord]], names: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """One picture for all calls of a workload that differ in their tokens alone, where there are at least two."""
    kinds: dict[tuple[str, ...], list[tuple[str, PerfRecord]]] = defaultdict(list)
    for title, record in timed:
        if (number(record, "tokens") or 0) > 0 and seconds(record):
            which = ("sequences", "element_type", "block_size", "width")
            kind = (record.workload.partition("[")[0], *(_plain(record.numbers.get(name)) for name in which))
            kinds[kind].append((title, record))
    for (workload, sequences, element_type, block_size, width), records in kinds.items():
        series: dict[str, list[plots.Point]] = {name: [] for name in names}
        copy: dict[float, plots.Point] = {}
        for title, record in records:
            tokens, time = number(record, "tokens") or 0.0, seconds(record) or 0.0
            point = plots.Point(tokens, time, number(record, "low_s"), number(record, "high_s"))
            series[_backend(title, record)].append(point)
            moved, speed = number(record, "bytes"), number(record, "copy_bytes_per_s")
            if moved and speed:
                copy[tokens] = plots.Point(tokens, moved / speed)
        if len({point.tokens for points in series.values() for point in points}) > 1:
            title = f"{workload}: {element_type}, sequences {sequences}, block size {block_size}, width {width}"
            yield title, plots.latency(title, series, list(copy.values()))


def _numbers(title: str, record: PerfRecord) -> tuple[str, ...]:
    def shown(name: str, unit: str = "", size: float = 1.0, form: str = ".3g") -> str:
        value = number(record, name)
        return "" if value is None else f"{value / size:{form}}{unit}"

    def time(name: str) -> str:
        value = number(record, name)
        return "" if value is None else plots.duration(value)

    tokens, low, high = number(record, "tokens"), time("low_s"), time("high_s")
    taken = seconds(record)
    slope, least, most = shown("growth"), shown("growth_low"), shown("growth_high")
    return (
        record.workload,
        _backend(title, record),
        "" if tokens is None else plots.tokens_text(tokens),
        shown("sequences"),
        _plain(record.numbers.get("element_type")),
        shown("block_size"),
        "" if taken is None else plots.duration(taken),
        f"{low} to {high}" if low and high else "",
        shown("bytes_per_s", " GB/s", 1e9),
        shown("share"),
        _ratio(record),
        shown("peak_bytes", " MiB", 2**20),
        f"{slope} ({least} to {most})" if slope and least and most else slope,
        record.says,
    )


def _ratio(record: PerfRecord) -> str:
    """Time over that of the first backend, what the test says of it, of whom, and how likely it would be by chance."""
    value, p = number(record, "ratio"), number(record, "ratio_p")
    says, other = _plain(record.numbers.get("ratio_says")), _plain(record.numbers.get("ratio_to"))
    than = f"than {other}" if says in ("faster", "slower") and other else ""
    parts = ["" if value is None else f"{value:.3g}", says, than, "" if p is None else f"(p {p:.2g})"]
    return " ".join(part for part in parts if part)


def _plain(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
