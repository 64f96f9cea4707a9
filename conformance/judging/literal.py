"""Expected values that a case writes down itself, in place of those of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.spec.case import Case
from reference.expected import Following

if TYPE_CHECKING:
    from reference.expected import Expected


def with_values(case: Case, expected: Mapping[str, Expected]) -> Mapping[str, Expected]:
    """The expectation with values written in the case put in place of the reference's."""
    if not case.values:
        return expected

    def written(name: str, one: Expected) -> Expected:
        return with_literal(case.values[name], one) if name in case.values else one

    if isinstance(expected, Following):
        return expected.then(written)
    return {name: written(name, one) for name, one in expected.items()}


def with_literal(literal: Any, expected: Expected) -> Expected:
    """An expectation whose values are those written in the case; bounds stay, a null leaves the reference's value."""
    array = np.array(literal, dtype=object).reshape(expected.shape)
    parts = []
    for part in expected.parts:
        values = array[part.index]
        known = np.array([v is not None for v in values.flat], dtype=bool).reshape(values.shape)
        parts.append(part.written(values, known, expected.dtype))
    return replace(expected, parts=tuple(parts))
