"""Times of conformant backends, taken side by side: what they are, how sure that is, and when it cannot be told.

All that is compared is run in turn, one sample each, over and over (copy A B, copy A B, ...), so that a machine that
becomes slower does so for all of them. So ratios are those of paired samples, with an interval; times are the fastest
tenth of the samples, with a mark where the machine was busy. What the machine can do is measured in the same turns: a
plain copy of the call's largest input, by as many threads.
"""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from conformance.backends.connect import usable
from conformance.backends.embedded import usual_readings
from conformance.backends.protocol import (
    Backend,
    BackendInfo,
    Binding,
    Copying,
    Divisible,
    OperationConfig,
    Session,
    Unsupported,
)
from conformance.errors import UsageError
from conformance.library.reading import Library
from conformance.library.selection import select
from conformance.record.log import Log, PerfRecord
from conformance.record.verdict import FINE
from conformance.reporting.table import verdict_of
from conformance.running.run import Plan, execute, outcomes
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from conformance.timing import workloads
from conformance.timing.statistics import fastest, growth, interquartile, median_interval, paired_ratio
from conformance.timing.workloads import Workload

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = Mapping[str, Array]
Call = Callable[[], object]
Clock = Callable[[], float]

SETTLE = 5e-3  # seconds before a sample in which the threads of whoever ran before stop waiting for more work
SAMPLE = 1e-3  # seconds that one sample takes at least: shorter calls are repeated within it
MOST_REPEATS = 10_000
LEAST_ROUNDS = 8  # fewer samples have no 99 % interval of their median
FEW_ROUNDS = 3  # made in any case; the others only within OVERTIME times the budget
MOST_ROUNDS = 2_000
OVERTIME = 4
NOISE = 0.25  # interquartile range over median beyond which a time is marked
DRIFT = 0.20  # change of the copy's speed from the first third of the rounds to the last, likewise
LEAST_COPY = 1 << 20  # bytes; the time of a smaller copy is mostly that of starting it
SHARE_OF_THREAD = 1 << 20  # bytes; a copy gives no thread less than that


class Refused(Exception):  # noqa: N818  an answer: the backend is not timed
    """A backend that is not conformant."""


# Who may be timed


def check_conformance(connect: str, library: Library, logs: Sequence[Log] = ()) -> Log:
    """The log by which a backend is conformant: one of `logs`, else a quick run of the library in this process.

    Raises `Refused` when it is not, `BackendError` and `Unsupported` as connecting does, `UsageError` for a log that
    is of another library or not complete.
    """
    followed = usual_readings(connect, library.operation.operation)
    given = next((log for log in logs if log.header.backend.connect == connect), None)
    if given:
        if given.header.library != library.digest or given.header.readings != followed:
            what = "with another library" if given.header.readings == followed else "under switched readings"
            raise UsageError(f"{given.path} is of a run {what}; run `qsa-conformance run -b {connect}` again")
        verdict = verdict_of(given)
        if verdict == "INCOMPLETE":
            raise UsageError(f"{given.path} is not of a complete run; it cannot tell that {connect} is conformant")
        if verdict not in FINE:
            raise Refused(f"{connect} is not timed: by {given.path} it is {verdict}")
        return given
    backend, info = usable(connect, operation=library.operation.operation)
    plan = Plan(connect, select(library, quick=True), False, {"--quick": "yes"}, followed)
    log = execute(plan, library, info, outcomes(plan, library, backend, info))
    if verdict_of(log) == "NOT CONFORMANT":
        wrong = [o for o in log.outcomes if o.status in ("fail", "error")]
        first = f"{wrong[0].case}, {wrong[0].clause}: {wrong[0].reason}" if wrong else "it passes no case"
        raise Refused(f"{connect} is not timed: it is not conformant ({len(wrong)} cases of a quick run fail; {first})")
    if log.footer is None:
        raise KeyboardInterrupt
    return log


# What is timed


@dataclass(frozen=True)
class Contender:
    """A backend, or a part of one that it offers for timing."""

    name: str
    connect: str
    prepare: Callable[[OperationConfig], Session]
    info: BackendInfo
    part: bool = False
    moves: bool = True  # whether it moves the bytes that the operation must move


