"""`perf`: conformant backends timed side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from conformance.backends.protocol import close
from conformance.commands.options import POSITIVE, operation_option
from conformance.errors import UsageError
from conformance.library.reading import load_library
from conformance.record.log import Log, LogWriter, PerfRecord, file_name, read_log
from conformance.reporting.progress import steps
from conformance.reporting.table import readings
from conformance.reporting.timings import timings
from conformance.spec.operation import Operation
from conformance.timing import contenders, perf, permitted, sampling
from conformance.timing.workloads import Workload, bytes_to_move, choose, load_workloads

SECONDS = 2.0  # for a workload, all backends together


@click.command("perf")
@click.option("-b", "--backend", "backends", multiple=True, metavar="CONNECT",
              help="Backend to time; repeatable. Ratios are to the first.")  # fmt: skip
@operation_option
@click.option("--workload", "names", multiple=True, metavar="NAME", help="Workload, with * and ?; repeatable.")
@click.option("--quick", is_flag=True, help="Only the small workloads.")
@click.option("--list", "listing", is_flag=True, help="List the workloads and leave.")
@click.option("--threads", type=click.IntRange(1), default=None, metavar="T", help="CPUs to use; all by default.")
@click.option("--seconds", type=POSITIVE, default=SECONDS, show_default=True,
              help="Time for a workload, all backends together.")  # fmt: skip
@click.option("--noise-limit", type=POSITIVE, default=perf.NOISE, show_default=True,
              help="Interquartile range over median beyond which a time is marked.")  # fmt: skip
@click.option("--conformance", "logs", type=click.Path(path_type=Path, dir_okay=False), multiple=True, metavar="LOG",
              help="Log of a complete run, instead of a quick run before timing; repeatable.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for the logs.")
def command(
    backends: tuple[str, ...],
    operation: str,
    names: tuple[str, ...],
    quick: bool,
    listing: bool,
    threads: int | None,
    seconds: float,
    noise_limit: float,
    logs: tuple[Path, ...],
    output: Path | None,
) -> int:
    """Time conformant backends side by side: latency, bandwidth, growth.

    A backend that is not conformant is refused. Samples of all backends are taken in turn. A time is the fastest tenth
    of them, marked where the machine was busy; a ratio is the median over paired samples, with its bootstrap interval,
    and relative to the first backend. "Of a copy" is the bytes that must be moved per second, over those of a plain
    copy of the largest input by as many threads. "Peak" is how much resident memory grew during the first call (inputs
    were already resident).

    Exit code 0: timed; 1: a backend is not conformant; 2: wrong usage; 3: a backend cannot be used; 4: nothing could be
    timed.
    """
    library = load_library(operation)
    chosen = choose(load_workloads(library.operation), names, quick=quick)
    if listing:
        for workload in chosen:
            moved = bytes_to_move(workload.case, library.operation)
            click.echo(f"{workload.id:40} {moved:>13,} bytes  {workload.says}")
        return 0
    if not backends:
        raise UsageError("name a backend to time: qsa-conformance perf -b CONNECT")
    if twice := next((one for one in backends if backends.count(one) > 1), ""):
        raise UsageError(f"'{twice}' is named twice")
    given = [read_log(path) for path in logs]
    for log in given:
        if log.header.backend.connect not in backends:
            raise UsageError(f"{log.path} is of {log.header.backend.connect}, which is not timed here")
    conformant: list[Log] = []
    with sampling.limited_to(threads) as count:
        with steps("conformance") as say:
            for connect in backends:
                say(connect)
                try:
                    conformant.append(permitted.check_conformance(connect, library, given))
                except permitted.Refused as refused:
                    click.echo(str(refused), err=True)
                    return 1
        limits = perf.Limits(noise=noise_limit)
        records, paths = side_by_side(library.operation, backends, chosen, conformant, output, count, seconds, limits)
    click.echo(timings(records))
    click.echo(f"\n{count} threads. {_grounds(conformant)}")
    for path in paths:
        click.echo(f"log: {path}")
    return 0 if any("fast_s" in record.numbers for record in records) else 4


def side_by_side(
    operation: Operation,
    connects: Sequence[str],
    chosen: tuple[Workload, ...],
    conformant: list[Log],
    output: Path | None,
    threads: int,
    seconds: float = SECONDS,
    limits: perf.Limits | None = None,
) -> tuple[list[PerfRecord], list[Path]]:
    """Time the workloads on backends whose complete logs are given; the records, and the logs that were written."""
    found = contenders.contenders(connects, threads, operation.operation)
    try:
        bench = perf.Bench(
            operation,
            [one for _, contenders in found for one in contenders],
            threads,
            seconds,
            limits or perf.Limits(),
            copy=contenders.copy_of([backend for backend, _ in found], threads),
        )
        return timed(bench, chosen, conformant, output)
    finally:
        for backend, _ in found:
            close(backend)


def timed(
    bench: perf.Bench, chosen: tuple[Workload, ...], conformant: list[Log], output: Path | None
) -> tuple[list[PerfRecord], list[Path]]:
    """All records; each goes to its backend's log as it comes, after the results that the backend is conformant by."""
    paths: list[Path] = []
    writers: dict[str, LogWriter] = {}
    for log in conformant:
        connect = log.header.backend.connect
        path = output / f"{file_name(connect)}.perf.jsonl" if output else None
        writers[connect] = writer = LogWriter(path)
        path = writer.path
        writer.write(msgspec.structs.replace(log.header, argv=tuple(sys.argv[1:]), started=bench.started))
        for name, case in log.cases.items():
            writer.write(case)
            writer.write(log.results[name])
        paths += [path] if path else []
    records: list[PerfRecord] = []
    try:
        with steps("perf") as say:
            say(chosen[0].id)
            for contender, record in bench.records(chosen):
                say(record.workload)
                records.append(record)
                writers[contender.connect].write(record)
        for log in conformant:
            if log.footer:
                writers[log.header.backend.connect].write(log.footer)
    finally:
        for writer in writers.values():
            writer.close()
    return records, paths


def _grounds(conformant: list[Log]) -> str:
    complete = [_under(log) for log in conformant if log.header.complete]
    quick = [log.header.backend.connect for log in conformant if not log.header.complete]
    parts = [f"Conformant by a complete run: {', '.join(complete)}."] * bool(complete)
    parts += [f"Conformant as far as a quick run tells: {', '.join(quick)}."] * bool(quick)
    return " ".join(parts)


def _under(log: Log) -> str:
    told = readings(log)
    return log.header.backend.connect + (f" (under {told})" if told else "")
