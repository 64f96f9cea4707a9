"""An operation as data: ports, attributes, features, clauses and readings, from its operation.yaml.

Everything the harness knows of an operation comes from here and from the reference that the file names. Expressions
are texts in the symbols of the contract; `conformance.spec.geometry` works them out for a case.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from conformance.errors import UsageError, nearest
from conformance.spec.expression import ExpressionError, evaluate, symbols_of
from conformance.spec.types import INTEGER_TYPES

if TYPE_CHECKING:
    import numpy as np

    from reference.expected import Expected

    Array = np.ndarray[Any, np.dtype[Any]]

Scalar = bool | int | float
Number = Scalar | str  # a number or an expression of one
Level = Literal["required", "recommended", "informative"]
ELEMENT, LENGTH = "T", "I"  # types of ports: the case's element type and its length type


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything that is read from YAML."""


class Attribute(Strict, frozen=True):
    """An attribute: its symbol in expressions, type, smallest allowed value and default.

    Defaults and drawn values may use the attributes that stand before; `valid`, a condition besides `least`, all
    attributes and dimensions. `shapes` is the smallest value with which shapes can be worked out, where that is below
    the allowed ones: a refused value from there on is handed tensors of its own shapes, so that nothing else is wrong
    with the call.
    """

    symbol: str
    type: Literal["integer", "number", "boolean"]
    default: Number
    says: str
    least: Scalar | None = None  # numbers have one, truth values have none
    shapes: Scalar | None = None
    valid: str = ""
    draw: tuple[Number, ...] = ()  # values of generated cases
    large: tuple[Number, ...] = ()  # drawn seldom, with small dimensions

    def fits(self, value: Any) -> bool:
        """Whether a value is of the attribute's type."""
        if self.type == "boolean":
            return isinstance(value, bool)
        return isinstance(value, int if self.type == "integer" else int | float) and not isinstance(value, bool)

    @property
    def least_with_shapes(self) -> Scalar | None:
        """The smallest value with which shapes can be worked out."""
        return self.least if self.shapes is None else self.shapes


class Range(Strict, frozen=True):
    """What generated cases draw a whole number from: corners, anything from `least` to `most` in steps, or large."""

    least: Number
    most: Number
    step: Number = 1
    corners: tuple[Number, ...] = ()
    large: tuple[Number, ...] = ()  # beyond `most`, and seldom


class Dim(Strict, frozen=True):
    """A free dimension and the expression of its default.

    Of a dimension that `grows`, the last rows belong to the newest tokens: in a stream a call sees as many rows fewer
    as there are tokens to come.
    """

    says: str
    default: Number
    draw: Range | None = None  # the default when there is none
    grows: bool = False
    exact: str = ""  # the rows that are handed over, no more; set by a reading

    @property
    def follows(self) -> bool:
        """Whether the default follows from the lengths of the sequences."""
        return isinstance(self.default, str) and "top(" in self.default


class Derived(Strict, frozen=True):
    """A symbol and the expression it follows from; `tokens`, how many tokens stand in one row, where it counts such."""

    expression: str = msgspec.field(name="is")
    says: str
    tokens: Number = 0


class TypeSymbol(Strict, frozen=True):
    """A type of ports that a case chooses, besides `T` and `I`."""

    says: str
    choices: tuple[str, ...] = msgspec.field(name="of")
    default: str


class Tensor(Strict, frozen=True):
    """What ports and outputs have in common.

    `type` is `T` (the case's element type), `I` (its length type), a symbol of `types`, or a fixed type such as `i32`.
    `axes` names the axes for expressions, in which a name stands for the index along it; "" names none. Without it axis
    1 is called `row`.
    """

    name: str
    says: str
    shape: tuple[Number, ...]
    type: str
    feature: str = ""  # without which it is not there
    axes: tuple[str, ...] = ()

    def axis(self, name: str) -> int | None:
        """The number of a named axis."""
        named = self.axes or ("", "row")[: len(self.shape)]
        return named.index(name) if name in named else None


