"""The catalogue of faults and variants, and the kill matrix."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import pytest

from conformance.backends.connect import connect
from conformance.backends.protocol import OperationConfig
from conformance.cli import main
from conformance.errors import BackendError
from conformance.faults import catalogue, layers, matrix
from conformance.faults.entry import ELEMENT_TYPES, Entry, Shelf
from conformance.faults.qsa_prepare.planting import SHELF
from conformance.faults.trial import Trial, killed
from conformance.judging.engine import Engine, Outcome
from conformance.library.operations import load_operation
from conformance.library.reading import Library
from conformance.spec.inputs import inputs_of
from reference.qsa_prepare.operation import QSAPrepare

FAULTS, VARIANTS = catalogue.faults("QSAPrepare"), catalogue.variants("QSAPrepare")
EVERY = [(name, entry) for name in catalogue.modules() for entry in catalogue.entries(operation=name)]


def some(library: Library, *ids: str) -> Library:
    """The library with these cases only."""
    return Library(library.operation, tuple(library.find(id) for id in ids), len(ids))


@pytest.fixture
def small(library):
    """Five small cases of different kinds."""
    return some(
        library,
        first(library, "streams/", streams=2),
        first(library, "rotation/"),
        first(library, "normalization/", attribute=1e-3),
        first(library, "batches/"),
        first(library, "disabled/"),
    )


def first(library: Library, start: str, streams: int = 0, attribute: float = 0.0) -> str:
    """Id of the first valid case of a topic that has so many streams and at least this epsilon."""
    return next(
        case.id
        for case in library.cases
        if case.id.startswith(start)
        and not case.refusal
        and len(case.streams) >= streams
        and case.attributes["epsilon"] >= attribute
    )


class TestCatalogue:
    def test_it_has_what_was_asked_for(self):
        assert len(FAULTS) >= 65
        assert len(VARIANTS) >= 12

    @pytest.mark.parametrize(("name", "entry"), EVERY, ids=[entry.connect for _, entry in EVERY])
    def test_every_entry_is_said_in_a_sentence_with_known_names(self, name, entry):
        operation = load_operation(name)
        assert entry.says.endswith(".")
        assert ". " not in entry.says
        assert len(entry.says) <= 140
        assert set(entry.element_types) <= set(ELEMENT_TYPES)
        assert all(clause in operation.clause for clause in entry.clauses)
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report) for report in entry.reports), entry.reports
        if entry.kind == "fault":
            assert entry.clauses
            assert re.fullmatch(r"[A-Z]\d{2,3}[a-z]?", entry.id)
        if entry.reading:
            name, _, choice = entry.reading.partition("=")
            assert choice in next(reading for reading in operation.readings if reading.name == name).alternatives

    @pytest.mark.parametrize("name", catalogue.modules())
    def test_no_two_faults_are_said_the_same(self, name):
        says = [entry.says for entry in catalogue.faults(name)]
        assert len(set(says)) == len(says)

    @pytest.mark.parametrize("name", catalogue.modules())
    def test_every_required_clause_group_has_a_fault(self, name):
        operation = load_operation(name)
        needed = {clause.group for clause in operation.clauses if clause.level == "required"}
        broken = {clause.partition("-")[0] for entry in catalogue.faults(name) for clause in entry.clauses}
        assert needed <= broken <= set(operation.groups)

    @pytest.mark.parametrize(("name", "entry"), EVERY, ids=[entry.connect for _, entry in EVERY])
    def test_an_entry_is_found_by_its_id_and_its_operation(self, name, entry):
        assert catalogue.find(entry.kind, entry.id, name) is entry

    def test_an_id_is_given_once(self):
        shelf = Shelf()
        shelf.fault("F01", "Says.", "BLK-1")(QSAPrepare)
        with pytest.raises(ValueError, match="two entries of the catalogue are called 'F01'"):
            shelf.variant("F01", "Says.")(QSAPrepare)

    def test_connect_strings(self):
        assert connect("fault:F23", operation="QSAPrepare").describe().name == "fault:F23"
        infos = connect("variant:float64").describe()
        assert {info.name for info in infos} == {"variant:float64"}
        assert {info.operation for info in infos} > {"QSAPrepare"}

    @pytest.mark.parametrize(
        ("text", "hint"),
        [("fault:F23x", "did you mean 'F23"), ("variant:flaot64", "did you mean 'float64'"), ("fault:?", "known: F01")],
    )
    def test_an_unknown_id_is_told_with_the_nearest(self, text, hint):
        with pytest.raises(BackendError, match=re.escape(hint)):
            connect(text)

    def test_claims_of_cases_name_faults_that_there_are(self, library):
        known = {entry.id for entry in FAULTS}
        assert [claim for claim in matrix.claims(library.cases) if claim.fault not in known] == []

    @pytest.mark.parametrize("entry", [e for e in FAULTS if e.reading], ids=lambda entry: entry.reading)
    def test_a_fault_with_a_reading_is_right_under_it(self, library, entry):
        name, _, choice = entry.reading.partition("=")
        engine = Engine(library.operation, catalogue.backend_of(entry), {name: choice})
        cases = [case for case in library.cases if case.topic in ("streams", "disabled", "rotation")][::9]
        outcomes = {outcome.status: outcome for outcome in map(engine.run, cases)}
        assert not {"fail", "error"} & outcomes.keys(), outcomes


# One fault of every topic, and cases of the library that kill it.
KILLS = [
    ("F01", "by-hand", "block"),
    ("F08", "streams", ""),
    ("F23", "normalization", "epsilon"),
    ("F40", "rotation", ""),
    ("F60", "batches", ""),
    ("F70", "zero-sizes", ""),
    ("F82", "plugin", "other-shapes"),
    ("F88", "plugin", "outputs-stay"),
    ("F202", "refusals", "weight"),
]


@pytest.mark.parametrize(("fault", "topic", "word"), KILLS)
def test_a_fault_is_killed_by_cases_of_its_topic(library, fault, topic, word):
    trial = Trial(library.operation)
    entry = catalogue.find("fault", fault)
    cases = [case for case in library.cases if case.topic == topic and word in case.id][:40]
    assert any(killed(trial.run(entry, case), entry, library.operation) for case in cases)


def test_the_reference_is_killed_by_nothing(library):
    entry = catalogue.find("variant", "float64")
    trial = Trial(library.operation)
    outcomes = [trial.run(entry, case) for case in library.cases[::25]]
    assert {outcome.status for outcome in outcomes} == {"pass"}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda entry: entry.id)
def test_a_variant_conforms_in_every_type(library, small, variant):
    trial = Trial(library.operation)
    for case in small.cases:
        for one in matrix.in_all_types(case):
            outcome = trial.run(variant, one)
            assert not killed(outcome, variant, library.operation), (one.id, outcome.reason)


@pytest.mark.parametrize("entry", [*FAULTS, *VARIANTS], ids=lambda entry: entry.connect)
def test_every_entry_can_be_prepared_and_called(library, entry):
    case = library.find(first(library, "batches/"))
    backend = catalogue.backend_of(entry)
    config = OperationConfig(case.operation, case.attributes, "f32", case.length_type, frozenset())
    try:
        session = backend.prepare(config)
        outputs = session.run(inputs_of(msgspec.structs.replace(case, element_type="f32"), library.operation))
    except Exception as error:
        # Some faults answer a valid call with an error or a refusal; none by a name that does not exist.
        assert not isinstance(error, NameError | AttributeError), error
        return
    assert set(outputs) == {output.name for output in library.operation.outputs}
    session.close()


class TestMatrix:
    def test_the_first_kill_is_enough_in_the_fast_form(self, small):
        entries = [catalogue.find("fault", id) for id in ("F19", "F40", "F01")]
        found = matrix.compute(small, entries)
        assert {id: len(cases) for id, cases in found.kills.items()} == {"F19": 1, "F40": 1, "F01": 1}
        assert found.good
        assert found.survivors == []

    def test_the_whole_form_counts_and_checks_claims(self, small, monkeypatch):
        monkeypatch.setattr(layers, "EXAMPLES", 20)
        cases = list(small.cases)
        cases[0] = msgspec.structs.replace(cases[0], kills=("F19", "F200"), place="a.yaml:1")
        claiming = Library(small.operation, tuple(cases), len(cases))
        entries = [catalogue.find("fault", id) for id in ("F19", "F200")]
        found = matrix.compute(claiming, entries, whole=True)
        assert len(found.kills["F19"]) > 1
        assert found.not_killed_in(entries[1]) == ["f32", "f16", "bf16"]
        assert [entry.id for entry in found.survivors] == ["F200"]
        assert found.wrong_claims == [matrix.Claim("a.yaml:1", "F200")]
        assert set(found.layers) == {"library", "relations", "generator"}
        assert "F19" in found.layers["generator"]
        assert not found.good
        assert found.idle == [case.place for case in cases if not any(case in kills for kills in found.kills.values())]

    def test_a_claim_of_no_fault_is_wrong_in_either_form(self, small):
        cases = (msgspec.structs.replace(small.cases[0], kills=("F999",), place="a.yaml:1"),)
        found = matrix.compute(Library(small.operation, cases, 1), [catalogue.find("fault", "F19")])
        assert found.wrong_claims == [matrix.Claim("a.yaml:1", "F999")]

    def test_a_case_that_alone_kills_a_fault_is_no_candidate(self, small):
        first_case, second = (msgspec.structs.replace(case, clauses=("BLK-1",)) for case in small.cases[:2])
        one = msgspec.structs.replace(first_case, place="a.yaml:1")
        two = msgspec.structs.replace(second, place="a.yaml:9")
        entry = catalogue.find("fault", "F19")
        found = matrix.Matrix(Library(small.operation, (one, two), 2), True, (entry,), (), {"F19": (one,)})
        assert found.candidates == ["a.yaml:9"]
        found.kills = {"F19": (one, two)}
        assert found.candidates == ["a.yaml:1", "a.yaml:9"]

    def test_a_failed_variant_is_a_false_alarm(self, small, monkeypatch):
        wrong = Entry("variant", "wrong", "Is wrong.", catalogue.find("fault", "F19").implementation, "variants")
        monkeypatch.setitem(SHELF.entries, "wrong", wrong)
        found = matrix.compute(small, [wrong])
        assert [entry.id for entry in found.false_alarms] == ["wrong"]
        assert not found.good
        assert found.alarms["wrong"][0].reason

    def test_processes_find_the_same(self, small):
        entries = [catalogue.find("fault", id) for id in ("F19", "F200")]
        alone, together = (matrix.compute(small, entries, jobs=jobs) for jobs in (1, 2))
        assert alone.kills == together.kills

    def test_cases_that_claim_a_kill_are_tried_first(self, library, monkeypatch):
        entry = catalogue.find("fault", "F19")
        cases = [msgspec.structs.replace(case, kills=()) for case in library.cases[:60]]
        cases[-1] = msgspec.structs.replace(cases[-1], kills=("F19",))
        worker = matrix.Worker(Library(library.operation, tuple(cases), 60))
        tried = []
        monkeypatch.setattr(worker.trial, "run", lambda fault, case: tried.append(case) or outcome_of(case, "pass"))
        assert worker._first(entry) == []
        assert tried[0] is cases[-1]
        assert len(tried) == 60

    def test_a_case_is_tried_in_every_type_unless_written_for_one(self, library):
        plain = library.find(first(library, "rotation/"))
        assert {case.element_type for case in matrix.in_all_types(plain)} == set(ELEMENT_TYPES)
        assert [case.element_type for case in matrix.in_all_types(plain, ["f16"])[1:]] == ["bf16"]
        by_hand = next(case for case in library.cases if case.values)
        assert matrix.in_all_types(by_hand) == (by_hand,)

    def test_shared_expectations_are_those_of_the_engine(self, library):
        """A case judged on shared inputs comes out as one judged alone."""
        trial = Trial(library.operation)
        fault = catalogue.find("fault", "F23")
        for case in library.cases[::150]:
            alone = Engine(library.operation, catalogue.backend_of(fault)).run(case)
            trial.run(catalogue.find("variant", "float64"), case)
            shared = trial.run(fault, case)
            assert (shared.status, shared.where, shared.reason) == (alone.status, alone.where, alone.reason)


def outcome_of(case, status):
    return Outcome(case.id, case.digest, status)


def test_generated_examples_are_the_same_every_time(operation):
    layers.examples.cache_clear()
    once = layers.examples(operation.operation, 20, 0)
    layers.examples.cache_clear()
    assert [case.digest for case in once] == [case.digest for case in layers.examples(operation.operation, 20, 0)]
    assert len(once) == 20


class TestCommand:
    @pytest.fixture
    def cli(self, capsys, monkeypatch, small):
        """Run the verb on a small library; gives exit code and output."""
        monkeypatch.setattr("conformance.library.reading.load_library", lambda operation: small)

        def run(*arguments):
            with pytest.raises(SystemExit) as caught:
                main(["faults", *arguments])
            out, err = capsys.readouterr()
            assert "Traceback" not in out + err
            return caught.value.code, out, err

        return run

    def test_all_killed(self, cli):
        code, out, err = cli("--fast", "-k", "F19 or F40", "--jobs", "1")
        assert (code, err) == (0, "")
        assert "of 5 cases" not in out
        assert re.search(r"(\d+) of \1 faults killed by 5 cases", out)

    def test_a_survivor_is_named(self, cli):
        code, out, _ = cli("--fast", "-k", "F200", "--jobs", "1")
        assert code == 1
        assert "SURVIVES" in out
        assert "survivors: F200" in out

    def test_json(self, cli):
        code, out, _ = cli("--fast", "-k", "fault:F19 or variant:float64", "--format", "json", "--jobs", "1")
        found = json.loads(out)
        assert code == 0
        assert found["good"] is True
        assert found["form"] == "fast"
        fault = next(fault for fault in found["faults"] if fault["id"] == "F19")
        assert fault["first"]
        assert fault["killed_in"]
        assert fault["reports"]
        assert {v["id"] for v in found["variants"] if v["conformant"]} == {"float64", "float64-exact-sum"}

    def test_whole_form_prints_layers_and_candidates(self, cli, monkeypatch):
        monkeypatch.setattr(layers, "EXAMPLES", 10)
        code, out, _ = cli("-k", "fault:F41p or variant:fused", "--jobs", "1")
        assert code == 0
        assert re.search(r"killed by one layer alone, of 1: library 1, relations \d, generator \d", out)
        assert "candidates for removal" in out
        assert "whole form" in out

    def test_the_catalogue_can_be_listed(self, cli):
        code, out, _ = cli("--list", "-k", "rotation")
        assert code == 0
        assert "fault:F40" in out
        assert "fault:F01" not in out
        code, out, _ = cli("--list", "--format", "json", "-k", "fault:F40")
        assert json.loads(out)[0]["reading"] == "pairing=interleaved"

    def test_a_filter_that_matches_nothing_is_a_usage_error(self, cli):
        code, _, err = cli("--fast", "-k", "fault:F23x")
        assert code == 2
        assert "no fault or variant matches 'fault:F23x'" in err
        assert "did you mean" in err


def test_times_zero_is_nan_where_something_is_not_finite():
    from conformance.faults.qsa_prepare.pooling import times_zero

    rows = np.array([[[1.0, np.inf], [np.nan, 2.0]]], dtype=np.float32)
    assert np.isnan(times_zero(rows, np.array([[True, True]]))).tolist() == [[True, True]]
    assert np.isnan(times_zero(rows, np.array([[False, True]]))).tolist() == [[True, False]]
    assert (times_zero(rows, np.array([[False, False]])) == 0).all()
