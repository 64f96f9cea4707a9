"""What an operation refuses, checked from its data, for backends whose runtime does not say it.

    check = refusals.checker(config).check   # at prepare: attributes and types
    check(inputs)                            # at every call: types, presence, shapes, values

Both raise `Rejected` in the contract's terms. What a configuration fixes is worked out once; a call that was accepted
before, by types, shapes and lengths, is accepted at the cost of looking it up, as this is on the path of every call.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from conformance.backends.protocol import OperationConfig, Rejected, Unsupported, serve_only
from conformance.errors import UsageError
from conformance.library.operations import load_operation
from conformance.spec.expression import evaluate, symbols_of, whole
from conformance.spec.types import ELEMENT_TYPES, LENGTH_TYPES, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.backends.protocol import Array
    from conformance.spec.operation import Attribute, Condition, Operation, Port

    Shape = tuple[int, ...]
    Check = Callable[[Mapping[str, Array]], None]  # of one call
    Form = tuple[Shape, Any] | None  # shape and NumPy type of a port; None for one that is missing

ACCEPTED_KEPT = 4096  # calls that are known to be fit
FEW = 16  # distinct lengths up to which Python is quicker than NumPy


def checker(config: OperationConfig, serves: str = "", operation: Operation | None = None) -> Checker:
    """The checker of a configuration; `serves` is the one operation that the calling backend has.

    Raises `Rejected` at "prepare": "attribute" for attributes out of range, "type" for an element type or a
    type of the lengths that the contract does not know. Raises `Unsupported` for another operation than the
    one served. The description is the bundled one of that name unless `operation` is given.
    """
    if serves:
        serve_only(config, serves)
    made = Checker(config, operation or operation_called(config.operation))
    made.check_attributes()
    return made


def operation_called(name: str) -> Operation:
    """The bundled description of an operation. Raises `Unsupported` when there is none."""
    with suppress(UsageError):
        if (found := load_operation(name)).operation == name:
            return found
    raise Unsupported(name, "the bundled library does not describe this operation")


def linear(expression: Any, dims: Collection[str], known: Mapping[str, Any] = {}) -> tuple[str, int] | None:
    """The one dimension that an expression is a multiple of, and the factor; None for any other expression."""
    free = symbols_of(expression) - known.keys()
    dim = next(iter(free), "")
    if len(free) != 1 or dim not in dims:
        return None
    factor = whole(expression, {**known, dim: 1})
    straight = all(evaluate(expression, {**known, dim: n}) == n * factor for n in (0, 2, 7))
    return (dim, factor) if factor and straight else None


def kinds_of_presence(operation: Operation) -> dict[str, str]:
    """Feature to the kind of refusal of a port that is there, or not, against it: that of the rule about it."""
    kinds = {port.feature: "shape" for port in operation.ports if port.feature}
    for rule in operation.refusals:
        for name, shapes in rule.shapes.items():
            feature = operation.port[name].feature
            if feature and [0] in [list(shape) for shape in shapes]:
                kinds[feature] = rule.kind
    return kinds


def is_empty(shape: Shape) -> bool:
    """Whether a port of this shape is switched off: [0], [0, 0], [N, L, 0], but not [N, 0, Dr] with Dr > 0."""
    return bool(shape) and shape[-1] == 0


@lru_cache(maxsize=64)
def type_name(dtype: Any) -> str | None:
    """The contract's name of a NumPy dtype such as "f32", "bf16" or "i64", None when it has none."""
    return name_of(dtype) if dtype.isnative else None


@dataclass(frozen=True)
class Axis:
    """One axis of a port, with what the attributes leave of its expression.

    A `size` when it is fixed; else `factor` times the dimension `dim`; else an expression of several dimensions.
    """

    expression: Any
    size: int | None = None
    dim: str = ""
    factor: int = 1


@dataclass(frozen=True)
class Known:
    """A port as the configuration has it."""

    port: Port
    types: tuple[str, ...]
    off: bool
    forms: tuple[tuple[Axis, ...], ...]  # the shapes that it can have, the usual one first


