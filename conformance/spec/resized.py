"""A case with other sizes, history or features: whatever is written in it for certain elements follows them.

Literal values and injected ones keep their tokens and sequences, streams still add up, and the rule that a refusal
case breaks is broken in the new sizes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from conformance.spec.case import Case, Change, Refusal, lengths
from conformance.spec.expression import evaluate, symbols_of
from conformance.spec.operation import Operation, Port, RefusalRule, Scalar
from conformance.spec.tensors import inputs_of


def resized(
    case: Case,
    operation: Operation,
    *,
    attributes: Mapping[str, Scalar] | None = None,
    dims: Mapping[str, int] | None = None,
    past: Sequence[int] | None = None,
    pad: Sequence[int] | None = None,
    streams: Sequence[Sequence[int]] | None = None,
    disabled: Sequence[str] | None = None,
    sequences: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
) -> Case | None:
    """The case with some things changed and all others fitted to them; None when there is no such case.

    `sequences` and `tokens` are those that are kept. Numbers of rows that follow from the history follow it again, with
    as many rows to spare as before. Streams that are not given are cut off at the end.
    """
    if case.values:
        return None
    sequences = range(case.dims[operation.batch]) if sequences is None else sequences
    tokens = range(case.dims[operation.tokens]) if tokens is None else tokens
    sizes = {**case.dims, operation.batch: len(sequences), operation.tokens: len(tokens), **(dims or {})}
    past = tuple((case.past if past is None else past)[n] for n in sequences)
    pad = tuple((case.pad if pad is None else pad)[n] for n in sequences)
    L = sizes[operation.tokens]
    if any(p < 0 or d < 0 or d > L or (p and d) for p, d in zip(past, pad, strict=True)):
        return None
    off = tuple(sorted(case.disabled if disabled is None else disabled))
    new = msgspec.structs.replace(
        case, attributes={**case.attributes, **(attributes or {})}, dims=sizes, past=past, pad=pad, disabled=off
    )
    fitted = _fitted(new, case, operation)
    if fitted is None:
        return None
    new = msgspec.structs.replace(
        new,
        dims=fitted,
        length_shape=case.length_shape if len(set(lengths(new, operation))) <= 1 else "each",
        streams=_cut(case.streams if streams is None else streams, L),
    )
    data = _moved_data(case, new, operation, {operation.batch: sequences, operation.tokens: tokens})
    if data is None:
        return None
    new = msgspec.structs.replace(new, data=data)
    return _respoilt(case, new, operation) if case.change else new


def possible(case: Case, operation: Operation) -> bool:
    """Whether the tensors of a case can be made."""
    try:
        inputs_of(case, operation)
    except (ValueError, TypeError, IndexError, KeyError):
        return False
    return True


# Sizes


def symbols(case: Case, operation: Operation) -> dict[str, Any]:
    """Attributes, dimensions, symbols of the sequences as lists, and 1 or 0 for every feature that is on or off."""
    scalars = operation.scalars(operation.usable(case.attributes), case.dims)
    columns = operation.columns(operation.per_sequence(scalars, lengths(case, operation)))
    on = {name: int(name not in case.disabled) for name in operation.switchable}
    return {**scalars, **columns, **operation.totals_of(scalars, columns), **on}


def shapes(case: Case, operation: Operation) -> dict[str, tuple[int, ...]]:
    """Shape of every port that holds elements of the case's type and is not switched off."""
    known = symbols(case, operation)
    return {port.name: _shape(port, known) for port in operation.ports if _is_on(port, case)}


def span(case: Case, operation: Operation, dim: str) -> tuple[int, int | None, int]:
    """Smallest, largest and step of a dimension in this case. It has no largest that depends on no other dimension."""
    described = operation.dims[dim].draw
    if described is None:
        return 1, None, 1
    known = symbols(case, operation)
    bound = symbols_of(described.most) & operation.dims.keys() and not _follows(operation, dim)
    most = int(evaluate(described.most, known)) if bound else None
    return int(evaluate(described.least, known)), most, described.step


def used(case: Case, operation: Operation) -> set[str]:
    """Symbols in the shapes of ports that are on."""
    ports = [port for port in operation.ports if port.feature not in case.disabled]
    return {name for port in ports for size in port.shape for name in symbols_of(size)}


def spare(case: Case, operation: Operation, dim: str) -> int:
    """Rows of a dimension beyond those that follow from the history."""
    return case.dims[dim] - int(evaluate(operation.dims[dim].default, symbols(case, operation)))


def _fitted(new: Case, old: Case, operation: Operation) -> dict[str, int] | None:
    dims = dict(new.dims)
    needed = used(new, operation)
    for name, dim in operation.dims.items():
        case = msgspec.structs.replace(new, dims=dims)
        if _follows(operation, name):
            here = int(evaluate(dim.default, symbols(case, operation)))
            change = dims[name] - old.dims[name]  # asked for
            dims[name] = here + max(spare(old, operation, name) + change, 0)
        elif name not in needed:
            dims[name] = int(evaluate(dim.default, symbols(case, operation)))
        else:
            least, most, step = span(case, operation, name)
            if most is not None and dims[name] > most:
                dims[name] = least + (most - least) // step * step
            if dims[name] < least:
                return None
    return dims


def _follows(operation: Operation, dim: str) -> bool:
    """Whether a dimension's size follows from the history."""
    default = operation.dims[dim].default
    return isinstance(default, str) and "top(" in default


