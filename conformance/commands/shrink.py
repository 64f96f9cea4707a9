"""`shrink`: a failing case of a log made as small and plain as it can be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.commands.options import POSITIVE, described_option

if TYPE_CHECKING:
    from conformance.judging.outcome import Outcome
    from conformance.record.recorded import Recorded
    from conformance.running.cases import CaseBench
    from conformance.spec.case import Case
    from conformance.spec.operation import Operation

SECONDS = 60.0


@click.command("shrink")
@click.argument("log", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("case_id", metavar="CASE")
@click.option("-b", "--backend", "connect", default="", metavar="CONNECT", help="Backend to run  [default: the log's]")
@click.option("--seconds", type=POSITIVE, default=SECONDS, metavar="S", show_default=True,
              help="Time after which the smallest case so far is taken.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Log to write with the small case, for repro, promote and run --from-log.")  # fmt: skip
@described_option
def command(log: Path, case_id: str, connect: str, seconds: float, output: Path | None) -> int:
    """Run ever smaller cases as long as they fail in the same way as CASE does, and print the smallest as YAML.

    The same way means the same clause, output, and region or kind of failure. A case that fails after others only is
    run after them, every time in a fresh process.
    """
    from conformance.errors import UsageError
    from conformance.failures.shrink import failing, shrink
    from conformance.library.writing import as_yaml
    from conformance.record.recorded import recorded
    from conformance.running.cases import CaseBench, Setup

    found = recorded(log, case_id)
    if output and output.exists():
        raise UsageError(f"{output}: is there already; give another name")
    operation = found.operation
    setup = Setup(
        connect or found.connect, dict(found.log.header.readings), operation, isolate=bool(found.outcome.lost)
    )
    warnings = found.outcome.status == "quality-warning"
    started = time.perf_counter()
    with closing(CaseBench(setup)) as here:
        try:
            run = partial(after, here, found.before) if found.before else here.run
            small = shrink(found.case, failing(run, warnings=warnings), operation, seconds=seconds)
        except ValueError:
            raise UsageError(
                f"{case_id} does not fail on {setup.connect} when it is run alone, so there is nothing to shrink; "
                f"in the log: {found.outcome.reason}"
            ) from None
        case = renamed(small.case, found.case)
        took = time.perf_counter() - started
        click.echo(f"# {setup.connect}: {', '.join(part for part in small.signature if part)}")
        if found.before:
            click.echo(f"# run after: {', '.join(found.outcome.after)}")
        click.echo(f"# before: {size(found.case, operation)}")
        click.echo(f"# after:  {size(case, operation)}")
        unfinished = "" if small.finished else "; time is up, it may be possible to make it smaller"
        click.echo(f"# {small.trials} trials in {took:.1f} s{unfinished}")
        click.echo(as_yaml(case, operation))
        if output:
            click.echo(f"# log: {write(output, found, setup.connect, here, case)}")
    return 0


def after(here: CaseBench, before: Sequence[Case], case: Case) -> Outcome:
    """The outcome of a case after others, in a fresh process."""
    return here.retry((*before, case))


def renamed(case: Case, original: Case) -> Case:
    """The case under a name of its own, unless nothing was changed."""
    import msgspec

    if case.digest == original.digest:
        return original
    return msgspec.structs.replace(case, id=f"shrunk/{case.digest}", says=f"Shrunk from {original.id}.", place="")


def size(case: Case, operation: Operation) -> str:
    """How large a case is, in words."""
    import math

    from conformance.spec.case import summary
    from conformance.spec.geometry import Geometry

    elements = sum(math.prod(shape) for shape in Geometry(case, operation).shapes.values())
    parts = [f"{elements:,} elements"]
    for one, many, number in (
        ("stream", "streams", len(case.streams)),
        ("relation", "relations", len(case.relations)),
        ("audit", "audits", len(case.audits)),
    ):
        if number:
            parts.append(f"{number} {one if number == 1 else many}")
    return f"{', '.join(parts)}; {summary(case, operation)}"


def write(path: Path, found: Recorded, connect: str, here: CaseBench, case: Case) -> Path:
    """A log with one case, and those that come before it; seed and number of a generated one stay. Gives its path."""
    import msgspec

    from conformance.library.reading import load_library
    from conformance.record.log import CaseRecord, Footer, LogWriter, ResultRecord, count, verdict
    from conformance.running.run import Plan, header
    from conformance.spec.case import summary

    library = load_library(found.operation.operation)
    plan = Plan(
        connect, (*found.before, case), complete=False, filters={"shrink": found.case.id}, readings=here.setup.readings
    )
    head = header(plan, library, here.info, more=here.ready.environment, seed=found.log.header.seed)
    outcomes = [after(here, (), one) for one in found.before]
    if found.before:
        shared = msgspec.structs.replace(
            after(here, found.before, case),
            clause=found.outcome.clause, kind=found.outcome.kind, after=found.outcome.after,
        )  # fmt: skip
        outcomes.append(shared)
    else:
        outcomes.append(here.run(case))
    counts = count(outcomes)
    example = found.log.results[found.case.id].example
    with LogWriter(path) as writer:
        writer.write(head)
        for one, outcome in zip((*found.before, case), outcomes, strict=True):
            writer.write(CaseRecord(outcome.digest, summary(one, library.operation), one))
            writer.write(ResultRecord(outcome, example=example if one is case else ""))
        verdicts, seconds = sum(o.verdicts for o in outcomes), sum(o.seconds for o in outcomes)
        writer.write(Footer(counts, verdicts, seconds, verdict(counts, complete=False)))
    return writer.path or path
