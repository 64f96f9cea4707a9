"""`run`: the library on backends, the matrix, the failures, the log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from conformance.backends.embedded import names
from conformance.backends.protocol import Unsupported
from conformance.commands.options import isolation_options, reading_options, selection_options
from conformance.errors import BackendError, UsageError
from conformance.judging.engine import Outcome
from conformance.library.reading import Library, load_library
from conformance.library.selection import select
from conformance.record.expectations import find
from conformance.record.log import Log, file_name, read_log
from conformance.record.recorded import cases_of
from conformance.reporting import table
from conformance.reporting.groups import SHOWN_GROUPS
from conformance.running.isolation import Isolation, Running, running
from conformance.running.resume import check_same, take_up
from conformance.running.run import Plan, execute


@click.command("run")
@click.option("-b", "--backend", "backends", multiple=True, metavar="CONNECT", help="Backend to run; repeatable.")
@selection_options
@reading_options
@isolation_options
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder for the logs.")
@click.option(
    "--expectations",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What is known to fail; for backends of this package cases/*/expectations/ is taken.",
)
@click.option("--resume", type=click.Path(path_type=Path, dir_okay=False), multiple=True, metavar="LOG",
              help="Finish an interrupted run; repeatable.")  # fmt: skip
@click.option("--from-log", type=click.Path(path_type=Path, dir_okay=False), metavar="LOG",
              help="Run the cases of a log; -b and --reading are as there unless given.")  # fmt: skip
@click.option("-x", "--fail-fast", is_flag=True, help="Stop a backend at its first failure.")
@click.option("--diagnosis/--no-diagnosis", default=True, help="Say which known mistake failures look like.")
@click.option("--show", type=int, default=SHOWN_GROUPS, show_default=True, help="Groups of failures to print in full.")
def command(
    backends: tuple[str, ...],
    expression: str,
    clauses: tuple[str, ...],
    level: str,
    ids: tuple[str, ...],
    quick: bool,
    readings: dict[str, str],
    isolation: Isolation,
    output: Path | None,
    expectations: Path | None,
    resume: tuple[Path, ...],
    from_log: Path | None,
    fail_fast: bool,
    diagnosis: bool,
    show: int,
) -> int:
    """Run the library and print clauses by backends, then the failures.

    Without -b every backend that this machine can run is run. Exit code 0: all conformant or, with expectations, as
    expected; 1: not; 2: wrong usage; 3: a backend cannot be used; 4: incomplete, by a filter or an interruption.
    """
    library = source = load_library()
    filters = {"-k": expression, "--clause": " ".join(clauses), "--level": level, "--case": " ".join(ids)}
    filters = {key: value for key, value in filters.items() if value}
    filters |= {"--quick": "yes"} if quick else {}
    filters |= {"--fail-fast": "yes"} if fail_fast else {}
    filters |= {"--from-log": str(from_log.absolute())} if from_log else {}
    tasks: list[tuple[Plan, Path | None, Log | None]]
    if resume:
        if backends or filters or readings or output:
            raise UsageError("--resume takes backend, filters and readings from the log; give it without them")
        tasks = [(plan, path, log) for path in resume for plan, log in [take_up(path, library)]]
    else:
        if from_log:
            source, head = cases_of(from_log, library), read_log(from_log).header
            backends, readings = backends or (head.backend.connect,), readings or head.readings
        chosen = select(source, expression=expression, clauses=clauses, level=level, ids=ids, quick=quick)
        connects = backends or names(library.operation.operation)
        plans = [Plan(text, chosen, not filters, filters, readings) for text in connects]
        tasks = [(plan, output / f"{file_name(plan.connect)}.jsonl" if output else None, None) for plan in plans]
    if expectations and len(tasks) != 1:
        raise UsageError("--expectations is about one backend; name it with -b")
    known = [find(plan.connect, expectations, library, plan.readings) for plan, _, _ in tasks]
    logs: list[Log] = []
    unusable: list[str] = []
    for (plan, path, earlier), entries in zip(tasks, known, strict=True):
        plan = replace(plan, expectations=entries)
        try:
            logs.append(run_one(plan, source, path, isolation=isolation, earlier=earlier, explain=diagnosis))
        except (BackendError, Unsupported) as error:
            unusable.append(f"{plan.connect}: {error}")
    show_logs(logs, library, show)
    for line in unusable:
        click.echo(f"not run, {line}", err=bool(backends))
    for log in logs:
        if log.path:
            click.echo(f"log: {log.path}")
    return exit_code(logs, unusable if backends or resume else [])


def run_one(
    plan: Plan,
    library: Library,
    path: Path | None,
    *,
    isolation: Isolation | None = None,
    earlier: Log | None = None,
    explain: bool = True,
) -> Log:
    """Run one backend with a progress bar on a terminal; of `earlier`, a log that was interrupted, only the rest."""
    rest = plan
    if earlier:
        if earlier.footer:
            return earlier
        rest = replace(plan, cases=tuple(case for case in plan.cases if case.id not in earlier.results))
    with (
        running(rest, library, isolation or Isolation()) as backend,
        progress(plan.connect, len(rest.cases)) as advance,
    ):
        if earlier:
            check_same(earlier, backend.info)
        results = _until_failure(plan, backend.outcomes) if "--fail-fast" in plan.filters else backend.outcomes
        return execute(
            plan,
            library,
            backend.info,
            results,
            path,
            more=backend.environment,
            on_result=advance,
            explain=partial(explanations, library, plan, backend) if explain else None,
            earlier=earlier,
        )


def explanations(library: Library, plan: Plan, running: Running, failures: Sequence[Outcome]) -> Mapping[str, str]:
    """What failing cases look like, by case id, as far as known mistakes explain them."""
    if running.recording:
        return running.recording.diagnoses(failures)
    if not failures or running.backend is None or plan.readings:
        return {}
    from conformance.failures.diagnose import explain

    with steps("looking for the mistake") as advance:
        return explain(library, running.backend, running.info, failures, advance=advance)


def _until_failure(plan: Plan, results: Iterator[Outcome]) -> Iterator[Outcome]:
    for outcome in results:
        yield outcome
        if outcome.status in ("fail", "error") and not (plan.expectations and plan.expectations.met(outcome)):
            return


def progress(title: str, total: int) -> Any:
    """A context that gives a function to call for every result; silent unless the error stream is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext(lambda outcome: None)
    return _Bar(title, total)