def copy_of(backends: Sequence[Backend], threads: int) -> Callable[[Array, Array], object] | None:
    """A copy by threads that are there already, from the first backend with `plain_copy(threads)`; None without one."""
    offering = next((one for one in backends if isinstance(one, Copying)), None)
    return offering.plain_copy(threads) if offering else None


def contenders(connects: Sequence[str], threads: int, operation: str = "") -> list[tuple[Backend, list[Contender]]]:
    """Every backend with its parts: those it returns from `timing_targets(threads)`, where it has that method.

    A part has `name`, `prepare` as a backend has it, and `moves`: whether it moves what the operation must move. Its
    sessions may have `bind(inputs)`, which makes a call ready to be timed.
    """
    found = []
    for connect in connects:
        backend, info = usable(connect, operation=operation)
        all_of = [Contender(connect, connect, backend.prepare, info)]
        for part in backend.timing_targets(threads) if isinstance(backend, Divisible) else ():
            all_of.append(
                Contender(f"{connect}, {part.name}", connect, part.prepare, info, part=True, moves=part.moves)
            )
        found.append((backend, all_of))
    return found


def config_of(case: Case) -> OperationConfig:
    """The configuration a workload is prepared with."""
    return OperationConfig(
        case.operation, dict(case.attributes), case.element_type, case.length_type, frozenset(case.disabled)
    )


def call_of(session: Session, calls: Sequence[Inputs], operation: Operation) -> Call:
    """What is timed: one call, or a stream's calls one after the other, each with the outputs of the one before."""
    if len(calls) == 1:
        return session.bind(calls[0]) if isinstance(session, Binding) else lambda: session.run(calls[0])

    def stream() -> object:
        outputs: Mapping[str, Array] = {}
        for inputs in calls:
            carried = {port: outputs[name] for port, name in operation.carried.items()} if outputs else {}
            outputs = session.run({**inputs, **carried})
        return outputs

    return stream


