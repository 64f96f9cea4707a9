"""Campaigns: the same seed gives the same examples, nothing that was found is lost, every example counts once."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import click.testing
import msgspec
import pytest
from fakes import Honest, LeaksNaN, SlightlyOff

from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.cli import cli
from conformance.errors import BackendError, UsageError
from conformance.fuzzing import campaign as campaigns
from conformance.fuzzing.campaign import Campaign, Ledger, RoundBench
from conformance.fuzzing.rounds import ROUND, Example, Findings, Source, check_generated, play, rounds
from conformance.judging.engine import Engine, Outcome
from conformance.record.kept import Saved
from conformance.record.log import LogWriter, read_log
from conformance.record.shards import joined
from conformance.running.cases import Setup
from conformance.running.place import Here, Ready
from reference.qsa_prepare.operation import Readings

FAKES = Path(__file__).parents[1] / "fakes.py"
INFO = NumPyReference().describe()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def passing(case) -> Outcome:
    return Outcome(case.id, case.digest, "pass")


def collect(source: Source, round_: int, count: int, run=passing) -> list[Example]:
    found: list[Example] = []
    play(source, round_, count, run, lambda example: found.append(example) or False)
    return found


# Rounds


def test_a_round_depends_on_the_seed_and_its_number_alone(operation):
    source = Source(operation, INFO, 7)
    first = collect(source, 3, 60)
    collect(source, 1, 40)
    again = collect(Source(operation, INFO, 7), 3, 60)
    assert [e.case.digest for e in first] == [e.case.digest for e in again]
    assert [e.key for e in first] == [f"7/3/{n}" for n in range(60)]
    others = collect(source, 4, 60) + collect(Source(operation, INFO, 8), 3, 60)
    assert not {e.case.digest for e in first} & {e.case.digest for e in others}


def test_a_round_has_no_example_twice_and_a_shorter_one_is_its_beginning(operation):
    source = Source(operation, INFO, 1)
    whole = [e.case.digest for e in collect(source, 0, ROUND)]
    assert len(set(whole)) == len(whole) == ROUND
    assert [e.case.digest for e in collect(source, 0, 30)] == whole[:30]


def test_rounds_are_dealt_out_to_shards():
    total = 5 * ROUND + 17
    every = rounds(total)
    assert sum(count for _, count in every) == total
    dealt = [rounds(total, (index, 3)) for index in (1, 2, 3)]
    assert sorted(order for shard in dealt for order in shard) == every


def test_climbing_comes_closer_to_the_bound(operation):
    """A round that climbs is shown a target that has its top where the length is greatest."""

    def run(case):
        return msgspec.structs.replace(passing(case), headroom={"AVG-1": case.dims["L"] / 100})

    source = Source(operation, INFO, 2)
    drawn, climbed = ([e.case.dims["L"] for e in collect(source, round_, ROUND, run)] for round_ in (0, 1))
    assert sum(climbed) > 2 * sum(drawn)
    assert Counter(climbed)[max(climbed)] > 20


def test_an_error_of_the_harness_is_raised_at_once(operation):
    calls = []

    def run(case):
        calls.append(case)
        raise BackendError("gone")

    with pytest.raises(BackendError, match="gone"):
        collect(Source(operation, INFO, 1), 0, 10, run)
    assert len(calls) == 1


def test_an_interruption_leaves_the_round_at_once(operation):
    calls = []

    def run(case):
        calls.append(case)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return passing(case)

    with pytest.raises(KeyboardInterrupt):
        collect(Source(operation, INFO, 1), 0, 50, run)
    assert len(calls) == 5


# Findings


def failing(case, clause="AVG-1", reason="wrong", status="fail") -> Outcome:
    return Outcome(case.id, case.digest, status, clause, "single call", reason)


def test_failures_are_sorted_by_signature(operation):
    examples = collect(Source(operation, INFO, 1), 0, 6)
    findings = Findings()
    news = [
        findings.add(Example(e.key, e.case, failing(e.case, clause, reason)))
        for e, (clause, reason) in zip(
            examples,
            [
                ("AVG-1", "off by 1.5"), ("AVG-1", "off by 2e-3"), ("ROT-1", "off by 1"),
                ("AVG-1", "has shape [1, 2]"), ("AVG-1", "has shape [3, 4]"), ("AVG-1", "off by 7"),
            ],
            strict=True,
        )
    ]  # fmt: skip
    assert news == [True, False, True, True, False, False]
    assert [finding.count for finding in findings] == [3, 2, 1]
    assert not findings.add(examples[0])


def test_errors_are_told_apart_by_what_is_raised(operation):
    case = collect(Source(operation, INFO, 1), 0, 1)[0].case
    texts = ["raises ValueError: bad 3", "raises ValueError: bad 4", "raises KeyError: x"]
    signatures = {failing(case, reason=text, status="error").signature for text in texts}
    assert len(signatures) == 2


def test_the_smallest_example_of_a_failure_is_shown(operation):
    from conformance.fuzzing.rounds import cost

    findings = Findings()
    examples = [Example(e.key, e.case, failing(e.case)) for e in collect(Source(operation, INFO, 1), 0, 40)]
    for example in examples:
        findings.add(example)
    (finding,) = findings
    assert cost(finding.example.case) == min(cost(example.case) for example in examples)


# Under pytest


def test_generated_examples_of_a_conforming_backend_pass(operation):
    assert check_generated(operation, NumPyReference(), INFO, readings={}, examples=40, seed=3) == []


def test_generated_examples_find_faults(operation):
    texts = check_generated(operation, LeaksNaN(), INFO, readings={}, examples=40, seed=3)
    assert texts
    assert any("generated/" in text and "3/0/" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("alignment", "right"), ("empty_weight", "unit"), ("unused", "zeros"), ("unused", "carried"), ("rows", "bound"),
        ("short_length", "refused"), ("rope_width", "half"), ("pairing", "interleaved"),
    ],
)  # fmt: skip
def test_generated_examples_are_right_under_every_reading(operation, name, choice):
    backend = NumPyReference(Readings(**{name: choice}))
    assert check_generated(operation, backend, INFO, readings={name: choice}, examples=40, seed=3) == []


# Ledger and log


def here(operation, backend=None, run=None) -> Here:
    """A place in which cases are run by a function."""
    engine = Engine(operation, backend or Honest())
    run = run or engine.run
    cases = SimpleNamespace(
        ready=Ready(INFO), backend=None, info=INFO, setup=Setup("numpy", {}, operation), run=run, isolated=run
    )
    return Here(SimpleNamespace(open=lambda: nullcontext(RoundBench(cases, 1))))


def test_a_case_is_in_the_log_before_it_runs(operation, tmp_path):
    path = tmp_path / "log.jsonl"

    def run(case):
        lines = path.read_bytes().splitlines()
        assert case.id.encode() in lines[-1]
        return passing(case)

    with LogWriter(path) as writer:
        ledger = Ledger(Campaign("numpy", 1, examples=5), operation, writer)
        campaigns.conduct(ledger.campaign, here(operation, run=run), ledger)
    assert len(ledger.results) == 5


def test_an_example_counts_once(operation, tmp_path):
    with LogWriter(tmp_path / "log.jsonl") as writer:
        ledger = Ledger(Campaign("numpy", 1, examples=8, keep_going=True), operation, writer)
        for _ in range(2):
            campaigns.conduct(ledger.campaign, here(operation, run=failing), ledger)
        ledger.close()
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines()
    assert Counter(line[:18] for line in lines) == {
        b'{"record":"case","': 8,
        b'{"record":"result"': 8,
        b'{"record":"footer"': 1,
    }
    assert [finding.count for finding in ledger.findings] == [8]


def test_the_first_failure_is_enough_unless_told_otherwise(operation):
    for keep_going, expected in ((False, 1), (True, 12)):
        with LogWriter(None) as writer:
            ledger = Ledger(Campaign("x", 1, examples=12, keep_going=keep_going), operation, writer)
            campaigns.conduct(ledger.campaign, here(operation, run=failing), ledger)
        assert len(ledger.results) == expected


def test_time_ends_a_campaign(operation):
    start = time.perf_counter()
    with LogWriter(None) as writer:
        ledger = Ledger(Campaign("x", 1, seconds=0.3), operation, writer)
        campaigns.conduct(ledger.campaign, here(operation, run=passing), ledger)
    assert ledger.results
    assert time.perf_counter() - start < 10


def test_what_failed_is_tried_first_next_time_and_forgotten_when_it_passes(operation, tmp_path):
    store = Saved("numpy", tmp_path)

    def conduct(run, examples):
        with LogWriter(None) as writer:
            ledger = Ledger(Campaign("numpy", 1, examples=examples, keep_going=True), operation, writer, store)
            campaigns.conduct(ledger.campaign, here(operation, run=run), ledger)
        return ledger

    conduct(failing, 3)
    assert len(store.cases()) == 3
    again = conduct(failing, 1)
    assert [key.partition("/")[0] for key in again.results] == ["saved", "saved", "saved", "1"]
    conduct(passing, 1)
    assert store.cases() == []


def test_saved_cases_that_cannot_be_read_are_left_out(tmp_path):
    store = Saved("numpy", tmp_path)
    store.folder.mkdir(parents=True)
    (store.folder / "broken.msgpack").write_bytes(b"\x00nonsense")
    assert store.cases() == []


# On the command line


def run(*arguments):
    """The exit code of the command is its result's `return_value`."""
    return click.testing.CliRunner().invoke(cli, ["fuzz", *map(str, arguments)], standalone_mode=False)


