"""A fuzzing campaign: rounds played in any place, and a ledger of what came out.

Everything is written to the log as it happens. An example counts once, however often it was run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from platformdirs import user_cache_path

from conformance.backends.plugin.process import Limits
from conformance.errors import BackendError, Lost
from conformance.fuzzing.rounds import FAILED, ROUND, Example, Findings, Source, all_rounds, play, rounds
from conformance.judging.outcome import Outcome
from conformance.library.operations import DEFAULT
from conformance.record.kept import Saved
from conformance.record.log import CaseRecord, Footer, Header, Log, LogWriter, ResultRecord, count, verdict
from conformance.running.cases import CaseBench, Setup, process_limits
from conformance.running.place import Isolation, Place
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
    operation: str = DEFAULT

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


class Record(msgspec.Struct, frozen=True):
    """An example on its way to the ledger, without an outcome when it is about to run."""

    key: str
    case: Case
    outcome: Outcome | None = None


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
        self._begun: set[str] = set()
        self.started = time.perf_counter()
        self.ended: float | None = None

    def enter(self, record: Record) -> bool:
        """Take in what comes from where the rounds are played; whether the campaign is over."""
        self.begin(record.key, record.case)
        return self.done(Example(record.key, record.case, record.outcome)) if record.outcome else False

    def begin(self, key: str, case: Case) -> None:
        """An example is about to run. It is in the log before it can do harm."""
        if key not in self.results and key not in self._begun:
            self._begun.add(key)
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


# The work


class RoundWork(msgspec.Struct, frozen=True):
    """Rounds on a backend: every example when it begins and when it is done."""

    setup: Setup
    seed: int

    unit: ClassVar[Any] = Order
    result: ClassVar[Any] = Record

    @property
    def about(self) -> str:
        return f"'{self.setup.connect}'"

    @contextmanager
    def open(self) -> Iterator[RoundBench]:
        """The backend made ready. Raises `BackendError` and `Unsupported`."""
        # Hypothesis keeps files of its own, by default in the current folder.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(user_cache_path("qsa-conformance") / "hypothesis"))
        bench = RoundBench(CaseBench(self.setup), self.seed)
        try:
            yield bench
        finally:
            bench.cases.close()

    def limits(self) -> Limits:
        return process_limits(self.setup)

    def again(self, unit: Order, lost: Lost, said: str, before: str) -> Order | None:
        return None if unit.isolate else msgspec.structs.replace(unit, isolate=True)

    def given_up(self, unit: Order, lost: Lost, said: str) -> Record:
        raise BackendError(f"{self.about}: the process of the campaign itself ends, in round {unit.round}: {lost}")

    def urgent(self, result: Record) -> bool:
        return result.outcome is not None and result.outcome.status in FAILED

    def name(self, unit: Order) -> str:
        return f"round {unit.round}"


class RoundBench:
    """Plays rounds on a backend."""

    def __init__(self, cases: CaseBench, seed: int) -> None:
        self.cases, self.seed = cases, seed
        self.ready, self.backend = cases.ready, cases.backend

    def do(self, unit: Order, give: Callable[[Record], bool]) -> None:
        run = self.cases.isolated if unit.isolate else self.cases.run
        if unit.saved:
            for case in unit.saved:
                key = f"{SAVED}/{case.digest}"
                give(Record(key, case))
                if give(Record(key, case, run(case))):
                    return
            return
        source = Source(self.cases.setup.operation, self.cases.info, self.seed, self.cases.setup.readings)

        def done(example: Example) -> bool:
            return give(Record(example.key, example.case, example.outcome))

        def begin(key: str, case: Case) -> None:
            give(Record(key, case))

        play(source, unit.round, unit.size, run, done, begin)


def conduct(campaign: Campaign, place: Place, ledger: Ledger) -> None:
    """Play all rounds in a place, the saved cases first."""
    saved = tuple(ledger.saved.cases()) if ledger.saved else ()

    def orders() -> Iterator[Order]:
        if saved:
            yield Order(saved=saved)
        yield from campaign.orders()

    place.run(orders(), ledger.enter, lambda: ledger.over)


def log_path(folder: Path, campaign: Campaign, name: str) -> Path:
    """Where the log of a campaign goes; shards have files of their own."""
    index, shards = campaign.shard
    shard = f"-{index}-of-{shards}" if shards > 1 else ""
    return folder / f"fuzz-{name}-{campaign.seed}{shard}.jsonl"
