"""An operation as data: ports, attributes, features, clauses and readings, from its operation.yaml.

Everything the harness knows of an operation comes from here and from the reference that the file names.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from conformance.errors import LibraryError, Place, UsageError, nearest
from conformance.spec.expression import evaluate

if TYPE_CHECKING:
    import numpy as np

    from conformance.spec import strict_yaml
    from reference.expected import Expected

    Array = np.ndarray[Any, np.dtype[Any]]

Scalar = int | float
Level = Literal["required", "recommended", "informative"]
ELEMENT_TYPES = ("f32", "f16", "bf16")
LENGTH_TYPES = ("i32", "i64")


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that is read from YAML."""


class Attribute(Strict, frozen=True):
    """An attribute: its symbol in expressions, type, smallest allowed value and default."""

    symbol: str
    type: Literal["integer", "number"]
    least: Scalar
    default: Scalar
    says: str
    draw: tuple[Scalar, ...] = ()  # values of generated cases


class Range(Strict, frozen=True):
    """What generated cases draw a whole number from: corners, anything from `least` to `most` in steps, or large."""

    least: Scalar | str
    most: Scalar | str
    step: int = 1
    corners: tuple[Scalar | str, ...] = ()
    large: tuple[Scalar | str, ...] = ()  # beyond `most`, and seldom


class Dim(Strict, frozen=True):
    """A free dimension and the expression of its default."""

    says: str
    default: Scalar | str
    draw: Range | None = None  # the default when there is none


class Derived(Strict, frozen=True):
    """A symbol and the expression it follows from."""

    expression: str = msgspec.field(name="is")
    says: str


class Port(Strict, frozen=True):
    """An input: shape in symbols, type `T` (element) or `I` (length), and which of its elements are read."""

    name: str
    says: str
    shape: tuple[Scalar | str, ...]
    type: Literal["T", "I"]
    feature: str = ""  # the feature that, switched off, empties the port
    token: str = ""  # token number of a row
    reads: str = ""  # mask over (sequence, row) of the elements that can have an effect; all when empty
    aim: dict[str, Any] = {}


class Output(Strict, frozen=True):
    """An output, the port that takes it in the next call, and the clauses that speak of it."""

    name: str
    says: str
    shape: tuple[Scalar | str, ...]
    type: Literal["T"]
    feeds: str
    shape_clause: str
    clauses: tuple[str, ...]
    feature: str = ""


class Feature(Strict, frozen=True):
    """Something a backend may lack: `off`, it can be switched off; `when`, a condition on a sequence that needs it."""

    says: str
    off: str = ""
    when: str = ""


class Clause(Strict, frozen=True):
    """One clause of the contract, its level and its ground."""

    id: str
    level: Level
    ground: str
    says: str

    @property
    def group(self) -> str:
        return self.id.partition("-")[0]


class Reading(Strict, frozen=True):
    """A choice of the contract that can be switched."""

    name: str
    says: str
    default: str
    alternatives: dict[str, str]
    without: dict[str, str] = {}  # alternative to the feature whose cases are not asked for under it
    ports: dict[str, dict[str, dict[str, str]]] = {}  # alternative to port to what changes: `reads`, `token`
    draws: dict[str, dict[str, dict[str, Scalar | str]]] = {}  # alternative to dimension to what changes in its `draw`
    narrower: tuple[str, ...] = ()  # alternatives that hold the default too, and specify more
    by: Literal["values", "declaration"] = "values"  # how it shows which choice an implementation follows


class Stage(Strict, frozen=True):
    """A stage of the computation that shows alone when the features `off` are switched off."""

    name: str
    off: tuple[str, ...] = ()


class RefusalRule(Strict, frozen=True):
    """One way to break one rule, and the refusal that is due."""

    id: str
    clause: str
    kind: Literal["attribute", "shape", "type", "rope", "value"]
    phase: Literal["prepare", "call"]
    names: tuple[str, ...]
    attributes: dict[str, list[Scalar]] = {}
    shapes: dict[str, list[list[Scalar | str]]] = {}
    types: dict[str, list[str]] = {}
    lengths: list[str] = []


class Condition(Strict, frozen=True):
    """What must hold of every call besides the shapes and types of its ports, and the refusal that is due otherwise.

    Where symbols of a sequence stand in it, it must hold for every sequence.
    """

    holds: str
    kind: Literal["attribute", "shape", "type", "rope", "value"]
    names: tuple[str, ...]
    when: str = ""  # the feature that must be on


class Filling(Strict, frozen=True):
    """Ports that are filled together in generated cases, and ways to: one aim for all, or one for each port."""

    ports: tuple[str, ...]
    aims: tuple[dict[str, Any], ...]

    def data(self, index: int) -> dict[str, Any]:
        """Port to aim, by the index of the way."""
        aim = self.aims[index]
        return dict.fromkeys(self.ports, aim) if "aim" in aim else aim


