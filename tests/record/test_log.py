"""The log: what is written comes back, and a log that is cut off is still of use."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import msgspec
import pytest
from test_reference import case_of

from conformance.backends.connect import usable
from conformance.errors import UsageError
from conformance.judging.engine import Outcome
from conformance.library.reading import Library
from conformance.record.log import (
    SCHEMA,
    CaseRecord,
    LogWriter,
    PerfRecord,
    count,
    json_schema,
    read_log,
    records,
    verdict,
)
from conformance.reporting.table import matrix, verdict_of
from conformance.running.run import Plan, execute


@pytest.fixture
def library_of_three(operation):
    return Library(operation, tuple(case_of(id=f"t/{i}", seed=i) for i in range(3)), 3)


def outcome_of(case, status="pass"):
    return Outcome(case=case.id, digest=case.digest, status=status, verdicts=3, headroom={"ROT-1": 0.25})


@pytest.fixture
def log(library_of_three, tmp_path):
    _, info = usable("numpy")
    plan = Plan("numpy", library_of_three.cases, complete=True)
    results = [outcome_of(case) for case in library_of_three.cases]
    return execute(plan, library_of_three, info, results, tmp_path / "a.jsonl")


def test_what_is_written_comes_back(log, library_of_three):
    again = read_log(Path(log.path))
    assert again.header == log.header
    assert msgspec.structs.replace(again.footer, digest="") == log.footer
    assert again.outcomes == log.outcomes
    assert [record.case for record in again.cases.values()] == list(library_of_three.cases)


def test_a_log_that_was_read_can_be_written_again_with_more_in_it(log, tmp_path):
    first = list(records(Path(log.path)))
    with LogWriter(tmp_path / "b.jsonl") as writer:
        for record in (*first[:-1], PerfRecord("small", {"fast_s": 1.0}), first[-1]):
            writer.write(record)
    again = read_log(tmp_path / "b.jsonl")
    assert len(again.perf) == 1
    assert again.footer.digest != first[-1].digest


def test_every_line_keeps_to_the_published_schema(log):
    schema = json_schema()
    validator = jsonschema.Draft202012Validator(schema)
    with Path(log.path).open() as lines:
        for line in lines:
            validator.validate(json.loads(line))
    assert list(validator.iter_errors({"record": "result"})), "the schema must be able to refuse"


def test_a_log_that_is_cut_anywhere_keeps_its_finished_results(log, tmp_path):
    whole = (tmp_path / "a.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in range(first, len(whole), 37):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:cut])
        again = read_log(path)
        complete_lines = sum(end <= cut for end in ends)
        assert len(again.results) >= (complete_lines - 1) // 2
        assert again.interrupted
        assert verdict_of(again) == "INCOMPLETE"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it has no header"),
        ("hello\n", ":1: is not a line of a log"),
        ('{"record":"footer","counts":{},"verdicts":0,"seconds":0,"verdict":"x"}\n', "it has no header"),
        ('{"record":"nothing"}\n{"record":"nothing"}\n', ":1: is not a line"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_log(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl")


def test_a_newer_schema_is_refused(log, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(path.read_text().replace(f'"schema":{SCHEMA}', f'"schema":{SCHEMA + 1}', 1))
    with pytest.raises(UsageError, match="update the suite"):
        read_log(path)


@pytest.mark.parametrize(
    ("statuses", "complete", "want"),
    [
        (["pass", "pass"], True, "CONFORMANT"),
        (["pass", "quality-warning"], True, "CONFORMANT"),
        (["pass", "unsupported"], True, "PARTIAL"),
        (["pass", "fail"], True, "NOT CONFORMANT"),
        (["pass", "error"], True, "NOT CONFORMANT"),
        (["pass", "fail"], False, "NOT CONFORMANT"),
        (["pass", "pass"], False, "INCOMPLETE"),
        (["pass", "not-run"], True, "INCOMPLETE"),
        (["unsupported"], True, "NOT CONFORMANT"),
        ([], True, "NOT CONFORMANT"),
    ],
)
def test_the_verdict(statuses, complete, want):
    counts = count([Outcome(case="x", digest="", status=status) for status in statuses])
    assert verdict(counts, complete=complete) == want


def test_an_interruption_keeps_results_and_leaves_no_footer(library_of_three, tmp_path):
    def results():
        yield outcome_of(library_of_three.cases[0])
        raise KeyboardInterrupt

    _, info = usable("numpy")
    plan = Plan("numpy", library_of_three.cases, complete=True)
    execute(plan, library_of_three, info, results(), tmp_path / "b.jsonl")
    again = read_log(tmp_path / "b.jsonl")
    assert len(again.results) == 1
    assert again.interrupted


def test_the_matrix(log, operation, library_of_three):
    failed = msgspec.structs.replace(replace_outcomes(log, "fail"), label="failing")
    text = matrix([log, failed], operation)
    row = next(line for line in text.splitlines() if line.startswith("BLK"))
    assert row.split()[:6] == ["BLK", "Blocks", "3", "0/3", "(3", "failed),"]
    assert text.splitlines()[-1].split(maxsplit=1) == ["CONFORMANT", "NOT CONFORMANT"]


def replace_outcomes(log, status):
    import msgspec

    results = {
        name: msgspec.structs.replace(record, outcome=msgspec.structs.replace(record.outcome, status=status))
        for name, record in log.results.items()
    }
    return msgspec.structs.replace(log, results=results, footer=None)


def test_what_json_has_no_number_for_comes_back_as_it_was(operation, tmp_path):
    nan = float("nan")
    data = {"raw_index_keys": {"aim": "bell", "inject": [{"at": [0, 0, 0], "value": -math.inf}]}}
    case = case_of(id="t/nan", attributes={"key_block_size": 4, "epsilon": nan}, data=data, poison="nan")
    with LogWriter(tmp_path / "a.jsonl") as writer:
        writer.write(CaseRecord(case.digest, "", case))
    (record,) = records(tmp_path / "a.jsonl")
    assert math.isnan(record.case.attributes["epsilon"])
    assert (record.case.data, record.case.poison, record.case.digest) == (data, "nan", case.digest)
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads((tmp_path / "a.jsonl").read_text()))
