"""The toy operation: loaded, checked and filled by what knows nothing of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.library.lint import problems
from conformance.library.reading import load_library
from conformance.spec.broken import breach, broken_rule
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import inputs_of
from conformance.spec.resized import reshaped, resized, with_other_attributes

TOY = Path(__file__).parents[1] / "toy"


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.syspath_prepend(str(TOY))
    return load_library("pick", TOY)


def test_it_is_found_by_its_name_and_by_its_folder(toy):
    assert load_library("Pick", TOY).digest == load_library("pick", TOY).digest == toy.digest
    assert toy.own == str(TOY) and len(toy.cases) == 26
    with pytest.raises(UsageError, match=r"no operation 'pic' .*did you mean 'pick'"):
        load_library("pic", TOY)


def test_it_breaks_no_rule_of_the_library(toy):
    assert problems(toy) == []


def test_the_cases_have_no_history_and_no_streams(toy):
    assert all(case.past == case.pad == () and not case.streams for case in toy.cases)
    assert all(Geometry(case, toy.operation).lengths == () for case in toy.cases)


def test_a_switched_off_optional_port_is_missing(toy):
    for case in toy.cases:
        assert ("bias" in inputs_of(case, toy.operation)) == ("bias" not in case.disabled)


def test_what_is_read_follows_from_the_values_of_another_port(toy):
    for case in toy.cases:
        if case.refusal or case.values:
            continue
        inputs = inputs_of(case, toy.operation)
        assert inputs["count"].dtype == np.int32
        read = np.arange(case.dims["M"]) < inputs["count"][:, None]
        values = inputs["values"].astype(np.float64)
        assert (np.abs(values[read]) <= 9).all()
        assert not (np.abs(values[~read]) <= 9).any()


def test_a_case_of_other_sizes_and_attributes_can_be_made(toy):
    case = toy.find("drawn/types[element_type=f32,disabled=none,largest=true]")
    other = with_other_attributes(case, toy.operation)
    assert other.attributes == {"largest": False, "copies": 3}
    assert Geometry(other, toy.operation).outputs == {"best": (3, 3)}
    assert inputs_of(reshaped(case, toy.operation, {"R": 7}), toy.operation)["values"].shape == (7, 5)
    smaller = resized(case, toy.operation, sequences=[2], dims={"M": 2})
    assert inputs_of(smaller, toy.operation)["values"].shape == (1, 2)


def test_every_rule_can_be_broken_and_is_recognised(toy):
    valid = toy.find("drawn/types[element_type=f32,disabled=none,largest=true]")
    broken = {rule.id: breach(valid, toy.operation, rule) for rule in toy.operation.refusals}
    assert broken["copies"].attributes == {"copies": 0}
    assert broken["rows"].change["count"].shape == (4,)
    assert broken["count"].change["count"].inject[0].value == -1
    case = toy.find("drawn/negative")
    assert broken_rule(case, toy.operation)[0].id == "count"
    assert inputs_of(case, toy.operation)["count"][0] == -1