def test_the_command_says_what_it_did(tmp_path):
    result = run("-b", "numpy", "--examples", 25, "--seed", 4, "-o", tmp_path)
    assert result.return_value == 0, result.output
    assert "25 examples" in result.output
    assert "nothing failed" in result.output
    assert "to repeat: qsa-conformance fuzz -b numpy --seed 4 --examples 25" in result.output
    log = read_log(tmp_path / "fuzz-numpy-4.jsonl")
    assert (log.header.seed, log.header.cases, log.header.complete) == (4, 25, False)
    assert log.footer is not None
    assert log.footer.counts["pass"] == 25
    assert log.footer.verdict == "INCOMPLETE"
    assert [record.example for record in log.results.values()] == [f"4/0/{n}" for n in range(25)]


def test_the_command_shows_failures_by_kind(tmp_path):
    connect = f"py:{FAKES}:SlightlyOff"
    result = run("-b", connect, "--examples", 60, "--seed", 4, "--keep-going", "-o", tmp_path)
    assert result.return_value == 1
    assert "times the bound" in result.output
    assert "qsa-conformance repro" in result.output
    (path,) = tmp_path.glob("*.jsonl")
    assert read_log(path).footer.verdict == "NOT CONFORMANT"


def test_a_drawn_seed_is_printed(tmp_path):
    result = run("-b", "numpy", "--examples", 1, "-o", tmp_path)
    seed = result.output.split("seed ", 1)[1].split()[0]
    assert (tmp_path / f"fuzz-numpy-{seed}.jsonl").exists()