class Copier:
    """A plain copy of an array by a number of threads, each its share; `by` copies in NumPy's place (to, source)."""

    def __init__(self, source: Array, threads: int, by: Callable[[Array, Array], object] | None = None) -> None:
        flat = source.reshape(-1).view(np.uint8)
        self.bytes = 2 * flat.nbytes  # read and written
        count = 1 if by else max(1, min(threads, flat.nbytes // SHARE_OF_THREAD))
        edges = [flat.nbytes * i // count for i in range(count + 1)]
        target = np.zeros_like(flat)
        self._copy: Callable[[Array, Array], object] = by or np.copyto
        self._parts = [(target[a:b], flat[a:b]) for a, b in itertools.pairwise(edges)]
        self._pool = ThreadPoolExecutor(count - 1) if count > 1 else None

    def __call__(self) -> None:
        waiting = [self._pool.submit(self._copy, *part) for part in self._parts[1:]] if self._pool else []
        self._copy(*self._parts[0])
        for one in waiting:
            one.result()

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


# Timing


def interleaved(targets: Sequence[Call], seconds: float, clock: Clock = time.perf_counter) -> list[list[float]]:
    """Seconds of a call of every target, one sample a round, the targets in turn.

    Every target is called to warm up, then until `SAMPLE` tells how often it is repeated in a sample. A pause and a
    call that is not counted come before every sample: whoever ran before, its threads no longer spin (OpenMP's do, for
    some milliseconds after a call), and the caches are as the target itself leaves them.
    There are at least `LEAST_ROUNDS` rounds, and as many as fit into the seconds; of slow calls at least `FEW_ROUNDS`.
    """
    repeats = [_repeats(target, clock) for target in targets]
    samples: list[list[float]] = [[] for _ in targets]
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin, rounds = clock(), 0
        while rounds < MOST_ROUNDS:
            spent = clock() - begin
            if rounds >= LEAST_ROUNDS and spent >= seconds:
                break
            if rounds >= FEW_ROUNDS and spent >= seconds * OVERTIME:
                break
            for target, count, times in zip(targets, repeats, samples, strict=True):
                time.sleep(SETTLE)
                target()
                start = clock()
                for _ in range(count):
                    target()
                times.append((clock() - start) / count)
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return samples


def _repeats(target: Call, clock: Clock) -> int:
    target()
    count = 1
    while count < MOST_REPEATS:
        start = clock()
        for _ in range(count):
            target()
        spent = clock() - start
        if spent >= SAMPLE / 2:
            return max(1, min(MOST_REPEATS, math.ceil(count * SAMPLE / spent)))
        count *= 4
    return MOST_REPEATS


def peak_of(call: Call) -> int | None:
    """Bytes of resident memory at their highest during a call, above what the process held; None where unknown.

    Linux tells by VmHWM, once it was set back through /proc/self/clear_refs. Memory that the process had freed and
    not given back is used first, and does not show.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except (OSError, KeyError):
        call()
        return None
    call()
    try:
        return max(0, _status("VmHWM") - before)
    except (OSError, KeyError):
        return None


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if not found:
        raise KeyError(name)
    return int(found[1]) * 1024


@contextmanager
def limited_to(threads: int | None) -> Iterator[int]:
    """This process on as many of its CPUs, which runtimes take as the number of their threads; gives that number.

    Raises `UsageError` when there are fewer, or when the system cannot do it.
    """
    if not hasattr(os, "sched_setaffinity"):
        if threads is not None:
            raise UsageError("--threads needs a system that can bind a process to CPUs")
        yield os.cpu_count() or 1
        return
    allowed = os.sched_getaffinity(0)
    if threads is None:
        yield len(allowed)
        return
    if threads > len(allowed):
        raise UsageError(f"--threads {threads}: this process may use {len(allowed)} CPUs")
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        yield threads
    finally:
        os.sched_setaffinity(0, allowed)


# Results


@dataclass(frozen=True)
class Timed:
    """One contender on one workload: samples, or why there are none."""

    contender: Contender
    samples: Sequence[float] = ()
    peak: int | None = None
    says: str = ""


@dataclass(frozen=True)
class Limits:
    """When a time is marked as taken on a busy machine, as shares."""

    noise: float = NOISE
    drift: float = DRIFT


@dataclass
class Bench:
    """Times workloads on contenders and turns the times into records, by connect string."""

    operation: Operation
    contenders: Sequence[Contender]
    threads: int
    seconds: float
    limits: Limits = field(default_factory=Limits)
    clock: Clock = time.perf_counter
    copy: Callable[[Array, Array], object] | None = None  # instead of NumPy's, as `copy_of` gives it
    _medians: dict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=dict)

    def records(self, chosen: Sequence[Workload]) -> Iterator[tuple[Contender, PerfRecord]]:
        """A record of every contender for every workload, as they come; the last of a series tells its growth."""
        last = {workload.series: workload.id for workload in chosen if workload.series}
        for workload in chosen:
            timed, copy, copied = self.measure(workload)
            numbers = self.tell(workload, timed, copy, copied)
            for one, (told, says) in zip(timed, numbers, strict=True):
                if workload.series:
                    points = self._medians.setdefault((workload.series, one.contender.name), [])
                    if isinstance(told.get("fast_s"), float):
                        points.append((workload.size, float(told["fast_s"] or 0)))
                    told |= _growth(points) if last[workload.series] == workload.id else {}
                yield one.contender, PerfRecord(workload.id, told, says)

    def measure(self, workload: Workload) -> tuple[list[Timed], list[float], int]:
        """The samples of every contender, and those of the plain copy with the bytes that it moves."""
        case, operation = workload.case, self.operation
        whole = workloads.inputs_of(case, operation)
        calls = _calls(whole, case, operation)
        copier = Copier(max(whole.values(), key=lambda array: array.nbytes), self.threads, self.copy)
        sessions: list[Session] = []
        ready: list[tuple[int, Call]] = []
        timed: list[Timed] = []
        try:
            for contender in self.contenders:
                if contender.part and len(calls) > 1:
                    continue  # its outputs are nothing to go on with
                try:
                    if case.element_type not in contender.info.element_types:
                        raise Unsupported(case.element_type, f"{contender.name} does not take it")
                    session = contender.prepare(config_of(case))
                    sessions.append(session)
                    call = call_of(session, calls, operation)
                    peak = peak_of(call)
                except Exception as error:
                    timed.append(Timed(contender, says=_reason(error)))
                    continue
                ready.append((len(timed), call))
                timed.append(Timed(contender, peak=peak))
            times = interleaved([copier, *(call for _, call in ready)], self.seconds, self.clock) if ready else [[]]
            for (index, _), samples in zip(ready, times[1:], strict=True):
                timed[index] = Timed(timed[index].contender, samples, timed[index].peak)
        finally:
            copier.close()
            for session in sessions:
                with suppress(Exception):
                    session.close()
        return timed, times[0], copier.bytes

    def tell(
        self, workload: Workload, timed: Sequence[Timed], copy: Sequence[float], copied: int
    ) -> list[tuple[dict[str, float | str | None], str]]:
        """The numbers of a workload's records, and what is to be said of them."""
        case, operation = workload.case, self.operation
        moved = workloads.bytes_to_move(case, operation)
        new = case.dims[operation.tokens] if operation.tokens else 0
        tokens = sum(new - pad for pad in case.pad)
        drift = _drift(copy)
        speed = copied / fastest(copy) if copy and copied >= LEAST_COPY else None
        first = timed[0].samples if timed else ()
        told: list[tuple[dict[str, float | str | None], str]] = []
        for one in timed:
            numbers: dict[str, float | str | None] = {
                "backend": one.contender.name,
                "tokens": new,
                "sequences": case.dims.get(operation.batch, 1),
                "element_type": case.element_type,
                "threads": self.threads,
                "bytes": moved,
                "peak_bytes": one.peak,
            }
            if one.samples:
                numbers |= self._times(one.samples, drift) | {"copy_bytes_per_s": speed}
                quick = fastest(one.samples)
                if one.contender.moves:
                    numbers |= {"tokens_per_s": tokens / quick}
                if one.contender.moves and moved:
                    numbers |= {"bytes_per_s": moved / quick}
                    numbers |= _share(moved, one.samples, copied, copy)
                if first and len(first) == len(one.samples):
                    numbers |= compared(first, one.samples) if one is not timed[0] else {"ratio": 1.0}
            told.append((numbers, one.says))
        return told

    def _times(self, samples: Sequence[float], drift: float) -> dict[str, float | str | None]:
        """The times of a call, and why they are marked where they are."""
        median = statistics.median(samples)
        interval = median_interval(samples)
        spread = interquartile(samples) / median
        marks = [f"the copy's speed changed by {drift:.0%}"] if drift > self.limits.drift else []
        marks += [f"the middle half spreads over {spread:.0%}"] if spread > self.limits.noise else []
        return {
            "fast_s": fastest(samples),
            "median_s": median,
            "iqr_s": interquartile(samples),
            "low_s": interval[0] if interval else None,
            "high_s": interval[1] if interval else None,
            "samples": len(samples),
            **({"busy": ", ".join(marks)} if marks else {}),
        }


def _share(moved: int, times: Sequence[float], copied: int, copy: Sequence[float]) -> dict[str, float | str | None]:
    """Bytes a second over those of the plain copy, from paired samples; nothing for little data."""
    if min(moved, copied) < LEAST_COPY or len(times) != len(copy):
        return {"share": None}
    ratio = paired_ratio(times, copy)
    size = moved / copied
    return {"share": ratio.value * size, "share_low": ratio.low * size, "share_high": ratio.high * size}


def compared(first: Sequence[float], other: Sequence[float]) -> dict[str, float | str | None]:
    """Ratio of paired times, its interval, and what that says."""
    ratio = paired_ratio(first, other)
    return {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "ratio_says": ratio.says}


def _growth(points: Sequence[tuple[int, float]]) -> dict[str, float | str | None]:
    if len(points) < 3:
        return {}  # any two points lie on a line
    found = growth([tokens for tokens, _ in points], [seconds for _, seconds in points])
    return {"growth": found.exponent, "growth_low": found.low, "growth_high": found.high} if found else {}


def _drift(times: Sequence[float]) -> float:
    third = len(times) // 3
    if not third:
        return 0.0
    first, last = statistics.median(times[:third]), statistics.median(times[-third:])
    return abs(last / first - 1)


def _calls(whole: dict[str, Array], case: Case, operation: Operation) -> list[Inputs]:
    if not case.streams:
        return [whole]
    from conformance.spec.streams import call_inputs, spans

    return [call_inputs(whole, case, operation, start, end, {}) for start, end in spans(case.streams[0])]


def _reason(error: Exception) -> str:
    if isinstance(error, Unsupported):
        return f"not timed: {error}"
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"not timed: it raises {type(error).__name__}: {first[:200]}"
