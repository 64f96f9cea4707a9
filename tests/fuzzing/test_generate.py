"""What the generator draws: valid cases with all corners, and refusals that break one rule each."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import hypothesis
import msgspec
import pytest
from fakes import Honest, NeverRefuses
from packaging.requirements import Requirement

from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.fuzzing.rounds import Source, play
from conformance.fuzzing.strategies import Generator, cited, configurations
from conformance.judging.engine import Engine
from conformance.judging.outcome import Outcome
from conformance.library.operations import load_operation
from conformance.spec.case import Case, lengths
from conformance.spec.inputs import inputs_of

INFO = NumPyReference().describe()
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def draw(strategy, count: int, seed: int = 1) -> list[Case]:
    found: list[Case] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def take(case):
        found.append(case)

    take()
    return found


def generator(seed: int = 0, info=INFO, **options) -> Generator:
    operation = load_operation()
    return Generator(operation, configurations(operation, info, seed), **options)


@cache
def drawn() -> tuple[Case, ...]:
    """Three hundred cases, of four lots of configurations."""
    return tuple(case for seed in range(4) for case in draw(generator(seed).cases(), 75, seed))


def share(test) -> float:
    return sum(map(bool, map(test, drawn()))) / len(drawn())


def test_cases_are_named_by_their_digest(operation):
    for case in drawn():
        assert case.id == f"generated/{case.digest}"
        assert case.operation == operation.operation
        assert case.relations == tuple(operation.relation)
        assert set(case.clauses) <= set(operation.clause)


def test_cases_survive_a_log(tmp_path):
    from conformance.record.log import CaseRecord, LogWriter, records

    refused = draw(generator().refusals(), 60)
    with LogWriter(tmp_path / "log.jsonl") as writer:
        for case in (*drawn(), *refused):
            writer.write(CaseRecord(case.digest, "", case))
    again = [record.case for record in records(tmp_path / "log.jsonl")]
    assert [case.digest for case in again] == [case.digest for case in (*drawn(), *refused)]


def test_cases_are_within_the_contract(operation):
    for case in drawn():
        N, L, Di, Dr, Bp = (case.dims[name] for name in ("N", "L", "Di", "Dr", "Bp"))
        assert len(case.past) == len(case.pad) == N
        assert all(0 <= pad <= L and (not pad or not past) for past, pad in zip(case.past, case.pad, strict=True))
        if "rope" not in case.disabled:
            assert 0 < Dr <= Di
            assert Dr % 2 == 0
        r = case.attributes["key_block_size"]
        assert max((past // r for past in case.past), default=0) <= Bp
        assert all(sum(stream) == L for stream in case.streams)
        if case.length_shape == "one":
            assert len(set(lengths(case, operation))) == 1
        inputs_of(case, operation)


def test_the_reference_answers_every_case(operation):
    engine = Engine(operation, Honest())
    for case in drawn()[::5]:
        outcome = engine.run(msgspec.structs.replace(case, relations=()))
        assert outcome.status == "pass", (case, outcome.where, outcome.reason)
    engine.close()


@pytest.mark.parametrize(
    ("corner", "least", "test"),
    [
        ("no sequences", 0.01, lambda c: c.dims["N"] == 0),
        ("one sequence", 0.1, lambda c: c.dims["N"] == 1),
        ("several sequences", 0.4, lambda c: c.dims["N"] > 1),
        ("no new tokens", 0.03, lambda c: c.dims["L"] == 0),
        ("one new token", 0.05, lambda c: c.dims["L"] == 1),
        ("r - 1 new tokens", 0.03, lambda c: c.dims["L"] == c.attributes["key_block_size"] - 1),
        ("r new tokens", 0.05, lambda c: c.dims["L"] == c.attributes["key_block_size"]),
        ("r + 1 new tokens", 0.03, lambda c: c.dims["L"] == c.attributes["key_block_size"] + 1),
        ("several blocks", 0.1, lambda c: c.dims["L"] > 2 * c.attributes["key_block_size"]),
        ("as many tokens as sequences", 0.04, lambda c: c.dims["N"] == c.dims["L"] > 0),
        ("width 1", 0.01, lambda c: c.dims["Di"] == 1),
        ("prime widths", 0.2, lambda c: c.dims["Di"] in (2, 3, 5, 7, 13, 17, 31)),
        ("width r", 0.03, lambda c: c.dims["Di"] == c.attributes["key_block_size"]),
        ("around a multiple of 16", 0.1, lambda c: c.dims["Di"] % 16 in (1, 15)),
        ("multiples of 16", 0.05, lambda c: c.dims["Di"] % 16 == 0),
        ("all of the width rotated", 0.1, lambda c: c.dims["Di"] == c.dims["Dr"] and "rope" not in c.disabled),
        ("part of the width rotated", 0.1, lambda c: c.dims["Di"] > c.dims["Dr"] and "rope" not in c.disabled),
        ("blocks that are not a power of two", 0.2, lambda c: c.attributes["key_block_size"] in (3, 5, 7)),
        ("no epsilon", 0.05, lambda c: c.attributes["epsilon"] == 0),
        ("large epsilon", 0.05, lambda c: c.attributes["epsilon"] >= 1e-3),
        ("f32", 0.2, lambda c: c.element_type == "f32"),
        ("f16", 0.2, lambda c: c.element_type == "f16"),
        ("bf16", 0.2, lambda c: c.element_type == "bf16"),
        ("i32", 0.3, lambda c: c.length_type == "i32"),
        ("i64", 0.3, lambda c: c.length_type == "i64"),
        ("no rotation", 0.15, lambda c: "rope" in c.disabled),
        ("no normalization", 0.15, lambda c: "norm" in c.disabled),
        ("neither", 0.05, lambda c: len(c.disabled) == 2),
        ("both", 0.2, lambda c: not c.disabled),
        ("ragged history", 0.15, lambda c: len(set(c.past)) > 1),
        ("left padding", 0.1, lambda c: any(c.pad)),
        ("padding and history side by side", 0.02, lambda c: any(c.pad) and any(c.past)),
        ("a sequence without any token", 0.01, lambda c: c.dims["L"] and c.dims["L"] in c.pad),
        ("waiting keys", 0.3, lambda c: any(past % c.attributes["key_block_size"] for past in c.past)),
        ("more rows of history than in use", 0.1, lambda c: c.dims["Bp"] > max(c.past, default=0) // 2),
        ("one length for all", 0.1, lambda c: c.length_shape == "one"),
        ("streams", 0.4, lambda c: c.streams),
        ("streams with empty calls", 0.05, lambda c: any(0 in stream for stream in c.streams)),
        ("streams of single tokens", 0.01, lambda c: any(set(s) == {1} and len(s) > 2 for s in c.streams)),
        ("small numbers", 0.03, lambda c: c.data["raw_index_keys"].get("scale", 1) < 0.01),
        ("large numbers", 0.03, lambda c: c.data["raw_index_keys"].get("scale", 1) >= 100),
        ("subnormal numbers", 0.01, lambda c: c.data["raw_index_keys"]["aim"] == "subnormal"),
        ("cancelling numbers", 0.02, lambda c: "cancelling" in c.data["raw_index_keys"]["aim"]),
        ("rope off the unit circle", 0.1, lambda c: c.data.get("rope_cos", {}).get("aim") == "uniform"),
        ("poison of NaN", 0.1, lambda c: c.poison == "nan"),
        ("poison of huge numbers", 0.1, lambda c: c.poison == "huge"),
    ],
)  # fmt: skip
def test_corners_are_drawn(corner, least, test):
    assert share(test) >= least, corner


def test_cases_differ():
    assert len({case.digest for case in drawn()}) > 0.9 * len(drawn())


def test_the_same_seed_draws_the_same_cases():
    first, again, other = (draw(generator(5).examples(), 60, seed) for seed in (9, 9, 10))
    assert [case.digest for case in first] == [case.digest for case in again]
    assert {case.digest for case in first} != {case.digest for case in other}


def test_a_salt_gives_other_tensors():
    plain = draw(generator(5).cases(), 30)
    salted = draw(generator(5, salt=1).cases(), 30)
    assert [case.dims for case in plain] == [case.dims for case in salted]
    assert not {case.digest for case in plain} & {case.digest for case in salted}


def test_only_what_the_backend_supports_is_drawn(operation):
    info = replace(INFO, element_types=("f16",), features=("norm",))
    for seed in range(3):
        source = Source(operation, info, seed)
        for case in draw(source.generator(0).cases(), 30):
            assert case.element_type == "f16"
            assert set(case.disabled) <= {"norm"}
            assert not any(case.pad)


def test_withheld_features_are_not_drawn(operation):
    """Under the reading that short lengths are refused there is no padding."""
    source = Source(operation, INFO, 0, {"short_length": "refused"})
    assert not any(any(case.pad) for case in draw(source.generator(0).cases(), 60))


def test_configurations_are_spread(operation):
    chosen = configurations(operation, INFO, 3, count=24)
    for values in (
        Counter(c.element_type for c in chosen),
        Counter(c.attributes["key_block_size"] for c in chosen),
        Counter(c.attributes["epsilon"] for c in chosen),
    ):
        assert max(values.values()) - min(values.values()) <= 1
    assert Counter(c.disabled for c in chosen)[()] > Counter(c.disabled for c in chosen)["rope",]


def test_cited_clauses_are_the_required_ones(operation):
    assert cited(operation)[0] == operation.rules.serves
    assert set(cited(operation)) == {
        clause.id for clause in operation.clauses if clause.level == "required" and clause.group != "ERR"
    }


@cache
def refused() -> tuple[Case, ...]:
    return tuple(case for seed in range(6) for case in draw(generator(seed).refusals(), 100, seed))


def test_every_rule_of_refusal_is_drawn(operation):
    broken = {case.says.rpartition(": ")[2].rstrip(".") for case in refused()}
    assert broken == {rule.id for rule in operation.refusals}


def test_refusals_are_refused_in_the_right_way(operation):
    engine = Engine(operation, Honest())
    for case in refused()[::4]:
        outcome = engine.run(case)
        assert outcome.status == "pass", (case.says, outcome.reason)
    engine.close()


def test_computing_instead_of_refusing_fails(operation):
    engine = Engine(operation, NeverRefuses())
    for case in refused()[::20]:
        outcome = engine.run(case)
        assert outcome.status == ("fail" if case.level == "required" else "quality-warning")
    engine.close()


def test_one_rule_is_broken_and_no_other(operation):
    """Without what was changed the case is valid; an attribute that was spoilt decides shapes, and is left out here."""
    engine = Engine(operation, Honest())
    for case in [case for case in refused() if case.change][::12]:
        outcome = engine.run(msgspec.structs.replace(case, change={}, refusal=None))
        assert outcome.status == "pass", (case.says, outcome.reason)
    engine.close()


def test_the_installed_hypothesis_is_one_that_was_tested_and_draws_as_it_did(operation):
    (pinned,) = (Requirement(one) for one in PROJECT["project"]["dependencies"] if one.startswith("hypothesis"))
    assert version("hypothesis") in pinned.specifier
    assert len(list(pinned.specifier)) == 2, "a lower and an upper bound"
    found = []
    source = Source(operation, INFO, 5)
    play(source, 0, 250, lambda case: Outcome(case.id, case.digest, "pass"), lambda one: bool(found.append(one.case)))
    assert len(found) == 250
    assert len({tuple(case.dims.items()) for case in found}) >= 225, "examples are drawn anew, not copied"
    assert 15 <= sum(case.refusal is not None for case in found) <= 50
