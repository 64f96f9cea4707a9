"""The geometry of a case: its symbols, the lengths of its sequences, shapes of ports and outputs, masks over them.

Everything that works out a shape or a mask of a case does it here, from the expressions in operation.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.spec.case import Case, lengths, new_tokens
from conformance.spec.expression import evaluate, gathered_by, symbols_of, whole
from conformance.spec.operation import Number, Operation, Port, Tensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """What follows from a case's attributes, dimensions and history. Raises `ExpressionError` where nothing does.

    Attributes out of range count as their defaults, so that a case in which one is refused has shapes all the same.
    """

    case: Case
    operation: Operation

    # Symbols

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes with those out of range at their defaults."""
        return self.operation.usable(self.case.attributes)

    @cached_property
    def scalars(self) -> dict[str, Any]:
        """Symbols with one value for the call: attributes and dimensions, and 1 or 0 for a feature on or off."""
        on = {name: int(name not in self.case.disabled) for name in self.operation.switchable}
        return on | self.operation.scalars(self.attributes, self.case.dims)

    @cached_property
    def new(self) -> int:
        """New tokens of every sequence."""
        return new_tokens(self.case, self.operation)

    @cached_property
    def sequences(self) -> int:
        """Number of sequences."""
        return self.case.dims[self.operation.batch]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Length of every sequence after the call; none for an operation without a history."""
        return lengths(self.case, self.operation)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All symbols of every sequence."""
        return self.operation.per_sequence(self.scalars, self.lengths)

    @cached_property
    def columns(self) -> dict[str, list[int]]:
        """Symbols of the sequences as lists over them, for expressions with `top`."""
        return self.operation.columns(self.rows)

    @cached_property
    def symbols(self) -> dict[str, Any]:
        """All symbols, those of sequences as lists: for shapes, sizes and defaults."""
        return {**self.scalars, **self.columns, **self.operation.totals_of(self.scalars, self.columns)}

    @cached_property
    def grid(self) -> dict[str, Any]:
        """All symbols, those of sequences as arrays: for masks, after `along` has put them on their axis."""
        import numpy as np

        return self.symbols | {name: np.array(values, np.int64) for name, values in self.columns.items()}

    @property
    def period(self) -> int:
        """Tokens after which the pattern of an aim starts again: the block size, 1 where there are no blocks."""
        block = self.operation.block
        return max(int(self.attributes[block]), 1) if block else 1

    def holds(self, condition: Number) -> bool:
        """Whether a condition on the whole call holds."""
        return bool(evaluate(condition, self.scalars))

    def holds_somewhere(self, condition: str) -> bool:
        """Whether a condition holds for any sequence; for the call, where sequences have no symbols."""
        return any(bool(evaluate(condition, row)) for row in (self.rows if self.operation.history else [self.scalars]))

    # Shapes

    def is_on(self, described: Tensor) -> bool:
        """Whether a port or an output is not switched off."""
        return described.feature not in self.case.disabled

    def of(self, shape: Sequence[Number]) -> Shape:
        """A shape of expressions, worked out."""
        return tuple(whole(size, self.symbols) for size in shape)

    def shape(self, described: Tensor) -> Shape:
        """Shape of a port or an output; (0,) where it is switched off."""
        if not self.is_on(described):
            return (0,)
        form = self.case.forms.get(described.name, "")
        return self.of(described.forms[form] if form and isinstance(described, Port) else described.shape)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every port that is on, but for the lengths."""
        return {
            p.name: self.shape(p) for p in self.operation.ports if p.name != self.operation.lengths and self.is_on(p)
        }

    @cached_property
    def outputs(self) -> dict[str, Shape]:
        """Shape of every output."""
        return {output.name: self.shape(output) for output in self.operation.outputs}

    @cached_property
    def used(self) -> set[str]:
        """Symbols in the shapes of ports that are on."""
        return {n for p in self.operation.ports if self.is_on(p) for size in p.shape for n in symbols_of(size)}

    def type_of(self, described: Tensor) -> str:
        """The type of a port or an output in this case."""
        return self.operation.type_of(described.type, self.case)

    @property
    def bytes(self) -> int:
        """Bytes of all inputs and outputs, from the shapes alone."""
        from conformance.spec.types import dtype

        named = {p.name: self.type_of(p) for p in (*self.operation.ports, *self.operation.outputs)}
        both = {**self.shapes, **self.outputs}
        return sum(math.prod(shape) * dtype(named[name]).itemsize for name, shape in both.items())

    # Masks

    def along(self, described: Tensor, shape: Shape, text: str, values: Mapping[str, Array] = {}) -> Any:
        """An expression over the axes of a port or an output, as an array over its leading axes.

        The array has as many axes as the expression needs, at least that of the sequences, and broadcasts over the
        others. `values` are those of ports of whole numbers; they are laid along the axes of the same names.
        """
        import numpy as np

        names = symbols_of(text)
        batch = self.operation.batch
        axes: dict[str, int] = {}
        for name in names:
            axis = described.axis(name)
            if axis is not None and axis < len(shape):
                axes[name] = axis
        gathered = gathered_by(text) & values.keys()
        counted = {name: self.operation.port[name] for name in (names & values.keys()) - gathered}
        placed = {name: _placed(port, described) for name, port in counted.items()}
        lead = bool(described.shape) and described.shape[0] == batch
        depth = max([int(lead), *(a + 1 for a in axes.values()), *(a + 1 for p in placed.values() for a in p)])
        known = dict(self.symbols)
        if lead:
            for name in names & self.columns.keys():
                known[name] = self.grid[name].reshape(-1, *(1,) * (depth - 1))
        for name, axis in axes.items():
            known[name] = np.arange(shape[axis]).reshape(-1, *(1,) * (depth - 1 - axis))
        known |= {name: values[name] for name in gathered}
        for name, places in placed.items():
            sizes = dict(zip(places, values[name].shape, strict=True))
            known[name] = values[name].reshape([sizes.get(axis, 1) for axis in range(depth)])
        value = np.asarray(evaluate(text, known))
        return value.reshape((1,) * (depth - value.ndim) + value.shape)

    def token(self, described: Any, shape: Shape, values: Mapping[str, Array] = {}) -> Array | None:
        """Token number of every row of a port, over its leading axes; None where rows have none."""
        return self.along(described, shape, described.token, values) if described.token else None

    def read(self, described: Any, shape: Shape, values: Mapping[str, Array] = {}) -> Array | None:
        """Mask over the leading axes of a port of the elements that are read; None when all are."""
        import numpy as np

        if not described.reads:
            return None
        mask = self.along(described, shape, described.reads, values)
        return np.broadcast_to(mask, shape[: mask.ndim]).astype(bool, copy=False)


def _placed(port: Tensor, described: Tensor) -> list[int]:
    """The axes of `described` along which the axes of a port of whole numbers lie: those of the same name or symbol."""
    named = described.axes or tuple(str(size) for size in described.shape)
    own = port.axes or tuple(str(size) for size in port.shape)
    return [named.index(name) for name in own]


def span(case: Case, operation: Operation, dim: str) -> tuple[int, int | None, int]:
    """Smallest, largest and step of a dimension in this case. It has no largest that depends on no other dimension."""
    described = operation.dims[dim]
    if described.draw is None:
        return 1, None, 1
    known = Geometry(case, operation).symbols
    drawn = described.draw
    bound = symbols_of(drawn.most) & operation.dims.keys() and not described.follows
    most = whole(drawn.most, known) if bound else None
    return whole(drawn.least, known), most, max(whole(drawn.step, known), 1)


def spare(case: Case, operation: Operation, dim: str) -> int:
    """Rows of a dimension beyond those that follow from the history."""
    return case.dims[dim] - whole(operation.dims[dim].default, Geometry(case, operation).symbols)


def with_defaults(case: Case, operation: Operation) -> Case:
    """The case with the dimensions that follow from the history at their defaults."""
    dims = dict(case.dims)
    for name, dim in operation.dims.items():
        if dim.follows:
            fitted = msgspec.structs.replace(case, dims=dims)
            dims[name] = whole(dim.default, Geometry(fitted, operation).symbols)
    return msgspec.structs.replace(case, dims=dims)
