"""Where a backend rounds to its type is told by the bits it returns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.backends.connect import usable
from conformance.faults import catalogue, rounding
from conformance.library.reading import load_library


@pytest.fixture(scope="module", params=["qsa_prepare", "sparse_attention"])
def library(request):
    return load_library(request.param)


def told(library, connect):
    backend, info = usable(connect, operation=library.operation.operation)
    return rounding.rounding_of(library, backend, info)


def test_every_family_is_told_from_the_others(library):
    families = [entry for entry in catalogue.variants(library.operation.operation) if entry.rounding]
    assert len(families) >= 5
    assert {entry.connect: told(library, entry.connect) for entry in families} == {
        entry.connect: entry.rounding for entry in families
    }


@pytest.mark.parametrize("connect", ["numpy", "variant:pairwise-sum", "variant:lanes", "variant:times-reciprocal"])
def test_another_order_of_the_sums_is_of_the_same_family(connect):
    assert told(load_library(), connect) == "once, at the end"


def test_nothing_is_told_where_the_values_are_of_no_family():
    assert told(load_library(), "fault:F40") == ""


def test_nothing_is_told_without_a_short_type():
    library = load_library()
    backend, info = usable("numpy", operation=library.operation.operation)
    assert rounding.rounding_of(library, backend, replace(info, element_types=("f32",))) == ""


def test_nothing_is_told_of_an_operation_that_has_no_families():
    assert told(load_library("sparse_attention_indexer"), "numpy") == ""
