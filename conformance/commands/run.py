"""`run`: the library on backends, the matrix, the failures, the log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from conformance.backends.connect import operations_of, usable
from conformance.backends.embedded import names, usual_readings
from conformance.backends.protocol import Unsupported, close
from conformance.commands.options import (
    LibraryChoice,
    isolation_options,
    library_options,
    reading_options,
    selection_options,
)
from conformance.errors import BackendError, UsageError, plural
from conformance.judging.engine import Outcome
from conformance.library.operations import DEFAULT, folder_of, load_operation, operations, own_operations, recorded
from conformance.library.reading import Library
from conformance.library.selection import select
from conformance.record import latest
from conformance.record.expectations import find
from conformance.record.log import Log, file_name, read_log
from conformance.record.recorded import cases_of
from conformance.record.verdict import is_whole
from conformance.reporting import table
from conformance.reporting.annotations import github
from conformance.reporting.groups import SHOWN_GROUPS, groups
from conformance.reporting.plain import clean, line
from conformance.reporting.progress import progress, steps
from conformance.running.isolation import Isolation, Running, running
from conformance.running.place import bundled
from conformance.running.replay import PREFIX
from conformance.running.resume import check_same, take_up
from conformance.running.run import Plan, execute


@click.command("run")
@click.option("-b", "--backend", "backends", multiple=True, metavar="CONNECT", help="Backend to run; repeatable.")
@library_options
@selection_options
@reading_options
@isolation_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for the logs; none is overwritten.")
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
@click.option("--lf", "last_failed", is_flag=True, help="Run what failed in the latest run; everything if nothing did.")
@click.option("-x", "--fail-fast", is_flag=True, help="Stop a backend at its first failure.")
@click.option("--pdb", "debug", is_flag=True, help="Debug the first failing case where it goes wrong.")
@click.option("--allow-incomplete", is_flag=True, help="Exit with 0, not 4, when what was run passes.")
@click.option("--diagnosis/--no-diagnosis", default=True, help="Say which known mistake failures look like.")
@click.option("--show", type=click.IntRange(0), default=SHOWN_GROUPS, show_default=True,
              help="Groups of failures to print in full.")  # fmt: skip
@click.option("--output-format", type=click.Choice(["text", "github"]), default="text", show_default=True,
              help="Besides the text, annotations of GitHub Actions.")  # fmt: skip
def command(libraries: LibraryChoice, backends: tuple[str, ...], resume: tuple[Path, ...], **options: Any) -> int:
    """Run the library; print clauses by backends, and at the end the verdict, the failures by cause, the next command.

    Without -b every backend that this machine can run is run, without --operation every operation that a backend
    serves, one matrix each. One case, by --case on its own, is shown close up: the
    call that goes wrong, its inputs, what came back and what was due.

    Exit code 0: all conformant, wholly or in part (PARTIAL), or, with expectations, as expected; 1: not; 2: wrong
    usage; 3: a backend cannot be used; 4: incomplete, by a filter or an interruption.
    """
    libraries.include()
    named = [libraries.operation] if libraries.operation else []
    codes: list[int] = []
    refused: list[UsageError] = []
    served = {} if named else {text: served_by(text, options["isolation"]) for text in dict.fromkeys(backends)}
    wanted = named or operations_wanted(served, resume, options["from_log"], libraries.folder)
    for one in wanted:
        mine = tuple(path for path in resume if read_log(path).header.operation == one)
        serving = tuple(text for text in backends if named or one in served.get(text, (one,))) or backends
        try:
            chosen = replace(libraries, operation=one)
            codes.append(run_operation(chosen, backends=serving, resume=mine, several=len(wanted) > 1, **options))
        except UsageError as error:  # a case, a clause or a word that only another operation has
            refused.append(error)
    if not codes:
        raise refused[0]
    return next(code for code in (2, 1, 3, 4, 0) if code in codes)


def operations_wanted(
    served: Mapping[str, Sequence[str]], resume: Sequence[Path], from_log: Path | None, own: Path | None = None
) -> list[str]:
    """The operations that the logs are of or that the backends serve; all of the library where no backend is named.

    Of a folder of one's own that describes operations, these alone.
    """
    logs = [*resume, *([from_log] if from_log else ())]
    if logs:
        heads = [read_log(path).header for path in logs]
        return list(dict.fromkeys(recorded(head.operation, head.own) for head in heads))
    described = [load_operation(folder, own).operation for folder in operations(own)] if own else []
    known = described or [load_operation(folder).operation for folder in operations()]
    if not described:
        known += [one.operation for one in own_operations() if one.operation not in known and served]
    every = {name for names in served.values() for name in names}
    return [name for name in known if name in every] or known[:1] if served else known


def served_by(connect: str, isolation: Isolation) -> Sequence[str]:
    """The operations that a backend serves; the default one for what cannot say so, which is told when it is run."""
    try:
        if connect.startswith(PREFIX):
            head = read_log(Path(connect.removeprefix(PREFIX))).header
            return (recorded(head.operation, head.own),)
        return operations_of(connect, isolation.limits, isolate=isolation.isolate or isolation.jobs != 1)
    except (BackendError, Unsupported, UsageError):
        return (load_operation(DEFAULT).operation,)


def run_operation(
    libraries: LibraryChoice,
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
    last_failed: bool,
    fail_fast: bool,
    debug: bool,
    allow_incomplete: bool,
    diagnosis: bool,
    show: int,
    output_format: str,
    several: bool = False,
) -> int:
    """One operation on the backends that serve it: the matrix, the failures, the logs."""
    library = source = libraries.load()
    check_folder(output)
    filters = {"-k": expression, "--clause": " ".join(clauses), "--level": level, "--case": " ".join(ids)}
    filters = {key: value for key, value in filters.items() if value}
    filters |= {"--quick": "yes"} if quick else {}
    filters |= {"--fail-fast": "yes"} if fail_fast else {}
    filters |= {"--from-log": str(from_log.absolute())} if from_log else {}
    tasks: list[tuple[Plan, Path | None, Log | None]]
    if resume:
        if backends or filters or readings or output or last_failed:
            raise UsageError("--resume takes backend, filters and readings from the log; give it without them")
        tasks = [(plan, path, log) for path in resume for plan, log in [take_up(path, library)]]
    else:
        if from_log:
            source, head = cases_of(from_log, library), read_log(from_log).header
            backends, readings = backends or (head.backend.connect,), readings or head.readings
        chosen = select(source, expression=expression, clauses=clauses, level=level, ids=ids, quick=quick)
        served = library.operation.operation
        connects = backends or (latest.connects(served)[:1] if last_failed else ()) or names(served)
        plans = [
            Plan(text, chosen, not filters, filters, readings or usual_readings(text, served)) for text in connects
        ]
        plans = [failed_lately(plan, served) for plan in plans] if last_failed else plans
        of = f".{folder_of(served)}" if several and folder_of(served) != DEFAULT else ""
        tasks = [(plan, output / f"{file_name(plan.connect)}{of}.jsonl" if output else None, None) for plan in plans]
    if expectations and len(tasks) != 1:
        raise UsageError("--expectations is about one backend; name it with -b")
    if debug and (isolation.workers or len(tasks) != 1):
        raise UsageError("--pdb debugs one backend in this process: give one -b, and neither --isolate nor --jobs")
    known = [find(plan.connect, expectations, library, plan.readings) for plan, _, _ in tasks]
    logs: list[Log] = []
    unusable: list[str] = []
    for (plan, path, earlier), entries in zip(tasks, known, strict=True):
        plan = replace(plan, expectations=entries)
        try:
            logs.append(run_one(plan, source, path, isolation=isolation, earlier=earlier, explain=diagnosis))
        except (BackendError, Unsupported) as error:
            unusable.append(cannot_be_run(plan.connect, error))
        else:
            if not from_log:
                latest.remember(logs[-1])
    alone = len(ids) == 1 and len(logs) == 1 and len(logs[0].results) == 1 and filters.keys() <= {"--case"}
    harmless = not any(outcome.lost for log in logs for outcome in log.outcomes)
    if alone and harmless and not isolation.workers and not logs[0].header.backend.connect.startswith("replay:"):
        connect = logs[0].header.backend.connect
        isolate = not (debug or isolation.jobs == 1 or bundled(connect))
        show_case(logs[0], source, debug=debug, isolate=isolate)
    else:
        show_logs(logs, library, show)
        if debug and logs:
            debug_first(logs[0], source)
    if output_format == "github" and logs:
        click.echo(github(logs))
    return conclude(logs, tasks, unusable, bool(backends or resume), allow_incomplete=allow_incomplete)


def cannot_be_run(connect: str, error: Exception) -> str:
    """The sentence of an error, behind the connect string that it may begin with."""
    text = str(error)
    return text if text.startswith(f"{connect}: ") else f"{connect}: {text}"


def conclude(
    logs: list[Log],
    tasks: Sequence[tuple[Plan, Path | None, Log | None]],
    unusable: list[str],
    named: bool,
    *,
    allow_incomplete: bool,
) -> int:
    """Say what could not be run and where the logs are; the exit code."""
    for text in unusable:
        click.echo(f"not run, {clean(text)}", err=named)
    wanted = {str(path) for _, path, _ in tasks if path}
    for log in logs:
        if log.path:
            kept = "" if log.path in wanted else "  (an earlier log of this name is kept)"
            click.echo(f"log: {log.path}{kept}")
    problems = [log.problem for log in logs if log.problem]
    for text in problems:
        click.echo(f"error: {text}; what came out is above", err=True)
    if problems:
        return 2
    return exit_code(logs, unusable if named else [], allow_incomplete=allow_incomplete)


def check_folder(path: Path | None) -> None:
    """Raises `UsageError` when logs cannot be written to a folder: better now than after the run."""
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {path}: cannot be made a folder: {error.strerror or error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"-o {path}: cannot be written to")


def failed_lately(plan: Plan, operation: str) -> Plan:
    """The plan with only those cases that failed in the latest run; as it is where none is known."""
    before = latest.latest(plan.connect, operation)
    failed = set(before.failed) if before else set()
    cases = tuple(case for case in plan.cases if case.id in failed)
    if not cases:
        what = "nothing failed in the latest run" if before else "no earlier run is known"
        click.echo(f"--lf, {clean(plan.connect)}: {what}; running all that is chosen", err=True)
        return plan
    return replace(plan, cases=cases, complete=False, filters={**plan.filters, "--lf": plural(len(cases), "case")})


def show_case(log: Log, library: Library, *, debug: bool, isolate: bool = False) -> None:
    """The one case of a run, close up."""
    from conformance.failures.closeup import closeup

    head = log.header
    outcome = log.outcomes[0]
    backend, info = usable(head.backend.connect, operation=head.operation, isolate=isolate)
    try:
        again = closeup(
            library, backend, info, log.cases[outcome.case].case,
            connect=head.backend.connect, say=click.echo, readings=head.readings, debug=debug,
        )  # fmt: skip
    finally:
        close(backend)
    diagnosis = log.results[outcome.case].diagnosis
    if diagnosis:
        click.echo(line(diagnosis))
    if again.status != outcome.status:
        click.echo(f"run twice, it was {outcome.status} first and {again.status} then")
    click.echo(f"{line(head.backend.connect)}: {table.verdict_of(log)}, 1 case, not the whole library")


def debug_first(log: Log, library: Library) -> None:
    """Run the simplest failing case again, in the debugger."""
    failed = [group.simplest for group in groups(log) if group.status in ("fail", "error")]
    if failed:
        results = {failed[0].case: log.results[failed[0].case]}
        show_case(msgspec.structs.replace(log, results=results, footer=None), library, debug=True)


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
        if backend.jobs > 1:
            click.echo(f"{line(plan.connect)}: {backend.jobs} processes")
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
            rounding=partial(rounding, library, backend) if plan.filters.keys() <= {"--quick"} else None,
            earlier=earlier,
        )


def explanations(library: Library, plan: Plan, running: Running, outcomes: Sequence[Outcome]) -> Mapping[str, str]:
    """What failing cases look like, by case id, as far as known mistakes explain them."""
    failures = [outcome for outcome in outcomes if outcome.status in ("fail", "error")]
    if running.recording:
        return running.recording.diagnoses(failures)
    if not failures or running.setup is None or plan.readings:
        return {}
    from conformance.failures.explain import explain, texts
    from conformance.running.cases import once_more

    with steps("looking for the mistake") as advance, once_more(running.setup, running.backend, failures) as backend:
        return texts(explain(library, backend, running.info, outcomes, advance=advance))


def rounding(library: Library, running: Running) -> str:
    """Where the backend rounds to the element type; empty where that cannot be told."""
    if running.recording or running.setup is None:
        return ""
    from conformance.faults.rounding import rounding_of
    from conformance.running.cases import once_more

    try:
        with once_more(running.setup, running.backend, ()) as backend:
            return rounding_of(library, backend, running.info)
    except (BackendError, Unsupported):
        return ""


def _until_failure(plan: Plan, results: Iterator[Outcome]) -> Iterator[Outcome]:
    for outcome in results:
        yield outcome
        if outcome.status in ("fail", "error") and not (plan.expectations and plan.expectations.met(outcome)):
            return


def show_logs(logs: list[Log], library: Library, show: int) -> None:
    """The matrix, what is unsupported and why, and the failures of every backend."""
    if logs:
        click.echo(table.report(logs, library.operation, full=show, next_command=True))


def exit_code(logs: list[Log], unusable: list[str], *, allow_incomplete: bool = False) -> int:
    """The worst of the runs: 1 before 3 before 4 before 0. `allow_incomplete` makes 0 of a 4 for a filter."""
    if not all(map(as_expected, logs)):
        return 1
    if unusable or not logs:
        return 3
    if allow_incomplete and all(log.footer for log in logs):
        return 0
    return 0 if all(map(is_complete, logs)) else 4


def is_complete(log: Log) -> bool:
    """Whether the whole library was run to its end."""
    return (
        log.footer is not None
        and is_whole(log.header)
        and not any(outcome.status == "not-run" for outcome in log.outcomes)
    )


def as_expected(log: Log) -> bool:
    """Whether nothing failed that was not expected to, and no expectation is out of date."""
    if log.assessment:
        return log.assessment.as_expected
    return table.verdict_of(log) != "NOT CONFORMANT"
