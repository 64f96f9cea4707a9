"""Backends that harm their process cost one case; a run that is killed is finished from its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import isolation_fakes
import pytest
from test_command_backend import gone, line_of
from test_reference import case_of

from conformance.backends.plugin.process import MIB, Limits
from conformance.backends.protocol import Unsupported
from conformance.errors import BackendError
from conformance.library.reading import Library
from conformance.record.log import read_log
from conformance.reporting.table import failures, matrix
from conformance.running.isolation import running
from conformance.running.place import Isolation
from conformance.running.resume import cut_to_lines
from conformance.running.run import Plan, execute

HERE = Path(__file__).parents[1]
FAKES = HERE / "isolation_fakes.py"
LIMITS = Limits(seconds=20, memory=1024 * MIB)
# One case before the one in which harm is done, and two after it.
CASES = tuple(
    case_of(id=f"t/{L}", dims={"N": 2, "L": L, "Di": 6, "Dr": 4, "Bp": 1}) for L in (4, isolation_fakes.AT, 6, 7)
)
STRICKEN = CASES[1].id


def fake(name):
    return f"py:{FAKES}:{name}"


def run(operation, connect, limits=LIMITS, jobs=1, cases=CASES):
    library = Library(operation, cases, len(cases))
    plan = Plan(connect, cases, complete=True)
    with running(plan, library, Isolation(isolate=True, jobs=jobs, limits=limits)) as backend:
        return execute(plan, library, backend.info, backend.outcomes, more=backend.environment)


HARM = {
    "Segfaults": ("crash", "ended by SIGSEGV (Segmentation fault)", LIMITS),
    "Aborts": ("crash", "ended by SIGABRT (Aborted)", LIMITS),
    "Exits": ("crash", "exits with code 0 without being asked to", LIMITS),
    "Sleeps": ("timeout", "no answer within 2 s", Limits(seconds=2)),
    "HoldsTheLock": ("timeout", "no answer within 2 s", Limits(seconds=2)),
    "Allocates": ("memory", "takes more than 300 MiB", Limits(seconds=20, memory=300 * MIB)),
    "FloodsStdout": ("output", "prints more than 1 MiB", Limits(seconds=20, output=MIB)),
    "FloodsStderr": ("output", "prints more than 1 MiB", Limits(seconds=20, output=MIB)),
}


@pytest.mark.parametrize("name", HARM)
def test_harm_costs_one_case(operation, name):
    kind, says, limits = HARM[name]
    log = run(operation, fake(name), limits)
    assert {o.case: o.status for o in log.outcomes} == {
        case.id: "error" if case.id == STRICKEN else "pass" for case in CASES
    }
    outcome = log.results[STRICKEN].outcome
    assert (outcome.lost, outcome.reason, outcome.clause) == (kind, f"{kind}: {says}", operation.rules.serves)
    assert log.footer.verdict == "NOT CONFORMANT"
    shown = failures(log)
    assert says in shown
    assert shown.splitlines()[-1].endswith(f"--case {STRICKEN} --isolate")


def test_where_a_crash_was_is_kept(operation):
    log = run(operation, fake("Segfaults"))
    assert "Fatal Python error: Segmentation fault" in log.results[STRICKEN].outcome.stderr
    assert "isolation_fakes.py" in log.results[STRICKEN].outcome.stderr
    assert "printed: Fatal Python error: Segmentation fault" in failures(log)
    assert "terminate called" in run(operation, fake("Aborts")).results[STRICKEN].outcome.stderr


def test_a_case_that_passes_alone_is_not_blamed(operation):
    again = case_of(id="t/again", dims=CASES[1].dims, seed=7)
    log = run(operation, fake("Tires"), cases=(*CASES, again))
    outcome = log.results[again.id].outcome
    assert (outcome.status, outcome.clause, outcome.lost) == ("error", "PLG-3", "crash")
    assert f"passes on a fresh session, fails after {CASES[-1].id} in the same process: crash" in outcome.reason
    assert all(log.results[case.id].outcome.status == "pass" for case in CASES)


def test_a_worker_killed_from_outside_is_a_warning(operation, monkeypatch, tmp_path):
    monkeypatch.setenv("QSA_TEST_MARK", str(tmp_path / "mark"))
    log = run(operation, fake("IsKilled"))
    outcome = log.results[STRICKEN].outcome
    assert (outcome.status, outcome.lost) == ("quality-warning", "killed")
    assert log.footer.verdict == "CONFORMANT"


@pytest.mark.parametrize(
    ("connect", "error", "says"),
    [
        (fake("DiesInDescribe"), BackendError, "(?s)crash: ended by SIGABRT.*no licence found"),
        (fake("NotThere"), BackendError, "has no 'NotThere'"),
        (f"cmd:{line_of('says_nothing')}", BackendError, "libdevice.so"),
    ],
)
def test_a_backend_that_cannot_be_started_is_reported(operation, connect, error, says):
    with pytest.raises(error, match=says):
        run(operation, connect)


def test_what_is_missing_is_reported_as_such(operation, tmp_path):
    (tmp_path / "absent.py").write_text(
        "from conformance.backends.protocol import Unsupported\n"
        "class Absent:\n"
        "    def describe(self): raise Unsupported('gpu', 'there is none', 'https://example.org')\n"
        "    def prepare(self, config): ...\n"
    )
    with pytest.raises(Unsupported) as caught:
        run(operation, f"py:{tmp_path / 'absent.py'}:Absent")
    assert (caught.value.feature, caught.value.url) == ("gpu", "https://example.org")


def test_outcomes_are_those_of_one_process(operation, library):
    cases = tuple(case for case in library.cases if case.dims["L"] < 20)[::37]
    assert any(case.refusal for case in cases)
    here = Library(operation, cases, len(cases))
    plan = Plan("numpy", cases, complete=True)
    with running(plan, here, Isolation()) as backend:
        wanted = {o.case: plain(o) for o in backend.outcomes}
    for jobs in (1, 2):
        log = run(operation, "numpy", jobs=jobs, cases=cases)
        assert {o.case: plain(o) for o in log.outcomes} == wanted
        assert log.header.backend.name == "numpy"


def plain(outcome):
    return outcome.status, outcome.clause, outcome.reason, outcome.verdicts, outcome.headroom, outcome.digest


def test_two_plugins_serve_two_jobs(operation):
    log = run(operation, f"cmd:{line_of('segfaults')}", jobs=2)
    assert {o.lost for o in log.outcomes} == {"crash"}
    assert all("about to read address zero" in o.stderr for o in log.outcomes)
    assert all(o.reason == "crash: ended by SIGSEGV (Segmentation fault)" for o in log.outcomes)


def test_no_worker_stays_when_a_run_is_left(operation):
    library = Library(operation, CASES, len(CASES))
    plan = Plan(fake("Sleeps"), CASES[1:], complete=True)
    before = set(children(os.getpid()))  # of other tests
    with running(plan, library, Isolation(jobs=2, limits=LIMITS)) as backend:
        next(iter(backend.outcomes))  # one lane answers while the other hangs
        workers = set(children(os.getpid())) - before
    assert workers
    assert all(gone(number) for number in workers)


def test_an_interrupt_ends_a_hanging_run_at_once(tmp_path):
    harness = subprocess.Popen(
        command("run", "-b", fake("Sleeps"), "-k", "position-grid and q=1", "--isolate", "-o", tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 60
    while time.monotonic() < end and not any(b"result" in path.read_bytes() for path in tmp_path.glob("*.jsonl")):
        time.sleep(0.05)
    time.sleep(1)  # by now it hangs
    harness.send_signal(signal.SIGINT)
    out, err = harness.communicate(timeout=20)
    assert (harness.returncode, err) == (4, "")
    assert "INCOMPLETE" in out
    (path,) = tmp_path.glob("*.jsonl")
    assert read_log(path).interrupted


def children(parent):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


# Killed and resumed


def command(*arguments):
    return [sys.executable, "-m", "conformance", *map(str, arguments)]


def killed(tmp_path, *arguments, after=6):
    """The log of a run that was killed with SIGKILL after some results, and the workers it had."""
    harness = subprocess.Popen(command("run", *arguments, "-o", tmp_path), stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end and harness.poll() is None:
            logs = list(tmp_path.glob("*.jsonl"))
            if logs and logs[0].read_bytes().count(b'{"record":"result"') >= after:
                break
            time.sleep(0.01)
        workers = children(harness.pid)
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.wait()
    (path,) = tmp_path.glob("*.jsonl")
    return path, workers


def without_times(text):
    lines = text.splitlines()
    return [line for line in lines if not line.startswith(("seconds", "log:")) and not line.endswith(" processes")]


@pytest.mark.parametrize("isolation", [("--jobs", "1"), ("--isolate",), ("--jobs", "2")], ids="-".join)
def test_a_killed_run_is_resumed_to_the_same_report(tmp_path, isolation):
    what = ("-b", fake("Slow"), "-k", "position-grid and q=1")
    path, workers = killed(tmp_path / "killed", *what, *isolation)
    assert len(workers) == {"--jobs 1": 0, "--isolate": 1, "--jobs 2": 2}[" ".join(isolation)]
    assert all(gone(number) for number in workers)
    log = read_log(path)
    assert log.interrupted
    assert 6 <= len(log.results) < log.header.cases
    assert {o.status for o in log.outcomes} == {"pass"}

    resumed = subprocess.run(command("run", "--resume", path, *isolation), capture_output=True, text=True)
    whole = subprocess.run(command("run", *what, "-o", tmp_path / "whole"), capture_output=True, text=True)
    assert (resumed.returncode, resumed.stderr) == (whole.returncode, whole.stderr) == (4, "")
    assert without_times(resumed.stdout) == without_times(whole.stdout)
    (other,) = (tmp_path / "whole").glob("*.jsonl")
    after, wanted = read_log(path), read_log(other)
    assert not after.interrupted
    assert (after.footer.counts, after.footer.verdicts) == (wanted.footer.counts, wanted.footer.verdicts)
    assert {o.case: plain(o) for o in after.outcomes} == {o.case: plain(o) for o in wanted.outcomes}
    kept = {case: record for case, record in after.results.items() if case in log.results}
    assert kept == log.results, "what was done is not done again"


def test_a_plugin_does_not_outlive_a_killed_run(tmp_path):
    path, workers = killed(tmp_path, "-b", f"cmd:{line_of('honest')}", "-k", "position-grid")
    assert len(workers) == 1
    assert all(gone(number) for number in workers)
    assert read_log(path).interrupted


@pytest.fixture
def interrupted(library, tmp_path):
    """A log of which half is missing."""
    cases = library.cases[:6]
    plan = Plan("numpy", cases, complete=False, filters={"--case": " ".join(case.id for case in cases)})
    with running(plan, library, Isolation()) as backend:
        path = tmp_path / "numpy.jsonl"
        execute(plan, library, backend.info, backend.outcomes, path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:7]))
    return path


def resume(path, *arguments):
    return subprocess.run(command("run", "--resume", path, *arguments), capture_output=True, text=True)


def test_a_line_that_was_cut_off_is_written_again(interrupted, library):
    with interrupted.open("ab") as file:
        file.write(b'{"record":"result","outcome":{"case":"')
    assert resume(interrupted).returncode == 4
    log = read_log(interrupted)
    assert [o.status for o in log.outcomes] == ["pass"] * 6
    assert not log.interrupted
    again = resume(interrupted)
    assert (again.returncode, read_log(interrupted).results) == (4, log.results), "there is nothing left to do"
    assert matrix([log], library.operation).splitlines()[-1].split() == ["INCOMPLETE"]


@pytest.mark.parametrize("tail", [b"", b'{"rec', b"\0\0\0\n", b'{"record":"result"}\n'])
def test_only_what_is_not_whole_is_cut(interrupted, tail):
    before = interrupted.read_bytes()
    interrupted.write_bytes(before + tail)
    cut_to_lines(interrupted)
    assert interrupted.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"library":"', b'"library":"x', "was made with another case library"),
        (b'"suite":"', b'"suite":"0.', "was made with another version of the suite"),
        (b'"version":"', b'"version":"x', "is of another backend: its version was x"),
    ],
)
def test_results_of_two_kinds_are_not_mixed(interrupted, old, new, says):
    interrupted.write_bytes(interrupted.read_bytes().replace(old, new, 1))
    done = resume(interrupted)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_resume_takes_all_from_the_log(interrupted):
    done = resume(interrupted, "-b", "numpy")
    assert (done.returncode, "from the log" in done.stderr) == (2, True)
    assert resume(interrupted.with_name("none.jsonl")).returncode == 2
