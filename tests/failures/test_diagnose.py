"""Diagnosis, blind: only outcomes are given, and the mistake that was planted must be named, or nothing."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import fakes
import msgspec
import numpy as np
import pytest

from conformance.backends.protocol import info_for
from conformance.failures import explain as e
from conformance.failures.diagnose import diagnose
from conformance.failures.followed import followed_readings, small_cases
from conformance.failures.measure import measure, run
from conformance.failures.suspects import Lab, Suspect, pairs
from conformance.faults import catalogue, suspicion
from conformance.judging.engine import Engine
from conformance.judging.outcome import Kind
from conformance.library.reading import load_library
from conformance.library.selection import select, size

EVERY = int(os.environ.get("QSA_DIAGNOSE_EVERY", 60))  # one fault in so many; faults --explanations takes more of them
FEW = ("F23", "F24", "F26", "F40", "F41", "F45", "F01", "F83", "F61", "F98")


@pytest.fixture(scope="module")
def lab(library):
    return Lab(library.operation)


@pytest.fixture(scope="module")
def small(library):
    return small_cases(library)[:200]


def outcomes_of(library, backend, cases):
    engine = Engine(library.operation, backend)
    try:
        return [engine.run(case) for case in cases]
    finally:
        engine.close()


def explained(library, lab, backend, cases, **kwargs):
    outcomes = outcomes_of(library, backend, cases)
    info = info_for(backend, library.operation.operation)
    return e.explain(library, kwargs.pop("once_more", None), info, outcomes, lab=lab, seconds=100, **kwargs)


def names(findings):
    return {suspect.name for finding in findings if finding.match for suspect in finding.match.suspects}


@pytest.mark.parametrize("name", ["F26", "F45"])
def test_a_planted_fault_is_named_with_its_share(library, lab, small, name):
    entry = catalogue.find("fault", name)
    findings = explained(library, lab, catalogue.backend_of(entry), small)
    assert name in names(findings)
    largest = findings[0]
    assert largest.match.failures >= 0.9 * largest.match.of_failures
    assert largest.match.passes >= 0.9 * largest.match.of_passes > 0
    assert f"on {largest.match.failures} of {largest.match.of_failures} failures" in largest.text
    assert largest.text.startswith("looks like: ")


def test_without_its_entry_nothing_else_is_claimed(library, lab, small):
    backend = catalogue.backend_of(catalogue.find("fault", "F26"))
    with_it = names(explained(library, lab, backend, small))
    assert not names(explained(library, lab, backend, small, without=with_it))


def test_another_reading_is_told_and_named(library, lab, small):
    backend = suspicion.backend(library.operation.operation, None, {"pairing": "interleaved"})
    findings = explained(library, lab, backend, small)
    assert findings[0].match.suspects[0].name == "reading pairing=interleaved"
    followed = followed_readings(library.operation, backend, backend.describe(), small_cases(library))
    assert followed["pairing"] == "interleaved"


def test_a_fault_under_another_reading_is_named_as_a_pair(library, small):
    operation = library.operation
    lab = Lab(operation)
    lab.singles = [s for s in lab.singles if s.name in (*FEW, "reading pairing=interleaved", "reading rope_width=half")]
    backend = suspicion.backend(operation.operation, catalogue.find("fault", "F26"), {"pairing": "interleaved"})
    found = names(explained(library, lab, backend, small))
    assert "F26 with reading pairing=interleaved" in found


def test_pairs_are_of_a_reading_and_a_fault_of_which_one_explains_something():
    fault, reading = Suspect(catalogue.find("fault", "F26")), Suspect(readings=(("a", "b"),))
    other = Suspect(catalogue.find("fault", "F40"))
    assert pairs([fault, other, reading], [fault]) == [Suspect(fault.fault, reading.readings)]


class Odd(fakes.Honest):
    """Wrong keys, in a way that no known mistake has, behind the normalization."""

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            keys = outputs["block_index_keys"]
            past = inputs["past_block_index_keys"].shape[1]
            if inputs["k_norm_weight"].size:
                new = keys.astype(np.float64)
                new[:, past:] = np.sin(3 * new[:, past:]) + 0.25
                outputs["block_index_keys"] = new.astype(keys.dtype)
            return outputs


def test_without_a_match_the_stage_is_named_where_it_can_be_told(library, lab, small):
    findings = explained(library, lab, Odd(), small, once_more=Odd())
    assert not names(findings)
    assert findings[0].stage == "normalization"


class OddAndWhole(Odd):
    """The same, and unable to switch anything off."""

    def describe(self):
        return replace(super().describe(), features=("left_padding",))


def test_where_no_stage_can_be_switched_off_none_is_named(library, lab, small):
    cases = [case for case in small if not case.disabled]
    findings = explained(library, lab, OddAndWhole(), cases, once_more=OddAndWhole())
    assert findings
    assert not any(finding.stage or finding.match for finding in findings)


class Raises(fakes.Honest):
    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            if inputs["raw_index_keys"].shape[1] > 3:
                raise RuntimeError("kernel launch failed")
            return self.inner.run(inputs)


def test_what_is_raised_gets_no_hint(library, lab, small):
    findings = explained(library, lab, Raises(), small, once_more=Raises())
    assert findings
    assert not any(finding.text for finding in findings)


class OnlyWhole(fakes.Honest):
    """Wrong values, and an exception wherever a feature is switched off: two mistakes, of which one hides the other."""

    def prepare(self, config):
        session = super().prepare(config)
        if not config.disabled:
            session.inner = self.wrong.prepare(config)
        return session

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            if self.config.disabled and outputs["block_index_keys"].shape[1]:
                raise IndexError("index 4 is out of bounds for axis 0 with size 0")
            return outputs

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong


def test_an_exception_elsewhere_does_not_hide_a_known_mistake(library, lab, small):
    backend = OnlyWhole(catalogue.backend_of(catalogue.find("fault", "F41")))
    assert "F41" in names(explained(library, lab, backend, small))


def test_what_is_raised_without_a_feature_names_no_stage(library, lab, small):
    backend = OnlyWhole(Odd())
    findings = explained(library, lab, backend, small, once_more=backend)
    assert any(finding.failures[0][1].sort is Kind.VALUE for finding in findings)
    assert not any(finding.stage for finding in findings)


class Unchecked(fakes.Honest):
    def prepare(self, config):
        from conformance.backends.protocol import Rejected

        try:
            return super().prepare(config)
        except Rejected:
            return self.session(None, config)

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            return {} if self.inner is None else self.inner.run(inputs)

        def close(self):
            return


def test_of_refusals_the_rules_that_are_missing_are_named(library, lab):
    cases = [case for case in library.cases if case.refusal and case.refusal.phase == "prepare"]
    findings = explained(library, lab, Unchecked(), cases)
    rules = {rule for finding in findings for rule in finding.unchecked}
    assert "block-size" in " ".join(rules)
    assert findings[0].text.startswith("not checked: ")


def test_a_cache_of_a_process_is_named(library, lab):
    entry = catalogue.find("fault", "F83")
    outcomes = run(library, entry, select(library, expression="by-hand or normalization/eps"))
    assert any(o.kind is Kind.ALONE and o.after for o in outcomes)
    info = info_for(catalogue.backend_of(entry), library.operation.operation)
    findings = e.explain(library, None, info, outcomes, lab=lab, seconds=100, clock=time.process_time)
    assert any("F83" in (one.name for one in f.match.suspects) for f in findings if f.match)
    assert all(f.match.failures == f.match.of_failures for f in findings if f.match)  # others cannot tell


def test_time_is_kept_also_with_one_large_case(library):
    case = max((c for c in library.cases if not c.refusal), key=lambda c: size(c, library.operation))
    entry = catalogue.find("fault", "F26")
    outcomes = run(library, entry, [case])
    outcomes = [
        o if o.status == "fail" else msgspec.structs.replace(o, status="fail", kind=Kind.VALUE) for o in outcomes
    ]
    info = info_for(catalogue.backend_of(entry), library.operation.operation)
    started, took = time.monotonic(), outcomes[0].seconds
    e.explain(library, None, info, outcomes, seconds=3)
    assert time.monotonic() - started < 3 + 20 * took + 20


def test_diagnose_says_of_failures_what_a_run_says(library):
    few = replace(library, cases=tuple(select(library, quick=True)))
    result = diagnose(few, "fault:F26", seconds=200)
    findings = e.explain(few, None, result.info, result.outcomes, seconds=100)
    assert e.texts(findings) == e.texts(result.findings)
    assert "F26" in names(findings)
    assert set(result.readings) == {reading.name for reading in library.operation.readings}


@pytest.mark.parametrize("name", ["round-every-step", "float64"])
def test_conforming_variants_have_no_fault(library, name):
    few = replace(library, cases=tuple(select(library, quick=True)))
    result = diagnose(few, f"variant:{name}", seconds=60)
    assert not result.failing and not result.findings


@pytest.mark.parametrize("operation", ["sparse_attention_indexer", "sparse_attention"])
def test_faults_of_other_operations_are_named_too(operation):
    library = load_library(operation)
    faults = catalogue.faults(library.operation.operation)[::EVERY]
    figures = measure(library, faults, cases=120)
    assert figures.shown and not figures.wrong, figures.text
    assert len(figures.right) >= 0.7 * figures.shown, figures.text


@pytest.mark.parametrize(
    ("folder", "fault"),
    [
        ("sparse_attention_pipeline", "W21"),  # cases of many dimensions, all of them small in bytes
        ("sparse_attention_indexer", "I170"),  # one of several ways to meet a reading
        ("sparse_attention_indexer", "I241"),  # a reading that leaves out a refusal
    ],
)
def test_faults_of_other_operations_are_named(folder, fault):
    library = load_library(folder)
    figures = measure(library, [catalogue.find("fault", fault, library.operation.operation)], cases=150)
    assert figures.right == [fault] and not figures.misled


def test_nothing_is_said_on_one_failure_of_many():
    """Dense attention fails one case as something narrower does, and many others as that does not."""
    library = load_library("sparse_attention")
    lab = Lab(library.operation)
    entry = catalogue.find("fault", "A19", library.operation.operation)
    outcomes = run(library, entry, small_cases(library)[:150])
    info = info_for(catalogue.backend_of(entry), library.operation.operation)
    found = names(e.explain(library, None, info, outcomes, lab=lab, seconds=100, without={"A19"}))
    assert not found
