"""A written case with everything worked out: attributes, dimensions, lengths, changes, streams."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from conformance.errors import nearest
from conformance.library.data import bound, check_data
from conformance.library.written import Origin, Written
from conformance.spec.case import Case, Change
from conformance.spec.expression import ExpressionError, evaluate, whole
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Number, Operation, Scalar
from conformance.spec.streams import aligned, all_partitions, can_split, random_partition, spans, step_of
from conformance.spec.types import ELEMENT_TYPES, LENGTH_TYPES, TENSOR_TYPES

ALL_PARTITIONS_UP_TO = 8  # tokens; beyond it `streams: all` would mean more than 128 streams
SEQUENCES = 1 << 16  # of a case
CALLS = 1 << 14  # of all streams of a case
LARGEST_LENGTH = {"i32": 2**31 - 1, "i64": 2**63 - 1}


def concrete(raw: dict[str, Any], variables: Mapping[str, Any], label: str, here: Origin) -> Case:
    """The case with all expressions worked out and all names checked. Raises `LibraryError`."""
    written = here.convert(raw)
    name = f"{here.topic}/{written.id}" + (f"[{label}]" if label else "")
    _check_names(written, here)
    work = _Work(written, here, name, dict(variables))
    attributes = work.attributes()
    dims, later = work.dims()
    past, pad = work.history(dims)
    work.dims_that_follow(attributes, dims, later, past, pad)
    symbols = {*here.operation.symbol_of, *here.operation.dims, *here.operation.symbols, *here.operation.totals}
    own = {axis: value for axis, value in variables.items() if axis not in symbols}
    case = Case(
        id=name,
        says=written.says,
        clauses=written.clauses,
        operation=here.operation.operation,
        attributes=attributes,
        dims=dims,
        past=past,
        pad=pad,
        level=written.level,
        length_shape=written.length_shape,
        element_type=written.element_type,
        length_type=written.length_type,
        types=written.types,
        forms=written.forms,
        disabled=tuple(sorted(written.disabled)),
        seed=zlib.crc32(name.encode()) if written.seed is None else written.seed,
        data={port: bound(spec, own) for port, spec in written.data.items()},
        poison=written.poison,
        values=written.expect.values,
        refusal=written.expect.refusal,
        relations=written.relations,
        audits=written.audits,
        kills=written.kills,
        place=_place(here),
    )
    _check_size(case, here)
    case = msgspec.structs.replace(case, change=work.change(case), streams=_streams(written.streams, case, here))
    check_data(case, here)
    return case


@dataclass
class _Work:
    """One written case, and the symbols that are known of it so far."""

    written: Written
    here: Origin
    name: str
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> Operation:
        return self.here.operation

    def number(self, text: Number, symbols: Mapping[str, Any], *keys: Hashable) -> Any:
        try:
            return evaluate(text, symbols)
        except ExpressionError as error:
            raise self.here.error(str(error), *keys) from None

    def integer(self, text: Number, symbols: Mapping[str, Any], *keys: Hashable) -> int:
        try:
            return whole(text, symbols)
        except ExpressionError as error:
            raise self.here.error(str(error), *keys) from None

    def attributes(self) -> dict[str, Scalar]:
        """The attributes, in the operation's order; each may use those before it."""
        values: dict[str, Scalar] = {}
        for name, attribute in self.operation.attributes.items():
            value = self.number(self.written.attributes.get(name, attribute.default), self.known, "attributes", name)
            if not attribute.fits(value):
                kind = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}[attribute.type]
                raise self.here.error(f"{self.name}: '{name}' is {kind}, not {value!r}", "attributes", name)
            values[name] = value
            self.known[attribute.symbol] = int(value) if isinstance(value, bool) else value
        return values

    def dims(self) -> tuple[dict[str, int], dict[str, Number]]:
        """Dimensions that follow from no length, and the expressions of the others."""
        operation, given = self.operation, self.written.dims
        for key in ("past", "pad"):
            value = getattr(self.written, key)
            if isinstance(value, list) and operation.batch not in given:
                given = {**given, operation.batch: len(value)}
        dims: dict[str, int] = {}
        later: dict[str, Number] = {}
        for name, free in operation.dims.items():
            text = given.get(name, free.default)
            if isinstance(text, str) and "top(" in text:
                later[name] = text
                continue
            self.known[name] = dims[name] = self.integer(text, self.known, "dims", name)
        N = dims.get(operation.batch, 0)
        if not 0 <= N <= SEQUENCES:
            raise self.here.error(
                f"{self.name}: {operation.batch} is {N}, not 0 to {SEQUENCES}", "dims", operation.batch
            )
        return dims, later

    def history(self, dims: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Past and padding tokens of every sequence."""
        written, operation, here = self.written, self.operation, self.here
        if not operation.history:
            for key in ("past", "pad"):
                if getattr(written, key):
                    raise here.error(f"'{key}': the sequences of this operation have no history", key)
            return (), ()
        N, L = dims[operation.batch], dims[operation.tokens] if operation.tokens else 0
        for key in ("past", "pad"):
            value = getattr(written, key)
            if isinstance(value, list) and len(value) != N:
                raise here.error(f"'{key}' has {len(value)} numbers for {N} sequences", key)

        def of_sequence(value: Number | list[Number], n: int, key: str) -> int:
            return self.integer(value[n] if isinstance(value, list) else value, {**self.known, "n": n}, key)

        pad = tuple(of_sequence(written.pad, n, "pad") for n in range(N))
        default: Any = operation.history if written.past is None else written.past
        past = tuple(of_sequence(default, n, "past") if written.past is not None or not pad[n] else 0 for n in range(N))
        for n in range(N):
            if past[n] < 0 or pad[n] < 0 or pad[n] > L or (past[n] and pad[n]):
                problem = f"sequence {n}: {past[n]} past and {pad[n]} padding tokens of {L} new ones cannot be"
                raise here.error(f"{self.name}: {problem}", "pad" if pad[n] else "past")
        lengths = [past[n] + L - pad[n] for n in range(N)]
        if written.length_shape == "one" and len(set(lengths)) > 1:
            raise here.error(f"{self.name}: one length for all sequences, but they are {lengths}", "length_shape")
        if max(lengths, default=0) > LARGEST_LENGTH[written.length_type]:
            raise here.error(f"{self.name}: a length of {max(lengths)} does not fit {written.length_type}", "past")
        return past, pad

    def dims_that_follow(
        self,
        attributes: Mapping[str, Scalar],
        dims: dict[str, int],
        later: Mapping[str, Number],
        past: Sequence[int],
        pad: Sequence[int],
    ) -> None:
        """Dimensions that follow from the lengths are added to the others, in the operation's order."""
        operation, here = self.operation, self.here
        L = dims[operation.tokens] if operation.tokens else 0
        lengths = [had + L - missing for had, missing in zip(past, pad, strict=True)]
        try:
            known = self.known | operation.scalars(operation.usable(attributes), {})
            symbols = {**known, **operation.columns(operation.per_sequence(known, lengths))}
        except ExpressionError as error:
            raise here.error(f"{self.name}: {error}") from None
        for name, text in later.items():
            symbols[name] = dims[name] = self.integer(text, symbols, "dims", name)
        for name, value in dims.items():
            if value < 0:
                raise here.error(f"{self.name}: dimension {name} is {value}", "dims", name)
        self.known = {**symbols, **dims}
        try:
            self.known |= operation.totals_of(self.known, {})
        except ExpressionError as error:
            raise here.error(f"{self.name}: {error}") from None
        port = operation.port[operation.lengths] if operation.lengths else None
        if port and operation.unsaid and port.feature in self.written.disabled:
            due = self.integer(operation.unsaid, self.known)
            if any(length != due for length in lengths):
                problem = f"{self.name}: without {port.name} every length is {due}, but they are {lengths}"
                raise here.error(problem, "past")

    def change(self, case: Case) -> dict[str, Change]:
        """What is put in place of ports, shapes worked out."""
        change: dict[str, Change] = {}
        for port, spec in self.written.change.items():
            shape = None
            if spec.shape is not None:
                keys = ("change", port, "shape")
                shape = tuple(self.integer(size, self.known, *keys, i) for i, size in enumerate(spec.shape))
                if min(shape, default=0) < 0 or math.prod(shape) * 8 > self.here.memory:
                    raise self.here.error(f"{self.name}: {port} cannot have the shape {list(shape)}", *keys)
            if spec.type and spec.type not in (*TENSOR_TYPES, "other"):
                known = (*TENSOR_TYPES, "other")
                problem = f"'{spec.type}' is not a type{nearest(spec.type, known)}; known: {', '.join(known)}"
                raise self.here.error(problem, "change", port, "type")
            change[port] = Change(
                shape=shape, type=spec.type, values=spec.values, inject=spec.inject, absent=spec.absent
            )
        return change


def _place(here: Origin) -> str:
    place = here.at()
    return f"{place.path}:{place.line}"


def _check_names(written: Written, here: Origin) -> None:
    """Everything that is named is there."""
    operation = here.operation
    _known(here, written.attributes, list(operation.attributes), "attributes")
    _known(here, written.dims, list(operation.dims), "dims")
    _known(here, written.data, list(operation.port), "data")
    _known(here, written.change, list(operation.port), "change")
    _known(here, written.expect.values, list(operation.output), "expect")
    _known(here, written.disabled, list(operation.switchable), "disabled")
    _known(here, written.clauses, list(operation.clause), "clauses")
    _known(here, written.relations, list(operation.relation), "relations")
    _known(here, [written.element_type], list(ELEMENT_TYPES), "element_type")
    _known(here, [written.length_type], list(LENGTH_TYPES), "length_type")
    _known(here, written.types, list(operation.types), "types")
    for name, kind in written.types.items():
        _known(here, [kind], list(operation.types[name].choices), "types", name)
    _known(here, written.forms, [port.name for port in operation.ports if port.forms], "forms")
    for name, form in written.forms.items():
        _known(here, [form], list(operation.port[name].forms), "forms", name)
    for feature in written.disabled:
        missing = [one for one in operation.closed([feature]) if one not in written.disabled]
        if missing:
            raise here.error(f"without '{feature}' there is no '{missing[0]}' either; list both", "disabled")


def _known(here: Origin, names: Any, known: list[str], *keys: Hashable) -> None:
    for name in names:
        if name not in known:
            where = (*keys, name) if isinstance(names, Mapping) else keys
            choices = f"; known: {', '.join(known)}" if 0 < len(known) < 12 else ""
            raise here.error(f"unknown name '{name}' in {keys[0]}{nearest(str(name), known)}{choices}", *where)


def _check_size(case: Case, here: Origin) -> None:
    """The arrays of a case fit into memory; they are not made to find out."""
    try:
        size = Geometry(case, here.operation).bytes
    except ExpressionError as error:
        raise here.error(f"{case.id}: {error}") from None
    if size > here.memory:
        raise here.error(f"{case.id} has {size:,} bytes of inputs and outputs, more than {here.memory:,}", "dims")


# Streams


def _streams(spec: Any, case: Case, here: Origin) -> tuple[tuple[int, ...], ...]:
    """Partitions of the new tokens; by default one with two cuts, drawn from the case's id."""
    operation = here.operation
    if not can_split(case, operation):
        if spec:
            raise here.error(f"{case.id}: the tokens of this case cannot be split into calls", "streams")
        return ()
    L, step = case.dims[operation.tokens], step_of(case, operation)
    if spec is None:
        spec = [{"cuts": 2, "seed": zlib.crc32(case.id.encode())}] if L > 1 else []
    streams: list[tuple[int, ...]] = []
    for index, one in enumerate(spec if isinstance(spec, list) else [spec]):
        for stream in _partitions(one, L, here, index):
            if isinstance(one, list) and any(end % step for _, end in list(spans(stream))[:-1]):
                raise here.error(f"a stream of this case is cut at multiples of {step} tokens only", "streams", index)
            streams.append(aligned(stream, step))
    if sum(map(len, streams)) > CALLS:
        raise here.error(f"{case.id}: its streams have more than {CALLS} calls", "streams")
    return tuple(dict.fromkeys(s for s in streams if s and s != (L,)))


def _partitions(one: Any, L: int, here: Origin, index: int) -> list[tuple[int, ...]]:
    if one == "all":
        if L > ALL_PARTITIONS_UP_TO:
            raise here.error(f"'all' partitions of {L} tokens are too many; at most {ALL_PARTITIONS_UP_TO}", "streams")
        return list(all_partitions(L))
    if isinstance(one, dict) and "cuts" in one and set(one) <= {"cuts", "seed"} and all(map(_is_count, one.values())):
        _few(one["cuts"], here, index)
        return [random_partition(L, one["cuts"], one.get("seed", 0))]
    if isinstance(one, dict) and set(one) == {"chunk"} and _is_count(one["chunk"]) and one["chunk"] > 0:
        whole_ones, rest = divmod(L, one["chunk"])
        _few(whole_ones, here, index)
        return [(one["chunk"],) * whole_ones + ((rest,) if rest else ())]
    if isinstance(one, list) and all(map(_is_count, one)):
        if sum(one) != L:
            raise here.error(f"the partition {one} adds up to {sum(one)}, not to the {L} new tokens", "streams", index)
        return [tuple(one)]
    problem = f"'{one}' is not a partition: give a list of steps, all, {{cuts: k, seed: s}} or {{chunk: n}}"
    raise here.error(problem, "streams", index)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _few(calls: int, here: Origin, index: int) -> None:
    if calls > CALLS:
        raise here.error(f"{calls} calls are too many; at most {CALLS}", "streams", index)