def test_logs_without_a_folder_are_in_the_cache(cache):
    result = run("-b", "numpy", "--examples", 1, "--seed", 1)
    assert result.return_value == 0
    assert (cache / "qsa-conformance" / "fuzz" / "fuzz-numpy-1.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--examples", 5, "--seconds", 1), "not both"),
        (("--shard", "3/2"), "write I/N"),
        (("--shard", "x"), "write I/N"),
        (("--scheduler", "tcp://127.0.0.1:1", "--jobs", 2), "leave out --jobs"),
    ],
)
def test_wrong_usage_is_said(arguments, says):
    result = run("-b", "numpy", *arguments)
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)


def test_shards_make_one_report(tmp_path, monkeypatch):
    monkeypatch.setattr("conformance.fuzzing.rounds.ROUND", 15)
    total = 40
    for shard in ("1/2", "2/2"):
        assert run("-b", "numpy", "--examples", total, "--seed", 6, "--shard", shard, "-o", tmp_path).return_value == 0
    logs = [read_log(path) for path in sorted(tmp_path.glob("*.jsonl"))]
    (log,) = joined([*logs, logs[0]])
    assert len(log.results) == log.header.cases == total
    assert log.footer.counts["pass"] == total
    assert log.header.shard == "1/2, 2/2"
    assert set(log.origins.values()) == {one.path for one in logs}
    examples = Counter(record.example for record in log.results.values())
    assert examples == Counter(f"6/{r}/{n}" for r, size in rounds(total) for n in range(size))


