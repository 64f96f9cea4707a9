"""From a log to the library: what is written reads back as the same case, and nothing is overwritten."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
import yaml
from fakes import SlightlyOff

from conformance.faults.layers import examples
from conformance.library.lint import problems
from conformance.library.reading import Library, load_file
from conformance.library.writing import as_written, as_yaml
from conformance.record.log import read_log

replace = msgspec.structs.replace
OFF = f"py:{Path(__file__).parents[1] / 'fakes.py'}:{SlightlyOff.__name__}"


@pytest.fixture
def campaign(cli, tmp_path, monkeypatch):
    """The log of a short campaign that found something, the case, and what was printed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, out, _ = cli("fuzz", "-b", OFF, "--examples", 40, "--seed", 1, "-o", tmp_path / "logs")
    assert code == 1
    log = next((tmp_path / "logs").glob("*.jsonl"))
    failing = next(o for o in read_log(log).outcomes if o.status == "fail")
    return log, failing.case, out


# A case as it is written


def test_every_case_can_be_written_and_read_back(library, operation, tmp_path):
    cases = [*library.cases[::9], *examples(operation.operation, 60, 3)]
    names = {f"folder/case-{number}": case for number, case in enumerate(cases)}
    path = tmp_path / "folder" / "cases.yaml"
    path.parent.mkdir()
    texts = [as_yaml(replace(case, id=name), operation) for name, case in names.items()]
    path.write_text("cases:\n" + "\n".join(texts) + "\n")
    again, _ = load_file(path, operation)
    assert [case.id for case in again] == list(names)
    assert [case.digest for case in again] == [case.digest for case in names.values()]
    assert all(len(line) < 160 for line in path.read_text().splitlines())


def test_what_is_usual_is_left_out(library, operation):
    case = library.find("by-hand/blk-many-completed[element_type=f32]")
    written = as_written(case, operation)
    assert "element_type" not in written and "pad" not in written and "Bp" not in written["dims"]
    assert written["attributes"] == {"key_block_size": 2, "epsilon": 0}
    assert written["expect"]["values"]["block_index_keys"] == [[[2, 2], [15, 0], [-2, 75]]]


def test_an_id_that_looks_like_a_number_stays_a_text(library, operation, tmp_path):
    (tmp_path / "x").mkdir()
    path = tmp_path / "x" / "case.yaml"
    for name in ("12e456789012", "123456789012", "null", "0x12"):
        path.write_text("cases:\n" + as_yaml(replace(library.cases[0], id=f"x/{name}"), operation))
        assert load_file(path, operation)[0][0].id == f"x/{name}"


# On the command line


