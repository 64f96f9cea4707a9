"""Shrinking: a failing case made as small and as plain as it can be while it fails in the same way.

Works on whole cases, generated and written ones. What fails in the same way has the same signature: clause, output,
and region or kind of failure. Every step makes the case cheaper, so that it comes to an end; nothing is tried twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from conformance.judging.outcome import Outcome
from conformance.spec.case import Case, new_tokens
from conformance.spec.geometry import Geometry, span, spare
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation
from conformance.spec.resized import possible, resized
from conformance.spec.streams import spans

Signature = tuple[str, str, str]
Fails = Callable[[Case], Signature | None]
Candidates = Iterator[Case | None]
Array = np.ndarray[Any, np.dtype[Any]]

TRIALS = 3000
SECONDS = 60.0
LITERAL = 200  # elements of all ports, up to which they are written down one by one
MANY = 12  # sequences, above which they are not tried one by one
FEW = 16  # numbers that are tried one by one
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


# What a case costs its reader


def cost(case: Case, operation: Operation) -> tuple[float, ...]:
    """Checks besides the single call, sizes, calls, what is not as usual, and values."""
    known = operation.attributes
    elements = sum(math.prod(shape) for shape in Geometry(case, operation).shapes.values())
    needed = Geometry(case, operation).used
    sizes = sum(size for name, size in case.dims.items() if name in needed)
    counted = [value for name, value in case.attributes.items() if known[name].type == "integer"]
    unusual = sum(
        (
            case.element_type != "f32",
            case.length_type != "i64",
            case.length_shape != "each",
            case.poison != "zero",
            case.seed != 0,
            *(value != known[name].default for name, value in case.attributes.items() if value not in counted),
        )
    )
    return (
        len(case.relations) + len(case.audits) + len(case.streams) + bool(case.values) + _unneeded(case),
        elements + sizes + sum(case.past) + sum(case.pad) + sum(counted),
        sum(map(len, case.streams)),
        unusual,
        sum(_price(case.data.get(name)) for name in Geometry(case, operation).shapes),
    )


def _unneeded(case: Case) -> int:
    """Changes that are not what a refusal is due for."""
    return len(case.change) if not case.refusal else 0


def _price(spec: Any) -> float:
    """What the values of a port cost: literal ones by their digits, aims by their length."""
    if spec is None:
        return 20
    if isinstance(spec, dict):
        return 10 if spec == WHOLE else 20 + len(str(spec))
    return sum(map(digits, np.array(spec, dtype=object).flat))


def digits(value: Any) -> float:
    """What a number costs: 0 and 1, then powers of two, whole numbers, and others by their length."""
    if value is None:
        return 0.1
    number = float(value)
    if not math.isfinite(number):
        return 40
    if number == 0:
        return 1 if math.copysign(1, number) > 0 else 30
    if math.frexp(abs(number))[0] == 0.5:
        return 2 + min(abs(math.log2(abs(number))), 20) / 4 + (number < 0)
    return (10 if number == int(number) else 12) + len(f"{abs(number):.9g}") + (number < 0)


# Ways to make a case cheaper: candidates, the most rewarding first

WHOLE = {"aim": "integers"}


def checks(case: Case, operation: Operation) -> Candidates:
    """Fewer relations, audits and streams; no written values."""
    fields = ("relations", "audits", "streams")
    yield replace(case, relations=(), audits=(), streams=(), values={})
    yield replace(case, values={})
    if not case.refusal:
        yield replace(case, change={})
    for field in fields:
        given = getattr(case, field)
        yield replace(case, **{field: ()})
        for one in given:
            yield replace(case, **{field: (one,)})
        for one in given:
            yield replace(case, **{field: tuple(other for other in given if other != one)})


def calls(case: Case, operation: Operation) -> Candidates:
    """Of a stream, a call alone with what came before as its history; fewer calls; fewer cuts."""
    for stream in case.streams:
        for start, end in spans(stream):
            yield _part(case, operation, start, end, ())
    if len(case.streams) != 1:
        return
    (stream,) = case.streams
    edges = list(spans(stream))
    for number, (start, end) in enumerate(edges):
        yield _part(case, operation, start, sum(stream), (stream[number:],))
        yield _part(case, operation, 0, end, (stream[: number + 1],))
        rest = [token for token in range(sum(stream)) if not start <= token < end]
        left = tuple(step for i, step in enumerate(stream) if i != number)
        pad = [min(one, len(rest)) for one in case.pad]
        yield resized(case, operation, tokens=rest, pad=pad, streams=[left])
    for i in range(len(stream) - 1):
        yield resized(case, operation, streams=[(*stream[:i], stream[i] + stream[i + 1], *stream[i + 2 :])])


def _part(case: Case, operation: Operation, start: int, end: int, streams: Sequence[Sequence[int]]) -> Case | None:
    """Tokens start to end-1, those before them as history."""
    pad = [min(max(one - start, 0), end - start) for one in case.pad]
    past = [had + max(start - one, 0) for had, one in zip(case.past, case.pad, strict=True)]
    return resized(case, operation, tokens=range(start, end), past=past, pad=pad, streams=streams)


def sequences(case: Case, operation: Operation) -> Candidates:
    """Fewer sequences."""
    N = case.dims[operation.batch]
    whole = range(N)
    yield resized(case, operation, sequences=())
    for n in whole if N <= MANY else (0, N // 2, N - 1):
        yield resized(case, operation, sequences=(n,))
    yield resized(case, operation, sequences=whole[: N // 2])
    yield resized(case, operation, sequences=whole[N // 2 :])
    for n in whole if N <= MANY else (0, N - 1):
        yield resized(case, operation, sequences=[m for m in whole if m != n])


def tokens(case: Case, operation: Operation) -> Candidates:
    """Fewer new tokens: without the last ones, or without the first."""
    L = new_tokens(case, operation)
    for fewer in _less(L, 0):
        yield resized(case, operation, tokens=range(fewer), pad=[min(one, fewer) for one in case.pad])
        gone = L - fewer
        yield resized(case, operation, tokens=range(gone, L), pad=[max(one - gone, 0) for one in case.pad])
    for stream in case.streams:
        for start, end in spans(stream):
            if end > start:
                rest = [token for token in range(L) if token != start]
                steps = [step - (span_ == (start, end)) for step, span_ in zip(stream, spans(stream), strict=True)]
                yield resized(case, operation, tokens=rest, pad=[min(p, L - 1) for p in case.pad], streams=[steps])


def attributes(case: Case, operation: Operation) -> Candidates:
    """Smaller whole attributes, with the history and the new tokens counted in them; others as by default."""
    L = new_tokens(case, operation)
    for name, value in case.attributes.items() if not case.values else ():
        known = operation.attributes[name]
        if case.refusal and (name in case.refusal.names or (known.least is not None and not value >= known.least)):
            continue
        if known.type != "integer" or known.least is None:
            usual = {n: v for n, v in case.attributes.items() if n != name}
            yield replace(case, attributes=operation.attributes_of(usual))
            continue
        for fewer in _less(int(value), int(known.least)):

            def counted(number: int, old: int = int(value), new: int = fewer) -> int:
                return number // old * new + min(number % old, new - 1)

            def missing(number: int, old: int = int(value), new: int = fewer) -> int:
                return number // old * new + max(number % old - (old - new), 0)

            smaller = {name: fewer}
            yield resized(case, operation, attributes=smaller)
            for count in (counted, missing):
                past = [count(one) for one in case.past]
                ends = [counted(had + L - pad) for had, pad in zip(case.past, case.pad, strict=True)]
                for new in sorted({L, *(end - had for end, had in zip(ends, past, strict=True))}):
                    if 0 <= new <= L:
                        pad = [min(one, new) for one in case.pad]
                        yield resized(case, operation, attributes=smaller, past=past, pad=pad, tokens=range(new))


def history(case: Case, operation: Operation) -> Candidates:
    """A shorter history, of all sequences or of one; less padding."""
    block = Geometry(case, operation).period
    several = range(len(case.past)) if len(case.past) <= MANY else ()

    def shorter(had: int) -> tuple[int, ...]:
        return 0, had % max(block, 1), max(had - block, 0), had // 2, max(had - 1, 0)

    for field in ("past", "pad"):
        given = getattr(case, field)
        for whole in zip(*map(shorter, given), strict=True):
            yield _with_history(case, operation, field, whole)
        for n in several:
            for less in shorter(given[n]):
                yield _with_history(case, operation, field, [*given[:n], less, *given[n + 1 :]])


def _with_history(case: Case, operation: Operation, field: str, numbers: Sequence[int]) -> Case | None:
    changes: dict[str, Any] = {field: numbers}
    return resized(case, operation, **changes)


def widths(case: Case, operation: Operation) -> Candidates:
    """Smaller dimensions, and no rows to spare."""
    needed = Geometry(case, operation).used
    for name in operation.dims:
        if name in (operation.batch, operation.tokens) or name not in needed:
            continue
        if operation.dims[name].follows:
            for fewer in _less(spare(case, operation, name), 0):
                gone = spare(case, operation, name) - fewer
                yield resized(case, operation, dims={name: case.dims[name] - gone})
            continue
        least, _, step = span(case, operation, name)
        for fewer in _less(case.dims[name], least, step):
            yield resized(case, operation, dims={name: fewer})


def features(case: Case, operation: Operation) -> Candidates:
    """Features switched off."""
    on = [name for name in operation.switchable if name not in case.disabled]
    yield resized(case, operation, disabled=operation.switchable)
    for name in on:
        yield resized(case, operation, disabled=[*case.disabled, name])


def usual(case: Case, operation: Operation) -> Candidates:
    """The usual types, nothing in don't-care elements, no seed."""
    if case.values:
        return
    if not any(change.type for change in case.change.values()):
        yield replace(case, element_type="f32")
        yield replace(case, length_type="i64")
    if operation.lengths not in case.change:
        yield replace(case, length_shape="each")
    yield replace(case, poison="zero")
    yield replace(case, seed=0)


