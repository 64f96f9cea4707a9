"""Relations: each is broken by a backend that breaks it and no other, and no conforming one breaks any."""

from __future__ import annotations

import inspect

import msgspec
import numpy as np
import pytest
from fakes import Honest, KeysOnly, OnlyF32

from conformance.backends.protocol import Unsupported
from conformance.fuzzing import campaign
from conformance.fuzzing import rounds as fuzz
from conformance.fuzzing import strategies as generate
from conformance.judging import relations, rewritings, scene
from conformance.judging.engine import Engine
from conformance.spec.case import Case
from conformance.spec.inputs import inputs_of
from reference.parts import Bounded

RELATIONS = (
    "split", "rewind", "rows-alone", "rows-permuted", "one-length", "length-types", "extra-history", "dont-care",
    "causality", "scaled-keys", "halved-weight", "identity-rotation",
)  # fmt: skip


def case(**changes) -> Case:
    """Three ragged sequences, all with waiting keys or not, in one call of nine tokens and in two."""
    base = Case(
        id="tests/relations",
        says="For the tests of relations.",
        clauses=("PLG-3", "STA-4", "SEP-1", "SEP-2"),
        operation="QSAPrepare",
        attributes={"key_block_size": 4, "epsilon": 0.0},
        dims={"N": 3, "L": 9, "Di": 6, "Dr": 4, "Bp": 2},
        past=(10, 5, 2),
        pad=(0, 0, 0),
        poison="nan",
        streams=((2, 7),),
        seed=3,
    )
    return msgspec.structs.replace(base, **changes)


EQUAL = case(dims={"N": 3, "L": 9, "Di": 6, "Dr": 4, "Bp": 1}, past=(6, 6, 6))


def spoil(outputs):
    """All block keys made wrong."""
    return outputs | {"block_index_keys": outputs["block_index_keys"] + 1}


class Wrong(Honest):
    """Wrong whenever `when(self, inputs)` says so; `self.first` are the inputs of the session's first call."""

    when = None

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            if self.calls == 1:
                self.first = {name: array.copy() for name, array in inputs.items()}
            outputs = self.inner.run(inputs)
            return spoil(outputs) if self.owner.when(self, inputs) else outputs

    def prepare(self, config):
        session = super().prepare(config)
        session.owner = type(self)
        return session


def wrong_when(test):
    return type("WrongWhen", (Wrong,), {"when": staticmethod(test)})


class Remembers(Honest):
    """Goes on from its own state of a call in parts, when the next one begins earlier than that call ended."""

    class session(Honest.session):  # noqa: N801
        state = None

        def answer(self, inputs):
            S, L = inputs["key_length"], inputs["raw_index_keys"].shape[1]
            if L == 9:
                return self.inner.run(inputs)
            if self.state is not None and (np.maximum(S - L, 0) < self.state[0]).any():
                inputs = inputs | {"past_incomplete_raw_keys": self.state[1]}
            outputs = self.inner.run(inputs)
            self.state = S, outputs["present_incomplete_raw_keys"]
            return outputs


class FixedEpsilon(Honest):
    """Ignores an epsilon of zero."""

    def prepare(self, config):
        from dataclasses import replace

        return super().prepare(replace(config, attributes={**config.attributes, "epsilon": 0.1}))


class OneMore(Honest):
    """Multiplies by one plus the weight."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            return self.inner.run(inputs | {"k_norm_weight": inputs["k_norm_weight"] + np.float32(1)})


class OffIsZero(Honest):
    """Gives zeros for block keys that are not rotated."""

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            return spoil(outputs) if "rope" in self.config.disabled else outputs


def tokens(inputs):
    return inputs["raw_index_keys"].shape[1]


BREAKERS = {
    "split": wrong_when(lambda self, inputs: tokens(inputs) == 7),
    "rewind": Remembers,
    "rows-alone": wrong_when(lambda self, inputs: len(inputs["key_length"]) == 1),
    "rows-permuted": wrong_when(lambda self, inputs: inputs["key_length"][0] < inputs["key_length"][-1]),
    "one-length": wrong_when(lambda self, inputs: inputs["key_length"].shape == (1,) and len(inputs["rope_cos"]) > 1),
    "length-types": wrong_when(lambda self, inputs: inputs["key_length"].dtype == np.int32),
    "extra-history": wrong_when(
        lambda self, inputs: tokens(inputs) == 9 and inputs["past_block_index_keys"].shape[1] > 2
    ),
    "dont-care": wrong_when(lambda self, inputs: (inputs["past_incomplete_raw_keys"][:, -1] == 1).any()),
    "causality": wrong_when(lambda self, inputs: not np.isfinite(inputs["raw_index_keys"]).all()),
    "scaled-keys": FixedEpsilon,
    "halved-weight": OneMore,
    "identity-rotation": OffIsZero,
}


def outcome(engine, backend, operation, given):
    runner = engine(operation, backend)
    try:
        return runner.run(given)
    finally:
        runner.close()


def test_every_relation_is_tested(operation):
    assert set(operation.relation) == set(RELATIONS) == set(BREAKERS)


def relations_only(*arguments):
    """An engine without a reference's values."""
    return Engine(*arguments, free=True)


