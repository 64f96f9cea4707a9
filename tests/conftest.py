"""Shared by the tests of the harness."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from conformance.library import Library, load_library
from conformance.operation import Operation, load_operation

pytest_plugins = ["pytester"]

settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(scope="session")
def operation() -> Operation:
    return load_operation()


@pytest.fixture(scope="session")
def library() -> Library:
    return load_library()
