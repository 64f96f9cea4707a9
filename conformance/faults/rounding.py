"""Where an implementation rounds to the element type, told by the bits of what it returns.

The variants of the catalogue that name a `rounding` are asked for the same low-precision calls as the backend. The one
whose bits the backend has nearly everywhere is its family; sums in another order change few bits of a short type, and
a rounding at another place many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from conformance.backends.protocol import Backend, BackendInfo, OperationConfig
from conformance.faults import catalogue
from conformance.faults.entry import Entry
from conformance.judging.calling import Inputs, Run
from conformance.judging.engine import Engine
from conformance.library.reading import Library
from conformance.library.selection import SMALL, size
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from reference.expected import Expected
from reference.parts import elements

Array = np.ndarray[Any, np.dtype[Any]]

SHORT = ("bf16", "f16")  # types in which a rounding shows
TELLING = 8  # cases
ENOUGH = 60  # elements by which families differ
ALIKE = 0.9  # share of them in which a backend has the bits of its family
APART = 0.05  # by which the next family is behind


class Answer:
    """An observer that keeps the specified elements of the first call that is answered."""

    def __init__(self) -> None:
        self.elements: dict[str, Array] = {}
        self._expected: Mapping[str, Expected] = {}

    def called(self, run: Run, config: OperationConfig, inputs: Inputs, expected: Mapping[str, Expected]) -> None:
        """Keep what is expected."""
        self._expected = expected

    def answered(self, run: Run, got: Mapping[str, Any] | BaseException) -> None:
        """Keep the elements that have a bound, by output."""
        if self.elements or isinstance(got, BaseException):
            return
        for name, array in got.items():
            wanted = self._expected[name]
            if array.shape == wanted.shape and array.dtype == wanted.dtype:
                self.elements[name] = np.concatenate([np.zeros(0, np.float32), *_bounded(wanted, array)])

    def ended(self, case: Case, outcome: Any) -> None:
        """The case is over."""


def _bounded(wanted: Expected, got: Array) -> Iterator[Array]:
    for part in wanted.parts:
        known = elements(part)
        if known is not None:
            value, bound = known
            yield got[part.index][np.isfinite(value) & np.isfinite(bound) & (bound > 0)].astype(np.float32).ravel()


class Asked:
    """A backend that is asked for the single calls of cases."""

    def __init__(self, operation: Operation, backend: Backend, info: BackendInfo | None = None) -> None:
        self._seen = Answer()
        self._engine = Engine(operation, backend, info=info, observers=(self._seen,))

    def answer(self, case: Case) -> dict[str, Array]:
        """What it returns, by output; nothing where it does not serve the case."""
        self._seen.elements = {}
        self._engine.run(case)
        return self._seen.elements

    def close(self) -> None:
        """Let its sessions go."""
        self._engine.close()


def rounding_of(library: Library, backend: Backend, info: BackendInfo) -> str:
    """The family of rounding that a backend belongs to; empty when none of those that are known can be told."""
    operation = library.operation
    families = [entry for entry in catalogue.variants(operation.operation) if entry.rounding]
    same: dict[str, int] = dict.fromkeys((entry.rounding for entry in families), 0)
    judged = 0
    for mine, theirs in islice(_answers(operation, backend, info, families, _cases(library, info)), TELLING):
        differ = np.any([other != theirs[0] for other in theirs], axis=0)
        judged += int(differ.sum())
        for entry, other in zip(families, theirs, strict=True):
            same[entry.rounding] += int((mine == other)[differ].sum())
    if judged < ENOUGH:
        return ""
    ranked = sorted(same, key=lambda name: -same[name])
    best, second = same[ranked[0]] / judged, same[ranked[1]] / judged
    return ranked[0] if best >= ALIKE and best - second >= APART else ""


def _cases(library: Library, info: BackendInfo) -> Iterator[Case]:
    """Small cases in a short type, one topic after the other in turn, with nothing but their single call."""
    taken = [name for name in SHORT if name in info.element_types]
    plain = [
        msgspec.structs.replace(case, streams=(), relations=(), audits=())
        for case in library.cases
        if case.element_type in taken[:1]
        and not (case.refusal or case.change or case.values)
        and size(case, library.operation) <= SMALL
    ]
    topics: dict[str, list[Case]] = {}
    for case in plain:
        topics.setdefault(case.topic, []).append(case)
    for turn in range(max(map(len, topics.values()), default=0)):
        yield from (cases[turn] for cases in topics.values() if turn < len(cases))


def _answers(
    operation: Operation, backend: Backend, info: BackendInfo, families: Sequence[Entry], cases: Iterator[Case]
) -> Iterator[tuple[Array, list[Array]]]:
    """For every case in which the families differ, the elements of the backend and those of each family."""
    if len({entry.rounding for entry in families}) < 2:
        return
    asked = [Asked(operation, catalogue.backend_of(entry)) for entry in families]
    judged = Asked(operation, backend, info)
    try:
        for case in islice(cases, 8 * TELLING):
            theirs = [one.answer(case) for one in asked]
            if not any(_differ(one, theirs[0]) for one in theirs[1:]):
                continue
            mine = judged.answer(case)
            names = [name for name in mine if all(one.keys() >= {name} for one in theirs)]
            rows = [
                np.concatenate([np.zeros(0, np.float32), *(one[name] for name in names)]) for one in (mine, *theirs)
            ]
            if len({row.size for row in rows}) == 1 and rows[0].size:
                yield rows[0], rows[1:]
    finally:  # also when enough has been seen
        for one in (judged, *asked):
            one.close()


def _differ(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return any(name not in other or not np.array_equal(one[name], other[name]) for name in one)