def test_a_shard_without_work_says_so(tmp_path):
    result = run("-b", "numpy", "--examples", 10, "--seed", 6, "--shard", "2/2", "-o", tmp_path)
    assert result.return_value == 0
    assert "nothing to do" in result.output


def start(tmp_path, *arguments) -> subprocess.Popen:
    folder = tmp_path / "empty"
    folder.mkdir()
    command = [sys.executable, "-m", "conformance", "fuzz", "-b", "numpy", "--seed", "1", "-o", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )
    path = tmp_path / "fuzz-numpy-1.jsonl"
    deadline = time.time() + 60
    while time.time() < deadline and (not path.exists() or path.read_bytes().count(b'"record":"result"') < 10):
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("number", "jobs"),
    [(signal.SIGINT, ()), (signal.SIGINT, ("--jobs", "2")), (signal.SIGTERM, ()), (signal.SIGKILL, ("--jobs", "2"))],
)
def test_an_interruption_loses_nothing(tmp_path, number, jobs):
    process = start(tmp_path, "--seconds", "100", *jobs)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    log = read_log(tmp_path / "fuzz-numpy-1.jsonl")
    assert log.interrupted
    assert len(log.results) >= 10
    assert len(log.cases) - len(log.results) <= 2  # those that were being run
    assert not list((tmp_path / "empty").iterdir())  # Hypothesis keeps its own files elsewhere
    if number != signal.SIGKILL:
        assert process.returncode == 4, output
        assert "interrupted" in output


CRASHES = '''
import os
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference

class Crashes(NumPyReference):
    """Takes its process down for keys of a width of three."""
    def prepare(self, config):
        return Session(super().prepare(config))

class Session:
    def __init__(self, inner):
        self.inner = inner
        self.close = inner.close
    def run(self, inputs):
        if inputs["raw_index_keys"].shape[-1:] == (3,):
            os.abort()
        return self.inner.run(inputs)
'''


def test_a_crash_in_one_of_several_processes_costs_its_examples_only(tmp_path, monkeypatch):
    (tmp_path / "crashes.py").write_text(CRASHES)
    connect = f"py:{tmp_path / 'crashes.py'}:Crashes"
    arguments = ("-b", connect, "--examples", 30, "--seed", 2, "--keep-going", "--fresh", "-o", tmp_path / "logs")
    result = run(*arguments, "--jobs", 2)
    assert result.return_value == 1, result.output
    (path,) = (tmp_path / "logs").glob("*.jsonl")
    log = read_log(path)
    assert len(log.results) == 30
    wrong = [record.outcome for record in log.results.values() if record.outcome.status == "error"]
    assert wrong
    for outcome in wrong:
        assert outcome.lost == "crash"
        assert log.cases[outcome.case].case.dims["Di"] == 3


def test_a_backend_that_is_not_there_is_said_with_several_processes_too():
    result = run("-b", "py:no_such_module:X", "--examples", 5, "--jobs", 2)
    assert isinstance(result.exception, BackendError)


def test_the_number_of_processes_does_not_change_the_examples(tmp_path):
    for jobs in (1, 2):
        run("-b", f"py:{FAKES}:Honest", "--examples", 40, "--seed", 9, "--jobs", jobs, "-o", tmp_path / str(jobs))
    logs = [read_log(next((tmp_path / str(jobs)).glob("*.jsonl"))) for jobs in (1, 2)]
    digests = [{r.example: r.outcome.digest for r in log.results.values()} for log in logs]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 40
    assert not multiprocessing.active_children()


def test_slightly_off_is_found_quickly(operation):
    assert check_generated(operation, SlightlyOff(), INFO, readings={}, examples=15, seed=1)
