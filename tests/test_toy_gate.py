"""The gate: an operation that stands outside the package is served by every command, as the bundled ones are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import cli as group
from conformance.errors import UsageError
from conformance.record.log import read_log

TOY = Path(__file__).parent / "toy"
OWN = ("--library", str(TOY))
NAMED = (*OWN, "--operation", "Pick")
RIGHT, WRONG = f"py:{TOY / 'pick_backend.py'}:Pick", f"py:{TOY / 'pick_backend.py'}:Last"


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """What one command makes known is not known to the next: each finds the operation by itself."""
    monkeypatch.delenv("QSA_CONFORMANCE_LIBRARY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def cli(*words, code=0):
    """What a command prints; fails unless it ends with this code."""
    result = CliRunner().invoke(group, [str(word) for word in words], standalone_mode=False)
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exception is None, result.exception
    assert (result.return_value or 0) == code, result.output
    return result.output


@pytest.fixture
def failing(tmp_path):
    """The log of a run in which cases fail."""
    cli("run", *OWN, "-b", WRONG, "-o", tmp_path, "--no-diagnosis", code=1)
    (path,) = tmp_path.glob("*.jsonl")
    return path


def test_it_is_listed_linted_and_covered():
    assert "by-hand/bias" in cli("cases", "list", *NAMED)
    assert "no problem" in cli("cases", "lint", *NAMED)
    assert "11 clauses, 26 cases" in cli("coverage", *NAMED)
    assert "expected best [1, 2]" in cli("cases", "show", *NAMED, "by-hand/bias", "--tensors")


def test_a_run_of_all_its_cases_is_conformant():
    output = cli("run", *OWN, "-b", RIGHT)
    assert "CONFORMANT, all 26 cases judged" in output
    assert f"fuzz -b {RIGHT} --operation Pick --library" in output


def test_a_run_in_processes_finds_reference_and_backend():
    assert "CONFORMANT" in cli("run", *OWN, "-b", RIGHT, "--jobs", 2)


def test_a_failing_run_names_the_mistake_and_the_command_that_repeats_it():
    output = cli("run", *OWN, "-b", WRONG, code=1)
    assert "4 of 26 cases fail" in output and "looks like: reading ties=last" in output
    assert f"run -b {WRONG} --operation Pick --library" in output


def test_its_faults_are_found_and_its_variants_pass():
    assert "7 of 7 faults killed by 26 cases" in (output := cli("faults", *NAMED, "--fast", "--jobs", 1))
    assert "0 of 2 variants failed" in output
    assert "NOT CONFORMANT" in cli("run", *OWN, "-b", "fault:T03", "--no-diagnosis", code=1)


def test_it_is_diagnosed():
    assert "reading ties=last on 4 of 4 failures" in cli("diagnose", *NAMED, "-b", WRONG, code=1)


def test_a_generated_failure_is_shrunk_reproduced_and_promoted(tmp_path):
    logs = tmp_path / "logs"
    options = ("--examples", 60, "--seed", 1, "--fresh")
    assert "nothing failed" in cli("fuzz", *NAMED, "-b", RIGHT, *options, "-o", tmp_path / "right")
    cli("fuzz", *NAMED, "-b", WRONG, *options, "-o", logs, code=1)
    (path,) = logs.iterdir()
    case = next(outcome.case for outcome in read_log(path).outcomes if outcome.status == "fail")
    small = tmp_path / "small.jsonl"
    assert "- id:" in cli("shrink", path, case, "-o", small)
    (shrunk,) = read_log(small).cases
    script = tmp_path / "script.py"
    cli("repro", small, shrunk, "--function", f"{TOY / 'pick_function.py'}:last", "-o", script)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "wrong: best" in ran.stdout, ran.stderr
    assert "found/tie" in cli("promote", small, shrunk, "--to", tmp_path / "found", "--id", "tie")
    assert "dims: {R: 1, M: 2}" in (tmp_path / "found" / "tie.yaml").read_text()


def test_views_of_its_logs_find_the_operation_by_themselves(failing, tmp_path):
    assert "CHO  Choice" in cli("report", failing)
    for kind, words in (("markdown", "Choice"), ("html", "CHO-1"), ("junit", 'failures="4"'), ("github", "::error")):
        assert words in cli("report", failing, "--format", kind)
    assert "no case differs" in cli("compare", failing, failing)
    assert "4 of 26 cases fail" in cli("run", "-b", f"replay:{failing}", code=1)


def test_known_failures_are_written_and_checked(failing, tmp_path):
    file = tmp_path / "known.yaml"
    ground = ("--reason", "ties", "--url", "https://example.org/1")
    cli("expectations", failing, "--expectations", file, "--update", *ground)
    assert "4 failures as expected" in cli("expectations", failing, "--expectations", file)


def test_it_is_timed():
    output = cli("perf", *NAMED, "-b", RIGHT, "--workload", "rows[R=256]", "--seconds", 0.05)
    assert "rows[R=256]" in output and "Conformant as far as a quick run tells" in output


def test_its_pages_and_reports_are_written(tmp_path):
    cli("docs", *OWN, "-o", tmp_path)
    assert "(cases-pick.md#cho-1)" in (tmp_path / "contract-pick.md").read_text()
    assert "\n### CHO-1\n" in (tmp_path / "cases-pick.md").read_text()
    assert "latest.html: 1 report" in cli("publish", *NAMED, "-b", RIGHT, "-o", tmp_path / "reports")


def test_pytest_runs_its_cases(tmp_path):
    words = ["--pyargs", "conformance", "-q", "-p", "no:cacheprovider", *OWN, "--backend", RIGHT]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0 and "CONFORMANT, 26 cases" in ran.stdout, ran.stdout + ran.stderr