@contextmanager
def steps(title: str) -> Iterator[Callable[[str], None]]:
    """A context that gives a function to call with what is being done; silent unless the error stream is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")


class _Bar:
    def __init__(self, title: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task(title, total=total)
        self._title, self._wrong = title, 0

    def __enter__(self) -> Callable[[Outcome], None]:
        self._progress.start()
        return self._advance

    def _advance(self, outcome: Outcome) -> None:
        self._wrong += outcome.status in ("fail", "error")
        wrong = f" [red]{self._wrong} failing[/red]" if self._wrong else ""
        self._progress.update(self._task, advance=1, description=self._title + wrong)

    def __exit__(self, *args: object) -> None:
        self._progress.stop()


def show_logs(logs: list[Log], library: Library, show: int) -> None:
    """The matrix, what is unsupported and why, and the failures of every backend."""
    if logs:
        click.echo(table.report(logs, library.operation, full=show, next_command=True))


def exit_code(logs: list[Log], unusable: list[str]) -> int:
    """The worst of the runs: 1 before 3 before 4 before 0."""
    if not all(map(as_expected, logs)):
        return 1
    if unusable or not logs:
        return 3
    return 0 if all(log.footer and log.header.complete and not log.footer.counts["not-run"] for log in logs) else 4


def as_expected(log: Log) -> bool:
    """Whether nothing failed that was not expected to, and no expectation is out of date."""
    if log.assessment:
        return log.assessment.as_expected
    return table.verdict_of(log) != "NOT CONFORMANT"
