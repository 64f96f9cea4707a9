"""Whatever a plug-in returns or raises costs it the case, and never the run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import fakes
import numpy as np
import pytest
from test_reference import case_of

from conformance.errors import plain, text_of
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind


class Hostile(np.ndarray):
    """An array whose methods all lie or raise."""

    def tobytes(self, *_):
        raise RuntimeError("no bytes")

    def astype(self, *_, **__):
        return np.zeros(self.shape)

    def __getitem__(self, _):
        raise RuntimeError("no elements")

    def view(self, *_):
        raise RuntimeError("no view")

    def __eq__(self, _):
        return np.ones(self.shape, dtype=bool)


def answering(change):
    """A backend whose outputs are changed as a whole."""

    class Fake(fakes.Honest):
        class session(fakes.Honest.session):  # noqa: N801
            def answer(self, inputs):
                return change(self.inner.run(inputs))

    return Fake()


def raising(error, where="run"):
    """A backend that raises in one place."""

    class Fake(fakes.Honest):
        def prepare(self, config):
            if where == "prepare":
                raise error
            return super().prepare(config)

        class session(fakes.Honest.session):  # noqa: N801
            def answer(self, inputs):
                if where == "run":
                    raise error
                return self.inner.run(inputs)

            def close(self):
                if where == "close":
                    raise error

    return Fake()


@pytest.mark.parametrize(
    "change",
    [lambda a: a.view(Hostile), np.ma.masked_array, lambda a: a.view(np.matrix) if a.ndim == 2 else a],
)
def test_a_subclass_counts_by_its_numbers(operation, change):
    backend = answering(lambda outputs: {name: change(array) for name, array in outputs.items()})
    assert Engine(operation, backend).run(case_of()).status == "pass"


def test_a_hostile_array_with_wrong_numbers_fails(operation):
    backend = answering(lambda outputs: {name: (array + 1).view(Hostile) for name, array in outputs.items()})
    outcome = Engine(operation, backend).run(case_of())
    assert (outcome.status, outcome.kind) == ("fail", Kind.VALUE)


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), ValueError("a"), BaseException("b")])
@pytest.mark.parametrize("where", ["run", "prepare"])
def test_whatever_is_raised_is_an_error_of_the_case(operation, error, where):
    outcome = Engine(operation, raising(error, where)).run(case_of())
    assert (outcome.status, outcome.kind, outcome.about) == ("error", Kind.RAISED, type(error).__name__)
    assert outcome.clause == operation.rules.serves


def test_a_session_that_cannot_be_closed_does_not_end_the_run(operation):
    engine = Engine(operation, raising(SystemExit(0), "close"))
    assert engine.run(case_of()).status == "pass"
    engine.close()


def test_an_interruption_from_the_keyboard_goes_through(operation):
    with pytest.raises(KeyboardInterrupt):
        Engine(operation, raising(KeyboardInterrupt())).run(case_of())


class Odd(Mapping):
    """A mapping of outputs with names and numbers of its own."""

    def __init__(self, outputs):
        self.outputs = outputs

    def __getitem__(self, name):
        return self.outputs[name]

    def __iter__(self):
        return iter(self.outputs)

    def __len__(self):
        return len(self.outputs)


class Raising(Odd):
    def __getitem__(self, _):
        raise SystemExit(0)


class Endless(Odd):
    def __iter__(self):
        return (f"output {number}" for number in itertools.count())

    def __getitem__(self, _):
        return 1


@pytest.mark.parametrize(("change", "kind"), [(Raising, Kind.RAISED), (Endless, Kind.OUTPUTS), (list, Kind.OUTPUTS)])
def test_a_mapping_that_raises_or_lies(operation, change, kind):
    outcome = Engine(operation, answering(change)).run(case_of())
    assert (outcome.status, outcome.kind) == ("error", kind)


def test_a_mapping_of_any_class_will_do(operation):
    assert Engine(operation, answering(Odd)).run(case_of()).status == "pass"


def test_texts_of_others_are_safe_to_print():
    class MuteError(Exception):
        def __str__(self):
            raise SystemExit(0)

    assert "str() raises SystemExit" in text_of(MuteError())
    assert plain("a\x1b[31mb\ud800\u202ec") == "a\\x1b[31mb\\ud800\\u202ec"
    assert len(text_of("x" * 10_000)) < 400
    assert text_of("one\ntwo") == "one"
