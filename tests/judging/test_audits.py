"""Audits that only show between instances and in memory: strides, threads, and sessions that have refused a call."""

from __future__ import annotations

import threading
import time

import fakes
import numpy as np
import pytest
from test_reference import case_of

from conformance.backends.protocol import Rejected
from conformance.judging.audits_of_memory import region
from conformance.judging.engine import Engine
from conformance.spec.case import Change, Refusal


class IgnoresStrides(fakes.Honest):
    """Reads the memory of an input from its start, as if it were dense."""

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            return self.inner.run({name: self.dense(array) for name, array in inputs.items()})

        @staticmethod
        def dense(array):
            if array.base is None or array.flags.c_contiguous or array.dtype.kind == "i":
                return array
            return array.base.reshape(-1)[: array.size].reshape(array.shape)


class SharedScratch(fakes.Honest):
    """All instances put their keys into one buffer before they compute."""

    buffer: dict = {}

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            SharedScratch.buffer["keys"] = inputs["raw_index_keys"]
            time.sleep(0.001 * (threading.active_count() > 1))
            return self.inner.run({**inputs, "raw_index_keys": SharedScratch.buffer["keys"]})


class SulksAfterRefusing(fakes.Honest):
    """Computes something else once it has refused a call."""

    class session(fakes.Honest.session):  # noqa: N801
        refused = False

        def answer(self, inputs):
            try:
                outputs = self.inner.run(inputs)
            except Rejected:
                self.refused = True
                raise
            return {name: array * np.float32(1 + self.refused) for name, array in outputs.items()}


@pytest.mark.parametrize(
    ("fake", "audit", "words"),
    [
        (IgnoresStrides, "strided", "inputs with strides give different bits"),
        (SharedScratch, "concurrent", "concurrent requests give different bits"),
    ],
)
def test_an_audit_finds_its_mistake(operation, fake, audit, words):
    engine = Engine(operation, fake())
    plain, audited = engine.run(case_of()), engine.run(case_of(audits=(audit,), clauses=("PLG-1",)))
    assert plain.status == "pass"
    assert (audited.status, audited.clause) == ("fail", "PLG-5" if audit == "strided" else "PLG-1")
    assert words in audited.reason
    assert Engine(operation, fakes.Honest()).run(case_of(audits=(audit,), clauses=("PLG-1",))).status == "pass"


def test_a_session_serves_on_after_a_refusal(operation):
    due = Refusal(kind="shape", phase="call", names=("k_norm_weight",))
    refused = case_of(refusal=due, clauses=("ERR-2",), change={"k_norm_weight": Change(shape=(5,))})
    for fake, clause in ((fakes.Honest, ""), (SulksAfterRefusing, "PLG-3")):
        engine = Engine(operation, fake())
        assert engine.run(refused).status == "pass"
        assert engine.run(case_of()).clause == clause


def test_a_region_holds_the_same_values_further_apart():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    view = region(array, "nan")
    assert (view == array).all()
    assert not view.flags.c_contiguous
    assert np.isnan(view.base).sum() == 2 * 3 * 3
    lengths = region(np.array([5, 8], dtype=np.int64), "nan")
    assert lengths.tolist() == [5, 8]
    assert lengths.base.tolist() == [5, -1, 8, -1]
