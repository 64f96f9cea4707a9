"""Perf records as a table: what was timed, how sure that is, and what could not be told."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from conformance.record.log import Log, PerfRecord
from conformance.reporting.plots import duration

HEADS = ("workload", "backend", "median", "99 % interval", "tokens/s", "GB/s", "of a copy", "ratio", "peak", "growth")


def timings(records: Sequence[PerfRecord], format: str = "simple") -> str:
    """All perf records, one row each; what could not be told stands below."""
    notes: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record.says:
            notes.setdefault((record.workload, record.says), []).append(str(record.numbers.get("backend", "")))
    rows = [_row(record) for record in records]
    text = tabulate(rows, HEADS, tablefmt=format, disable_numparse=True, stralign="left")
    bullet = "- " if format == "github" else ""
    lines = [f"{bullet}{workload}: {says} ({'; '.join(names)})" for (workload, says), names in notes.items()]
    return "\n\n".join([text, *(["\n".join(lines)] if lines else [])])


def _row(record: PerfRecord) -> list[str]:
    def shown(name: str, form: str = ".3g", size: float = 1.0, unit: str = "") -> str:
        value = record.numbers.get(name)
        return f"{value / size:{form}}{unit}" if isinstance(value, int | float) else ""

    def span(name: str) -> str:
        value = record.numbers.get(name)
        return duration(value) if isinstance(value, int | float) else ""

    low, high = span("low_s"), span("high_s")
    slope = shown("growth", ".3f")
    if slope and record.numbers.get("growth_low") is not None:
        slope += f" ({shown('growth_low', '.2f')} to {shown('growth_high', '.2f')})"
    return [
        record.workload,
        str(record.numbers.get("backend", "")),
        span("median_s") or "-",
        f"{low} to {high}" if low else "",
        shown("tokens_per_s"),
        shown("bytes_per_s", ".3g", 1e9),
        shown("share", ".2f"),
        f"{shown('ratio')} {record.numbers.get('ratio_says') or ''}".strip(),
        shown("peak_bytes", ".3g", 2**20, " MiB"),
        slope,
    ]


def of_logs(logs: Sequence[Log], format: str = "simple") -> str:
    """The records of all logs, workload by workload; empty when there is none."""
    records = [record for log in logs for record in log.perf]
    order = list(dict.fromkeys(record.workload for record in records))
    return timings(sorted(records, key=lambda record: order.index(record.workload)), format) if records else ""
