"""The case library: strict YAML files in, concrete cases out.

A file holds `defaults` and `cases`. A case is written in the contract's symbols; numbers may be expressions of r,
epsilon, the dimensions and the axes of its `matrix` or `cover`, which expand it into many.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from conformance.errors import LibraryError, Place, UsageError, nearest
from conformance.library import cache as library_cache
from conformance.spec.case import Case, Change, Refusal
from conformance.spec.expression import ExpressionError, evaluate, symbols_of
from conformance.spec.operation import (
    ELEMENT_TYPES,
    LENGTH_TYPES,
    Level,
    Operation,
    Scalar,
    Strict,
    cases_root,
    load_operation,
    located,
)

if TYPE_CHECKING:
    from conformance.spec import strict_yaml

Number = Scalar | str
ALL_PARTITIONS_UP_TO = 8  # tokens; beyond it `streams: all` would mean more than 128 streams


class WrittenChange(Strict, frozen=True):
    """`Change` as written: a shape in expressions."""

    shape: list[Number] | None = None
    type: str = ""
    values: Any = None


class Expect(Strict, frozen=True):
    """What is expected where it is not the reference that says so."""

    values: dict[str, Any] = {}
    refusal: Refusal | None = None


class Cover(Strict, frozen=True):
    """A covering array: every combination of `strength` axes occurs, except where an expression of `except` holds.

    In those an axis stands for its number, or for the position of its value where that is no number.
    """

    strength: int
    axes: dict[str, Any]
    excluded: list[str] = msgspec.field(name="except", default_factory=list)


class Written(Strict, frozen=True):
    """A case as it stands in a file."""

    id: str
    says: str
    clauses: tuple[str, ...]
    level: Level = "required"
    attributes: dict[str, Number] = {}
    dims: dict[str, Number] = {}
    past: Number | list[Number] | None = None
    pad: Number | list[Number] = 0
    length_shape: Literal["each", "one"] = "each"
    element_type: str = "f32"
    length_type: str = "i64"
    disabled: list[str] = []
    seed: int | None = None
    data: dict[str, Any] = {}
    poison: Literal["mixed", "nan", "huge", "zero"] = "mixed"
    streams: Any = None
    change: dict[str, WrittenChange] = {}
    expect: Expect = Expect()
    relations: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    matrix: dict[str, Any] = {}
    cover: Cover | None = None


class File(Strict, frozen=True):
    """A file of the library."""

    cases: list[dict[str, Any]]
    defaults: dict[str, Any] = {}
    says: str = ""


@dataclass(frozen=True)
class Library:
    """The cases of one operation."""

    operation: Operation
    cases: tuple[Case, ...]
    written: int  # cases as written, before expansion

    @property
    def digest(self) -> str:
        """Twelve hex digits over all cases; two runs with the same digest ran the same library."""
        import hashlib

        return hashlib.sha256("".join(f"{c.id} {c.digest}\n" for c in self.cases).encode()).hexdigest()[:12]

    def find(self, name: str) -> Case:
        """The case of this id. Raises `UsageError` with the nearest one."""
        for case in self.cases:
            if case.id == name:
                return case
        raise UsageError(f"no case '{name}'{nearest(name, [c.id for c in self.cases])}")


def load_library(name: str = "qsa_prepare", root: Path | None = None) -> Library:
    """All cases of an operation, in the order of the files. Raises `LibraryError` at the first problem.

    What was read before is taken from a cache, as long as no file of the library or of this package has changed.
    """
    root = root or cases_root()
    key = library_cache.key(root / name)
    stored = library_cache.read(key)
    if stored is None:
        library = read_library(name, root)
        library_cache.write(key, library_cache.Stored(library.operation, library.cases, library.written))
        return library
    return Library(stored.operation, stored.cases, stored.written)


def read_library(name: str, root: Path) -> Library:
    """All cases of an operation, from its files."""
    operation = load_operation(name, root)
    cases: list[Case] = []
    written = 0
    seen: dict[str, str] = {}
    for path in case_files(root / name):
        found, count = load_file(path, operation, f"cases/{path.relative_to(root).as_posix()}")
        written += count
        for case in found:
            if case.id in seen:
                raise LibraryError(f"case id '{case.id}' is taken by {seen[case.id]}", Place(case.place))
            seen[case.id] = case.place
        cases += found
    return Library(operation, tuple(cases), written)


def case_files(folder: Path) -> list[Path]:
    """The files with cases: everything in a folder of its own, but for the expectations."""
    return sorted(p for p in folder.glob("*/*.yaml") if p.parent.name != "expectations")


def load_file(path: Path, operation: Operation, shown: str = "") -> tuple[list[Case], int]:
    """The expanded cases of one file and the number of written ones. Raises `LibraryError`."""
    from conformance.spec import strict_yaml

    data, places = strict_yaml.load(path, shown)
    try:
        file = msgspec.convert(data, File)
    except msgspec.ValidationError as error:
        raise located(error, places) from None
    topic = path.parent.name.lstrip("0123456789-")
    cases: list[Case] = []
    for index, raw in enumerate(file.cases):
        merged = merge(file.defaults, raw)
        here = Origin(places, ("cases", index), topic, operation)
        for label, variables, patched in expand(merged, here):
            cases.append(concrete(patched, variables, label, here))
    return cases, len(file.cases)


@dataclass(frozen=True)
class Origin:
    """Where a case comes from, for its errors."""

    places: strict_yaml.Places
    keys: tuple[Hashable, ...]
    topic: str
    operation: Operation

    def error(self, problem: str, *keys: Hashable) -> LibraryError:
        return LibraryError(problem, self.places.at(*self.keys, *keys))

    def convert(self, raw: Mapping[str, Any]) -> Written:
        try:
            return msgspec.convert(raw, Written)
        except msgspec.ValidationError as error:
            failure = located(error, self.places, *self.keys)
            unknown = str(error).split("`")[1] if "unknown field" in str(error) else ""
            hint = nearest(unknown, list(Written.__struct_fields__)) if unknown else ""
            raise LibraryError(failure.problem + hint, failure.place) from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key; anything else is replaced. A mapping with an `aim` is a whole of its own."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and "aim" not in value:
            value = merge(old, value)
        result[key] = value
    return result


# Expansion


def expand(raw: dict[str, Any], here: Origin) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Label, axis variables and patched raw case for every point of the matrix or covering array."""
    case = here.convert(raw)
    base = {key: value for key, value in raw.items() if key not in ("matrix", "cover")}
    axes: dict[str, list[tuple[str, Any]]] = {}
    points: list[dict[str, tuple[str, Any]]]
    if case.cover:
        axes = {name: axis_values(name, spec, here) for name, spec in case.cover.axes.items()}
        points = covering(axes, case.cover, here)
    else:
        points = [{}]
    matrix = {name: axis_values(name, spec, here) for name, spec in case.matrix.items()}
    for point in points:
        for row in itertools.product(*matrix.values()):
            chosen = {**point, **dict(zip(matrix, row, strict=True))}
            patched = base
            variables: dict[str, Any] = {}
            for name, (_, value) in chosen.items():
                patched, variable = apply_axis(patched, name, value, here.operation)
                variables |= variable
            yield ",".join(f"{name}={label}" for name, (label, _) in chosen.items()), variables, patched


