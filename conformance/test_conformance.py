"""What `pytest --pyargs conformance --backend BACKEND` collects: one test a case, and the generated examples."""

from __future__ import annotations

import pytest

from conformance.case import Case
from conformance.pytest_plugin import Suite, check


def test_case(conformance_suite: Suite, conformance_backend: str, conformance_case: Case) -> None:
    check(conformance_suite, conformance_backend, conformance_case)


def test_generated(conformance_suite: Suite, conformance_fuzz_backend: str, request: pytest.FixtureRequest) -> None:
    from conformance.fuzz import check_generated

    backend, info = conformance_suite.backends[conformance_fuzz_backend]
    failures = check_generated(
        conformance_suite.library.operation,
        backend,
        info,
        readings=conformance_suite.readings,
        examples=request.config.getoption("fuzz_examples"),
        seed=request.config.getoption("fuzz_seed"),
    )
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
