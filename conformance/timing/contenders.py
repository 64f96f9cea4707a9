"""What is timed: backends and the parts that they offer, a call of a workload, and a plain copy beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.backends.connect import usable
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
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from conformance.spec.streams import call_inputs, spans

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = Mapping[str, Array]
Call = Callable[[], object]

SHARE_OF_THREAD = 1 << 20  # bytes; a copy gives no thread less than that


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
            missing = [name for name in operation.carried.values() if outputs and name not in outputs]
            if missing:
                raise Unsupported(missing[0], "the stream is carried on by it, and it is not returned")
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


def calls_of(whole: dict[str, Array], case: Case, operation: Operation) -> list[Inputs]:
    """The calls of a workload: one, or those of its stream as far as they are known before it runs."""
    if not case.streams:
        return [whole]
    return [call_inputs(whole, case, operation, start, end, {}) for start, end in spans(case.streams[0])]
