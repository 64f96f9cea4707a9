"""What stands in an operation.yaml, as data classes: one for each thing that it describes, in the words of the file.

A number may be an expression in the symbols of the contract. What follows from several parts is worked out by
`conformance.spec.operation`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

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
    formula: str = ""  # the same for the page of the contract, where a formula says it shorter; lines of plain text

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
