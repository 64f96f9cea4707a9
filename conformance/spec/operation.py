"""An operation as its operation.yaml describes it, and what follows: names, readings, attributes, symbols, reference.

Everything the harness knows of an operation comes from here and from the reference that the file names. The parts of
the description are in `conformance.spec.schema`, and can be imported from here as well; `conformance.spec.geometry`
works its expressions out for a case.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from conformance.errors import UsageError, nearest
from conformance.spec.expression import ExpressionError, evaluate, symbols_of
from conformance.spec.schema import (
    ELEMENT,
    LENGTH,
    Attribute,
    Clause,
    Condition,
    Derived,
    Dim,
    Draws,
    Feature,
    Filling,
    Level,
    Number,
    Output,
    Port,
    Range,
    Reading,
    RefusalRule,
    Relation,
    Rules,
    Scalar,
    Stage,
    Strict,
    Tensor,
    TypeSymbol,
)
from conformance.spec.types import INTEGER_TYPES

if TYPE_CHECKING:
    import numpy as np

    from reference.expected import Expected

    Array = np.ndarray[Any, np.dtype[Any]]


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


__all__ = [
    "ELEMENT",
    "LENGTH",
    "Attribute",
    "Clause",
    "Condition",
    "Derived",
    "Dim",
    "Draws",
    "Feature",
    "Filling",
    "Level",
    "Number",
    "Operation",
    "Output",
    "Port",
    "Range",
    "Reading",
    "Reference",
    "RefusalRule",
    "Relation",
    "Rules",
    "Scalar",
    "Stage",
    "Strict",
    "Tensor",
    "TypeSymbol",
    "TypesOfCase",
    "chosen_readings",
]
