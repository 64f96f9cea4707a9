"""How times are taken: calls in turn, the memory of a call, a process on some CPUs only.

All that is compared is run in turn, one sample each, over and over (copy A B, copy A B, ...), so that a machine that
becomes slower does so for all of them.
"""

from __future__ import annotations

import gc
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.errors import UsageError
from conformance.timing.contenders import Call

Clock = Callable[[], float]

SETTLE = 5e-3  # seconds before a sample in which the threads of whoever ran before stop waiting for more work
SAMPLE = 1e-3  # seconds that one sample takes at least: shorter calls are repeated within it
MOST_REPEATS = 10_000
LEAST_ROUNDS = 8  # fewer samples have no 99 % interval of their median
FEW_ROUNDS = 3  # made in any case; the others only within OVERTIME times the budget
MOST_ROUNDS = 2_000
OVERTIME = 4


def interleaved(targets: Sequence[Call], seconds: float, clock: Clock = time.perf_counter) -> list[list[float]]:
    """Seconds of a call of every target, one sample a round, the targets in turn.

    Every target is called to warm up, then until `SAMPLE` tells how often it is repeated in a sample. A pause and as
    many calls again, which are not counted, come before every sample: whoever ran before, its threads no longer spin
    (OpenMP's do, for some milliseconds after a call), and the caches are as the target itself leaves them. One call is
    not enough for that: what it reads moves into the last cache only as later calls drive it out of the others.
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
                for _ in range(count):
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
