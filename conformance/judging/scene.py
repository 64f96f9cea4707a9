"""The single call that relations start from, and what follows from it for other calls."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from conformance.judging.calling import Answer, Array, Caller, Inapplicable, Inputs, Open, Run, Stop
from conformance.judging.judge import judge
from conformance.judging.outcome import Kind, Where
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation, Relation
from reference.expected import Expected, Following
from reference.parts import Part, lasting

Expectation = Mapping[str, Expected]


@dataclass
class Scene:
    """The single call that relations start from, and what follows from its case.

    With `free` no value of the reference is used: what is expected is what the single call answered.
    """

    engine: Caller
    run: Run
    session: Open
    whole: Inputs
    single: Answer
    free: bool = False
    name: str = ""  # of the relation that is being checked
    random: random.Random | None = None

    def begin(self, relation: Relation) -> None:
        """Numbers that a relation draws depend on the case and on its own name only."""
        self.name, self.random = relation.name, None
        self.run.where = Where("relation", (relation.name,))

    def applies(self, relation: Relation) -> None:
        """Raises `Inapplicable` when a feature is off, or attributes or readings are not those it holds for."""
        for feature in relation.features:
            if feature in self.case.disabled:
                raise Inapplicable(f"{self.operation.features[feature].says} is off")
        if relation.when and not evaluate(relation.when, self.scalars):
            raise Inapplicable(f"only for {relation.when}")
        for name in relation.unless:
            if name in self.engine.readings:
                raise Inapplicable(f"does not hold for the reading {name}={self.engine.readings[name]}")

    def below(self, count: int) -> int:
        """A drawn whole number from 0 to count - 1."""
        if self.random is None:
            self.random = random.Random(self.case.seed ^ zlib.crc32(self.name.encode()))
        # random() alone is promised to stay the same across Python versions.
        return int(self.random.random() * count)

    # What follows from the case

    @property
    def case(self) -> Case:
        return self.run.case

    @property
    def operation(self) -> Operation:
        return self.engine.operation

    @cached_property
    def geometry(self) -> Geometry:
        return Geometry(self.case, self.operation)

    @cached_property
    def scalars(self) -> dict[str, Any]:
        return self.geometry.scalars

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return self.geometry.lengths

    @cached_property
    def columns(self) -> dict[str, list[int]]:
        return self.geometry.columns

    @cached_property
    def N(self) -> int:  # noqa: N802
        return self.geometry.sequences

    @cached_property
    def L(self) -> int:  # noqa: N802
        return self.geometry.new

    @cached_property
    def pads(self) -> list[int]:
        """Leading rows of every sequence that are no tokens of it."""
        return [max(self.L - S, 0) for S in self.lengths]

    @cached_property
    def own(self) -> Expectation:
        """The single call's answer as an expectation: copies to the bit, computed elements within both bounds."""
        return {
            name: replace(
                expected, parts=tuple(part.answered(self.single.got[name][part.index]) for part in expected.parts)
            )
            for name, expected in self.single.expected.items()
            if name in self.engine.info.outputs
        }

    @property
    def base(self) -> Expectation:
        """What answers to the same question must be like."""
        if self.free:
            return self.own
        return {name: replace(one, parts=lasting(one.parts)) for name, one in self.single.expected.items()}

    @cached_property
    def exact(self) -> Expectation:
        """The bits of the single call's answer, in all elements that are judged."""
        return {
            name: replace(
                expected, parts=tuple(part.repeated(self.single.got[name][part.index]) for part in expected.parts)
            )
            for name, expected in self.single.expected.items()
            if name in self.engine.info.outputs
        }

    @cached_property
    def alike(self) -> Expectation:
        """What is recommended of answers to equal questions."""
        return {
            name: replace(
                expected, parts=tuple(part.alike(self.single.got[name][part.index]) for part in expected.parts)
            )
            for name, expected in self.single.expected.items()
            if name in self.engine.info.outputs
        }

    def is_on(self, port: str) -> bool:
        """Whether a port is given with its declared rank: not left out, nor off, nor of another shape in this case."""
        return is_on(self.operation, self.case, self.whole, port)

    def read(self, port: str) -> Array | None:
        """Mask over (sequence, row) of the elements of a port that are read; None when all are, or it is empty."""
        return read(self.operation, self.case, self.whole, port)

    def shapes(self, case: Case, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs of a call with these lengths and dimensions."""
        if self.engine.readings:
            return {name: one.shape for name, one in self.engine.oracle(case).expect(inputs).items()}
        return Geometry(case, self.operation).outputs

    # Calls and verdicts

    def ask(self, inputs: Inputs, session: Open | None = None) -> Mapping[str, Array]:
        """One more call; its inputs must stay as they are, and its outputs as well.

        Where outputs follow from each other it is judged by itself, too: each stage on what the one before it gave.
        """
        to = session or self.session
        if self.free or not isinstance(self.single.expected, Following):
            return self.engine.call(self.run, to, inputs, {}, check=False).got
        case = msgspec.structs.replace(self.case, attributes=dict(to.config.attributes))
        return self.engine.call(self.run, to, inputs, self.engine.oracle(case).expect(inputs)).got

    def judge(self, expected: Expected, got: Mapping[str, Array], output: str, clause: str, status: str = "") -> None:
        """Judge one output of a further call. Raises `Stop`; with a `status` only notes that as a warning.

        Without a `clause` the one that broke is blamed.
        """
        if output not in self.engine.info.outputs:
            return
        self.run.verdicts += 1
        if agrees(got[output], expected):
            return
        verdict = judge(output, got[output], expected, clause or self.operation.output[output].shape_clause)
        if verdict.status == "pass":
            return
        about, blamed = "" if verdict.worst else verdict.output, clause or verdict.clause
        stop = Stop(
            status or verdict.status, blamed, verdict.reason, Kind(verdict.kind), about=about, worst=verdict.worst
        )
        if stop.status == "fail":
            raise stop
        self.run.warning = self.run.warning or stop

    def follows(
        self, relation: Relation, got: Mapping[str, Array], change: Callable[[Expectation], Expectation] | None = None
    ) -> None:
        """An answer must be what the single call's is after a `change` that rearranges it, none by default."""
        for name, expected in (change(self.base) if change else self.base).items():
            self.judge(expected, got, name, relation.clause)
        if self.wants_bits(relation):
            for name, expected in (change(self.alike) if change else self.alike).items():
                self.judge(expected, got, name, relation.bits, "quality-warning")

    def wants_bits(self, relation: Relation) -> bool:
        """Whether the case is about the clause that recommends equal bits here."""
        return bool(relation.bits) and relation.bits in self.case.clauses

    def same(
        self, relation: Relation, got: Mapping[str, Array], kept_rows: Sequence[Callable[[str, Part], Array]]
    ) -> None:
        """An answer must have the bits of the single call's, in the rows of every part that all of `kept_rows` keep."""
        due = self.exact
        for keep in kept_rows:
            due = kept(due, keep)
        for name, expected in due.items():
            self.judge(expected, got, name, relation.clause)

    def other_session(self, case: Case) -> Open:
        """The session of another configuration. Raises `Unsupported` when the backend has none."""
        other = self.engine.session(case)
        other.served.append(self.case.id)
        return other


# Elements that are read


def is_on(operation: Operation, case: Case, whole: Inputs, port: str) -> bool:
    """Whether a port is given with its declared rank: not left out, nor off, nor of another shape in the case."""
    described = operation.port[port]
    return port in whole and described.feature not in case.disabled and whole[port].ndim == len(described.shape)


def read(operation: Operation, case: Case, whole: Inputs, port: str) -> Array | None:
    """Mask over the leading axes of a port of the elements that are read; None when all are, or it is empty."""
    described = operation.port[port]
    if not described.reads or not is_on(operation, case, whole, port) or not whole[port].size:
        return None
    counted = {name: whole[name] for name in operation.counted if name in whole}
    return Geometry(case, operation).read(described, whole[port].shape, counted)


def unread(operation: Operation, case: Case, whole: Inputs, port: str) -> Array | None:
    """Mask of the elements that are not read; None when all are."""
    mask = read(operation, case, whole, port)
    return None if mask is None else ~mask


# Expectations


def agrees(got: object, expected: Expected) -> bool:
    """Whether an output is plainly right: a quick look that leaves whatever is special to the judge."""
    if not isinstance(got, np.ndarray) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return all(part.agrees(got[part.index]) for part in expected.parts)


def reordered(expected: Expectation, order: Sequence[int], batch: int) -> dict[str, Expected]:
    """What is expected when of a batch's sequences those of `order` are there, in this order; shapes are left."""
    new = np.full(batch, -1, dtype=np.int64)
    new[list(order)] = np.arange(len(order))
    result = {}
    for name, one in expected.items():
        parts = one.parts if len(order) == batch else (part.pick(new[part.index[0]] >= 0) for part in one.parts)
        moved = tuple(part.moved((new[part.index[0]], *part.index[1:])) for part in parts)
        result[name] = replace(one, parts=moved)
    return result


def kept(expected: Expectation, keep: Callable[[str, Part], Array]) -> dict[str, Expected]:
    """What is expected in the rows of every part that a mask is true for."""
    return {
        name: replace(one, parts=tuple(part.pick(keep(name, part)) for part in one.parts))
        for name, one in expected.items()
    }


def fitted(expected: Expectation, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Expected]:
    """What is expected, in outputs of other shapes; rows that they do not have are left out."""
    return {name: one if one.shape == shapes[name] else _fitted(one, shapes[name]) for name, one in expected.items()}


def _fitted(expected: Expected, shape: tuple[int, ...]) -> Expected:
    parts = []
    for part in expected.parts:
        there = np.ones(len(part.index[0]), dtype=bool)
        for axis, index in enumerate(part.index[1:], 1):
            if not isinstance(index, slice):
                there &= index < shape[axis]
        parts.append(part if there.all() else part.pick(there))
    return replace(expected, shape=shape, parts=tuple(parts))