def _is_on(port: Port, case: Case) -> bool:
    return port.type == "T" and port.feature not in case.disabled


def _shape(port: Port, known: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(evaluate(size, known)) for size in port.shape)


def _cut(streams: Sequence[Sequence[int]], L: int) -> tuple[tuple[int, ...], ...]:
    """Partitions of the first L tokens, without those that are the single call."""
    found = []
    for stream in streams:
        steps, left = [], L
        for step in stream:
            steps.append(min(step, left))
            left -= steps[-1]
            if not left and sum(steps) == L and step:
                break
        if steps and sum(steps) == L and len(steps) > 1:
            found.append(tuple(steps))
    return tuple(dict.fromkeys(found))


# Values


def _moved_data(old: Case, new: Case, operation: Operation, kept: Mapping[str, Sequence[int]]) -> dict[str, Any] | None:
    before, after = shapes(old, operation), shapes(new, operation)
    data = {}
    for name, spec in old.data.items():
        if name not in after:
            continue
        moved = _moved(spec, operation.port[name].shape, before[name], after[name], kept)
        if moved is None:
            return None
        data[name] = moved
    return data


def _moved(
    spec: Any,
    axes: Sequence[Scalar | str],
    before: tuple[int, ...],
    after: tuple[int, ...],
    kept: Mapping[str, Sequence[int]],
) -> Any:
    """Literal values or an aim with injections, for the elements that are left; None when some are missing."""
    if isinstance(spec, Mapping):
        if "inject" not in spec:
            return spec
        moved = [{**item, "at": _place(item["at"], axes, before, after, kept)} for item in spec["inject"]]
        rest = {key: value for key, value in spec.items() if key != "inject"}
        inject = [item for item in moved if item["at"] is not None]
        return {**rest, "inject": inject} if inject else rest
    array = np.array(spec, dtype=object)
    if not array.size:
        return [] if 0 in after else None
    for axis in range(array.ndim):
        whole = axis - array.ndim  # literals may leave out leading axes
        if axes[whole] in kept:
            array = array.take(list(kept[str(axes[whole])]), axis)
        if array.shape[axis] < after[whole]:
            return None
        array = array.take(range(after[whole]), axis)
    return array.tolist()


def _place(
    at: Sequence[int],
    axes: Sequence[Scalar | str],
    before: tuple[int, ...],
    after: tuple[int, ...],
    kept: Mapping[str, Sequence[int]],
) -> list[int] | None:
    """Where an injected value goes: with its sequence and token, or to the last place that is left."""
    place = []
    for axis, index in enumerate(at):
        index %= max(before[axis], 1)
        if axes[axis] in kept:
            rest = list(kept[str(axes[axis])])
            if index not in rest:
                return None
            index = rest.index(index)
        if not after[axis]:
            return None
        place.append(min(index, after[axis] - 1))
    return place


# Refusals


def _respoilt(old: Case, new: Case, operation: Operation) -> Case | None:
    """The new case with the rule broken that the old one breaks; None when that is no rule of the operation."""
    found = broken_rule(old, operation)
    empty = not (new.dims[operation.batch] and new.dims[operation.tokens])  # where a wrong shape may be a right one
    change = spoilt(new, *found, operation) if found and not empty else None
    return msgspec.structs.replace(new, change=change) if change else None


def broken_rule(case: Case, operation: Operation) -> tuple[RefusalRule, int] | None:
    """The rule whose breach gives a case its changes, and in which way it is broken."""
    for rule in operation.refusals:
        if case.refusal != Refusal(kind=rule.kind, phase=rule.phase, names=rule.names):
            continue
        lists: list[list[Any]] = [*rule.shapes.values(), *rule.types.values(), rule.lengths]
        for way in range(max(map(len, lists))):
            if spoilt(case, rule, way, operation) == case.change:
                return rule, way
    return None


def spoilt(case: Case, rule: RefusalRule, way: int, operation: Operation) -> dict[str, Change] | None:
    """The changes that break a rule in a case; None when it cannot be broken there."""
    known = symbols(case, operation)
    change: dict[str, Change] = {}
    ports = {*rule.shapes, *rule.types}
    if any(operation.port[port].feature in case.disabled for port in ports):
        return None
    for port, ways in rule.shapes.items():
        shape = tuple(int(evaluate(size, known)) for size in ways[way % len(ways)])
        if min(shape, default=0) < 0 or shape == _shape(operation.port[port], known):
            return None
        change[port] = Change(shape=shape)
    for port, types in rule.types.items():
        change[port] = Change(type=types[way % len(types)])
    if rule.lengths:
        values = list(lengths(case, operation))
        values = values[:1] if case.length_shape == "one" else values
        before = case.change.get(operation.lengths)
        bad = _bad_row(before, values) if before else 0
        if bad >= len(values):
            return None
        row = operation.per_sequence(operation.scalars(operation.usable(case.attributes), case.dims), values)[bad]
        values[bad] = int(evaluate(rule.lengths[way % len(rule.lengths)], row))
        change[operation.lengths] = Change(values=values)
    return change or None


def _bad_row(change: Change, values: Sequence[int]) -> int:
    """The row that a change of the lengths spoils, or the first."""
    given = change.values if isinstance(change.values, list | tuple) else []
    differ = [n for n, (a, b) in enumerate(zip(given, values, strict=False)) if a != b]
    return differ[0] if len(differ) == 1 and len(given) == len(values) else 0
