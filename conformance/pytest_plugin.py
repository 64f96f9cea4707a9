"""pytest: the same cases, ids and filters as on the command line.

    pytest --pyargs conformance --backend BACKEND

Importing is kept light: this module is loaded by every pytest run where the package is installed.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend, BackendInfo
    from conformance.judging.engine import Engine, Outcome
    from conformance.library.reading import Library
    from conformance.record.expectations import Expectations
    from conformance.spec.case import Case

FIXTURE = "conformance_case"


class QualityWarning(UserWarning):
    """Within the required bound, but beyond the quality tier; or a recommended clause that is not followed."""


@dataclass
class Suite:
    """What is run under one pytest session: the cases, the backends, and what came out so far."""

    library: Library
    cases: tuple[Case, ...]
    complete: bool
    readings: dict[str, str]
    engines: dict[str, Engine] = field(default_factory=dict)
    backends: dict[str, tuple[Backend, BackendInfo]] = field(default_factory=dict)
    latest: tuple[str, Outcome] | None = None  # what the test that runs now came to
    causes: dict[tuple[str, ...], str] = field(default_factory=dict)  # cause of failures to the first case
    expectations: dict[str, Expectations | None] = field(default_factory=dict)

    def readings_of(self, connect: str) -> dict[str, str]:
        """Those that were switched, else those under which this backend is judged."""
        from conformance.backends.embedded import usual_readings

        return self.readings or usual_readings(connect, self.library.operation.operation)

    def engine(self, connect: str) -> Engine:
        if connect not in self.engines:
            from conformance.judging.engine import Engine

            backend, info = self.backends[connect]
            self.engines[connect] = Engine(self.library.operation, backend, self.readings_of(connect), info)
        return self.engines[connect]


SUITE = pytest.StashKey[Suite]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qsa-conformance", "conformance of an operation's implementation")
    add = group.addoption
    add("--backend", action="append", default=[], metavar="CONNECT", help="implementation under test; repeatable")
    add("--operation", default="", metavar="NAME", help="operation, by its name or its folder in the library")
    add("--library", metavar="DIR", help="case files of your own beside the bundled ones, or operations of your own")
    add("--clause", action="append", default=[], metavar="ID", help="only cases that cite this clause or group")
    add("--level", choices=["required", "recommended", "informative"], help="only cases of this level")
    add("--case", action="append", default=[], metavar="ID", help="only the case with exactly this id")
    add("--quick", action="store_true", help="a varied subset of small cases; cannot prove conformance")
    add("--reading", action="append", default=[], metavar="NAME=CHOICE", help="switch a reading of the contract")
    add("--expectations", metavar="FILE", help="known failures of the backend: they are reported as xfailed")
    add("--no-diagnosis", action="store_true", help="do not say which known mistake failures look like")
    add("--fuzz-examples", type=int, default=0, metavar="N", help="generated examples besides the library")
    add("--fuzz-seed", type=int, default=0, metavar="K", help="seed of the generated examples")


def suite_of(config: pytest.Config) -> Suite:
    """The suite of this session, built when the first test asks for it. Raises `pytest.UsageError`."""
    if SUITE not in config.stash:
        from conformance.backends.protocol import Unsupported
        from conformance.errors import BackendError, UsageError

        try:
            config.stash[SUITE] = _build(config)
        except (UsageError, BackendError, Unsupported) as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[SUITE]


def _build(config: pytest.Config) -> Suite:
    from conformance.backends.connect import usable
    from conformance.library.selection import select
    from conformance.record.expectations import find
    from conformance.spec.operation import chosen_readings

    given = config.getoption("expectations")
    connects = config.getoption("backend")
    if not connects:
        raise pytest.UsageError("name the implementation under test: --backend CONNECT, for example --backend numpy")
    if given and len(connects) > 1:
        raise pytest.UsageError("--expectations FILE speaks of one backend: name one")
    library = _library(config.getoption("operation"), config.getoption("library"), connects)
    filters = {name: config.getoption(name) for name in ("clause", "level", "case", "quick")}
    cases = select(
        library,
        clauses=filters["clause"],
        level=filters["level"] or "",
        ids=filters["case"],
        quick=filters["quick"],
    )
    readings = chosen_readings(library.operation, config.getoption("reading"))
    suite = Suite(library, cases, not any(filters.values()), readings)
    for connect in connects:
        suite.backends[connect] = usable(connect, operation=library.operation.operation)
        suite.expectations[connect] = find(connect, Path(given) if given else None, library, suite.readings_of(connect))
    return suite


def _library(name: str, own: str | None, connects: list[str]) -> Library:
    """The library of the operation that is named, or else of the first that the backends serve."""
    from conformance.backends.connect import operations_of
    from conformance.library.operations import DEFAULT, include, load_operation, operations
    from conformance.library.reading import load_library

    folder = Path(own) if own else None
    described = operations(folder) if folder else ()
    if folder and described:
        include(folder)
    if not name:
        default = load_operation(described[0] if described else DEFAULT).operation
        served = operations_of(connects[0])
        name = default if default in served or not served else served[0]
    return load_library(name, extra=folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE in metafunc.fixturenames:
        suite = suite_of(metafunc.config)
        marks = _marks(metafunc.config, suite)
        several = len(suite.backends) > 1
        metafunc.parametrize(
            ("conformance_backend", FIXTURE),
            [
                pytest.param(
                    connect,
                    case,
                    id=f"{connect}::{case.id}" if several else case.id,
                    marks=[marks[m] for m in _names(case)],
                )
                for connect in suite.backends
                for case in suite.cases
            ],
        )
    elif "conformance_fuzz_backend" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("fuzz_examples") > 0
        connects = list(suite_of(metafunc.config).backends) if wanted else []
        metafunc.parametrize("conformance_fuzz_backend", connects)


def _names(case: Case) -> list[str]:
    """The markers of a case: its clauses, their groups, its level, and `refusal`."""
    groups = dict.fromkeys(clause.partition("-")[0] for clause in case.clauses)
    return [*case.clauses, *groups, case.level, *["refusal"] * (case.refusal is not None)]


def _marks(config: pytest.Config, suite: Suite) -> dict[str, Any]:
    """The markers by name, made known to pytest: `-m CLAUSE`, `-m "GROUP and not refusal"`."""
    operation = suite.library.operation
    known = {clause.id: clause.says for clause in operation.clauses} | dict(operation.groups)
    known |= {level: f"cases of this level: {level}" for level in ("required", "recommended", "informative")}
    known["refusal"] = "cases in which a refusal is due"
    for name in (name for case in suite.cases for name in _names(case)):
        known.setdefault(name, "a clause that the contract does not have")
    for name, says in known.items():
        config.addinivalue_line("markers", f"{name}: {says.splitlines()[0]}")
    return {name: getattr(pytest.mark, name) for name in known}


def pytest_collection_finish(session: pytest.Session) -> None:
    """A backend that nothing is collected for was named in vain: most likely the cases were not asked for."""
    config = session.config
    if not config.getoption("backend") or session.testsfailed or config.pluginmanager.hasplugin("dsession"):
        return
    fixtures = {"conformance_case", "conformance_fuzz_backend"}
    if not any(fixtures & set(getattr(item, "fixturenames", ())) for item in session.items):
        raise pytest.UsageError(
            "--backend is given, and no conformance case was collected; collect them with: pytest --pyargs conformance "
            f"--backend {config.getoption('backend')[0]}, and look at -k and -m, which may leave none"
        )


@pytest.fixture
def conformance_suite(request: pytest.FixtureRequest) -> Suite:
    """The cases and backends of this session."""
    return suite_of(request.config)


def check(suite: Suite, connect: str, case: Case) -> None:
    """Run one case; skip, warn, fail or xfail as its outcome and what is expected of it say."""
    from conformance.record.expectations import surprise
    from conformance.reporting.plain import line

    outcome = suite.engine(connect).run(case)
    suite.latest = connect, outcome
    expected = suite.expectations.get(connect)
    entry = expected.by_case.get(case.id) if expected else None
    if expected and entry:
        if expected.met(outcome):
            pytest.xfail(f"{entry.reason} ({entry.url})")
        if found := surprise(entry, outcome, case.clauses):
            pytest.fail(line(f"{found.kind}: {found.says}"), pytrace=False)
    if outcome.status == "unsupported":
        pytest.skip(line(outcome.reason))
    if outcome.status == "quality-warning":
        text = line(f"{case.id}, {outcome.clause}, {outcome.where}: {outcome.reason}")
        warnings.warn(text, QualityWarning, stacklevel=2)
    if outcome.status in ("fail", "error"):
        pytest.fail(_failure(suite, connect, case, outcome), pytrace=False)


def _failure(suite: Suite, connect: str, case: Case, outcome: Outcome) -> str:
    """What is printed of a failure: all of it the first time, a line for others of the same cause."""
    from conformance.reporting.groups import cause
    from conformance.reporting.plain import line
    from conformance.reporting.repeating import repeat

    what = line(f"{outcome.clause} {outcome.where}: {outcome.reason}")
    first = suite.causes.setdefault((connect, *cause(case, outcome)), case.id)
    if first != case.id:
        return f"as {first}: {what}"
    library = suite.library
    name, own = library.operation.operation, library.own
    again = repeat(connect, case.id, readings=suite.readings_of(connect), operation=name, own=own)
    return "\n".join([line(case.says), what, line(again)])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The outcome goes with the report: under xdist, the process that sums up is not the one that ran the case."""
    result = yield
    suite = item.config.stash.get(SUITE, None)
    if suite and suite.latest and call.when == "call" and FIXTURE in getattr(item, "fixturenames", ()):
        connect, outcome = suite.latest
        suite.latest = None
        report = result.get_result()  # type: ignore[attr-defined]
        report.qsa_conformance = [connect, base64.b64encode(msgspec.msgpack.encode(outcome)).decode()]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reported(config), "qsa-conformance-reported")


