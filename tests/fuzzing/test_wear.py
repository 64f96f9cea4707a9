"""One session called thousands of times: what changes is found, at the call where it does."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.backends.connect import usable
from conformance.cli import cli
from conformance.fuzzing.wear import changed, small_cases, wear
from conformance.judging.engine import Engine
from conformance.library.operations import load_operation


def worn(name, calls, seed=3, **more):
    operation = load_operation()
    return wear(operation, *usable(name, operation=operation.operation), calls=calls, seed=seed, **more)


def test_what_does_not_change_passes():
    told = []
    result = worn("numpy", 2100, advance=told.append)
    assert result.good, result.reason
    assert (result.calls, result.call, result.failed) == (2100, 0, [])
    assert told == [997, 1994]
    assert result.seconds > 0


def test_a_change_after_two_thousand_calls_is_found_where_it_happens():
    result = worn("fault:F395", 2100)
    assert not result.good
    assert 2000 <= result.call == result.calls < 2010
    assert "present_incomplete_raw_keys" in result.reason
    assert result.case in {case.id for case in result.cases}


def test_what_fails_at_once_is_no_wear():
    result = worn("fault:F19", 2100)
    assert result.calls == result.call == 0
    assert result.reason.startswith("fails before any wear")
    assert len(result.failed) == 1


def test_a_time_ends_it():
    result = worn("numpy", 0, seconds=1e-6)
    assert result.good
    assert result.calls == 997


@pytest.mark.parametrize("seed", range(4))
def test_the_cases_differ_in_shape_and_share_a_session(seed):
    operation = load_operation()
    _, info = usable("numpy", operation=operation.operation)
    cases = small_cases(operation, info, seed)
    assert len(cases) == len({str((case.dims, case.past, case.pad)) for case in cases}) == 6
    shared = {
        str((case.attributes, case.element_type, case.length_type, case.disabled, case.relations, case.streams))
        for case in cases
    }
    assert len(shared) == 1
    assert cases == small_cases(operation, info, seed)


def test_unspecified_elements_may_change():
    operation = load_operation()
    backend, info = usable("numpy", operation=operation.operation)
    (case, *_) = small_cases(operation, info, 3)
    engine = Engine(operation, backend, info=info)
    inputs = engine.inputs(case)
    expected = engine.oracle(case).expect(inputs)
    got = backend.prepare(engine.config(case)).run(inputs)
    other = {name: array.copy() for name, array in got.items()}
    for name, array in other.items():
        array[~expected[name].defined()] = 7
    assert changed(other, got, expected) == ""
    name = next(name for name in got if expected[name].defined().any())
    other[name][tuple(np.argwhere(expected[name].defined())[0])] = 7
    assert name in changed(other, got, expected)
    assert "another shape" in changed({**other, name: got[name][:0]}, got, expected)


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(cli, ["fuzz", *map(str, arguments)], standalone_mode=False)

    def test_nothing_changed(self):
        result = self.run("-b", "numpy", "--wear", 50, "--seed", 3)
        assert result.return_value == 0, result.output
        assert "numpy: 50 calls of one session with 6 shapes" in result.output
        assert "nothing changed; resident memory grew by" in result.output

    def test_a_change_with_the_line_to_repeat_it(self):
        result = self.run("-b", "fault:F82h", "--wear", 100, "--seed", 3)
        assert result.return_value == 1, result.output
        assert "to repeat: qsa-conformance fuzz -b fault:F82h --wear 100 --seed 3" in result.output

    def test_not_together_with_what_it_does_not_do(self):
        result = self.run("-b", "numpy", "--wear", 5, "--examples", 5)
        assert "--wear calls one session in this process" in str(result.exception)
