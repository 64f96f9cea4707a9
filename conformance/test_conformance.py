"""What `pytest --pyargs conformance --backend BACKEND` collects: one test a case, and the generated examples."""

from __future__ import annotations

import shlex

import pytest

from conformance.pytest_plugin import Suite, check
from conformance.spec.case import Case


def test_case(conformance_suite: Suite, conformance_backend: str, conformance_case: Case) -> None:
    check(conformance_suite, conformance_backend, conformance_case)


def test_generated(conformance_suite: Suite, conformance_fuzz_backend: str, request: pytest.FixtureRequest) -> None:
    from conformance.fuzzing.rounds import check_generated
    from conformance.reporting.table import reading_options

    suite = conformance_suite
    backend, info = suite.backends[conformance_fuzz_backend]
    examples, seed = (request.config.getoption(name) for name in ("fuzz_examples", "fuzz_seed"))
    failures = check_generated(
        suite.library.operation, backend, info, readings=suite.readings, examples=examples, seed=seed
    )
    if failures:
        options = f"--seed {seed} --examples {examples} --keep-going{reading_options(suite.readings)}"
        again = f"qsa-conformance fuzz -b {shlex.quote(conformance_fuzz_backend)} {options}"
        pytest.fail("\n\n".join([*failures, again]), pytrace=False)