class _Reported:
    """Gathers the outcomes of one session, from whichever process ran the cases, and says what they come to."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.sent: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        sent = getattr(report, "qsa_conformance", None)
        if sent:
            self.sent.append((sent[0], sent[1]))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.sent:
            return
        from conformance.judging.engine import Outcome

        suite = suite_of(self.config)
        outcomes: dict[str, list[Outcome]] = {}
        for connect, text in self.sent:
            outcome = msgspec.msgpack.decode(base64.b64decode(text), type=Outcome)
            outcomes.setdefault(connect, []).append(outcome)
        for connect, found in outcomes.items():
            for text in _summary(suite, connect, found, explain=not self.config.getoption("no_diagnosis")):
                terminalreporter.write_line(text)


def _summary(suite: Suite, connect: str, outcomes: list[Outcome], *, explain: bool) -> Iterator[str]:
    """The end of a run, as on the command line: verdict, what was left out, the failures by cause."""
    from conformance.errors import plural
    from conformance.record.log import Log, ResultRecord
    from conformance.reporting.plain import presentable
    from conformance.reporting.table import ending, verdict_of
    from conformance.running.run import Plan, execute

    library = suite.library
    ran = {outcome.case for outcome in outcomes}
    complete = suite.complete and len(ran) == len(library.cases)
    cases = tuple(case for case in library.cases if case.id in ran)
    backend, info = suite.backends[connect]
    filters = {} if complete else {"pytest": "a selection of cases"}
    plan = Plan(connect, cases, complete, filters, suite.readings_of(connect), suite.expectations.get(connect))
    log: Log = execute(plan, library, info, outcomes)
    failures = [outcome for outcome in outcomes if outcome.status in ("fail", "error")]
    if explain and failures and not plan.readings:
        from conformance.failures.explain import explain as explained
        from conformance.failures.explain import texts

        found = texts(explained(library, backend, info, outcomes))
        results = {n: ResultRecord(r.outcome, found.get(n, "")) for n, r in log.results.items()}
        log = msgspec.structs.replace(log, results=results)
    log = presentable(log)
    yield f"qsa-conformance: {log.header.backend.connect} {verdict_of(log)}, {plural(len(outcomes), 'case')}"
    yield from ending(log, library.operation, log.header.backend.connect)[1:]


def pytest_unconfigure(config: pytest.Config) -> None:
    suite = config.stash.get(SUITE, None)
    for engine in suite.engines.values() if suite else ():
        engine.close()