def test_a_finding_becomes_a_case_of_the_library(cli, campaign, library, operation, tmp_path):
    log, case_id, _ = campaign
    small = tmp_path / "small.jsonl"
    assert cli("shrink", log, case_id, "-o", small)[0] == 0
    (record,) = read_log(small).cases.values()
    folder = tmp_path / "21-regressions"
    code, out, err = cli("promote", small, record.case.id, "--to", folder)
    assert (code, err) == (0, "")
    (path,) = folder.iterdir()
    (again,), written = load_file(path, operation)
    assert written == 1
    assert out == f"{path}: {again.id}\n"
    assert re.fullmatch(r"regressions/[a-z]+-\d+-block-index-keys-[0-9a-f]{12}", again.id)
    assert again.digest == record.case.digest
    assert again.says == operation.clause[again.clauses[0]].says
    assert not [p for p in problems(Library(operation, (again,), 1)) if p.startswith(again.place)]
    comment = " ".join(line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#"))
    head = read_log(log).header
    for part in (OFF, head.started[:10], head.suite, "seed 1", f"shrunk from {case_id}", again.digest, "Signature: "):
        assert part in comment


def test_nothing_is_overwritten_and_errors_are_sentences(cli, campaign, library, tmp_path):
    log, case_id, _ = campaign
    folder = tmp_path / "regressions"
    assert cli("promote", log, case_id, "--to", folder, "--id", "one")[0] == 0
    before = (folder / "one.yaml").read_text()
    for arguments, problem in (
        (("--id", "one"), "is there already; give another --id"),
        (("--id", "No Id"), "small letters, digits and single hyphens"),
        (("--id", "two", "--says", "It should be right."), "'says' must state what happens, without 'should'"),
        (("--id", "two", "--says", "No stop"), "ends with a full stop"),
    ):
        code, out, err = cli("promote", log, case_id, "--to", folder, *arguments)
        assert (code, out) == (2, "")
        assert problem in err and len(err.splitlines()) == 1
    assert (folder / "one.yaml").read_text() == before
    assert [path.name for path in folder.iterdir()] == ["one.yaml"]
    (tmp_path / "file").write_text("")
    assert "cannot be written" in cli("promote", log, case_id, "--to", tmp_path / "file" / "x", "--id", "two")[2]
    assert "this one is only a number" in cli("promote", log, case_id, "--to", tmp_path / "07")[2]
    assert cli("promote", log, "generated/none", "--to", folder)[0] == 2
    assert cli("promote", log, case_id)[0] == 2


def test_a_case_of_the_library_is_there_already(cli, library, tmp_path):
    case = library.find("by-hand/blk-many-completed[element_type=f32]")
    assert cli("run", "-b", OFF, "--case", case.id, "-o", tmp_path, "--no-diagnosis")[0] == 1
    log = next(tmp_path.glob("*.jsonl"))
    code, _, err = cli("promote", log, case.id, "--to", tmp_path / "x")
    assert code == 2 and f"the library has this case already: {case.id}" in err
    assert not (tmp_path / "x").exists()


# One command repeats a failure


def test_the_printed_command_repeats_a_generated_case(cli, campaign, tmp_path):
    log, case_id, out = campaign
    command = next(line for line in out.splitlines() if line.strip().startswith("qsa-conformance run"))
    words = shlex.split(command)
    assert words[1:] == ["run", "-b", OFF, "--from-log", str(log), "--case", case_id]
    code, again, _ = cli(*words[1:], "-o", tmp_path / "again")
    assert code == 1 and case_id in again
    (path,) = (tmp_path / "again").iterdir()
    (one,), (other,) = (
        [r.outcome for r in read_log(p).results.values() if r.outcome.case == case_id] for p in (log, path)
    )
    assert one.signature == other.signature
    assert f"--from-log {path} --case {case_id}" in again
    report = cli("report", log)[1]
    assert shlex.join(words[1:]) in report


def test_cases_of_a_log_are_selected_and_run_as_those_of_the_library(cli, campaign, tmp_path):
    log, case_id, _ = campaign
    code, out, _ = cli("run", "-b", "numpy", "--from-log", log, "--case", case_id)
    assert code == 4 and "1 case, not the whole library" in out
    code, _, err = cli("run", "--from-log", log, "--case", "generated/0")
    assert code == 2 and "no case 'generated/0'" in err
    assert "cannot be read" in cli("run", "--from-log", tmp_path / "none.jsonl")[2]


def test_the_yaml_that_shrink_prints_is_a_case_of_a_file(cli, campaign, operation, tmp_path):
    log, case_id, _ = campaign
    out = cli("shrink", log, case_id)[1]
    path = tmp_path / "shrunk" / "case.yaml"
    path.parent.mkdir()
    path.write_text("cases:\n" + out)
    ((again,), _) = load_file(path, operation)
    assert again.id == f"shrunk/{again.digest}" == f"shrunk/{yaml.safe_load(out)[0]['id']}"


def test_generated_failures_under_pytest_say_how_to_repeat_them(pytester):
    result = pytester.runpytest_subprocess(
        "--pyargs",
        "conformance",
        "--backend",
        OFF,
        "--fuzz-examples",
        "20",
        "-k",
        "generated",
        "-p",
        "no:cacheprovider",
    )
    result.stdout.fnmatch_lines([f"qsa-conformance fuzz -b {OFF} --seed 0 --examples 20 --keep-going"])