@pytest.mark.parametrize("broken", RELATIONS)
def test_a_relation_and_only_it_is_broken(operation, broken):
    given = EQUAL if broken == "one-length" else case()
    for name in RELATIONS:
        one = msgspec.structs.replace(given, relations=(name,))
        result = outcome(relations_only, BREAKERS[broken](), operation, one)
        if name == broken:
            assert result.status == "fail", (name, result.skipped)
            assert result.clause == {"dont-care": "STA-3"}.get(name, operation.relation[name].clause)
            assert str(result.where).startswith(f"relation {name}")
        else:
            assert result.status == "pass", (name, result.where, result.reason)


@pytest.mark.parametrize("broken", RELATIONS)
def test_among_all_relations_the_broken_one_is_told(operation, broken):
    """Several are put as one question; when its answer is wrong, they are asked one by one."""
    given = EQUAL if broken == "one-length" else case()
    result = outcome(relations_only, BREAKERS[broken](), operation, msgspec.structs.replace(given, relations=RELATIONS))
    assert result.status == "fail"
    assert str(result.where).startswith(f"relation {broken}")


def test_what_is_wrong_with_relations_together_only_is_said_so(operation):
    def both(self, inputs):
        lengths, Bp = inputs["key_length"], inputs["past_block_index_keys"].shape[1]
        return lengths[0] < lengths[-1] and Bp > 2 and tokens(inputs) == 9

    result = outcome(relations_only, wrong_when(both)(), operation, case(relations=RELATIONS))
    assert result.status == "fail"
    assert str(result.where) == "relations rows-permuted, length-types, extra-history, halved-weight together"


def test_what_is_raised_is_told_as_well(operation):
    class Raises(Honest):
        class session(Honest.session):  # noqa: N801
            def answer(self, inputs):
                if inputs["past_block_index_keys"].shape[1] > 2 and tokens(inputs) == 9:
                    raise ZeroDivisionError("too long")
                return self.inner.run(inputs)

    result = outcome(Engine, Raises(), operation, case(relations=RELATIONS))
    assert (result.status, result.reason) == ("error", "raises ZeroDivisionError: too long")
    assert str(result.where).startswith("relation extra-history")


def test_a_length_type_that_the_backend_does_not_take_leaves_the_others_checked(operation):
    class OnlyI64(Wrong):
        def prepare(self, config):
            if config.length_type == "i32":
                raise Unsupported("i32", "takes i64 only")
            return super().prepare(config)

        @staticmethod
        def when(self, inputs):
            return BREAKERS["extra-history"].when(self, inputs)

    result = outcome(Engine, OnlyI64(), operation, case(relations=RELATIONS))
    assert (result.status, result.clause) == ("fail", "OUT-1")
    assert "takes i64 only" in result.skipped["length-types"]


@pytest.mark.parametrize("name", [name for name in RELATIONS if name not in ("scaled-keys", "halved-weight")])
def test_with_the_reference_the_relation_is_blamed_as_well(operation, name):
    """Except where the single call is wrong already."""
    given = EQUAL if name == "one-length" else case()
    one = msgspec.structs.replace(given, relations=(name,), streams=())
    if name == "split":
        result = outcome(Engine, wrong_when(lambda self, inputs: tokens(inputs) < 9)(), operation, one)
    else:
        result = outcome(Engine, BREAKERS[name](), operation, one)
    assert (result.status, str(result.where)[: len(f"relation {name}")]) == ("fail", f"relation {name}"), result


