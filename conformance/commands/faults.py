"""`faults`: the kill matrix of cases and faults."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from conformance.commands.options import operation_option

if TYPE_CHECKING:
    from conformance.faults.entry import Entry
    from conformance.faults.matrix import Matrix
    from conformance.library.reading import Library

SHOWN = 12
EVERY = 12  # one fault in so many has its explanation measured


@click.command("faults")
@click.option("-k", "expression", default="", metavar="EXPR",
              help="Entries whose kind, id and topic match, like pytest's -k.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="A table to read, or JSON with every entry.")  # fmt: skip
@click.option("--fast", is_flag=True, help="Stop at the first case that kills a fault.")
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes.  [default: the CPUs]")
@click.option("--scheduler", default="", metavar="ADDRESS", help="Run on the workers of a Dask scheduler.")
@click.option("--list", "listing", is_flag=True, help="List the catalogue and run nothing.")
@click.option("--explanations", is_flag=True,
              help="Measure how well failures are explained, with each fault's own entry and without.")  # fmt: skip
@click.option("--every", type=click.IntRange(min=1), default=EVERY, show_default=True, metavar="N",
              help="With --explanations, one fault in so many.")  # fmt: skip
@click.option("--probes", is_flag=True, hidden=True, help="Of earlier versions; nothing has to be worked out any more.")
@click.option("--show", type=int, default=SHOWN, show_default=True, metavar="N", help="Lines to print of every list.")
@operation_option
def command(
    expression: str,
    form: str,
    fast: bool,
    jobs: int | None,
    scheduler: str,
    listing: bool,
    explanations: bool,
    every: int,
    probes: bool,
    show: int,
    operation: str,
) -> int:
    """Plant every fault of the catalogue, and say which cases kill it; run the conforming variants, too.

    Exit code 1 when a fault survives, a variant is failed, or a case does not kill what it says it kills. Without
    --fast every case is run on every fault; what relations and generator each kill on their own is reported, too.
    With --explanations: 1 when a fault is taken for another, fewer than 95 % are named, or more than 5 % are taken for
    another while their own entries are left out.
    """
    from conformance.faults import matrix
    from conformance.library.reading import load_library
    from conformance.running.place import cores

    if probes:
        click.echo("nothing to work out: diagnose runs the library itself")
        return 0
    library = load_library(operation)
    entries = chosen(expression, library.operation.operation)
    if listing:
        click.echo(catalogue_json(entries) if form == "json" else catalogue_table(entries))
        return 0
    if explanations:
        return explained(library, [entry for entry in entries if entry.kind == "fault"][::every])
    started = time.perf_counter()
    with progress("faults") as advance:
        found = matrix.compute(
            library, entries, whole=not fast, jobs=jobs or cores(), scheduler=scheduler, advance=advance
        )
    seconds = time.perf_counter() - started
    if form == "json":
        click.echo(json.dumps({**matrix.as_plain(found), "seconds": round(seconds, 1)}, indent=1))
    else:
        click.echo(table(found, show))
        click.echo(f"\n{summary(found, seconds)}")
    return 0 if found.good else 1


def explained(library: Library, faults: list[Entry]) -> int:
    """The figures of explanations; 0 when they are good enough."""
    from conformance.failures.measure import measure
    from conformance.reporting.progress import steps

    started = time.perf_counter()
    with steps("explaining") as advance:
        figures = measure(library, faults, advance=advance)
    click.echo(figures.text)
    click.echo(f"{library.operation.operation}, {time.perf_counter() - started:.0f} s")
    return 0 if figures.good else 1


def chosen(expression: str, operation: str | None = None) -> list[Entry]:
    """The entries of one operation, or of all, that an expression matches. Raises `UsageError` when none does."""
    from conformance.errors import UsageError, nearest
    from conformance.faults import catalogue
    from conformance.library.selection import matcher

    everything = catalogue.entries(operation=operation)
    if not expression:
        return list(everything)
    test = matcher(expression)
    some = [entry for entry in everything if test(f"{entry.connect} {entry.topic}")]
    if not some:
        hint = nearest(expression.rpartition(":")[2], [entry.id for entry in everything])
        raise UsageError(f"no fault or variant matches '{expression}'{hint}; see: qsa-conformance faults --list")
    return some


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """A function to call with how much of how much is done; None unless the error stream is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def catalogue_table(entries: list[Entry]) -> str:
    """The catalogue, one line an entry."""
    from tabulate import tabulate

    rows = [
        (entry.connect, " ".join(entry.clauses), " ".join(entry.element_types), len(entry.reports), entry.says)
        for entry in entries
    ]
    heads = ["connect", "clauses", "types", "reports", "says"]
    return tabulate(rows, heads, maxcolwidths=[None, 20, None, None, 90])


