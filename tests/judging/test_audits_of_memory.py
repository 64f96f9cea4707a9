"""Audits of what a caller may hand over: layouts, arrays that come back, are looked at later, or change in place."""

from __future__ import annotations

import fakes
import numpy as np
import pytest
from test_reference import case_of

from conformance.judging import layouts
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind


def honest_but(change):
    """A backend that computes from inputs that one function has changed; it gets the session, too."""

    class Fake(fakes.Honest):
        class session(fakes.Honest.session):  # noqa: N801
            def answer(self, inputs):
                return self.inner.run(change(self, dict(inputs)))

    return Fake()


def dense_start(array):
    """What reads the memory of an array from its base on, as if it were dense."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    flat = base.reshape(-1) if base.flags.c_contiguous else np.ascontiguousarray(base).reshape(-1)
    return np.resize(flat, array.shape) if flat.size >= array.size and flat.size else array


def ignoring(port, *, rank=3):
    """Ignores the layout of one port."""

    def change(_, inputs):
        inputs[port] = dense_start(inputs[port])
        return inputs

    return change


def aligned_only(_, inputs):
    """Rounds addresses down to 16 bytes where rows are that wide."""
    keys = inputs["raw_index_keys"]
    if keys.flags.c_contiguous and keys.ctypes.data % 16 and keys.size:
        inputs["raw_index_keys"] = np.roll(keys, 1)
    return inputs


def cos_with_strides_of_sin(_, inputs):
    cos, sin = inputs["rope_cos"], inputs["rope_sin"]
    if cos.strides != sin.strides:
        inputs["rope_cos"] = np.roll(cos, 1, axis=-1)
    return inputs


def weight_kept_by_object(session, inputs):
    kept = session.__dict__.setdefault("kept", {})
    weight = inputs["k_norm_weight"]
    inputs["k_norm_weight"] = kept.setdefault(id(weight), (weight, weight.copy()))[1]
    return inputs


def keys_kept_by_address(session, inputs):
    kept = session.__dict__.setdefault("kept", {})
    keys = inputs["raw_index_keys"]
    inputs["raw_index_keys"] = kept.setdefault((keys.ctypes.data, keys.shape), keys.copy())
    session.kept = dict(list(kept.items())[-4:])
    return inputs


def writes_into(port):
    def change(_, inputs):
        array = inputs[port]
        if not array.flags.owndata and array.flags.writeable and array.size:
            array[...] = 0
        return inputs

    return change


LAYOUTS = [ignoring(name) for name in ("raw_index_keys", "past_block_index_keys", "k_norm_weight", "rope_cos",
                                       "past_incomplete_raw_keys", "past_incomplete_rope", "key_length")]  # fmt: skip


@pytest.mark.parametrize("change", [*LAYOUTS, aligned_only, cos_with_strides_of_sin])
def test_every_layout_finds_a_port_that_is_read_as_if_dense(operation, change):
    outcome = Engine(operation, honest_but(change)).run(case_of(audits=("every-layout",)))
    assert (outcome.status, outcome.clause, outcome.place.names) == ("fail", "PLG-5", ("every-layout",)), outcome


@pytest.mark.parametrize("change", [weight_kept_by_object, keys_kept_by_address])
def test_changed_in_place_finds_what_is_kept_by_object_or_address(operation, change):
    outcome = Engine(operation, honest_but(change)).run(case_of(audits=("changed-in-place",)))
    assert (outcome.status, outcome.clause) == ("fail", "PLG-1"), outcome


def test_feedback_finds_a_call_that_writes_into_an_array_that_came_back(operation):
    class Reuses(fakes.Honest):
        class session(fakes.Honest.session):  # noqa: N801
            last = None

            def answer(self, inputs):
                state = inputs["past_incomplete_raw_keys"]
                outputs = dict(self.inner.run(inputs))
                if state is self.last:
                    state += np.float32(1)
                self.last = outputs["present_incomplete_raw_keys"]
                return outputs

    assert Engine(operation, Reuses()).run(case_of()).status == "pass"
    outcome = Engine(operation, Reuses()).run(case_of(audits=("feedback",)))
    assert (outcome.clause, outcome.kind) == ("PLG-2", Kind.MODIFIED)


def test_kept_finds_an_output_that_is_used_again_after_many_calls(operation):
    class Pool(fakes.Honest):
        class session(fakes.Honest.session):  # noqa: N801
            def answer(self, inputs):
                outputs = dict(self.inner.run(inputs))
                pool = self.__dict__.setdefault("pool", [])
                pool.append(outputs["block_index_keys"])
                if len(pool) > 100:
                    pool.pop(0)[...] = 0
                return outputs

    assert Engine(operation, Pool()).run(case_of()).status == "pass"
    outcome = Engine(operation, Pool()).run(case_of(audits=("kept",)))
    assert (outcome.clause, outcome.kind) == ("PLG-2", Kind.CHANGED)


def test_order_finds_plans_that_are_kept_without_the_epsilon(operation):
    class Plans(fakes.Honest):
        def __init__(self):
            super().__init__()
            self.plans = {}

        def prepare(self, config):
            key = config.element_type, config.attributes["key_block_size"], config.length_type, config.disabled
            return self.plans.setdefault(key, super().prepare(config))

    case = case_of(clauses=("PLG-3",))
    assert Engine(operation, Plans()).run(case).status == "pass"
    outcome = Engine(operation, Plans()).run(case_of(audits=("order",)))
    assert outcome.status == "fail" and outcome.place.names == ("order",)


@pytest.mark.parametrize(
    "audit", ["layouts", "every-layout", "feedback", "kept", "changed-in-place", "order", "concurrent"]
)
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_an_honest_backend_passes(operation, audit, kind):
    outcome = Engine(operation, fakes.Honest()).run(case_of(audits=(audit,), element_type=kind))
    assert (outcome.status, outcome.skipped) == ("pass", {}), outcome


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)])
def test_layouts_hold_the_same_numbers_in_other_memory(shape):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    seen = set()
    for says, layout in layouts.layouts(array.ndim):
        view = layout(array)
        assert (view == array).all() and view.dtype == array.dtype, says
        seen.add((view.strides, view.flags.writeable, view.ctypes.data % 8))
    assert len(seen) >= 4 * array.ndim
    assert min(stride for strides, _, _ in seen for stride in strides) < 0
    dense, zero = layouts.repeated(array, 0)
    assert (dense == zero).all() and zero.strides[0] == 0