class Checker:
    """The refusals of one configuration. Its methods may be called from several threads."""

    def __init__(self, config: OperationConfig, operation: Operation) -> None:
        self.config, self.operation = config, operation
        self._accepted: set[Any] = set()
        self._names = tuple(port.name for port in operation.ports)

    # Preparation

    def check_attributes(self) -> None:
        """Attributes, and the types that are known before any call. Raises `Rejected` at "prepare"."""
        wrong = tuple(name for name, attribute in self.operation.attributes.items() if not self._valid(name, attribute))
        if wrong:
            raise Rejected("attribute", "prepare", wrong)
        for kind, given, known in (
            ("T", self.config.element_type, ELEMENT_TYPES),
            ("I", self.config.length_type, LENGTH_TYPES),
        ):
            concerned = tuple(port.name for port in self.operation.ports if port.type == kind)
            if concerned and given not in known:
                raise Rejected("type", "prepare", concerned[:1])

    def _valid(self, name: str, attribute: Attribute) -> bool:
        value = plain(self.config.attributes.get(name, attribute.default))
        if isinstance(value, str):  # a default that follows from other attributes
            return True
        return self.operation.is_valid(name, value, self.scalars)

    @cached_property
    def scalars(self) -> dict[str, Any]:
        """The symbols that the configuration fixes: attributes in range, and 1 or 0 for a feature on or off."""
        operation, given = self.operation, {name: plain(v) for name, v in self.config.attributes.items()}
        fit = {n: v for n, v in given.items() if n in operation.attributes and operation.attributes[n].fits(v)}
        features = {name: int(name not in self.config.disabled) for name in operation.switchable}
        return features | operation.scalars(operation.attributes_of(fit), {})

    # Calls

    def check(self, inputs: Mapping[str, Array]) -> None:
        """One call, in the order types, presence, ranks, dimensions, conditions, values.

        `inputs` holds the ports by contract name. Raises `Rejected` at "call" with the kind and the ports at fault;
        where dimensions contradict each other, the ports that are in the minority.
        """
        arrays = [inputs.get(name) for name in self._names]
        forms = tuple([None if array is None else (array.shape, array.dtype) for array in arrays])
        looked_at = tuple([array.tobytes() for i in self._looked_at if (array := arrays[i]) is not None])
        call = forms, looked_at
        if call in self._accepted:
            return
        if forms not in self._accepted:
            self._check_forms(dict(zip(self._names, forms, strict=True)))
            self._keep(forms)
        if self._looked_at:
            self._check_values({n: a for n, a in zip(self._names, arrays, strict=True) if a is not None})
            self._keep(call)

    def _keep(self, accepted: Any) -> None:
        if len(self._accepted) >= ACCEPTED_KEPT:
            self._accepted.clear()
        self._accepted.add(accepted)

    @cached_property
    def _known(self) -> dict[str, Known]:
        return {port.name: self._compiled(port) for port in self.operation.ports}

    def _compiled(self, port: Port) -> Known:
        operation, config = self.operation, self.config
        kind = {"T": (config.element_type,), "I": (config.length_type,)}.get(port.type)
        symbol = operation.types.get(port.type)
        types = kind or (symbol.choices if symbol else (port.type,))
        forms = [port.shape, *port.forms.values(), *([(1,)] if port.name == operation.lengths else [])]
        off = port.feature in operation.closed(sorted(config.disabled))
        return Known(
            port,
            types,
            off,
            tuple(tuple(map(self._axis, form)) for form in forms),
        )

    def _axis(self, expression: Any) -> Axis:
        free = symbols_of(expression) - self.scalars.keys()
        if not free:
            return Axis(expression, size=int(evaluate(expression, self.scalars)))
        found = linear(expression, self.operation.dims, self.scalars)
        if found:
            return Axis(expression, dim=found[0], factor=found[1])
        return Axis(expression)

    def type_of(self, name: str) -> str:
        """The type of a port; the first of those that it may have."""
        return self._known[name].types[0]

    def ranks(self, name: str) -> set[int]:
        """The numbers of dimensions that a port may have."""
        return {len(form) for form in self._known[name].forms}

    def is_off(self, name: str) -> bool:
        """Whether a port is switched off."""
        return self._known[name].off

    # Types, presence, shapes

    def _check_forms(self, forms: Mapping[str, Form]) -> None:
        known = self._known
        here = {name: form for name, form in forms.items() if form is not None}
        missing = [n for n, form in forms.items() if form is None and not (known[n].port.optional and known[n].off)]
        if missing:
            raise Rejected("shape", "call", tuple(missing))
        self._check_types(here)
        self._check_presence(here)
        shapes = {name: form[0] for name, form in here.items() if not known[name].off}
        chosen = self._check_ranks(shapes)
        dims = self._check_dimensions(shapes, chosen)
        self._check_conditions(dims)

    def _check_types(self, here: Mapping[str, tuple[Shape, Any]]) -> None:
        names = {name: type_name(form[1]) for name, form in here.items()}
        wrong = [name for name, kind in names.items() if kind not in self._known[name].types]
        if not wrong:  # ports whose types are one choice have the first one's
            for symbol in self.operation.types:
                same = [name for name in names if self._known[name].port.type == symbol]
                wrong += [name for name in same if names[name] != names[same[0]]]
        if wrong:
            raise Rejected("type", "call", tuple(wrong))

    def _check_presence(self, here: Mapping[str, tuple[Shape, Any]]) -> None:
        """A feature's ports are all there, or all switched off, as the configuration says."""
        for feature, kind in kinds_of_presence(self.operation).items():
            ports = [name for name in here if self._known[name].port.feature == feature]
            wrong = [name for name in ports if not self._is_as_prepared(name, here[name][0], len(ports))]
            if wrong:
                raise Rejected(kind, "call", tuple(wrong))

    def _is_as_prepared(self, name: str, shape: Shape, together: int) -> bool:
        known = self._known[name]
        if known.port.optional:
            return not known.off
        # A port that is alone in its feature and empty has a wrong dimension, and is named for that.
        return is_empty(shape) == known.off or (not known.off and together == 1)

    def _check_ranks(self, shapes: Mapping[str, Shape]) -> dict[str, tuple[Axis, ...]]:
        """The form of every port that its rank allows, the usual one first."""
        fitting = {n: [form for form in self._known[n].forms if len(form) == len(s)] for n, s in shapes.items()}
        wrong = tuple(name for name, forms in fitting.items() if not forms)
        if wrong:
            raise Rejected("shape", "call", wrong)
        return {name: _likeliest(forms, shapes[name]) for name, forms in fitting.items()}

    def _check_dimensions(self, shapes: Mapping[str, Shape], forms: Mapping[str, tuple[Axis, ...]]) -> dict[str, int]:
        """A dimension is the same wherever it stands. The dimensions of the call."""
        said: dict[str, dict[str, float]] = {}
        wrong = set()
        for name, axes in forms.items():
            for axis, size in zip(axes, shapes[name], strict=True):
                if axis.dim:
                    said.setdefault(axis.dim, {}).setdefault(name, size / axis.factor)
                    if said[axis.dim][name] != size / axis.factor:
                        wrong.add(name)
                elif axis.size not in (None, size):
                    wrong.add(name)
        believed = {dim: _believed(values) for dim, values in said.items()}
        wrong |= {name for dim, values in said.items() for name, size in values.items() if size != believed[dim]}
        if not wrong:
            symbols = self._with_totals({**self.scalars, **believed})
            for name, axes in forms.items():
                for axis, size in zip(axes, shapes[name], strict=True):
                    derived = axis.size is None and not axis.dim and symbols_of(axis.expression) <= symbols.keys()
                    if derived and evaluate(axis.expression, symbols) != size:
                        wrong.add(name)
        if wrong:
            raise Rejected("shape", "call", self._in_order(wrong))
        return {dim: int(value) for dim, value in believed.items()}

    def _with_totals(self, symbols: dict[str, Any]) -> dict[str, Any]:
        """The symbols with the totals that follow from them alone."""
        for name, total in self.operation.totals.items():
            if symbols_of(total.expression) <= symbols.keys():
                symbols[name] = evaluate(total.expression, symbols)
        return symbols

    def _check_conditions(self, dims: Mapping[str, int]) -> None:
        """What must hold of the dimensions, and of attributes beside them."""
        symbols = {**self.scalars, **dims}
        for condition in self.operation.conditions:
            known = self._applies(condition) and symbols_of(condition.holds) <= symbols.keys()
            if known and not evaluate(condition.holds, symbols):
                raise Rejected(condition.kind, "call", condition.names)
        wrong = tuple(n for n in self.operation.attributes if not self._valid_beside(n, symbols))
        if wrong:
            raise Rejected("attribute", "call", wrong)

    def _valid_beside(self, name: str, symbols: Mapping[str, Any]) -> bool:
        valid = self.operation.attributes[name].valid
        free = symbols_of(valid) - self.scalars.keys() if valid else frozenset()
        return not free or not free <= symbols.keys() or bool(evaluate(valid, symbols))

    def _applies(self, condition: Condition) -> bool:
        return not condition.when or bool(self.scalars.get(condition.when, True))

    def _in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        chosen = set(names)
        return tuple(name for name in self._names if name in chosen)

    # Values

    @cached_property
    def _of_sequences(self) -> tuple[Condition, ...]:
        """The conditions on every sequence: those in whose symbols the length stands, or what follows from it."""
        operation = self.operation
        symbols = {operation.length, *operation.symbols}
        return tuple(c for c in operation.conditions if self._applies(c) and symbols_of(c.holds) & symbols)

    @cached_property
    def _needed(self) -> tuple[tuple[str, str], ...]:
        """The symbols of a sequence that those conditions need, in order, with their expressions."""
        known = self.operation.symbols
        wanted = {name for condition in self._of_sequences for name in symbols_of(condition.holds)}
        for name in reversed(known):
            if name in wanted:
                wanted |= symbols_of(known[name].expression)
        return tuple((name, symbol.expression) for name, symbol in known.items() if name in wanted)

    @cached_property
    def _looked_at(self) -> tuple[int, ...]:
        """The ports whose values count, by their place."""
        off = self._known[self.operation.lengths].off if self.operation.lengths else True
        return () if off or not self._of_sequences else (self._names.index(self.operation.lengths),)

    def _check_values(self, arrays: Mapping[str, Array]) -> None:
        """What must hold of every sequence."""
        shapes = {name: array.shape for name, array in arrays.items() if not self._known[name].off}
        dims = self._check_dimensions(shapes, self._check_ranks(shapes))
        if not dims.get(self.operation.batch, 1):
            return
        for condition, holds in self._holding({**self.scalars, **dims}, arrays[self.operation.lengths]):
            if not holds:
                raise Rejected(condition.kind, "call", condition.names)

    def _holding(self, scalars: Mapping[str, Any], lengths: Array) -> Iterable[tuple[Condition, bool]]:
        distinct: Sequence[Any] = sorted(set(lengths.ravel().tolist()))
        if len(distinct) > FEW:
            import numpy as np

            distinct = [np.array(distinct, np.int64)]
        rows = [self._row(scalars, length) for length in distinct]
        for condition in self._of_sequences:
            values = [evaluate(condition.holds, row) for row in rows]
            yield condition, all(value if isinstance(value, bool) else bool(value.all()) for value in values)

    def _row(self, scalars: Mapping[str, Any], length: Any) -> dict[str, Any]:
        row = {**scalars, self.operation.length: length}
        for name, expression in self._needed:
            row[name] = evaluate(expression, row)
        return row


def plain(value: Any) -> Any:
    """A NumPy number as Python's; anything else as it is."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value.item() if hasattr(value, "item") else value


def _likeliest(forms: Sequence[tuple[Axis, ...]], shape: Shape) -> tuple[Axis, ...]:
    """Of forms of one rank the one whose fixed sizes are those of the shape, else the usual one."""
    for form in forms:
        fixed = [axis.size == size for axis, size in zip(form, shape, strict=True) if axis.size is not None]
        if fixed and all(fixed):
            return form
    return forms[0]


def _believed(values: Mapping[str, float]) -> float:
    """The size that most ports have; on a tie that of the first port."""
    counts = Counter(values.values())
    most = max(counts.values())
    return next(value for value in values.values() if counts[value] == most)
