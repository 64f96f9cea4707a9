"""Questions made from the single call: one rewriting for each kind of relation that needs no more than one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from conformance.judging.calling import Array, Inapplicable, Inputs
from conformance.judging.scene import Expectation, Scene, reordered
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.inputs import Poison
from conformance.spec.operation import Relation
from conformance.spec.types import dtype, smallest_normal
from reference.parts import Part

PLAIN = 1.0  # what stands in elements that are not read, where poison stood before


@dataclass(frozen=True)
class Question:
    """A further call, made from the single call, and how its answer follows from the single call's.

    `steps` rearrange what is expected; with `kept`, masks over the rows of a part, these rows have the same bits.
    """

    case: Case
    inputs: Inputs
    says: tuple[str, ...] = ()
    steps: tuple[Callable[[Expectation], Expectation], ...] = ()
    kept: tuple[Callable[[str, Part], Array], ...] = ()

    def but(self, says: str, inputs: Inputs, **case: Any) -> Question:
        """The question with some inputs replaced, and what that changes in the case."""
        changed = msgspec.structs.replace(self.case, **case) if case else self.case
        return replace(self, case=changed, inputs={**self.inputs, **inputs}, says=(*self.says, says))

    def then(self, step: Callable[[Expectation], Expectation]) -> Question:
        """The question with one more change of what is expected."""
        return replace(self, steps=(*self.steps, step))


# Rewritings: each takes the scene, the relation and a question, and gives another question


def _sequences(scene: Scene, question: Question, order: list[int], says: str) -> Question:
    """Some or all of the sequences, in this order."""
    operation, case = scene.operation, question.case
    inputs = {}
    for port in operation.ports:
        one_for_all = port.name == operation.lengths and case.length_shape == "one"
        if scene.is_on(port.name) and operation.batch in port.shape and not one_for_all:
            array = question.inputs[port.name].take(order, axis=port.shape.index(operation.batch))
            inputs[port.name] = np.ascontiguousarray(array)
    asked = question.but(
        says,
        inputs,
        dims={**case.dims, operation.batch: len(order)},
        past=tuple(case.past[n] for n in order),
        pad=tuple(case.pad[n] for n in order),
    )
    return asked.then(lambda expected: reordered(expected, order, scene.N))


def alone(scene: Scene, relation: Relation, question: Question) -> Question:
    """One of the sequences alone."""
    if scene.N < 2:
        raise Inapplicable("there are not two sequences")
    n = scene.below(scene.N)
    return _sequences(scene, question, [n], f"sequence {n}")


def permuted(scene: Scene, relation: Relation, question: Question) -> Question:
    """The sequences in another order."""
    if scene.N < 2:
        raise Inapplicable("there are not two sequences")
    order = list(range(scene.N))
    while order == sorted(order):
        order.sort(key=lambda n: scene.below(1 << 30))
    return _sequences(scene, question, order, f"order {','.join(map(str, order))}")


def one_length(scene: Scene, relation: Relation, question: Question) -> Question:
    """One length for all sequences in place of equal ones, or the other way round."""
    _needs_lengths(scene)
    if len(set(scene.lengths)) > 1:
        raise Inapplicable("the lengths differ")
    if scene.N == 1:
        raise Inapplicable("both are the same for one sequence")
    each = question.case.length_shape == "one"
    length = scene.lengths[0] if scene.lengths else scene.L
    name = scene.operation.lengths
    other = np.full((scene.N if each else 1,), length, dtype=question.inputs[name].dtype)
    return question.but(f"{name} {list(other.shape)}", {name: other}, length_shape="each" if each else "one")


def _needs_lengths(scene: Scene) -> None:
    if scene.operation.lengths not in scene.whole:
        raise Inapplicable("there are no lengths")


def length_type(scene: Scene, relation: Relation, question: Question) -> Question:
    """The lengths in the other type, on a session prepared for it."""
    _needs_lengths(scene)
    name = scene.operation.lengths
    other = "i32" if question.case.length_type == "i64" else "i64"
    array = question.inputs[name].astype(dtype(other))
    if (array != question.inputs[name]).any():
        raise Inapplicable(f"the lengths do not fit {other}")
    return question.but(other, {name: array}, length_type=other)


def longer(scene: Scene, relation: Relation, question: Question) -> Question:
    """More rows than are in use along a dimension, poisoned."""
    more = 1 + scene.below(3)
    poison = Poison("mixed" if scene.case.poison == "zero" else scene.case.poison)
    inputs = {}
    for port in scene.operation.ports:
        if relation.dim in port.shape and scene.is_on(port.name):
            array, axis = question.inputs[port.name], port.shape.index(relation.dim)
            shape = (*array.shape[:axis], more, *array.shape[axis + 1 :])
            inputs[port.name] = np.concatenate([array, poison.values(shape, array.dtype)], axis=axis)
    dims = {**question.case.dims, relation.dim: question.case.dims[relation.dim] + more}
    return question.but(f"{relation.dim} + {more}", inputs, dims=dims)


def shrunk(scene: Scene, relation: Relation, question: Question) -> Question:
    """Ports times a power of two below one: no bound is larger then, and nothing leaves the domain that was in it."""
    factor, ports = exactly_scaled(scene, relation)
    # The question may have put the sequences in another order already.
    ports = {name: _times(question.inputs[name], factor) for name in ports}

    def step(expected: Expectation) -> Expectation:
        change = factor**relation.computed
        return {
            name: replace(one, parts=tuple(part.scaled(copied(name, relation, factor), change) for part in one.parts))
            for name, one in expected.items()
        }

    return question.but(f"factor {factor:g}", ports).then(step)


def unmoved(scene: Scene, relation: Relation, question: Question) -> Question:
    """Ports times a power of two by which no bit of an output changes."""
    factor, ports = exactly_scaled(scene, relation)
    return question.but(f"factor {factor:g}", ports)


def ignored(scene: Scene, relation: Relation, question: Question) -> Question:
    """Other values in all elements that are not read."""
    inputs = {}
    for name in relation.blames:
        mask = scene.read(name)
        if mask is not None and not mask.all():
            array = question.inputs[name].copy()
            shape = array[~mask].shape
            poison = Poison("mixed", scene.operation.port[name].finite).values(shape, array.dtype)
            array[~mask] = poison if scene.case.poison == "zero" else np.full(shape, PLAIN, dtype=array.dtype)
            inputs[name] = array
    if not inputs:
        raise Inapplicable("every element is read")
    return question.but(f"in {', '.join(inputs)}", inputs)


def changed(scene: Scene, relation: Relation, question: Question) -> Question:
    """Another token, NaN, infinite or finite, in place of one of the new ones."""
    rows = [(n, row) for n in range(scene.N) for row in range(scene.pads[n], scene.L)]
    if not rows:
        raise Inapplicable("there is no new token")
    n, row = rows[scene.below(len(rows))]
    value = (np.nan, np.inf, -PLAIN)[scene.below(3)]
    token = scene.lengths[n] - scene.L + row
    inputs = {}
    for name in relation.ports:
        if scene.is_on(name):
            inputs[name] = question.inputs[name].copy()
            axis = scene.operation.port[name].axis("row") or 1
            inputs[name][n].swapaxes(0, axis - 1)[row] = value
    symbols = {**scene.scalars, **{name: values[n] for name, values in scene.columns.items()}, "token": token}

    def untouched(output: str, part: Part) -> Array:
        if output not in relation.touches:
            return np.ones(len(part.index[0]), dtype=bool)
        axis = scene.operation.output[output].axis("row") or 1
        at = part.index[axis] if len(part.index) > axis and not isinstance(part.index[axis], slice) else 0
        touched = evaluate(relation.touches[output], {**symbols, "row": at})
        result: Array = ~((part.index[0] == n) & touched)
        return result

    asked = question.but(f"token {token} of sequence {n} is {value:g}", inputs)
    return replace(asked, kept=(*asked.kept, untouched))


def signed(scene: Scene, relation: Relation, question: Question) -> Question:
    """The other sign for every zero."""
    inputs = {}
    for name in relation.ports:
        if scene.is_on(name):
            array = question.inputs[name]
            zero = array == 0
            if zero.any():
                inputs[name] = np.where(zero, -array, array).astype(array.dtype)
    if not inputs:
        raise Inapplicable("nothing is zero")
    return question.but(f"zeros of {', '.join(inputs)}", inputs)


# Scaling


def exactly_scaled(scene: Scene, relation: Relation) -> tuple[float, Inputs]:
    """One of the factors by which all numbers that are read can be scaled exactly, and the ports scaled by it."""
    ways = [(factor, _scaled(scene, relation, factor)) for factor in relation.factors]
    exact = [(factor, ports) for factor, ports in ways if ports is not None]
    if not exact:
        raise Inapplicable("some numbers cannot be scaled exactly")
    return exact[scene.below(len(exact))]


def _times(array: Array, factor: float) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        scaled: Array = (array.astype(np.float64) * factor).astype(array.dtype)
    return scaled


def _scaled(scene: Scene, relation: Relation, factor: float) -> Inputs | None:
    """The scaled ports; elements that are not read stay as they are. None where a number cannot be scaled exactly."""
    inputs = {}
    for name in relation.ports:
        array = scene.whole[name]
        mask = scene.read(name)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = array.astype(np.float64) * factor
            values = wanted.astype(array.dtype)
            exact = (values.astype(np.float64) == wanted) & np.isfinite(values) & ~_subnormal(values)
        if mask is not None:
            exact[~mask] = True
            values[~mask] = array[~mask]
        if not exact.all():
            return None
        inputs[name] = values
    return inputs


def _subnormal(values: Array) -> Array:
    """Mask of numbers that a device may flush."""
    size = np.abs(values.astype(np.float64))
    mask: Array = (size > 0) & (size < smallest_normal(values.dtype))
    return mask


def copied(output: str, relation: Relation, factor: float) -> float:
    """The factor by which copied elements of an output change."""
    return factor if output in relation.copied else 1.0


REWRITINGS: Mapping[str, Callable[[Scene, Relation, Question], Question]] = {
    "alone": alone,
    "permuted": permuted,
    "one-length": one_length,
    "length-type": length_type,
    "longer": longer,
    "shrunk": shrunk,
    "ignored": ignored,
    "changed": changed,
    "signed": signed,
    "unmoved": unmoved,
}
# Kinds whose rewritings may follow each other in one question: those after which numbers may be rounded otherwise, and
# those that must not change a bit.
ROUNDED = ("permuted", "one-length", "length-type", "longer", "shrunk", "signed")
EXACT = ("ignored", "changed", "unmoved")