def axis_values(name: str, spec: Any, here: Origin) -> list[tuple[str, Any]]:
    """(label, value) of every point of an axis: a list, a range `a..b`, or labelled patches."""
    if isinstance(spec, str) and ".." in spec:
        low, _, high = spec.partition("..")
        try:
            return [(str(i), i) for i in range(int(low), int(high) + 1)]
        except ValueError:
            raise here.error(f"axis '{name}': '{spec}' is no range of integers such as 0..9", "matrix", name) from None
    if isinstance(spec, dict) and all(isinstance(v, dict) for v in spec.values()):
        return [(label, patch) for label, patch in spec.items()]
    if isinstance(spec, list) and spec:
        return [(_label(value), value) for value in spec]
    raise here.error(f"axis '{name}' needs a list, a range a..b, or labelled mappings", "matrix", name)


def _label(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(_label(v) for v in value) or "none"
    return str(value).replace(" ", "")


def apply_axis(
    raw: dict[str, Any], name: str, value: Any, operation: Operation
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case with one axis value put in, and the variables that expressions may use for it."""
    if isinstance(value, dict):
        return merge(raw, value), {}
    variable = {name: value} if isinstance(value, int | float) else {}
    if name in operation.dims:
        return {**raw, "dims": {**raw.get("dims", {}), name: value}}, variable
    attribute = operation.symbol_of.get(name, name if name in operation.attributes else "")
    if attribute:
        return {**raw, "attributes": {**raw.get("attributes", {}), attribute: value}}, variable
    if name in Written.__struct_fields__:
        return {**raw, name: value}, {}
    return raw, variable


def covering(axes: Mapping[str, list[tuple[str, Any]]], cover: Cover, here: Origin) -> list[dict[str, tuple[str, Any]]]:
    """Rows in which every allowed combination of `strength` axes occurs. Raises `LibraryError` when one does not."""
    from covertable import make

    strength = min(cover.strength, len(axes))
    indices = {name: list(range(len(values))) for name, values in axes.items()}

    excluded = [(text, symbols_of(text)) for text in cover.excluded]
    for text, names in excluded:
        if names - axes.keys():
            raise here.error(
                f"'{text}' excludes by {', '.join(sorted(names - axes.keys()))}, which is no axis", "cover"
            )

    def holds(text: str, row: Mapping[str, int]) -> bool:
        values = {name: axes[name][i][1] for name, i in row.items()}
        return bool(evaluate(text, {n: v if isinstance(v, int | float) else row[n] for n, v in values.items()}))

    def allowed(row: Mapping[str, int]) -> bool:
        return not any(names <= row.keys() and holds(text, row) for text, names in excluded)

    constraints = [
        {"operator": "fn", "requires": sorted(names), "evaluate": lambda row, text=text: not holds(text, row)}
        for text, names in excluded
    ]
    rows = [dict(row) for row in make(indices, strength=strength, constraints=constraints)]
    missing = missing_combinations(indices, rows, strength, allowed)
    if missing:
        raise here.error(f"the covering array misses {len(missing)} combinations, such as {missing[0]}", "cover")
    return [{name: axes[name][i] for name, i in row.items()} for row in rows]


def missing_combinations(
    indices: Mapping[str, list[int]], rows: list[dict[str, int]], strength: int, allowed: Any
) -> list[dict[str, int]]:
    """Combinations of `strength` axes that could stand in an allowed row and stand in none."""
    missing = []
    for names in itertools.combinations(indices, strength):
        there = {tuple(row[name] for name in names) for row in rows}
        for values in itertools.product(*(indices[name] for name in names)):
            part = dict(zip(names, values, strict=True))
            if values not in there and allowed(part) and _extends(part, indices, allowed):
                missing.append(part)
    return missing


def _extends(part: dict[str, int], indices: Mapping[str, list[int]], allowed: Any) -> bool:
    """Whether a partial row can be completed to an allowed one."""
    rest = [name for name in indices if name not in part]
    if not rest:
        return bool(allowed(part))
    return any(
        allowed({**part, rest[0]: i}) and _extends({**part, rest[0]: i}, indices, allowed) for i in indices[rest[0]]
    )


# From expressions to numbers


def concrete(raw: dict[str, Any], variables: Mapping[str, Any], label: str, here: Origin) -> Case:
    """The case with all expressions worked out and all names checked."""
    written, operation = here.convert(raw), here.operation
    name = f"{here.topic}/{written.id}" + (f"[{label}]" if label else "")

    def number(text: Number, symbols: Mapping[str, Any], *keys: Hashable) -> Any:
        try:
            return evaluate(text, symbols)
        except ExpressionError as error:
            raise here.error(str(error), *keys) from None

    def integer(text: Number, symbols: Mapping[str, Any], *keys: Hashable) -> int:
        value = number(text, symbols, *keys)
        if not isinstance(value, int):
            raise here.error(f"'{text}' must be a whole number, and is {value!r}", *keys)
        return value

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

    scalars: dict[str, Any] = dict(variables)
    attributes: dict[str, Scalar] = {}
    for attribute, description in operation.attributes.items():
        value = number(written.attributes.get(attribute, description.default), scalars, "attributes", attribute)
        scalars[description.symbol] = attributes[attribute] = value

    dims: dict[str, int] = {}
    per_sequence = {key: value for key in ("past", "pad") if isinstance(value := getattr(written, key), list)}
    given = written.dims
    if operation.batch not in given:
        for value in per_sequence.values():
            given = {**given, operation.batch: len(value)}
    later = {}
    for dim, free in operation.dims.items():
        text = given.get(dim, free.default)
        if isinstance(text, str) and "top(" in text:
            later[dim] = text
            continue
        scalars[dim] = dims[dim] = integer(text, scalars, "dims", dim)
    N, L = dims[operation.batch], dims[operation.tokens]
    for key, value in per_sequence.items():
        if len(value) != N:
            raise here.error(f"'{key}' has {len(value)} numbers for {N} sequences", key)

    def of_sequence(value: Number | list[Number], n: int, key: str) -> int:
        return integer(value[n] if isinstance(value, list) else value, {**scalars, "n": n}, key)

    pad = tuple(of_sequence(written.pad, n, "pad") for n in range(N))
    history: Any = operation.history if written.past is None else written.past
    past = tuple(of_sequence(history, n, "past") if written.past is not None or not pad[n] else 0 for n in range(N))
    for n in range(N):
        if past[n] < 0 or pad[n] < 0 or pad[n] > L or (past[n] and pad[n]):
            problem = f"sequence {n}: {past[n]} past and {pad[n]} padding tokens of {L} new ones cannot be"
            raise here.error(f"{name}: {problem}", "pad" if pad[n] else "past")
    S = [past[n] + L - pad[n] for n in range(N)]
    if written.length_shape == "one" and len(set(S)) > 1:
        raise here.error(f"{name}: one length for all sequences, but they are {S}", "length_shape")
    scalars |= operation.scalars(operation.usable(attributes), {})
    columns = operation.columns(operation.per_sequence(scalars, S))
    for dim, text in later.items():
        dims[dim] = integer(text, {**scalars, **columns}, "dims", dim)
    for dim, value in dims.items():
        if value < 0:
            raise here.error(f"{name}: dimension {dim} is {value}", "dims", dim)
    symbols = {**scalars, **dims, **columns}
    change = {
        port: Change(
            shape=None
            if spec.shape is None
            else tuple(integer(s, symbols, "change", port, "shape", i) for i, s in enumerate(spec.shape)),
            type=spec.type,
            values=spec.values,
        )
        for port, spec in written.change.items()
    }
    return Case(
        id=name,
        says=written.says,
        clauses=written.clauses,
        operation=operation.operation,
        attributes=attributes,
        dims=dims,
        past=past,
        pad=pad,
        level=written.level,
        length_shape=written.length_shape,
        element_type=written.element_type,
        length_type=written.length_type,
        disabled=tuple(sorted(written.disabled)),
        seed=zlib.crc32(name.encode()) if written.seed is None else written.seed,
        data=written.data,
        poison=written.poison,
        streams=_streams(written.streams, L, here, name),
        change=change,
        values=written.expect.values,
        refusal=written.expect.refusal,
        relations=written.relations,
        audits=written.audits,
        kills=written.kills,
        place=_place(here),
    )


def _place(here: Origin) -> str:
    place = here.places.at(*here.keys)
    return f"{place.path}:{place.line}"


def _known(here: Origin, names: Any, known: list[str], *keys: Hashable) -> None:
    for name in names:
        if name not in known:
            where = (*keys, name) if isinstance(names, Mapping) else keys
            choices = f"; known: {', '.join(known)}" if len(known) < 12 else ""
            raise here.error(f"unknown name '{name}' in {keys[0]}{nearest(str(name), known)}{choices}", *where)


def _streams(spec: Any, L: int, here: Origin, name: str) -> tuple[tuple[int, ...], ...]:
    """Partitions of L tokens; by default one with two cuts, drawn from the case's id."""
    if spec is None:
        spec = [{"cuts": 2, "seed": zlib.crc32(name.encode())}] if L > 1 else []
    if not isinstance(spec, list):
        spec = [spec]
    streams: list[tuple[int, ...]] = []
    for index, one in enumerate(spec):
        streams += _partitions(one, L, here, index)
    return tuple(dict.fromkeys(s for s in streams if s and s != (L,)))


def _partitions(one: Any, L: int, here: Origin, index: int) -> list[tuple[int, ...]]:
    if one == "all":
        if L > ALL_PARTITIONS_UP_TO:
            raise here.error(f"'all' partitions of {L} tokens are too many; at most {ALL_PARTITIONS_UP_TO}", "streams")
        return list(all_partitions(L))
    if isinstance(one, dict) and set(one) <= {"cuts", "seed"} and isinstance(one.get("cuts"), int):
        return [random_partition(L, one["cuts"], one.get("seed", 0))]
    if isinstance(one, dict) and set(one) == {"chunk"} and isinstance(one["chunk"], int) and one["chunk"] > 0:
        whole, rest = divmod(L, one["chunk"])
        return [(one["chunk"],) * whole + ((rest,) if rest else ())]
    if isinstance(one, list) and all(isinstance(step, int) and step >= 0 for step in one):
        if sum(one) != L:
            raise here.error(f"the partition {one} adds up to {sum(one)}, not to the {L} new tokens", "streams", index)
        return [tuple(one)]
    problem = f"'{one}' is no partition: give a list of steps, all, {{cuts: k, seed: s}} or {{chunk: n}}"
    raise here.error(problem, "streams", index)


def all_partitions(L: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut L tokens into calls of at least one token."""
    for count in range(max(L, 1)):
        for cuts in itertools.combinations(range(1, L), count):
            edges = (0, *cuts, L)
            yield tuple(b - a for a, b in itertools.pairwise(edges))


def random_partition(L: int, cuts: int, seed: int) -> tuple[int, ...]:
    """L tokens cut at `cuts` places; calls without tokens may occur."""
    # random() alone is promised to stay the same across Python versions.
    rng = random.Random(seed)
    edges = [0, *sorted(int(rng.random() * (L + 1)) for _ in range(cuts)), L]
    return tuple(b - a for a, b in itertools.pairwise(edges))
