"""Timed workloads: pictures, and the numbers behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from conformance.record.log import PerfRecord
from conformance.reporting import plots
from conformance.reporting.html.columns import Column


@dataclass(frozen=True)
class Performance:
    """Timed workloads: pictures, and the numbers behind them."""

    latency: tuple[tuple[str, Markup], ...] = ()
    ratios: Markup | None = None
    shares: Markup | None = None
    key: Markup | None = None
    rows: tuple[tuple[str, ...], ...] = ()


HEADS = (
    "workload", "backend", "tokens", "sequences", "type", "block", "median", "interval", "moved", "of a copy", "ratio",
    "peak", "growth", "",
)  # fmt: skip


def performance(columns: Sequence[Column]) -> Performance | None:
    """All perf records, None when there is none. A record is of the backend it names, else of its log's."""
    timed = [(column.title, record) for column in columns for record in column.log.perf]
    if not timed:
        return None
    names = list(dict.fromkeys(_backend(title, record) for title, record in timed))
    return Performance(
        tuple(_latency(timed, names)),
        _bars("Time over that of the first backend", timed, names, "ratio", 1.0),
        _bars("Share of the copy's bandwidth", timed, names, "share", 1.0),
        plots.key(names),
        tuple(_numbers(title, record) for title, record in timed),
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
        if (number(record, "tokens") or 0) > 0 and (number(record, "median_s") or 0) > 0:
            which = ("sequences", "element_type", "block_size", "width")
            kind = (record.workload.partition("[")[0], *(_plain(record.numbers.get(name)) for name in which))
            kinds[kind].append((title, record))
    for (workload, sequences, element_type, block_size, width), records in kinds.items():
        series: dict[str, list[plots.Point]] = {name: [] for name in names}
        copy: dict[float, plots.Point] = {}
        for title, record in records:
            tokens, median = number(record, "tokens") or 0.0, number(record, "median_s") or 0.0
            point = plots.Point(tokens, median, number(record, "low_s"), number(record, "high_s"))
            series[_backend(title, record)].append(point)
            moved, speed = number(record, "bytes"), number(record, "copy_bytes_per_s")
            if moved and speed:
                copy[tokens] = plots.Point(tokens, moved / speed)
        if len({point.tokens for points in series.values() for point in points}) > 1:
            title = f"{workload}: {sequences} sequences, {element_type}, blocks of {block_size}, width {width}"
            yield title, plots.latency(title, series, list(copy.values()))


def _bars(
    title: str, timed: Sequence[tuple[str, PerfRecord]], names: Sequence[str], what: str, mark: float
) -> Markup | None:
    """A picture of one number, workload by workload; the first backend's ratio to itself is left out."""
    groups: dict[str, list[plots.Bar]] = defaultdict(list)
    for column, record in timed:
        value, says = number(record, what), _plain(record.numbers.get("ratio_says"))
        if value is None or value < 0 or (what == "ratio" and not says):
            continue
        backend = _backend(column, record)
        text = f"{value:.3g} {says}" if what == "ratio" else f"{value:.3g}"
        groups[record.workload].append(plots.Bar(backend, value, text, names.index(backend)))
    return plots.bars(title, groups, mark=mark) if groups else None


def _numbers(title: str, record: PerfRecord) -> tuple[str, ...]:
    def shown(name: str, unit: str = "", size: float = 1.0, form: str = ".3g") -> str:
        value = number(record, name)
        return "" if value is None else f"{value / size:{form}}{unit}"

    def time(name: str) -> str:
        value = number(record, name)
        return "" if value is None else plots.duration(value)

    tokens, low, high = number(record, "tokens"), time("low_s"), time("high_s")
    slope, least, most = shown("growth"), shown("growth_low"), shown("growth_high")
    return (
        record.workload,
        _backend(title, record),
        "" if tokens is None else plots.tokens_text(tokens),
        shown("sequences"),
        _plain(record.numbers.get("element_type")),
        shown("block_size"),
        time("median_s"),
        f"{low} to {high}" if low and high else "",
        shown("bytes_per_s", " GB/s", 1e9),
        shown("share"),
        _ratio(record),
        shown("peak_bytes", " MiB", 2**20),
        f"{slope} ({least} to {most})" if slope and least and most else slope,
        record.says,
    )


def _ratio(record: PerfRecord) -> str:
    """Time over that of the first backend, what the test says of it, and how likely it would be by chance."""
    value, p = number(record, "ratio"), number(record, "ratio_p")
    says = _plain(record.numbers.get("ratio_says"))
    parts = ["" if value is None else f"{value:.3g}", says, "" if p is None else f"(p {p:.2g})"]
    return " ".join(part for part in parts if part)


def _plain(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
