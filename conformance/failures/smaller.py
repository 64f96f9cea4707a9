"""What a case costs its reader, and ways to make it cheaper: the candidates of shrinking, the most rewarding first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from conformance.spec.case import Case, new_tokens
from conformance.spec.geometry import Geometry, span, spare
from conformance.spec.operation import Operation
from conformance.spec.resized import resized
from conformance.spec.streams import spans

Candidates = Iterator[Case | None]

MANY = 12  # sequences, above which they are not tried one by one
FEW = 16  # numbers that are tried one by one
WHOLE = {"aim": "integers"}

replace = msgspec.structs.replace


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