class Port(Tensor, frozen=True, kw_only=True):
    """An input, and which of its elements are read.

    A feature that is switched off leaves an `optional` port out of the call, and empties any other. `forms` are further
    shapes that mean the same, by name.
    """

    optional: bool = False
    forms: dict[str, tuple[Number, ...]] = {}
    token: str = ""  # token number of a row
    reads: str = ""  # mask of the elements that can have an effect; all when empty
    finite: bool = False  # only finite numbers in the others have no effect
    aim: dict[str, Any] = {}


class Output(Tensor, frozen=True, kw_only=True):
    """An output, the port that takes it in the next call of a stream, if any, and the clauses that speak of it."""

    shape_clause: str
    clauses: tuple[str, ...]
    feeds: str = ""


class Feature(Strict, frozen=True):
    """Something a backend may lack: `off`, it can be switched off; `when`, a condition on a sequence that needs it.

    Where one of the features in `needs` is off, this one is off too.
    """

    says: str
    off: str = ""
    when: str = ""
    needs: tuple[str, ...] = ()


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
    # Alternative to what is not asked for under it: cases of a feature, or refusals of an attribute or port.
    without: dict[str, str] = {}
    ports: dict[str, dict[str, dict[str, str]]] = {}  # alternative to port to what changes: `reads`, `token`
    draws: dict[str, dict[str, dict[str, Scalar | str]]] = {}  # alternative to dimension to what changes in its `draw`
    rows: dict[str, dict[str, str]] = {}  # alternative to dimension to the rows that are handed over of it, no more
    narrower: tuple[str, ...] = ()  # alternatives that hold the default too, and specify more
    by: Literal["values", "declaration"] = "values"  # how it shows which choice an implementation follows


class Stage(Strict, frozen=True):
    """A stage of the computation: one that shows alone when the features `off` are switched off, or an operation.

    In a pipeline every stage is an `operation` of its own. `feeds` names, for ports of it, the outputs of earlier
    stages that they take; all others are ports of the pipeline, of the same names. Attributes are those of the pipeline
    by the same names, so that those of several stages agree, but for the `fixed` ones. Of the operation's clauses those
    in `clauses` are clauses of the pipeline, with the stage's name in capitals in front.
    """

    name: str
    off: tuple[str, ...] = ()
    operation: str = ""
    feeds: dict[str, str] = {}
    fixed: dict[str, Scalar] = {}
    clauses: tuple[str, ...] = ()

    def named(self, clause: str) -> str:
        """The pipeline's name of a clause of the stage's operation."""
        return f"{self.name.upper()}-{clause}"


class RefusalRule(Strict, frozen=True):
    """One way to break one rule, and the refusal that is due."""

    id: str
    clause: str
    kind: Literal["attribute", "shape", "type", "rope", "value"]
    phase: Literal["prepare", "call"]
    names: tuple[str, ...]
    attributes: dict[str, list[Number]] = {}
    shapes: dict[str, list[list[Number]]] = {}
    types: dict[str, list[str]] = {}
    values: dict[str, list[Number]] = {}  # of one element
    absent: tuple[str, ...] = ()  # ports that are left out


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

    past: Range | None = None  # for operations with a history
    fillings: tuple[Filling, ...] = ()


class Rules(Strict, frozen=True):
    """The clauses by which the harness itself speaks, whatever the operation computes."""

    repeatable: str  # the same inputs give the same bits
    inputs_untouched: str  # no input is modified
    outputs_untouched: str  # no output changes after a later call
    instances_shared: str  # one instance serves calls of any shape in turn, and does not disturb others
    serves: str  # every valid call is answered
    any_layout: str = ""  # inputs may lie in memory in any way; an output may come back as an input
    same_bits: str = ""  # recommended: a sequence alone, in a batch and in a split stream has the same bits
    split: str = ""  # a stream that is split in any way ends as the single call does


