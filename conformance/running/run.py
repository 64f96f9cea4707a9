"""One run: a backend, the chosen cases, a log. The CLI and the tests call this."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from conformance import __version__
from conformance.backends.embedded import origin
from conformance.backends.protocol import Backend, BackendInfo, close
from conformance.judging.engine import Engine, Outcome, Source
from conformance.library.reading import Library
from conformance.record.environment import environment, now
from conformance.record.expectations import Expectations, assess
from conformance.record.log import (
    SCHEMA,
    BackendRecord,
    CaseRecord,
    Footer,
    Full,
    Header,
    Log,
    LogWriter,
    ResultRecord,
    Resumed,
    count,
)
from conformance.record.verdict import standing_of
from conformance.running.cases import run_case
from conformance.spec.case import Case, summary
from conformance.spec.operation import Operation
from conformance.spec.types import ELEMENT_TYPES


@dataclass(frozen=True)
class Plan:
    """What is run. `complete` says that it is the whole library, by which alone conformance can be said."""

    connect: str
    cases: tuple[Case, ...]
    complete: bool
    filters: Mapping[str, str] = field(default_factory=dict)
    readings: Mapping[str, str] = field(default_factory=dict)
    expectations: Expectations | None = None


def header(
    plan: Plan,
    library: Library,
    info: BackendInfo,
    *,
    more: Mapping[str, str] | None = None,
    seed: int | None = None,
    shard: str = "",
) -> Header:
    """The first line of a run's log; `more` is what a backend says of its own environment."""
    # What is a default is left out: msgspec knows it by identity, and a text from another process is not the same one.
    defaults = {field.name: field.default for field in msgspec.structs.fields(BackendRecord)}
    given = {name: value for name, value in asdict(info).items() if name in defaults}
    fields = {name: value for name, value in given.items() if value != defaults[name]}
    return Header(
        schema=SCHEMA,
        suite=__version__,
        operation=library.operation.operation,
        contract=library.operation.contract,
        library=library.digest,
        cases=len(plan.cases),
        complete=plan.complete,
        backend=BackendRecord(connect=plan.connect, origin=origin(plan.connect, library.operation.operation), **fields),
        environment=environment() | dict(more or {}),
        argv=tuple(sys.argv[1:]),
        started=now(),
        filters=dict(plan.filters),
        readings=dict(plan.readings),
        seed=seed,
        shard=shard,
        full=full(library.operation),
        own=library.own,
    )


def full(operation: Operation) -> Full:
    """What the whole contract of an operation asks of an implementation."""
    return Full(
        outputs={output.name: tuple(output.clauses) for output in operation.outputs},
        element_types=ELEMENT_TYPES,
        features=tuple(operation.features),
    )


def outcomes(
    plan: Plan, library: Library, backend: Backend, info: BackendInfo, source: Source | None = None
) -> Iterator[Outcome]:
    """Run the cases in this process, one after the other; `source` stands in for the usual one."""
    engine = Engine(library.operation, backend, plan.readings, info, source=source)
    try:
        for case in plan.cases:
            yield run_case(engine, case)
    finally:
        engine.close()
        close(backend)


def execute(
    plan: Plan,
    library: Library,
    info: BackendInfo,
    results: Iterable[Outcome],
    path: Path | None = None,
    *,
    more: Mapping[str, str] | None = None,
    on_result: Callable[[Outcome], None] | None = None,
    explain: Callable[[Sequence[Outcome]], Mapping[str, str]] | None = None,
    rounding: Callable[[], str] | None = None,
    earlier: Log | None = None,
) -> Log:
    """Write results to a log as they come, and give the log back. An interruption leaves a log without footer.

    Its `path` is that of the file written, which has another name where `path` was taken, and is empty where there is
    none. A log that cannot be written any further ends nothing: `problem` of the log says why. `explain` says of
    all outcomes what the failures look like, by case, and `rounding` where the backend rounds to the element type.
    `earlier` is what an interrupted run left in the same file; the results are those of the other cases of the plan.
    """
    cases = {case.id: case for case in plan.cases}
    started = time.perf_counter()
    head = header(plan, library, info, more=more)
    case_records = dict(earlier.cases) if earlier else {}
    result_records = dict(earlier.results) if earlier else {}
    spent = sum(record.outcome.seconds for record in result_records.values())
    footer: Footer | None = None
    with LogWriter(path, append=earlier is not None) as writer:
        writer.write(Resumed(head.started, head.environment, head.argv) if earlier else head)
        try:
            for outcome in results:
                case = cases[outcome.case]
                record = CaseRecord(outcome.digest, summary(case, library.operation), case)
                result = ResultRecord(outcome)
                writer.write(record)
                writer.write(result)
                case_records[case.id], result_records[case.id] = record, result
                if on_result:
                    on_result(outcome)
            every = [record.outcome for record in result_records.values()]
            for name, text in explain(every).items() if explain else ():
                result_records[name] = ResultRecord(result_records[name].outcome, text)
                writer.write(result_records[name])
            rounds = rounding() if rounding else ""
        except KeyboardInterrupt:
            rounds = ""
        done = [record.outcome for record in result_records.values()]
        if len(done) == len(cases):
            assessment = assess(plan.expectations, done) if plan.expectations else None
            cited = {name: record.case.clauses for name, record in case_records.items()}
            standing = standing_of(head, done, cited, assessment)
            ending = Footer(
                counts=count(done),
                verdicts=sum(outcome.verdicts for outcome in done),
                seconds=time.perf_counter() - started + spent,
                verdict=standing.verdict,
                expectations=assessment,
                judged=standing.judged,
                left_out=standing.left_out,
                unjudged=standing.unjudged,
                rounding=rounds,
            )
            writer.write(ending)
            footer = ending
    return Log(str(writer.path or ""), head, case_records, result_records, (), footer, problem=writer.problem)
