"""A case with other sizes, history or features: whatever is written in it for certain elements follows them.

Literal values and injected ones keep their tokens and sequences, streams still add up, and the rule that a refusal
case breaks is broken in the new sizes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from conformance.spec.broken import breach, broken_rule
from conformance.spec.case import Case, lengths, new_tokens
from conformance.spec.expression import evaluate, whole
from conformance.spec.geometry import Geometry, span, spare, with_defaults
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation, Scalar


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
    tokens = range(new_tokens(case, operation)) if tokens is None else tokens
    sizes = {**case.dims, operation.batch: len(sequences), **(dims or {})}
    if operation.tokens:
        sizes[operation.tokens] = (dims or {}).get(operation.tokens, len(tokens))
    L = sizes[operation.tokens] if operation.tokens else 0
    if operation.history:
        past = tuple((case.past if past is None else past)[n] for n in sequences)
        pad = tuple((case.pad if pad is None else pad)[n] for n in sequences)
    else:
        past = pad = ()
    if any(p < 0 or d < 0 or d > L or (p and d) for p, d in zip(past, pad, strict=True)):
        return None
    off = operation.closed(case.disabled if disabled is None else disabled)
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


def reshaped(case: Case, operation: Operation, dims: Mapping[str, int], seed: int | None = None) -> Case:
    """A case like this one with other dimensions: history repeats over the sequences, no padding, nothing literal."""
    sizes = {**case.dims, **dims}
    N = sizes[operation.batch]
    past: tuple[int, ...] = ()
    if operation.history:
        past = tuple((case.past[n % len(case.past)] if case.past else n) for n in range(N))
        if case.length_shape == "one" or (
            operation.lengths and operation.port[operation.lengths].feature in case.disabled
        ):
            past = past[:1] * N
    new = msgspec.structs.replace(
        case,
        dims=sizes,
        past=past,
        pad=(0,) * len(past),
        seed=case.seed if seed is None else seed,
        data={name: spec for name, spec in case.data.items() if isinstance(spec, Mapping) and "inject" not in spec},
        streams=(),
        change={},
        values={},
    )
    return with_defaults(new, operation)


def with_other_attributes(case: Case, operation: Operation, only: str = "") -> Case:
    """The case with every attribute, or one, at another value in its range, where there is another."""
    others: dict[str, Scalar] = {}
    for name, value in case.attributes.items():
        if only and name != only:
            others[name] = value
            continue
        described = operation.attributes[name]
        known = operation.scalars({**case.attributes, **others}, case.dims)
        other: Scalar = value + 1 if described.type == "integer" else value * 8 + 1e-3
        if described.type == "boolean":
            other = not value
        drawn = [evaluate(one, known) for one in described.draw]
        valid = [one for one in (other, *drawn) if one != value and operation.is_valid(name, one, known)]
        others[name] = valid[0] if valid else value
    return msgspec.structs.replace(case, attributes=_valid_together(others, case, operation))


def _valid_together(attributes: Mapping[str, Scalar], case: Case, operation: Operation) -> dict[str, Scalar]:
    """The attributes, with those that another one makes invalid at their first valid default or drawn value."""
    kept = dict(attributes)
    for name, value in attributes.items():
        known = operation.scalars(kept, case.dims)
        if not operation.is_valid(name, value, known):
            described = operation.attributes[name]
            choices = [evaluate(one, known) for one in (described.default, *described.draw)]
            kept[name] = next((one for one in choices if operation.is_valid(name, one, known)), value)
    return kept


# Sizes


def _fitted(new: Case, old: Case, operation: Operation) -> dict[str, int] | None:
    dims = dict(new.dims)
    needed = Geometry(new, operation).used
    for name, dim in operation.dims.items():
        case = msgspec.structs.replace(new, dims=dims)
        if dim.follows:
            here = whole(dim.default, Geometry(case, operation).symbols)
            change = dims[name] - old.dims[name]  # asked for
            dims[name] = here + max(spare(old, operation, name) + change, 0)
        elif name not in needed:
            dims[name] = whole(dim.default, Geometry(case, operation).symbols)
        else:
            least, most, step = span(case, operation, name)
            if most is not None and dims[name] > most:
                dims[name] = least + (most - least) // step * step
            if dims[name] < least:
                return None
    return dims


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
    before, after = Geometry(old, operation).shapes, Geometry(new, operation).shapes
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
    """The new case with the rule broken that the old one breaks; None when that is not a rule of the operation."""
    found = broken_rule(old, operation)
    tokens = new.dims[operation.tokens] if operation.tokens else 1
    if not found or not (new.dims[operation.batch] and tokens):  # where a wrong shape may be a right one
        return None
    broken = breach(new, operation, *found)
    return msgspec.structs.replace(new, change=dict(broken.change)) if broken and broken.change else None