class Relation(Strict, frozen=True):
    """What holds between a call and another that is made from it. See `conformance.judging.relations` for the kinds."""

    name: str
    kind: Literal[
        "split", "rewind", "alone", "permuted", "one-length", "length-type", "longer", "ignored", "changed", "scaled",
        "shrunk", "neutral", "signed", "raised", "duplicated", "unmoved",
    ]  # fmt: skip
    clause: str
    says: str
    bits: str = ""  # clause that recommends equal bits
    when: str = ""  # condition on the attributes
    unless: tuple[str, ...] = ()  # readings that, switched, make it not hold
    features: tuple[str, ...] = ()  # that must be on
    dim: str = ""  # longer: the dimension that gets more rows
    blames: dict[str, str] = {}  # ignored: port to the clause by which its unread elements are ignored
    ports: tuple[str, ...] = ()  # changed, scaled, shrunk, signed, duplicated, unmoved
    attributes: dict[str, Number] = {}  # raised: values in the symbols of the case
    touches: dict[str, str] = {}  # changed: output to a mask over (sequence, row)
    factors: tuple[float, ...] = ()  # scaled, shrunk, unmoved: powers of two
    computed: int = 0  # scaled, shrunk: the power of the factor by which computed elements change
    copied: tuple[str, ...] = ()  # scaled, shrunk: outputs whose copied elements change by the factor
    values: dict[str, tuple[float, ...]] = {}  # neutral: port to values, each for an equal share of the last axis