class Draws(Strict, frozen=True):
    """What generated cases are made of besides attributes and dimensions."""

    serves: str  # clause by which every valid call is answered
    past: Range
    fillings: tuple[Filling, ...]


class Relation(Strict, frozen=True):
    """What holds between a call and another that is made from it. See `conformance.judging.relations` for the kinds."""

    name: str
    kind: Literal[
        "split", "rewind", "alone", "permuted", "one-length", "length-type", "longer", "ignored", "changed", "scaled",
        "shrunk", "neutral",
    ]  # fmt: skip
    clause: str
    says: str
    bits: str = ""  # clause that recommends equal bits
    when: str = ""  # condition on the attributes
    unless: tuple[str, ...] = ()  # readings that, switched, make it not hold
    features: tuple[str, ...] = ()  # that must be on
    dim: str = ""  # longer: the dimension that gets more rows
    blames: dict[str, str] = {}  # ignored: port to the clause by which its unread elements are ignored
    ports: tuple[str, ...] = ()  # changed, scaled, shrunk
    touches: dict[str, str] = {}  # changed: output to a mask over (sequence, row)
    factors: tuple[float, ...] = ()  # scaled, shrunk: powers of two
    computed: int = 0  # scaled, shrunk: the power of the factor by which computed elements change
    copied: tuple[str, ...] = ()  # scaled, shrunk: outputs whose copied elements change by the factor
    values: dict[str, tuple[float, ...]] = {}  # neutral: port to values, each for an equal share of the last axis


