"""What the times of backends come to: how fast each is, how sure that is, and when it cannot be told.

Ratios are those of paired samples, with an interval; times are the fastest tenth of the samples, with a mark where the
machine was busy. What the machine can do is measured in the same turns: a plain copy of the call's largest input, by as
many threads. How samples are taken is in `sampling`, of what in `contenders`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from conformance.backends.protocol import Session, Unsupported
from conformance.record.environment import now
from conformance.record.log import PerfRecord
from conformance.spec.operation import Operation
from conformance.timing import workloads
from conformance.timing.contenders import Array, Call, Contender, Copier, call_of, calls_of, config_of
from conformance.timing.sampling import Clock, interleaved, peak_of
from conformance.timing.statistics import fastest, growth, interquartile, median_interval, paired_ratio
from conformance.timing.workloads import Workload

NOISE = 0.25  # interquartile range over median beyond which a time is marked
DRIFT = 0.20  # change of the copy's speed from the first third of the rounds to the last, likewise
LEAST_COPY = 1 << 20  # bytes; the time of a smaller copy is mostly that of starting it


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
    started: str = field(default_factory=now)  # times that have this in common were taken in turn
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
        calls = calls_of(whole, case, operation)
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
                "timed": self.started,
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
                    numbers |= {"ratio_to": timed[0].contender.name}
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


def _reason(error: Exception) -> str:
    if isinstance(error, Unsupported):
        return f"not timed: {error}"
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"not timed: it raises {type(error).__name__}: {first[:200]}"
