"""Diagnosis, blind: only a backend is given, and the mistake that was planted in it must come first."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import fakes
import numpy as np
import pytest

from conformance.backends.connect import usable
from conformance.failures import diagnose as d
from conformance.faults import catalogue, suspicion
from conformance.judging.engine import Engine
from conformance.library.reading import load_library

EVERY = int(os.environ.get("QSA_DIAGNOSE_EVERY", 9))  # one fault in so many; tox -e faults takes all of them


@pytest.fixture(scope="module")
def lab(library):
    return d.Lab(library.operation)


@pytest.fixture(scope="module")
def probes(library):
    return d.probes(library)


def diagnosed(library, lab, probes, backend, **kwargs):
    return d.diagnose(library, backend, backend.describe(), probes, seconds=300, lab=lab, **kwargs)


def comes_first(result, entry):
    """The fault itself, the reading that it stands for, or one that does the same on every probe."""
    best = result.best
    if best is None:
        return False
    names = {m.suspect.name for m in result.matches if (m.failures, m.passes) == (best.failures, best.passes)}
    return entry.id in names or bool(entry.reading and f"reading {entry.reading}" in names)


def test_probes_were_worked_out_from_this_library_and_catalogue(library):
    kept = d.stored(library)
    assert {case.id for case in library.cases} >= set(kept.cases)
    assert kept.library == library.digest, "the library changed: qsa-conformance faults --probes"
    assert kept.catalogue == suspicion.digest(), "the catalogue changed: qsa-conformance faults --probes"


def missed_among(names):
    """Faults of which another, or none, comes first; in a process of its own."""
    library = load_library()
    lab, probes, missed = d.Lab(library.operation), d.probes(library), []
    for name in names:
        entry = catalogue.find("fault", name)
        result = diagnosed(library, lab, probes, catalogue.backend_of(entry))
        if not comes_first(result, entry):
            missed.append((name, len(result.failing), [m.text for m in result.matches[:2]]))
    return missed


def test_planted_faults_come_first(library):
    names = [entry.id for entry in catalogue.faults(library.operation.operation)[::EVERY]]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        missed = [one for half in pool.map(missed_among, (names[::2], names[1::2])) for one in half]
    print(f"{len(names) - len(missed)} of {len(names)} faults come first; not: {missed}")
    assert len(names) >= 25
    assert len(missed) <= len(names) // 20, missed


@pytest.mark.parametrize("name", ["round-every-step", "float64", "newton-root", "rest-garbage", "flush-subnormals"])
def test_conforming_variants_have_no_fault(library, lab, probes, name):
    assert diagnosed(library, lab, probes, catalogue.backend("variant", name)).failing == []


@pytest.mark.parametrize(
    ("reading", "choice"),
    [
        ("alignment", "right"),
        ("empty_weight", "unit"),
        ("rows", "bound"),
        ("rope_width", "half"),
        ("pairing", "interleaved"),
    ],
)
def test_another_reading_is_told_and_named(library, lab, probes, reading, choice):
    backend = suspicion.backend(library.operation.operation, None, {reading: choice})
    result = diagnosed(library, lab, probes, backend)
    assert result.best.suspect.name == f"reading {reading}={choice}"
    described = next(r for r in library.operation.readings if r.name == reading)
    assert result.best.text.endswith(f": {described.says}: {described.alternatives[choice]}")
    followed = d.followed_readings(library.operation, backend, backend.describe(), d.small_cases(library))
    assert followed.pop(reading) == choice
    defaults = {r.name: r.default for r in library.operation.readings}
    # The others are told as well, or not at all: where every telling case fails for the one reading that is switched.
    assert all(choice in ("", defaults[name]) for name, choice in followed.items() if name != "unused")


def test_a_fault_under_another_reading_is_named_as_a_pair(library, lab, probes):
    entry = catalogue.find("fault", "F23")
    backend = suspicion.backend(library.operation.operation, entry, {"pairing": "interleaved"})
    result = diagnosed(library, lab, probes, backend)
    assert result.conclusive
    assert result.best.suspect.name == "F23 with reading pairing=interleaved"


class Fifth(fakes.Honest):
    """Keys are a fifth of what they are, in a way no known mistake has."""

    where = "keys"

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            keys = outputs["block_index_keys"]
            new = keys.astype(np.float64)
            past = inputs["past_block_index_keys"].shape[1]
            if inputs["k_norm_weight"].size:
                new[:, past:] = np.sin(new[:, past:])
            outputs["block_index_keys"] = new.astype(keys.dtype)
            return outputs


class LostState(fakes.Honest):
    """Returns the negative of the open block's raw keys."""

    class session(fakes.Honest.session):  # noqa: N801
        def answer(self, inputs):
            outputs = self.inner.run(inputs)
            outputs["present_incomplete_raw_keys"] = -outputs["present_incomplete_raw_keys"]
            return outputs


@pytest.mark.parametrize(("fake", "stage"), [(Fifth, "normalization"), (LostState, "carried state")])
def test_without_a_match_the_first_stage_that_diverges_is_named(library, lab, probes, fake, stage):
    result = diagnosed(library, lab, probes, fake())
    assert not result.conclusive
    assert result.stage == stage


def test_failures_of_a_run_are_explained(library):
    backend, info = usable("fault:F26")
    engine = Engine(library.operation, backend, info=info)
    failures = [o for o in map(engine.run, d.small_cases(library)[:60]) if o.status == "fail"]
    texts = d.explain(library, backend, info, failures)
    assert texts
    assert all(text.startswith("F26 on ") for text in texts.values())


def test_the_search_for_probes_tells_suspects_apart_with_few_cases(library, monkeypatch):
    """On a small catalogue: each suspect fails a probe, any two of them differ in one, and no probe is idle."""
    names = ["F23", "F24", "F26", "F40", "F41", "F45", "F01"]
    few = [d.Suspect(catalogue.find("fault", name)) for name in names]
    monkeypatch.setattr(d, "suspects", lambda operation: few)
    found = d.discriminating(library)
    lab = d.Lab(library.operation)
    marks = {s.name: tuple(d.fingerprint(lab.of(s, case)) for case in found) for s in [d.Suspect(), *few]}
    assert len(set(marks.values())) == len(few) + 1
    for i in range(len(found)):
        assert len({m[:i] + m[i + 1 :] for m in marks.values()}) < len(marks)
