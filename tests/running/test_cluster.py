"""A campaign on a cluster of processes: a lost worker's rounds are run again, and every example counts once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

distributed = pytest.importorskip("distributed")

from conformance.backends.plugin.process import Limits  # noqa: E402
from conformance.errors import BackendError, UsageError  # noqa: E402
from conformance.fuzzing import campaign as campaigns  # noqa: E402
from conformance.fuzzing.campaign import Campaign, Ledger, RoundWork  # noqa: E402
from conformance.fuzzing.rounds import rounds  # noqa: E402
from conformance.record.log import LogWriter  # noqa: E402
from conformance.running.cases import Setup  # noqa: E402
from conformance.running.cluster import Cluster  # noqa: E402

SIZE = 40  # examples of a round
FAKES = Path(__file__).parents[1] / "fakes.py"


@pytest.fixture(scope="module")
def local():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster


@pytest.fixture
def short_rounds(monkeypatch):
    monkeypatch.setattr("conformance.fuzzing.rounds.ROUND", SIZE)


def conduct(local, operation, connect, examples, path=None, meanwhile=None, **options) -> Ledger:
    cluster = Cluster(RoundWork(Setup(connect, {}, operation, Limits()), 7), local.scheduler_address)
    try:
        campaign = Campaign(connect, 7, examples=examples, **options)
        with LogWriter(path) as writer:
            ledger = Ledger(campaign, operation, writer)
            if meanwhile:
                threading.Thread(target=meanwhile, args=(ledger,), daemon=True).start()
            campaigns.conduct(campaign, cluster, ledger)
            if path:
                ledger.close()
        return ledger
    finally:
        cluster.close()


def test_a_lost_worker_costs_nothing_and_every_example_counts_once(local, operation, tmp_path, short_rounds):
    """The worker is killed once a round is in the ledger, while others are being played."""
    killed = []

    def kill(ledger):
        while not ledger.results:
            time.sleep(0.01)
        killed.append(next(iter(local.workers.values())).pid)
        os.kill(killed[0], signal.SIGKILL)

    ledger = conduct(local, operation, "numpy", 5 * SIZE, tmp_path / "log.jsonl", kill, keep_going=True)
    assert killed
    due = [f"7/{r}/{n}" for r, size in rounds(5 * SIZE) for n in range(size)]
    assert sorted(ledger.results) == sorted(due)
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines()
    assert Counter(line[:18] for line in lines)[b'{"record":"result"'] == len(due)
    assert {outcome.status for outcome in ledger.outcomes} == {"pass"}


def test_the_examples_are_those_of_one_process(local, operation):
    from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
    from conformance.fuzzing.rounds import Source, play
    from conformance.judging.engine import Engine

    ledger = conduct(local, operation, "numpy", SIZE)
    engine = Engine(operation, NumPyReference())
    found = {}
    source = Source(operation, engine.info, 7)
    play(source, 0, SIZE, engine.run, lambda example: bool(found.update({example.key: example.case.digest})))
    assert {key: record.outcome.digest for key, record in ledger.results.items()} == found


def test_a_failure_ends_the_campaign(local, operation, short_rounds):
    ledger = conduct(local, operation, f"py:{FAKES}:SlightlyOff", 100 * SIZE)
    assert ledger.findings
    assert len(ledger.results) < 100 * SIZE


def test_a_backend_that_the_workers_do_not_have_is_said(local, operation):
    with pytest.raises(BackendError, match="no_such"):
        conduct(local, operation, "py:no_such_module:X", SIZE)


def test_no_scheduler_is_said(operation):
    with pytest.raises(UsageError, match=r"no scheduler at tcp://127\.0\.0\.1:1"):
        Cluster(RoundWork(Setup("numpy", {}, operation, Limits()), 7), "tcp://127.0.0.1:1")