class Reference(Protocol):
    """What a reference module offers for one set of attributes."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...

    def expect(self, inputs: Mapping[str, Array]) -> dict[str, Expected]: ...


class Operation(Strict, frozen=True, dict=True):
    """The description of one operation.

    With a `history` every sequence has a length: tokens seen before, and the new ones along `tokens` where there are
    any. `length` is its symbol, and `lengths` the port that counts it. `unsaid` is the length that holds where that
    port is left out. Tokens can be split into the calls of a stream where `splits` holds.
    """

    operation: str
    contract: int
    says: str
    page: str
    reference: str  # "module:factory"; the factory takes attributes and readings
    batch: str
    rules: Rules
    attributes: dict[str, Attribute]
    dims: dict[str, Dim]
    ports: tuple[Port, ...]
    outputs: tuple[Output, ...]
    groups: dict[str, str]
    clauses: tuple[Clause, ...]
    refusals: tuple[RefusalRule, ...]
    conditions: tuple[Condition, ...] = ()
    tokens: str = ""
    history: str = ""
    length: str = "S"
    lengths: str = ""
    unsaid: str = ""
    splits: Number = 1
    faults: str = ""  # package of its catalogue, where that is not in `conformance.faults`
    block: str = ""  # the attribute that is the block size, after which the pattern of an aim starts again
    types: dict[str, TypeSymbol] = {}
    symbols: dict[str, Derived] = {}
    totals: dict[str, Derived] = {}
    features: dict[str, Feature] = {}
    readings: tuple[Reading, ...] = ()
    stages: tuple[Stage, ...] = ()
    draws: Draws = Draws()
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
        return {output.feeds: output.name for output in self.outputs if output.feeds}

    @cached_property
    def counted(self) -> frozenset[str]:
        """Ports of whole numbers, whose values expressions may use by name; the lengths have a symbol of their own."""
        integers = {LENGTH, *INTEGER_TYPES} | {n for n, t in self.types.items() if set(t.choices) <= set(INTEGER_TYPES)}
        return frozenset(p.name for p in self.ports if p.type in integers and p.name != self.lengths)

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
        exact: dict[str, str] = {}
        for reading in self.readings:
            chosen = readings.get(reading.name, reading.default)
            changes |= reading.ports.get(chosen, {})
            draws |= reading.draws.get(chosen, {})
            exact |= reading.rows.get(chosen, {})
        if not changes and not draws and not exact:
            return self
        ports = tuple(msgspec.structs.replace(port, **changes.get(port.name, {})) for port in self.ports)
        dims = {
            name: msgspec.structs.replace(dim, draw=msgspec.structs.replace(dim.draw, **draws[name]))
            if dim.draw and name in draws
            else dim
            for name, dim in self.dims.items()
        }
        dims |= {name: msgspec.structs.replace(dims[name], exact=text) for name, text in exact.items()}
        return msgspec.structs.replace(self, ports=ports, dims=dims)

    def oracle(self, attributes: Mapping[str, Scalar], readings: Mapping[str, str] | None = None) -> Reference:
        """The reference for these attributes; readings by name, defaults where not given."""
        module, _, factory = self.reference.partition(":")
        try:
            made: Reference = getattr(importlib.import_module(module), factory)(attributes, dict(readings or {}))
        except (ImportError, AttributeError) as error:
            if isinstance(error, ValueError) and module:
                raise
            raise UsageError(
                f"the reference '{self.reference}' of {self.operation} cannot be loaded: {error}"
            ) from None
        return made

    def closed(self, disabled: Sequence[str]) -> tuple[str, ...]:
        """The features that are off when these are: those that need one of them too."""
        off = set(disabled)
        while more := {n for n, f in self.features.items() if n not in off and off.intersection(f.needs)}:
            off |= more
        return tuple(sorted(off))

    def type_of(self, kind: str, case: TypesOfCase) -> str:
        """The type that a port of type `kind` has in a case."""
        if kind == ELEMENT:
            return case.element_type
        if kind == LENGTH:
            return case.length_type
        symbol = self.types.get(kind)
        return case.types.get(kind, symbol.default) if symbol else kind

    def attributes_of(self, given: Mapping[str, Number], symbols: Mapping[str, Any] = {}) -> dict[str, Scalar]:
        """All attributes, those not given by default; expressions may use `symbols` and the attributes before.

        Raises `ExpressionError`.
        """
        values: dict[str, Scalar] = {}
        known = dict(symbols)
        for name, attribute in self.attributes.items():
            text = given.get(name, attribute.default)
            value = evaluate(text, known) if isinstance(text, str) else text
            values[name] = value
            known[attribute.symbol] = int(value) if isinstance(value, bool) else value
        return values

    def usable(self, attributes: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The attributes with those that no shapes follow from replaced by their defaults."""
        kept = {}
        for name, value in attributes.items():
            least = self.attributes[name].least_with_shapes
            if least is None or value >= least:
                kept[name] = value
        return dict(attributes) if len(kept) == len(attributes) else self.attributes_of(kept)

    def is_valid(self, name: str, value: Scalar, symbols: Mapping[str, Any]) -> bool:
        """Whether an attribute may have a value; a condition on symbols that are not there is taken to hold."""
        attribute = self.attributes[name]
        if not attribute.fits(value) or (attribute.least is not None and not value >= attribute.least):
            return False
        if not attribute.valid:
            return True
        known = {**symbols, attribute.symbol: int(value) if isinstance(value, bool) else value}
        if symbols_of(attribute.valid) - known.keys():
            return True
        try:
            return bool(evaluate(attribute.valid, known))
        except ExpressionError:
            return False

    def scalars(self, attributes: Mapping[str, Scalar], dims: Mapping[str, int]) -> dict[str, Any]:
        """Symbols with one value for the whole call: attributes, truth values as 1 and 0, and dimensions."""
        known = self.attributes
        return {known[n].symbol: int(v) if isinstance(v, bool) else v for n, v in attributes.items()} | dict(dims)

    def per_sequence(self, scalars: Mapping[str, Any], lengths: Sequence[int]) -> list[dict[str, Any]]:
        """Symbols of each sequence, from its length."""
        rows = []
        for length in lengths:
            row = {**scalars, self.length: length}
            for name, symbol in self.symbols.items():
                row[name] = evaluate(symbol.expression, row)
            rows.append(row)
        return rows

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
        """The same as lists over the sequences, for expressions with `top`."""
        return {name: [row[name] for row in rows] for name in (self.length, *self.symbols)} if self.history else {}

    def totals_of(self, scalars: Mapping[str, Any], columns: Mapping[str, list[int]]) -> dict[str, Any]:
        """Symbols that follow from all sequences together, in their order."""
        known = {**scalars, **columns}
        values = {}
        for name, total in self.totals.items():
            values[name] = known[name] = evaluate(total.expression, known)
        return values


class TypesOfCase(Protocol):
    """The types that a case chooses."""

    @property
    def element_type(self) -> str: ...
    @property
    def length_type(self) -> str: ...
    @property
    def types(self) -> Mapping[str, str]: ...


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
