"""Perf records as tables, one a workload: what was timed, how sure that is, and what could not be told."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from conformance.record.log import Log, PerfRecord
from conformance.reporting.plots import duration

HEADS = ("backend", "time", "ratio", "99 % interval", "of a copy", "GB/s", "peak")
BUSY = "~"  # before a time that was taken on a busy machine
NAME = 40  # characters of a backend's name, so that a row fits into 120
LEGEND = f"{BUSY} the machine was busy: the time is that of its quietest moments, the ratio that of paired samples."


def timings(records: Sequence[PerfRecord], format: str = "simple") -> str:
    """All perf records, a table for each workload, with notes below on what is to be said of them."""
    parts = [_workload(workload, own, format) for workload, own in _grouped(records).items()]
    marked = any(record.numbers.get("busy") for record in records)
    return "\n\n".join([*parts, *([LEGEND] if marked else [])])


def _grouped(records: Sequence[PerfRecord]) -> dict[str, list[PerfRecord]]:
    found: dict[str, list[PerfRecord]] = {}
    for record in records:
        found.setdefault(record.workload, []).append(record)
    return found


def _workload(name: str, records: Sequence[PerfRecord], format: str) -> str:
    table = tabulate([_row(r) for r in records], HEADS, tablefmt=format, disable_numparse=True, stralign="left")
    markdown = format == "github"
    lines = [f"{'- ' if markdown else ''}{backend}: {text}" for r in records for backend, text in _notes(r)]
    title = f"### {name}\n" if markdown else name
    return "\n".join([title, table, *(["", *lines] if lines and markdown else lines)])


def _notes(record: PerfRecord) -> list[tuple[str, str]]:
    backend, numbers = str(record.numbers.get("backend", "")), record.numbers
    notes = [(backend, record.says)] if record.says else []
    slope = numbers.get("growth")
    if isinstance(slope, float):
        low, high = numbers.get("growth_low"), numbers.get("growth_high")
        span = f" ({low:.2f} to {high:.2f})" if isinstance(low, float) and isinstance(high, float) else ""
        notes.append((backend, f"time grows with the size to the power of {slope:.3f}{span}"))
    return notes


def _row(record: PerfRecord) -> list[str]:
    def shown(name: str, form: str = ".3g", size: float = 1.0, unit: str = "") -> str:
        value = record.numbers.get(name)
        return f"{value / size:{form}}{unit}" if isinstance(value, int | float) else ""

    backend = str(record.numbers.get("backend", ""))
    time = record.numbers.get("fast_s", record.numbers.get("median_s"))  # logs of 0.1.0 have the median alone
    mark = BUSY if record.numbers.get("busy") else ""
    interval = f"{shown('ratio_low')} to {shown('ratio_high')}" if record.numbers.get("ratio_low") else ""
    return [
        backend if len(backend) <= NAME else f"{backend[: NAME - 1]}…",
        f"{mark}{duration(time)}" if isinstance(time, int | float) else "-",
        f"{shown('ratio')} {record.numbers.get('ratio_says') or ''}".strip(),
        interval,
        shown("share", ".2f"),
        shown("bytes_per_s", ".3g", 1e9),
        shown("peak_bytes", ".3g", 2**20, " MiB"),
    ]


def of_logs(logs: Sequence[Log], format: str = "simple") -> str:
    """The records of all logs, workload by workload; empty when there is none."""
    records = [record for log in logs for record in log.perf]
    return timings(records, format) if records else ""
