"""Wear: one session called many thousands of times with few shapes, and its answers held against its first ones.

What creeps, runs out or comes round shows only after long use: counters, pools, rings of buffers, caches that fill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import msgspec
import numpy as np

from conformance.backends.protocol import Backend, BackendInfo
from conformance.fuzzing.strategies import Generator, configurations
from conformance.judging.engine import Engine, Outcome
from conformance.judging.judge import same_bits
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from reference.expected import Expected

Array = np.ndarray[Any, np.dtype[Any]]

SHAPES = 6  # calls that come round
LOOKED = 997  # every so many calls progress is told
SMALL = 4000  # elements of a case, at most


@dataclass
class Wear:
    """What came out: the calls that were made, in how many seconds, and the first change, if any.

    `call` counts from 1 and is 0 while nothing has changed; `reason` says what has, or what failed before any wear.
    `grown` is by how many bytes the resident memory of the process grew after the first tenth of the calls.
    """

    cases: tuple[Case, ...]
    calls: int = 0
    seconds: float = 0.0
    call: int = 0
    reason: str = ""
    case: str = ""
    grown: int = 0
    failed: list[Outcome] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing changed and nothing failed."""
        return not self.reason


def wear(
    operation: Operation,
    backend: Backend,
    info: BackendInfo,
    *,
    calls: int,
    seed: int,
    seconds: float = 0.0,
    advance: Callable[[int], None] | None = None,
) -> Wear:
    """Call one session `calls` times, or for so many seconds.

    The cases are judged once each, as any others; from then on every answer must have the bits of the first one in
    every element that is specified. Raises what the backend raises while it is worn.
    """
    cases = small_cases(operation, info, seed)
    engine = Engine(operation, backend, info=info)
    try:
        result = Wear(cases)
        for case in cases:
            outcome = engine.run(case)
            if outcome.status in ("fail", "error"):
                result.failed.append(outcome)
                result.case, result.reason = case.id, f"fails before any wear: {outcome.reason}"
                return result
        questions = [engine.inputs(case) for case in cases]
        expected = [engine.oracle(case).expect(inputs) for case, inputs in zip(cases, questions, strict=True)]
        session = backend.prepare(engine.config(cases[0]))
        try:
            _wear(result, session.run, questions, expected, calls, seconds, advance)
        finally:
            session.close()
        return result
    finally:
        engine.close()


def small_cases(operation: Operation, info: BackendInfo, seed: int) -> tuple[Case, ...]:
    """A few small valid cases of one configuration and different shapes, without relations, streams and audits."""
    one = configurations(operation, info, seed)[:1]
    padding = all(name in info.features for name, feature in operation.features.items() if feature.when)
    found: dict[str, Case] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(Generator(operation, one, padding=padding, salt=seed).cases())
    def collect(case: Case) -> None:
        length_type = next(iter(found.values())).length_type if found else case.length_type
        plain = msgspec.structs.replace(
            case, data={}, relations=(), streams=(), audits=(), length_type=length_type, forms={}, types={}
        )
        size = max(int(np.prod([max(n, 1) for n in plain.dims.values()])), 1)
        if len(found) < SHAPES and size <= SMALL:
            shape = str((plain.dims, plain.past, plain.pad))
            found.setdefault(shape, msgspec.structs.replace(plain, id=f"wear/{len(found) + 1}"))

    collect()
    return tuple(found.values())


def _wear(
    result: Wear,
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    questions: list[dict[str, Array]],
    expected: Sequence[Mapping[str, Expected]],
    calls: int,
    seconds: float,
    advance: Callable[[int], None] | None,
) -> None:
    first: list[dict[str, Array]] = []
    memory = resident()
    started = time.perf_counter()
    while result.calls < calls or not calls:
        number = result.calls % len(questions)
        got = run({name: array.copy() for name, array in questions[number].items()})
        result.calls += 1
        if len(first) < len(questions):
            first.append({name: array.copy() for name, array in got.items()})
        else:
            reason = changed(got, first[number], expected[number])
            if reason:
                result.call, result.case, result.reason = result.calls, result.cases[number].id, reason
                break
        if result.calls % LOOKED == 0:
            if result.calls <= max(calls // 10, LOOKED):
                memory = resident()
            if advance:
                advance(result.calls)
            if seconds and time.perf_counter() - started >= seconds:
                break
    result.seconds = time.perf_counter() - started
    result.grown = max(resident() - memory, 0)


def changed(got: Mapping[str, Array], before: Mapping[str, Array], expected: Mapping[str, Expected]) -> str:
    """What is different from the first answer in elements that are specified; empty where nothing is."""
    for name, earlier in before.items():
        array = got.get(name)
        if array is None or array.shape != earlier.shape or array.dtype != earlier.dtype:
            return f"{name} has another shape or type than in the first answer"
        if array.tobytes() == earlier.tobytes():
            continue
        for part in expected[name].parts:
            differ = ~same_bits(array[part.index], earlier[part.index])
            if differ.any():
                return (
                    f"{name}, {part.region}: {int(differ.sum())} elements have different bits than in the first answer"
                )
    return ""


def resident() -> int:
    """Resident memory of this process in bytes, 0 where it cannot be told."""
    try:
        import psutil
    except ImportError:
        return 0
    return int(psutil.Process().memory_info().rss)