def aims(case: Case, operation: Operation) -> Candidates:
    """Plainer values for whole ports: zeros, ones, whole numbers, no injected values."""
    on = Geometry(case, operation).shapes if not case.values else {}
    if on and all(isinstance(spec, dict) for spec in case.data.values()):
        for value in (0, 1, WHOLE):
            yield replace(case, data=dict.fromkeys(on, value))
        yield replace(case, data={})
    for name in on:
        spec = case.data.get(name)
        for value in (0, 1):
            yield replace(case, data={**case.data, name: value})
        if not isinstance(spec, dict | None):
            continue
        yield replace(case, data={**case.data, name: WHOLE})
        yield replace(case, data={port: other for port, other in case.data.items() if port != name})
        if isinstance(spec, dict) and "inject" in spec:
            for item in spec["inject"]:
                rest = [other for other in spec["inject"] if other is not item]
                yield replace(case, data={**case.data, name: {**spec, "inject": rest}})


def _less(value: int, least: int, step: int = 1) -> Iterator[int]:
    """Smaller numbers, the smallest first: all when they are few, else closer and closer to the value."""
    gone = (value - least) // step
    while gone > FEW:
        yield value - gone * step
        gone //= 2
    for left in range(gone, 0, -1):
        yield value - left * step


WAYS = (checks, calls, sequences, tokens, attributes, history, widths, features, usual, aims)


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
