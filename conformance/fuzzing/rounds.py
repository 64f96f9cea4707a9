"""Generated examples, drawn round by round: the same seed gives the same examples, however they are spread.

A round is a fixed number of examples from one run of Hypothesis, which depends on the seed and the round's number and
on nothing that ran before. Processes, shards and machines share rounds among themselves.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import numpy as np

from conformance.backends.protocol import Backend, BackendInfo
from conformance.fuzzing.strategies import Configuration, Generator, configurations
from conformance.judging.engine import Engine, Outcome
from conformance.spec.case import Case, summary
from conformance.spec.operation import Operation

ROUND = 250  # examples of a round
CLIMBING = 2  # every so many rounds, one climbs towards the bound
SHARED = 4  # rounds with the same configurations, so that sessions are used again
FAILED = ("fail", "error")


@dataclass(frozen=True)
class Example:
    """A generated case and what came out of it; `key` is seed, round and number, and unique in a campaign."""

    key: str
    case: Case
    outcome: Outcome


@dataclass(frozen=True)
class Source:
    """What the rounds of a campaign are drawn from."""

    operation: Operation
    info: BackendInfo
    seed: int
    readings: Mapping[str, str] = field(default_factory=dict)

    def generator(self, round_: int) -> Generator:
        """Where the cases of a round are drawn from."""
        return Generator(
            self.operation.under(self.readings),
            self.configurations(round_),
            padding=self._padding,
            salt=self.number("data", round_),
        )

    def configurations(self, round_: int) -> tuple[Configuration, ...]:
        """What the sessions of a round are prepared for."""
        seed = self.number("configurations", round_ // SHARED)
        return configurations(self.operation, self.info, seed, without=self._withheld)

    def number(self, *parts: object) -> int:
        """A number that depends on the seed and on what it is for."""
        return zlib.crc32("/".join(map(str, (self.seed, *parts))).encode())

    @property
    def _withheld(self) -> list[str]:
        """Features whose cases are not asked for under the chosen readings."""
        chosen = {reading.name: self.readings.get(reading.name, reading.default) for reading in self.operation.readings}
        return [r.without[chosen[r.name]] for r in self.operation.readings if chosen[r.name] in r.without]

    @property
    def _padding(self) -> bool:
        conditional = [name for name, feature in self.operation.features.items() if feature.when]
        return all(name in self.info.features and name not in self._withheld for name in conditional)


def rounds(examples: int, shard: tuple[int, int] = (1, 1)) -> list[tuple[int, int]]:
    """Round and number of its examples, of one shard of a campaign; shards count from 1."""
    index, shards = shard
    numbers = range(-(-examples // ROUND))
    return [(r, min(ROUND, examples - r * ROUND)) for r in numbers if r % shards == index - 1]


def all_rounds(shard: tuple[int, int] = (1, 1)) -> Iterator[tuple[int, int]]:
    """The same without an end."""
    index, shards = shard
    number = index - 1
    while True:
        yield number, ROUND
        number += shards


class _Enough(BaseException):
    """Leaves Hypothesis without its taking this for a failure of the test."""


def play(
    source: Source,
    round_: int,
    count: int,
    run: Callable[[Case], Outcome],
    done: Callable[[Example], bool],
    begin: Callable[[str, Case], None] | None = None,
) -> bool:
    """Draw and run the first `count` examples of a round; False when `done` said that it is enough.

    `begin` is called before every example, `done` after it. Whatever `run` raises is raised here.
    """
    player = _Player(source, round_, count, run, done, begin)
    attempt = 0
    while player.left and not player.stopped:
        before = player.left
        player.draw(attempt)
        if player.left == before:
            break  # everything that can be drawn was drawn
        attempt += 1
    return not player.stopped


class _Player:
    """One round being played."""

    def __init__(
        self,
        source: Source,
        round_: int,
        count: int,
        run: Callable[[Case], Outcome],
        done: Callable[[Example], bool],
        begin: Callable[[str, Case], None] | None,
    ) -> None:
        self.source, self.round, self.left = source, round_, count
        self.run, self.done, self.begin = run, done, begin
        self.stopped = False
        self._number = 0
        self._seen: set[str] = set()
        self._error: Exception | None = None

    def draw(self, attempt: int) -> None:
        """One run of Hypothesis. Failures are not shown to it: they are recorded, and it goes on drawing."""
        phases = [hypothesis.Phase.generate]
        if self.round % CLIMBING == CLIMBING - 1:
            phases.append(hypothesis.Phase.target)
        settings = hypothesis.settings(
            max_examples=ROUND,
            database=None,
            deadline=None,
            derandomize=False,
            phases=phases,
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
            report_multiple_bugs=False,
        )
        strategy = self.source.generator(self.round).examples()
        test = hypothesis.given(strategy)(self._example)
        try:
            hypothesis.seed(self.source.number(self.round, attempt))(settings(test))()
        except _Enough:
            if self._error:
                raise self._error from None

    def _example(self, case: Case) -> None:
        if case.id in self._seen:
            return
        self._seen.add(case.id)
        key = f"{self.source.seed}/{self.round}/{self._number}"
        try:
            if self.begin:
                self.begin(key, case)
            outcome = self.run(case)
            enough = self.done(Example(key, case, outcome))
        except Exception as error:  # not Hypothesis' business
            self._error = error
            raise _Enough from None
        self._number += 1
        self.left -= 1
        self.stopped = enough
        for clause, ratio in outcome.headroom.items():
            if np.isfinite(ratio):
                hypothesis.target(float(ratio), label=clause)
        if enough or not self.left:
            raise _Enough


@dataclass
class Finding:
    """Failures of one signature, and the smallest example of them."""

    example: Example
    count: int = 1

    def add(self, example: Example) -> None:
        self.count += 1
        if cost(example.case) < cost(self.example.case):
            self.example = example


class Findings:
    """Failures by signature."""

    def __init__(self) -> None:
        self.by_signature: dict[tuple[str, str, str], Finding] = {}

    def add(self, example: Example) -> bool:
        """Take in an example; whether it is the first failure of its signature."""
        if example.outcome.status not in FAILED:
            return False
        signature = example.outcome.signature
        if signature in self.by_signature:
            self.by_signature[signature].add(example)
            return False
        self.by_signature[signature] = Finding(example)
        return True

    def __iter__(self) -> Iterator[Finding]:
        """The most frequent first."""
        return iter(sorted(self.by_signature.values(), key=lambda finding: -finding.count))

    def __len__(self) -> int:
        return len(self.by_signature)


def cost(case: Case) -> int:
    """How much a reader has to look at: elements, and calls."""
    total = 1
    for value in case.dims.values():
        total *= value + 1
    return total * (1 + sum(len(stream) for stream in case.streams))


def describe(finding: Finding, operation: Operation) -> str:
    """A failure in a few lines."""
    example, outcome = finding.example, finding.example.outcome
    times = f", {finding.count} times" if finding.count > 1 else ""
    return "\n".join(
        [
            f"{outcome.status}  {outcome.clause}  {example.case.id} (example {example.key}{times})",
            f"    {outcome.where}: {outcome.reason}",
            f"    {summary(example.case, operation)}",
        ]
    )


def check_generated(
    operation: Operation,
    backend: Backend,
    info: BackendInfo,
    *,
    readings: Mapping[str, str],
    examples: int,
    seed: int,
) -> list[str]:
    """Run generated examples in this process; a text for every kind of failure, none when all is well."""
    source = Source(operation, info, seed, readings)
    engine = Engine(operation, backend, readings, info)
    findings = Findings()

    def done(example: Example) -> bool:
        findings.add(example)
        return False

    try:
        for round_, count in rounds(examples):
            play(source, round_, count, engine.run, done)
    finally:
        engine.close()
    return [describe(finding, operation) for finding in findings]


def merged_headroom(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The largest error / bound by clause, of outcomes that passed."""
    top: dict[str, Any] = {}
    for outcome in outcomes:
        if outcome.status not in FAILED:
            for clause, ratio in outcome.headroom.items():
                top[clause] = max(top.get(clause, 0.0), ratio)
    return top