class Rounds(Honest):
    """Conforming, but its last bits depend on everything that a plug-in may choose by: shapes, types, the session.

    Every new block key is off by nine tenths of its bound.
    """

    class session(Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = dict(self.inner.run(inputs))
            from reference.qsa_prepare.bounds import expect

            expected = expect(self.inner.op, inputs)["block_index_keys"]
            keys = outputs["block_index_keys"]
            (N, L, _), Bp = inputs["raw_index_keys"].shape, inputs["past_block_index_keys"].shape[1]
            lengths = inputs["key_length"].nbytes // 4
            sign = (-1) ** (N // 2 + L + Bp + lengths + len(self.config.disabled))
            for part in expected.parts:
                if isinstance(part, Bounded):
                    with np.errstate(all="ignore"):
                        moved = (part.value + 0.9 * sign * part.bound).astype(keys.dtype)
                        inside = np.abs(moved.astype(np.float64) - part.value) <= part.bound
                    keys[part.index] = np.where(inside, moved, keys[part.index])
            return outputs


@pytest.mark.parametrize("element_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("engine", [Engine, relations_only])
def test_another_rounding_for_every_shape_and_session_breaks_nothing(operation, engine, element_type):
    for given in (case(relations=RELATIONS), msgspec.structs.replace(EQUAL, relations=RELATIONS)):
        given = msgspec.structs.replace(given, element_type=element_type)
        result = outcome(engine, Rounds(), operation, given)
        assert result.status in ("pass", "quality-warning"), (result.where, result.reason)


def test_bits_are_recommended_to_cases_that_say_so(operation):
    """Rows alone and split streams may round otherwise, which is noted where PLG-4 is cited, and only there."""
    for names in (("rows-alone",), ("rows-permuted",), ("split",)):
        one = case(relations=names, streams=())
        assert outcome(relations_only, Rounds(), operation, one).status == "pass"
        cited = msgspec.structs.replace(one, clauses=("PLG-4",))
        result = outcome(relations_only, Rounds(), operation, cited)
        if names != ("rows-permuted",):  # there no shape changes
            assert (result.status, result.clause) == ("quality-warning", "PLG-4")


def test_what_cannot_be_checked_is_said(operation):
    every = case(relations=RELATIONS)
    skipped = outcome(Engine, Honest(), operation, every).skipped
    assert skipped == {
        "split": "the streams of the case are run and judged call by call",
        "one-length": "the lengths differ",
    }
    keys_only = outcome(Engine, KeysOnly(), operation, msgspec.structs.replace(every, streams=())).skipped
    assert "does not return present_incomplete_raw_keys" in keys_only["split"]
    assert "does not return present_incomplete_raw_keys" in keys_only["rewind"]
    small = case(
        relations=RELATIONS,
        dims={"N": 1, "L": 0, "Di": 6, "Dr": 4, "Bp": 2},
        past=(8,),
        pad=(0,),
        streams=(),
        attributes={"key_block_size": 4, "epsilon": 1e-6},
        disabled=("norm", "rope"),
    )
    skipped = outcome(Engine, Honest(), operation, small).skipped
    assert set(RELATIONS) - set(skipped) == {"length-types", "extra-history", "dont-care"}


def test_a_feature_that_the_backend_cannot_switch_off_is_no_failure(operation):
    class AlwaysRotates(OnlyF32):
        def describe(self):
            from dataclasses import replace

            return replace(super().describe(), features=("norm", "left_padding"))

    result = outcome(Engine, AlwaysRotates(), operation, case(relations=("identity-rotation",)))
    assert result.status == "pass"
    assert "does not declare the feature 'rope'" in result.skipped["identity-rotation"]


@pytest.mark.parametrize(
    ("name", "choice"),
    [("alignment", "right"), ("empty_weight", "unit"), ("unused", "zeros"), ("unused", "carried"), ("rows", "bound"),
     ("pairing", "interleaved"), ("rope_width", "half")],
)  # fmt: skip
def test_relations_hold_under_every_reading(operation, name, choice):
    from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
    from reference.qsa_prepare.operation import Readings

    readings = {name: choice}
    engine = Engine(operation, NumPyReference(Readings(**readings)), readings)
    for given in (case(), EQUAL, case(pad=(0, 3, 0), past=(10, 0, 2))):
        dims = {**given.dims, "Dr": 2 if choice == "half" else 4}
        one = msgspec.structs.replace(given, dims=dims, relations=RELATIONS, streams=())
        result = engine.run(one)
        assert result.status == "pass", (result.where, result.reason)
    engine.close()


def test_a_key_outside_the_domain_is_not_compared(operation):
    """NUM-3: only SEP-1 and SEP-2 are asked for there, and what is not judged is not compared either."""
    data = {"raw_index_keys": {"aim": "near_largest", "share": 1.0}}
    result = outcome(relations_only, Honest(), operation, case(relations=RELATIONS, data=data))
    assert result.status == "pass", (result.where, result.reason)


def test_relations_leave_the_inputs_alone(operation):
    """Every relation makes its own inputs; those of the single call stay what they were."""
    one = case(relations=RELATIONS)
    engine = Engine(operation, Honest())
    before = inputs_of(one, operation)
    engine.run(one)
    after = inputs_of(one, operation)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    engine.close()


@pytest.mark.parametrize("module", [relations, rewritings, scene, generate, fuzz, campaign])
def test_no_port_of_the_operation_is_named(operation, module):
    source = inspect.getsource(module)
    for name in (*operation.port, *operation.output):
        assert name not in source