def catalogue_json(entries: list[Entry]) -> str:
    """The catalogue as JSON."""
    names = ("kind", "id", "says", "topic", "clauses", "reports", "element_types", "reading")
    return json.dumps([{name: getattr(entry, name) for name in names} for entry in entries], indent=1)


def table(found: Matrix, show: int) -> str:
    """Faults with their kills, variants, and what is wrong."""
    from tabulate import tabulate

    from conformance.faults.entry import ELEMENT_TYPES

    parts = []
    if found.faults:
        rows = []
        for entry in found.faults:
            kills = found.kills.get(entry.id, ())
            types = [T for T in ELEMENT_TYPES if any(case.element_type == T for case in kills)]
            alone = "".join(name[0] if entry.id in ids else "-" for name, ids in found.layers.items())
            rows.append(
                [
                    entry.id,
                    (len(kills) if found.whole else "yes") if kills else "SURVIVES",
                    *([alone] if found.whole else []),
                    " ".join(types),
                    kills[0].id if kills else "",
                    entry.says,
                ]
            )
        heads = ["fault", "kills", *(["alone"] if found.whole else []), "in", "first", "says"]
        widths = [None, None, *([None] if found.whole else []), None, 44, 70]
        parts.append(tabulate(rows, heads, maxcolwidths=widths, disable_numparse=True))
    if found.variants:
        rows = [
            [
                entry.id,
                "FAILED" if entry.id in found.alarms else "conformant",
                *(f"{found.headroom.get(entry.id, {}).get(T, 0):.2f}" for T in ELEMENT_TYPES),
                entry.says,
            ]
            for entry in found.variants
        ]
        heads = ["variant", "", *ELEMENT_TYPES, "says"]
        parts.append(tabulate(rows, heads, maxcolwidths=[None] * 5 + [80], disable_numparse=True))
        parts.append("The numbers of a variant are the largest error / bound.")
    for entry in found.false_alarms:
        parts += [
            f"variant {entry.id} is failed by {alarm.case}, {alarm.where}: {alarm.reason}"
            for alarm in found.alarms[entry.id][:show]
        ]
    for claim in found.wrong_claims[:show]:
        parts.append(f"{claim.place}: says it kills {claim.fault}, and does not")
    if found.whole:
        parts.append(
            listed(
                "written cases that kill nothing that others do not kill (candidates for removal)",
                found.candidates,
                show,
            )
        )
        parts.append(listed("written cases that kill nothing", found.idle, show))
        unseen = [(entry.id, found.not_killed_in(entry)) for entry in found.faults if found.not_killed_in(entry)]
        lines = [f"{id} in {' '.join(types)}" for id, types in unseen]
        parts.append(listed("faults not killed in a type in which they can show", lines, show))
    return "\n\n".join(parts)


def listed(title: str, places: list[str], show: int) -> str:
    """The first places under a title with their number."""
    rest = [f"  ... and {len(places) - show} more; --format json lists them"] if len(places) > show else []
    return "\n".join([f"{len(places)} {title}", *(f"  {place}" for place in places[:show]), *rest])


def summary(found: Matrix, seconds: float) -> str:
    """The numbers, and the survivors by name."""
    total = len(found.faults)
    survivors = [entry.id for entry in found.survivors]
    lines = [
        f"{total - len(survivors)} of {total} faults killed by {len(found.library.cases)} cases, "
        f"library {found.library.digest}; {len(found.false_alarms)} of {len(found.variants)} variants failed"
    ]
    if found.whole:
        alone = ", ".join(f"{name} {len(ids)}" for name, ids in found.layers.items())
        lines.append(f"killed by one layer alone, of {total}: {alone}")
    if survivors:
        lines.append(f"survivors: {', '.join(survivors)}")
    if found.wrong_claims:
        lines.append(f"{len(found.wrong_claims)} claims of cases do not hold")
    lines.append(f"{'whole' if found.whole else 'fast'} form, {seconds:.0f} s")
    return "\n".join(lines)
