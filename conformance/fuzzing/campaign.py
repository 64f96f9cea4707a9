"""A fuzzing campaign: rounds played in this process or in others, and a ledger of what came out.

Everything is written to the log as it happens. An example counts once, however often it was run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from platformdirs import user_cache_path

from conformance.backends.connect import usable
from conformance.backends.protocol import Backend, BackendInfo, close, environment_of
from conformance.fuzzing.rounds import FAILED, ROUND, Example, Findings, Source, all_rounds, play, rounds
from conformance.judging.engine import Engine, Outcome
from conformance.record.kept import Saved
from conformance.record.log import CaseRecord, Footer, Header, Log, LogWriter, ResultRecord, count, verdict
from conformance.running.isolation import Isolation, Lane, Setup
from conformance.running.run import run_case
from conformance.spec.case import Case, summary
from conformance.spec.operation import Operation

SAVED = "saved"  # first part of the keys of examples that an earlier campaign left


@dataclass(frozen=True)
class Campaign:
    """What is to be done. Without `examples` it goes on for `seconds`."""

    connect: str
    seed: int
    examples: int = 0
    seconds: float = 0.0
    shard: tuple[int, int] = (1, 1)
    keep_going: bool = False
    readings: dict[str, str] = field(default_factory=dict)
    isolation: Isolation = field(default_factory=Isolation)

    def orders(self) -> Iterator[Order]:
        """The rounds of this shard."""
        found = rounds(self.examples, self.shard) if self.examples else all_rounds(self.shard)
        return (Order(round_, size) for round_, size in found)

    @property
    def planned(self) -> int:
        """Examples of this shard, 0 when it goes by the clock."""
        return sum(size for _, size in rounds(self.examples, self.shard))


class Order(msgspec.Struct, frozen=True):
    """Work for one process: the first `size` examples of a round, or saved cases."""

    round: int = 0
    size: int = ROUND
    saved: tuple[Case, ...] = ()
    isolate: bool = False  # because the round ended a process before


class Ledger:
    """What came out so far: in the log, among the saved cases, and by kind of failure."""

    def __init__(
        self,
        campaign: Campaign,
        operation: Operation,
        writer: LogWriter,
        saved: Saved | None = None,
        watch: Callable[[Ledger], None] | None = None,
    ) -> None:
        self.campaign, self.operation, self.writer, self.saved = campaign, operation, writer, saved
        self.watch = watch or (lambda ledger: None)
        self.findings = Findings()
        self.news: list[Example] = []  # the first example of every finding
        self.cases: dict[str, CaseRecord] = {}
        self.results: dict[str, ResultRecord] = {}  # by key
        self.started = time.perf_counter()
        self.ended: float | None = None

    def begin(self, key: str, case: Case) -> None:
        """An example is about to run. It is in the log before it can do harm."""
        if key not in self.results:
            record = CaseRecord(case.digest, summary(case, self.operation), case)
            self.cases[case.id] = record
            self.writer.write(record)

    def done(self, example: Example) -> bool:
        """An example has run; whether the campaign is over."""
        if example.key not in self.results:
            result = ResultRecord(example.outcome, example=example.key)
            self.results[example.key] = result
            self.writer.write(result)
            if self.findings.add(example):
                self.news.append(example)
            if self.saved and example.outcome.status in FAILED:
                self.saved.keep(example.case)
            elif self.saved and example.key.startswith(SAVED):
                self.saved.forget(example.case)
            self.watch(self)
        return self.over

    def explain(self, explanations: Mapping[str, str]) -> None:
        """Note what failures look like, by case."""
        for key, result in self.results.items():
            text = explanations.get(result.outcome.case)
            if text and result.outcome.status in FAILED:
                self.results[key] = ResultRecord(result.outcome, text, key)
                self.writer.write(self.results[key])

    @property
    def over(self) -> bool:
        """Whether there is a failure and that is enough, or the time is up."""
        if self.findings and not self.campaign.keep_going:
            return True
        return bool(self.campaign.seconds) and self.seconds >= self.campaign.seconds

    @property
    def seconds(self) -> float:
        return (self.ended or time.perf_counter()) - self.started

    def stop(self) -> None:
        """Nothing is run any more."""
        self.ended = self.ended or time.perf_counter()

    @property
    def outcomes(self) -> list[Outcome]:
        return [result.outcome for result in self.results.values()]

    def log(self, head: Header, footer: Footer | None) -> Log:
        """The log in memory."""
        results = {result.outcome.case: result for result in self.results.values()}
        return Log(str(self.writer.path or ""), head, self.cases, results, (), footer)

    def close(self) -> Footer:
        """Write the footer of a campaign that came to its end."""
        counts = count(self.outcomes)
        verdicts = sum(outcome.verdicts for outcome in self.outcomes)
        footer = Footer(counts, verdicts, self.seconds, verdict(counts, complete=False))
        self.writer.write(footer)
        return footer


# Where rounds are played


@dataclass(frozen=True)
class Stage:
    """A backend at work, in this process or in a worker; `backend` is there in the first case only."""

    info: BackendInfo
    environment: dict[str, str]
    operation: Operation
    readings: dict[str, str]
    run: Callable[[Case], Outcome]
    backend: Backend | None = None

    def play(
        self, seed: int, order: Order, done: Callable[[Example], bool], begin: Callable[[str, Case], None]
    ) -> bool:
        """Do the work of an order; False when it is enough."""
        for case in order.saved:
            key = f"{SAVED}/{case.digest}"
            begin(key, case)
            if done(Example(key, case, self.run(case))):
                return False
        if order.saved:
            return True
        source = Source(self.operation, self.info, seed, self.readings)
        return play(source, order.round, order.size, self.run, done, begin)


@contextmanager
def stage(setup: Setup, *, isolate: bool = False) -> Iterator[Stage]:
    """A backend made ready. Raises `BackendError` and `Unsupported`."""
    # Hypothesis keeps files of its own, by default in the current folder.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(user_cache_path("qsa-conformance") / "hypothesis"))
    if isolate:
        lane = Lane(setup)
        ready = lane.start()
        try:
            yield Stage(ready.info, ready.environment, setup.operation, setup.readings, lane.run)
        finally:
            if lane.worker:
                lane.worker.child.kill()
        return
    backend, info = usable(setup.connect, setup.limits)
    engine = Engine(setup.operation, backend, setup.readings, info)
    try:
        environment = environment_of(backend)
        yield Stage(info, environment, setup.operation, setup.readings, lambda case: run_case(engine, case), backend)
    finally:
        engine.close()
        close(backend)


def conduct(campaign: Campaign, here: Stage, ledger: Ledger) -> None:
    """Play all rounds in this process, the saved cases first."""
    saved = tuple(ledger.saved.cases()) if ledger.saved else ()
    if saved and not here.play(campaign.seed, Order(saved=saved), ledger.done, ledger.begin):
        return
    for order in campaign.orders():
        if not here.play(campaign.seed, order, ledger.done, ledger.begin):
            return


def log_path(folder: Path, campaign: Campaign, name: str) -> Path:
    """Where the log of a campaign goes; shards have files of their own."""
    index, shards = campaign.shard
    shard = f"-{index}-of-{shards}" if shards > 1 else ""
    return folder / f"fuzz-{name}-{campaign.seed}{shard}.jsonl"
