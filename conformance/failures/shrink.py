"""Shrinking: a failing case made as small and as plain as it can be while it fails in the same way.

Works on whole cases, generated and written ones. What fails in the same way has the same signature: clause, output,
and region or kind of failure. Every step makes the case cheaper (see `smaller`), so that it comes to an end; nothing
is tried twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from conformance.failures.smaller import WAYS, cost, digits
from conformance.judging.outcome import Outcome
from conformance.spec.case import Case
from conformance.spec.geometry import Geometry
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation
from conformance.spec.resized import possible

Signature = tuple[str, str, str]
Fails = Callable[[Case], Signature | None]
Array = np.ndarray[Any, np.dtype[Any]]

TRIALS = 3000
SECONDS = 60.0
LITERAL = 200  # elements of all ports, up to which they are written down one by one
FAILED = ("fail", "error")

replace = msgspec.structs.replace


@dataclass(frozen=True)
class Shrunk:
    """What became of a case; `finished` says that nothing is left to try."""

    case: Case
    signature: Signature
    trials: int
    finished: bool


def failing(run: Callable[[Case], Outcome], *, warnings: bool = False) -> Fails:
    """A function that gives the signature of a case that fails, or with `warnings` of one that is warned of."""

    def fails(case: Case) -> Signature | None:
        outcome = run(case)
        wanted = outcome.status == "quality-warning" if warnings else outcome.status in FAILED
        return outcome.signature if wanted else None

    return fails


def shrink(case: Case, fails: Fails, operation: Operation, *, trials: int = TRIALS, seconds: float = SECONDS) -> Shrunk:
    """The smallest case found that fails as this one does. `fails` gives a signature, or None for a case that passes.

    Raises `ValueError` when the case does not fail.
    """
    signature = fails(case)
    if signature is None:
        raise ValueError(f"{case.id} does not fail")
    search = _Search(case, signature, fails, operation, trials, seconds)
    search.settle()
    if literally(search):
        search.settle(numbers)
    plain(search)
    return Shrunk(search.best, signature, search.trials, not search.spent)


class _Search:
    """The best case so far, and what is left to spend."""

    def __init__(
        self, case: Case, signature: Signature, fails: Fails, operation: Operation, trials: int, seconds: float
    ) -> None:
        self.best, self.signature, self.fails, self.operation = case, signature, fails, operation
        self.trials = 1
        self.spent = False
        self._most, self._until = trials, time.perf_counter() + seconds
        self._price = cost(case, operation)
        self._known = {case.digest: True}

    def settle(self, *more: Callable[[_Search], None]) -> None:
        """Take every way to make the case cheaper, until there is none."""
        before = None
        while before is not self.best:
            before = self.best
            for candidates in WAYS:
                while any(self.attempt(candidate) for candidate in candidates(self.best, self.operation)):
                    pass
            for step in more:
                step(self)

    def attempt(self, candidate: Case | None, *, dearer: bool = False) -> bool:
        """Whether a candidate is cheaper and fails in the same way; if so, it is the best one from now on."""
        if candidate is None or self.spent:
            return False
        price = cost(candidate, self.operation)
        if price >= self._price and not dearer:
            return False
        if not self._fails(candidate):
            return False
        self.best, self._price = candidate, price
        return True

    def _fails(self, candidate: Case) -> bool:
        """Whether a candidate fails in the same way; tried once."""
        digest = candidate.digest
        if digest not in self._known:
            if not possible(candidate, self.operation):
                return False
            if self.trials >= self._most or time.perf_counter() > self._until:
                self.spent = True
                return False
            self.trials += 1
            self._known[digest] = self.fails(candidate) == self.signature
        return self._known[digest]


# Single numbers


def literally(search: _Search) -> bool:
    """Write down the values of a small case one by one; whether that was done."""
    case, operation = search.best, search.operation
    if sum(math.prod(shape) for shape in Geometry(case, operation).shapes.values()) > LITERAL or case.values:
        return False
    arrays = inputs_of(replace(case, poison="nan", change={}), operation)
    zeroed = inputs_of(replace(case, poison="zero", change={}), operation)
    data = {}
    for name in Geometry(case, operation).shapes:
        if not isinstance(case.data.get(name), dict | None):
            data[name] = case.data[name]
            continue
        array = arrays[name]
        with np.errstate(invalid="ignore"):
            ignored = (array != array) & (zeroed[name] == zeroed[name])
        values = np.array([_number(value) for value in array.flat], dtype=object).reshape(array.shape)
        values[ignored] = None
        if not ignored.all():
            data[name] = values.tolist()
    return search.attempt(replace(case, data=data), dearer=True)


def _number(value: Any) -> float | int:
    """An element as a number with few digits that rounds to it."""
    short = float(str(value))
    exact = float(value)
    number = short if np.asarray(short).astype(value.dtype) == value else exact
    whole = math.isfinite(number) and number == int(number) and math.copysign(1, number) * (number or 1) > 0
    return int(number) if whole else number


def numbers(search: _Search) -> None:
    """Simpler numbers: for a whole port, for a row, for an element; equal rows once."""
    for name in Geometry(search.best, search.operation).shapes:
        if not isinstance(search.best.data.get(name), list):
            continue
        shape = np.array(search.best.data[name], dtype=object).shape
        for depth in range(1, len(shape) + 1):
            for index in np.ndindex(*shape[:depth]):
                old = np.array(search.best.data[name], dtype=object)
                if old.shape != shape:
                    break
                for value in (0, 1) if depth < len(shape) else simpler(old[index]):
                    if search.attempt(_with(search.best, name, _put(old, index, value))):
                        break
        once(search, name)


def _put(array: Array, index: tuple[int, ...], value: float) -> Array:
    """An array with a number in all elements below an index that have one."""
    new = array.copy()
    part = np.asarray(new[index], dtype=object)
    given = np.array([one is not None for one in part.flat], dtype=bool).reshape(part.shape)
    new[index] = np.where(given, np.asarray(value, dtype=object), part)[()]
    return new


def once(search: _Search, name: str) -> None:
    """Equal rows, or equal numbers, stand once for all of them."""
    array = np.array(search.best.data[name], dtype=object)
    while array.ndim and len(array):
        rows = [row for row in array if any(value is not None for value in np.asarray(row, dtype=object).flat)]
        one = np.asarray(rows[0] if rows else 0, dtype=object)
        if not search.attempt(_with(search.best, name, one)):
            return
        array = one


def simpler(value: Any) -> Iterator[Any]:
    """Numbers that cost less than this one, the cheapest first."""
    if value is None:
        return
    number = float(value)
    found: list[float | int] = [0, 1, 2, -1]
    if math.isfinite(number) and number:
        exponent = round(math.log2(abs(number)))
        power = 2**exponent if 0 <= exponent < 64 else 2.0**exponent
        found += [power, -power, abs(round(number)), round(number)]
        found += [float(f"{number:.{places}g}") for places in (1, 2, 3)]
    cheaper = {one for one in found if digits(one) < digits(number)}
    yield from sorted(cheaper, key=digits)


def _with(case: Case, name: str, array: Array) -> Case:
    return replace(case, data={**case.data, name: array.tolist()})


# What is said of it


def plain(search: _Search) -> None:
    """Without what makes no difference: values that are not read, claims to kill, clauses that do not break."""
    case, operation = search.best, search.operation
    clauses: tuple[str, ...] = (search.signature[0],)
    if case.level == "required" and operation.clause[clauses[0]].level != "required":
        clauses += tuple(name for name in case.clauses if operation.clause[name].level == "required")[:1]
    search.attempt(replace(case, clauses=clauses, kills=()), dearer=True)
    for name in case.data:
        rest = {port: spec for port, spec in search.best.data.items() if port != name}
        without = replace(search.best, data=rest)
        if _bits(without, operation) == _bits(search.best, operation):
            search.attempt(without, dearer=True)


def _bits(case: Case, operation: Operation) -> list[bytes]:
    return [array.tobytes() for array in inputs_of(case, operation).values()]