class Reference(Protocol):
    """What a reference module offers for one set of attributes."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...

    def expect(self, inputs: Mapping[str, Array]) -> dict[str, Expected]: ...


class Operation(Strict, frozen=True, dict=True):
    """The description of one operation."""

    operation: str
    contract: int
    says: str
    page: str
    reference: str  # "module:factory"; the factory takes attributes and readings
    batch: str
    history: str
    tokens: str
    lengths: str
    attributes: dict[str, Attribute]
    dims: dict[str, Dim]
    symbols: dict[str, Derived]
    totals: dict[str, Derived]
    ports: tuple[Port, ...]
    outputs: tuple[Output, ...]
    features: dict[str, Feature]
    groups: dict[str, str]
    clauses: tuple[Clause, ...]
    readings: tuple[Reading, ...]
    stages: tuple[Stage, ...]
    refusals: tuple[RefusalRule, ...]
    draws: Draws
    conditions: tuple[Condition, ...] = ()
    relations: tuple[Relation, ...] = ()

    @cached_property
    def port(self) -> Mapping[str, Port]:
        return {port.name: port for port in self.ports}

    @cached_property
    def output(self) -> Mapping[str, Output]:
        return {output.name: output for output in self.outputs}

    @cached_property
    def clause(self) -> Mapping[str, Clause]:
        return {clause.id: clause for clause in self.clauses}

    @cached_property
    def relation(self) -> Mapping[str, Relation]:
        return {relation.name: relation for relation in self.relations}

    @cached_property
    def carried(self) -> Mapping[str, str]:
        """Port name to the output that feeds it."""
        return {output.feeds: output.name for output in self.outputs}

    @cached_property
    def symbol_of(self) -> Mapping[str, str]:
        """Symbol in expressions to the attribute it stands for."""
        return {attribute.symbol: name for name, attribute in self.attributes.items()}

    @cached_property
    def switchable(self) -> tuple[str, ...]:
        """Features that can be switched off."""
        return tuple(name for name, feature in self.features.items() if feature.off)

    def under(self, readings: Mapping[str, str]) -> Operation:
        """The operation as switched readings have it: rows of ports may mean something else."""
        changes: dict[str, dict[str, str]] = {}
        draws: dict[str, dict[str, Scalar | str]] = {}
        for reading in self.readings:
            chosen = readings.get(reading.name, reading.default)
            changes |= reading.ports.get(chosen, {})
            draws |= reading.draws.get(chosen, {})
        if not changes and not draws:
            return self
        ports = tuple(msgspec.structs.replace(port, **changes.get(port.name, {})) for port in self.ports)
        dims = {
            name: msgspec.structs.replace(dim, draw=msgspec.structs.replace(dim.draw, **draws[name]))
            if dim.draw and name in draws
            else dim
            for name, dim in self.dims.items()
        }
        return msgspec.structs.replace(self, ports=ports, dims=dims)

    def oracle(self, attributes: Mapping[str, Scalar], readings: Mapping[str, str] | None = None) -> Reference:
        """The reference for these attributes; readings by name, defaults where not given."""
        module, _, factory = self.reference.partition(":")
        made: Reference = getattr(importlib.import_module(module), factory)(attributes, dict(readings or {}))
        return made

    def usable(self, attributes: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The attributes with those out of range replaced by their defaults, to work out shapes with."""
        known = self.attributes
        return {
            name: value if value >= known[name].least else known[name].default for name, value in attributes.items()
        }

    def scalars(self, attributes: Mapping[str, Scalar], dims: Mapping[str, int]) -> dict[str, Any]:
        """Symbols with one value for the whole call: attributes and dimensions."""
        return {self.attributes[name].symbol: value for name, value in attributes.items()} | dict(dims)

    def per_sequence(self, scalars: Mapping[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
        """Symbols of each sequence, from its length S."""
        rows = []
        for S in lengths:
            row = {**scalars, "S": S}
            for name, symbol in self.symbols.items():
                row[name] = evaluate(symbol.expression, row)
            rows.append(row)
        return rows

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
        """The same as lists over the sequences, for expressions with `top`."""
        return {name: [row[name] for row in rows] for name in ("S", *self.symbols)}

    def totals_of(self, scalars: Mapping[str, Any], columns: Mapping[str, list[int]]) -> dict[str, Any]:
        """Symbols that follow from all sequences together."""
        return {name: evaluate(total.expression, {**scalars, **columns}) for name, total in self.totals.items()}


def cases_root() -> Path:
    """Folder of the case library: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parents[1]
    inside, beside = here / "cases", here.parent / "cases"
    return inside if inside.is_dir() else beside


def located(error: msgspec.ValidationError, places: strict_yaml.Places, *keys: Any) -> LibraryError:
    """A validation error with file, line and column, and the nearest valid key for an unknown one."""
    text = str(error)
    message, _, path = text.partition(" - at `")
    steps: list[Any] = []
    for step in path.rstrip("`").lstrip("$").replace("[", ".[").split("."):
        if step in ("", "[...]"):
            if step:
                steps.append(None)
        else:
            steps.append(int(step[1:-1]) if step.startswith("[") else step)
    if "unknown field" in message:
        steps.append(message.split("`")[1])
    message = message.replace("`", "'").replace("Object contains", "there is an")
    return LibraryError(message, places.at(*keys, *steps))


@lru_cache(maxsize=8)
def load_operation(name: str = "qsa_prepare", root: Path | None = None) -> Operation:
    """The operation of a folder of the library. Raises `UsageError` or `LibraryError`."""
    from conformance.spec import strict_yaml

    root = root or cases_root()
    path = root / name / "operation.yaml"
    if not path.is_file():
        known = sorted(p.parent.name for p in root.glob("*/operation.yaml"))
        raise UsageError(f"no operation '{name}'{nearest(name, known)}; known: {', '.join(known) or 'none'}")
    data, places = strict_yaml.load(path, f"cases/{name}/operation.yaml")
    try:
        operation = msgspec.convert(data, Operation)
    except msgspec.ValidationError as error:
        raise located(error, places) from None
    _check(operation, Place(places.path))
    return operation


def chosen_readings(operation: Operation, texts: Sequence[str]) -> dict[str, str]:
    """Switched readings from texts such as `alignment=right`. Raises `UsageError` for an unknown one."""
    known = {reading.name: reading for reading in operation.readings}
    chosen = {}
    for text in texts:
        name, _, choice = text.partition("=")
        if name not in known:
            raise UsageError(f"no reading '{name}'{nearest(name, list(known))}; known: {', '.join(known)}")
        choices = [known[name].default, *known[name].alternatives]
        if choice not in choices:
            raise UsageError(f"reading '{name}' has no choice '{choice}'; known: {', '.join(choices)}")
        chosen[name] = choice
    return chosen


def _check(operation: Operation, place: Place) -> None:
    """Names that the file uses must be defined in it."""
    clauses, ports = operation.clause, operation.port
    used = [c for o in operation.outputs for c in (*o.clauses, o.shape_clause)]
    used += [rule.clause for rule in operation.refusals]
    unknown = sorted(set(used) - clauses.keys())
    unknown += [c.id for c in operation.clauses if c.group not in operation.groups]
    unknown += [operation.draws.serves] if operation.draws.serves not in clauses else []
    unknown += [o.feeds for o in operation.outputs if o.feeds not in ports]
    unknown += [p.feature for p in operation.ports if p.feature and p.feature not in operation.features]
    named = {name for rule in operation.refusals for name in rule.names}
    named |= {name for condition in operation.conditions for name in condition.names}
    unknown += sorted(named - ports.keys() - operation.attributes.keys())
    unknown += sorted({port for f in operation.draws.fillings for port in f.ports} - ports.keys())
    for relation in operation.relations:
        unknown += sorted({relation.clause, relation.bits, *relation.blames.values()} - clauses.keys() - {""})
        unknown += sorted({*relation.ports, *relation.blames, *relation.values} - ports.keys())
        unknown += sorted({*relation.touches, *relation.copied} - operation.output.keys())
        unknown += sorted(set(relation.features) - operation.features.keys())
        unknown += sorted(set(relation.unless) - {reading.name for reading in operation.readings})
    if operation.lengths not in ports:
        unknown.append(operation.lengths)
    if unknown:
        raise LibraryError(f"names that are not defined: {', '.join(unknown)}", place)
