"""What a backend keeps for a whole process: found in a fresh one, and repeated with the cases that it needs."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from conformance.judging.company import CONFIRMED, Company
from conformance.judging.judge import Worst
from conformance.judging.outcome import Kind, Outcome, Where
from conformance.record.log import read_log
from conformance.running.cases import CaseBench, Setup


@pytest.mark.parametrize("fault", ["F83", "F83r"])
def test_the_line_that_is_printed_repeats_the_failure(cli, tmp_path, fault):
    code, out, _ = cli("run", "-b", f"fault:{fault}", "-k", "by-hand or normalization/eps", "--jobs", 1,
                       "--no-diagnosis", "-o", tmp_path)  # fmt: skip
    assert code == 1
    log = read_log(next(tmp_path.glob("*.jsonl")))
    shared = [o for o in log.outcomes if o.kind is Kind.ALONE]
    assert shared and all(o.clause == "PLG-3" for o in shared)
    assert any(o.after for o in shared)
    line = next(text for text in out.splitlines() if text.startswith("    qsa-conformance run -b"))
    assert line.count("--case") >= 2
    code, again, _ = cli(*shlex.split(line)[1:])
    assert code == 1 and "PLG-3" in again


def test_cases_that_are_named_are_run_in_the_order_of_their_names(library):
    from conformance.library.selection import select

    ids = [case.id for case in library.cases[40:43]]
    assert [case.id for case in select(library, ids=ids[::-1])] == ids[::-1]


def test_a_failure_of_its_own_is_not_one_of_the_process(library):
    setup = Setup("fault:F26", {}, library.operation)
    bench = CaseBench(setup)
    try:
        outcomes = [bench.run(case) for case in library.cases[::20]]
    finally:
        bench.close()
    failed = [o for o in outcomes if o.status == "fail"]
    assert failed and all(o.kind is Kind.VALUE for o in failed)


SHARED = """
from reference.qsa_prepare import QSAPrepare

kept = {}


def shared(key_block_size, epsilon, **inputs):
    return QSAPrepare(key_block_size, kept.setdefault("epsilon", epsilon)).run(inputs)


def right(key_block_size, epsilon, **inputs):
    return QSAPrepare(key_block_size, epsilon).run(inputs)
"""


def test_shrink_and_repro_carry_the_cases_that_come_before(cli, tmp_path):
    cli("run", "-b", "fault:F83", "-k", "by-hand or normalization/eps", "--jobs", 1, "--no-diagnosis", "-o", tmp_path)
    path = next(tmp_path.glob("*.jsonl"))
    needy = next(o for o in read_log(path).outcomes if o.after and o.worst and "f32" in o.case)
    small = tmp_path / "small.jsonl"
    code, out, err = cli("shrink", path, needy.case, "--seconds", 10, "-o", small)
    assert (code, err) == (0, "")
    assert f"# run after: {needy.after[0]}" in out
    log = read_log(small)
    (kept,) = [o for o in log.outcomes if o.after]
    assert list(log.cases) == [*needy.after, kept.case]
    code, again, _ = cli("run", "--from-log", small, *[x for name in log.cases for x in ("--case", name)])
    assert code == 1 and "1 of 2 cases fail" in again
    (tmp_path / "mine.py").write_text(SHARED)
    for name, expected in (("shared", 1), ("right", 0)):
        script = tmp_path / f"{name}.py"
        assert cli("repro", small, kept.case, "--function", f"{tmp_path}/mine.py:{name}", "-o", script)[0] == 0
        assert subprocess.run([sys.executable, script], check=False).returncode == expected


class Bookkeeping:
    """Runs nothing: a case fails in a fresh process when the one that it needs came before."""

    def __init__(self, needs):
        self.needs, self.runs = needs, 0

    def __call__(self, cases, *, fresh=False):
        self.runs += 1
        *before, last = [case.id for case in cases]
        status = "fail" if self.needs in before else "pass"
        return Outcome(case=last, digest="", status=status)


def failure(case):
    worst = Worst("out", "all", "A-1", (0,), "1", "2", "", "")
    return Outcome(case=case.id, digest="", status="fail", clause="A-1", where=Where("single"), worst=worst,
                   kind=Kind.VALUE, reason="off")  # fmt: skip


def test_of_many_cases_those_that_are_needed_are_found_and_looking_ends(library):
    cases = library.cases[:200]
    runs = Bookkeeping(cases[17].id)
    company = Company(runs, runs)
    for case in cases[:150]:
        company.remember(case)
    told = [company.settled(case, failure(case), (), "PLG-3") for case in cases[150:]]
    assert all(one.kind is Kind.ALONE and one.clause == "PLG-3" for one in told)
    assert [one.after for one in told[:CONFIRMED]] == [(cases[17].id,)] * CONFIRMED
    assert told[0].reason.startswith(f"passes in a fresh process, fails after {cases[17].id}")
    assert not any(one.after for one in told[CONFIRMED:]), "what was not looked at is not said to be known"
    assert runs.runs < 60
