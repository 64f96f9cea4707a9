"""pytest: the same cases, ids and filters as on the command line.

    pytest --pyargs conformance --backend BACKEND

Importing is kept light: this module is loaded by every pytest run where the package is installed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    expectations: dict[str, Expectations | None] = field(default_factory=dict)

    def engine(self, connect: str) -> Engine:
        if connect not in self.engines:
            from conformance.judging.engine import Engine

            backend, info = self.backends[connect]
            self.engines[connect] = Engine(self.library.operation, backend, self.readings, info)
        return self.engines[connect]


SUITE = pytest.StashKey[Suite]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qsa-conformance", "conformance of an operation's implementation")
    add = group.addoption
    add("--backend", action="append", default=[], metavar="CONNECT", help="implementation under test; repeatable")
    add("--clause", action="append", default=[], metavar="ID", help="only cases that cite this clause or group")
    add("--level", choices=["required", "recommended", "informative"], help="only cases of this level")
    add("--case", action="append", default=[], metavar="ID", help="only the case with exactly this id")
    add("--quick", action="store_true", help="a spread of small cases; never enough to be conformant")
    add("--reading", action="append", default=[], metavar="NAME=CHOICE", help="switch a reading of the contract")
    add("--expectations", metavar="FILE", help="known failures of the backend: they are reported as xfailed")
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
    from conformance.library.reading import load_library
    from conformance.library.selection import select
    from conformance.record.expectations import find
    from conformance.spec.operation import chosen_readings

    given = config.getoption("expectations")
    connects = config.getoption("backend")
    if not connects:
        raise pytest.UsageError("name the implementation under test: --backend CONNECT, for example --backend numpy")
    if given and len(connects) > 1:
        raise pytest.UsageError("--expectations FILE speaks of one backend: name one")
    library = load_library()
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
        suite.backends[connect] = usable(connect)
        suite.expectations[connect] = find(connect, Path(given) if given else None, library, readings)
    return suite


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if FIXTURE in metafunc.fixturenames:
        suite = suite_of(metafunc.config)
        several = len(suite.backends) > 1
        pairs = [(connect, case) for connect in suite.backends for case in suite.cases]
        ids = [f"{connect}::{case.id}" if several else case.id for connect, case in pairs]
        metafunc.parametrize(("conformance_backend", FIXTURE), pairs, ids=ids)
    elif "conformance_fuzz_backend" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("fuzz_examples") > 0
        connects = list(suite_of(metafunc.config).backends) if wanted else []
        metafunc.parametrize("conformance_fuzz_backend", connects)


@pytest.fixture
def conformance_suite(request: pytest.FixtureRequest) -> Suite:
    """The cases and backends of this session."""
    return suite_of(request.config)


def check(suite: Suite, connect: str, case: Case) -> None:
    """Run one case; skip, warn, fail or xfail as its outcome and what is expected of it say."""
    from conformance.record.expectations import surprise
    from conformance.reporting.table import repeat

    outcome = suite.engine(connect).run(case)
    suite.outcomes.setdefault(connect, []).append(outcome)
    expected = suite.expectations.get(connect)
    entry = expected.by_case.get(case.id) if expected else None
    if expected and entry:
        if expected.met(outcome):
            pytest.xfail(f"{entry.reason} ({entry.url})")
        if found := surprise(entry, outcome, case.clauses):
            pytest.fail(f"{found.kind}: {found.says}", pytrace=False)
    if outcome.status == "unsupported":
        pytest.skip(outcome.reason)
    if outcome.status == "quality-warning":
        warnings.warn(f"{case.id}, {outcome.clause}, {outcome.where}: {outcome.reason}", QualityWarning, stacklevel=2)
    if outcome.status in ("fail", "error"):
        command = repeat(connect, case.id, readings=suite.readings)
        lines = [f"{outcome.clause}: {case.says}", f"{outcome.where}: {outcome.reason}", command]
        pytest.fail("\n".join(lines), pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    suite = config.stash.get(SUITE, None)
    if suite is None:
        return
    from conformance.record.log import count, verdict

    for connect, outcomes in suite.outcomes.items():
        complete = suite.complete and len(outcomes) == len(suite.library.cases)
        text = verdict(count(outcomes), complete=complete)
        terminalreporter.write_line(f"qsa-conformance: {connect} {text}, {len(outcomes)} cases")


def pytest_unconfigure(config: pytest.Config) -> None:
    suite = config.stash.get(SUITE, None)
    for engine in suite.engines.values() if suite else ():
        engine.close()
