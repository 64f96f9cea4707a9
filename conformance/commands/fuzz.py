"""`fuzz`: generated examples with all relations, until something is found or the budget is used up."""

from __future__ import annotations

import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.commands.options import POSITIVE, isolation_options, operation_option, reading_options

if TYPE_CHECKING:
    from conformance.fuzzing.campaign import Campaign, Ledger
    from conformance.library.reading import Library
    from conformance.record.log import Header
    from conformance.running.cases import Setup
    from conformance.running.place import Isolation, Place, Ready

EXPLANATION = 10.0  # seconds given to explaining what was found
EXAMPLES = 1000  # when neither a number nor a time is given
LOGS_KEPT = 12  # in the user's cache, of campaigns without a folder of their own


def _shard(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    from conformance.errors import UsageError

    index, slash, shards = value.partition("/")
    if not (slash and index.isdecimal() and shards.isdecimal() and 1 <= int(index) <= int(shards)):
        raise UsageError(f"--shard {value}: write I/N with I from 1 to N, for example 2/4")
    return int(index), int(shards)


@click.command("fuzz")
@click.option("-b", "--backend", "connect", required=True, metavar="CONNECT", help="Backend to run.")
@click.option("--examples", type=click.IntRange(1), metavar="N", help=f"Examples to run.  [default: {EXAMPLES}]")
@click.option("--seconds", type=POSITIVE, metavar="S", help="Run for S seconds instead of N examples.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="K",
    help="Random seed; the same seed gives the same examples  [default: random].",
)
@click.option("--keep-going", is_flag=True, help="Do not stop at the first failure.")
@click.option("--shard", default="1/1", callback=_shard, metavar="I/N", help="Only the I-th of N parts.")
@click.option("--fresh", is_flag=True, help="Ignore, and do not update, the failures kept from earlier campaigns.")
@click.option("--wear", "worn", type=click.IntRange(1), metavar="N",
              help="Call one session N times with few shapes instead (100000), and look for change.")  # fmt: skip
@operation_option
@isolation_options
@reading_options
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for the log.")
def command(
    connect: str,
    examples: int | None,
    seconds: float | None,
    seed: int | None,
    keep_going: bool,
    shard: tuple[int, int],
    fresh: bool,
    worn: int | None,
    operation: str,
    isolation: Isolation,
    readings: dict[str, str],
    output: Path | None,
) -> int:
    """Run generated examples on a backend, with all relations between calls, and sort what fails.

    Stops at the first failure unless it is told to keep going. Every example is in the log, whose name is printed; the
    logs of all shards of a campaign make one report. Exit code 0: nothing failed; 1: something did; 4: interrupted.
    """
    from conformance.backends.embedded import usual_readings
    from conformance.errors import UsageError
    from conformance.fuzzing.campaign import Campaign
    from conformance.library.operations import load_operation

    if examples and seconds:
        raise UsageError("give --examples or --seconds, not both")
    if worn:
        spread = isolation.isolate or isolation.jobs > 1 or isolation.scheduler
        if examples or seconds or readings or output or spread:
            raise UsageError("--wear calls one session in this process: give it a backend and a seed only")
        return wear(connect, worn, secrets.randbelow(1 << 32) if seed is None else seed, operation)
    campaign = Campaign(
        connect,
        seed=secrets.randbelow(1 << 32) if seed is None else seed,
        examples=0 if seconds else examples or EXAMPLES,
        seconds=seconds or 0.0,
        shard=shard,
        keep_going=keep_going,
        readings=readings or usual_readings(connect, load_operation(operation).operation),
        isolation=isolation,
        operation=operation,
    )
    if campaign.examples and not campaign.planned:
        from conformance.fuzzing.rounds import ROUND

        click.echo(f"shard {shard[0]}/{shard[1]} has nothing to do: examples are dealt out by the {ROUND}")
        return 0
    click.echo(f"{connect}: seed {campaign.seed}")
    return run(campaign, None if fresh else connect, output)


def wear(connect: str, calls: int, seed: int, name: str) -> int:
    """Wear one session of a backend, and say whether its answers changed."""
    from conformance.backends.connect import usable
    from conformance.fuzzing import wear as worn
    from conformance.library.operations import load_operation

    operation = load_operation(name)
    backend, info = usable(connect, operation=operation.operation)
    result = worn.wear(operation, backend, info, calls=calls, seed=seed)
    rate = f"{result.calls / result.seconds:,.0f} a second" if result.seconds else "none worn"
    click.echo(f"{connect}: {result.calls:,} calls of one session with {len(result.cases)} shapes, {rate}, seed {seed}")
    if result.good:
        click.echo(f"nothing changed; resident memory grew by {result.grown / 2**20:.1f} MiB")
        return 0
    at = f"call {result.call:,} of {calls:,}, " if result.call else ""
    click.echo(f"{at}{result.case}: {result.reason}")
    asked = f"--wear {calls} --seed {seed}{named(name)}"
    click.echo(f"to repeat: qsa-conformance fuzz -b {shlex.quote(connect)} {asked}")
    return 1


def run(campaign: Campaign, saved: str | None, folder: Path | None) -> int:
    """Conduct a campaign here, in processes, or on a cluster; print what came out."""
    from conformance.fuzzing.campaign import Ledger, RoundWork, conduct, log_path
    from conformance.library.reading import load_library
    from conformance.record.kept import Saved
    from conformance.record.log import LogWriter, file_name
    from conformance.running.cases import Setup
    from conformance.running.place import place

    library = load_library(campaign.operation)
    path = log_path(folder or cache(), campaign, file_name(campaign.connect))
    isolation = replace(campaign.isolation, jobs=campaign.isolation.jobs or 1)
    setup = Setup(campaign.connect, campaign.readings, library.operation, isolation.limits, isolation.isolate)
    with closing(place(RoundWork(setup, campaign.seed), isolation)) as there:
        head = header(campaign, library, there.ready)
        with LogWriter(path) as writer, progress(campaign) as watch, interrupted_by_termination():
            path = writer.path or path
            writer.write(head)
            store = Saved(f"{saved} for {library.operation.operation}") if saved else None
            ledger = Ledger(campaign, library.operation, writer, store, watch)
            try:
                conduct(campaign, there, ledger)
                ledger.stop()
                ledger.explain(explanations(library, campaign, setup, there, ledger))
                ledger.close()
                finished = True
            except KeyboardInterrupt:
                finished = False
            ledger.stop()
    show(ledger, head, path, finished=finished)
    if ledger.findings:
        return 1
    return 0 if finished else 4


def named(operation: str) -> str:
    """The option that names an operation, where it is not the default."""
    from conformance.reporting.repeating import operation_option

    return operation_option(operation)


def explanations(library: Library, campaign: Campaign, setup: Setup, there: Place, ledger: Ledger) -> Mapping[str, str]:
    """What the smallest failures of every kind look like, by case, as far as a known mistake explains them."""
    found = [finding.example for finding in ledger.findings if not finding.example.outcome.lost]
    if not found or campaign.readings or campaign.isolation.scheduler:
        return {}
    from conformance.failures.explain import explain, texts
    from conformance.reporting.progress import steps
    from conformance.running.cases import once_more

    info = there.ready.backend
    with steps("looking for the mistake") as advance, once_more(setup, there.backend, ledger.outcomes) as backend:
        cases = {example.case.id: example.case for example in found}
        failures = [example.outcome for example in found]
        return texts(explain(library, backend, info, failures, cases=cases, seconds=EXPLANATION, advance=advance))


def header(campaign: Campaign, library: Library, ready: Ready) -> Header:
    """The first line of the log."""
    import msgspec

    from conformance.running import run as runner

    budget = {"--seconds": f"{campaign.seconds:g}"} if campaign.seconds else {"--examples": str(campaign.examples)}
    plan = runner.Plan(
        campaign.connect, (), complete=False, filters={"fuzz": "yes", **budget}, readings=campaign.readings
    )
    shard = "{}/{}".format(*campaign.shard) if campaign.shard[1] > 1 else ""
    head = runner.header(plan, library, ready.backend, more=ready.environment, seed=campaign.seed, shard=shard)
    return msgspec.structs.replace(head, cases=campaign.planned)


def cache() -> Path:
    """The folder for logs in the user's cache, with the oldest ones removed."""
    from platformdirs import user_cache_path

    folder = user_cache_path("qsa-conformance") / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.jsonl"), key=lambda p: p.stat().st_mtime, reverse=True)[LOGS_KEPT:]:
        path.unlink(missing_ok=True)
    return folder


@contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """A request to terminate ends a campaign as Ctrl-C does."""

    from conformance.judging.border import interrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show(ledger: Ledger, head: Header, path: Path, *, finished: bool) -> None:
    """What came out of a campaign, in a few lines, and the failures by kind."""
    from conformance.fuzzing.rounds import describe, merged_headroom
    from conformance.record.log import count
    from conformance.reporting.table import repeat_of

    outcomes, campaign = ledger.outcomes, ledger.campaign
    number, seconds = len(outcomes), ledger.seconds
    counts = {status: n for status, n in count(outcomes).items() if n}
    click.echo(
        f"{number:,} examples in {seconds:.1f} s, {number / max(seconds, 1e-9):.0f} a second; "
        + ", ".join(f"{n:,} {status}" for status, n in counts.items())
    )
    top = merged_headroom(outcomes)
    if top:
        shown = ", ".join(f"{clause} {ratio:.2f}" for clause, ratio in sorted(top.items(), key=lambda item: -item[1]))
        click.echo(f"largest error / bound: {shown}")
    if not finished:
        click.echo("interrupted; what was run is in the log")
    log = ledger.log(head, None)
    for finding in ledger.findings:
        click.echo("\n" + describe(finding, ledger.operation))
        looks = ledger.results[finding.example.key].diagnosis
        if looks:
            click.echo(f"    {looks}")
        click.echo(f"    {repeat_of(log, finding.example.outcome)}")
        for verb in ("shrink", "repro"):
            click.echo(f"    qsa-conformance {verb} {shlex.quote(str(path))} {finding.example.case.id}")
    if not ledger.findings and finished:
        click.echo("nothing failed")
    again = f"qsa-conformance fuzz -b {shlex.quote(campaign.connect)} --seed {campaign.seed}"
    if campaign.examples:
        again += f" --examples {campaign.examples}"
    if head.shard:
        again += f" --shard {head.shard}"
    if campaign.keep_going:
        again += " --keep-going"
    again += named(campaign.operation)
    click.echo(f"\nlog: {path}\nto repeat: {again}")


def progress(campaign: Campaign) -> Any:
    """A context that gives a function to call for every example; it says what is new, on a terminal how far it is."""
    return _Bar(campaign) if sys.stderr.isatty() else nullcontext(_News(campaign, click.echo))


class _News:
    """Says the first failure of every kind when it comes, in a campaign that goes on after it."""

    def __init__(self, campaign: Campaign, say: Callable[[str], None]) -> None:
        self._said, self._say = 0 if campaign.keep_going else 1, say

    def __call__(self, ledger: Ledger) -> None:
        for example in ledger.news[self._said :]:
            self._said += 1
            outcome = example.outcome
            self._say(f"{outcome.status}  {outcome.clause}  {example.case.id}: {outcome.where}: {outcome.reason}")


class _Bar:
    """Examples, examples a second, failures."""

    def __init__(self, campaign: Campaign) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[speed]}"),
        )  # fmt: skip
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(campaign.connect, total=campaign.planned or None, speed="")
        self._title = campaign.connect
        self._news = _News(campaign, lambda text: self._progress.console.print(text, markup=False, highlight=False))

    def __enter__(self) -> Callable[[Ledger], None]:
        self._progress.start()
        return self._advance

    def _advance(self, ledger: Ledger) -> None:
        number, found = len(ledger.results), len(ledger.findings)
        wrong = f" [red]{found} kinds of failure[/red]" if found else ""
        speed = f"{number / max(ledger.seconds, 1e-9):.0f}/s"
        self._progress.update(self._task, completed=number, speed=speed, description=self._title + wrong)
        self._news(ledger)

    def __exit__(self, *args: object) -> None:
        self._progress.stop()
