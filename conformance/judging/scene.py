"""The single call that relations start from, and what follows from it for other calls."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from conformance.backends.protocol import Session
from conformance.judging.engine import Answer, Array, Engine, Inputs, Run, Stop
from conformance.judging.judge import judge
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation, Relation
from reference.expected import Expected, Part

Expectation = Mapping[str, Expected]


class Inapplicable(Exception):  # noqa: N818  an answer, not a failure
    """There is nothing to compare in this case or with this backend, and why."""


@dataclass
class Scene:
    """The single call that relations start from, and what follows from its case.

    With `free` no value of the reference is used: what is expected is what the single call answered.
    """

    engine: Engine
    run: Run
    session: Session
    whole: Inputs
    single: Answer
    free: bool = False
    name: str = ""  # of the relation that is being checked
    random: random.Random | None = None

    def begin(self, relation: Relation) -> None:
        """Numbers that a relation draws depend on the case and on its own name only."""
        self.name, self.random = relation.name, None
        self.run.where = f"relation {relation.name}"

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
    def scalars(self) -> dict[str, Any]:
        return self.geometry.scalars

    @cached_property
    def geometry(self) -> Geometry:
        return Geometry(self.case, self.operation)

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
            name: replace(expected, parts=tuple(own(part, self.single.got[name]) for part in expected.parts))
            for name, expected in self.single.expected.items()
            if name in self.engine.info.outputs
        }

    @property
    def base(self) -> Expectation:
        """What answers to the same question must be like."""
        return self.own if self.free else self.single.expected

    @cached_property
    def exact(self) -> Expectation:
        """The bits of the single call's answer, in all elements that are judged."""
        return {
            name: replace(expected, parts=tuple(_exact(part, self.single.got[name]) for part in expected.parts))
            for name, expected in self.single.expected.items()
            if name in self.engine.info.outputs
        }

    def is_on(self, port: str) -> bool:
        """Whether a port has its declared rank: it is not switched off, nor of another shape in this case."""
        described = self.operation.port[port]
        return described.feature not in self.case.disabled and self.whole[port].ndim == len(described.shape)

    def read(self, port: str) -> Array | None:
        """Mask over the leading axes of a port of the elements that are read; None when all are, or it is empty."""
        described, array = self.operation.port[port], self.whole[port]
        if not described.reads or not self.is_on(port) or not array.size:
            return None
        counted = {name: self.whole[name] for name in self.operation.counted if name in self.whole}
        return self.geometry.read(described, array.shape, counted)

    def shapes(self, case: Case, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs of a call with these lengths and dimensions."""
        if self.engine.readings:
            return {name: one.shape for name, one in self.engine.oracle(case).expect(inputs).items()}
        return Geometry(case, self.operation).outputs

    # Calls and verdicts

    def ask(self, inputs: Inputs, session: Session | None = None) -> Mapping[str, Array]:
        """One more call; its inputs must stay as they are, and its outputs as well."""
        return self.engine.call(self.run, session or self.session, inputs, {}, check=False).got

    def judge(self, expected: Expected, got: Mapping[str, Array], output: str, clause: str, status: str = "") -> None:
        """Judge one output of a further call. Raises `Stop`; with a `status` only notes that as a warning."""
        if output not in self.engine.info.outputs:
            return
        self.run.verdicts += 1
        if agrees(got[output], expected):
            return
        verdict = judge(output, got[output], expected, clause)
        if verdict.status == "pass":
            return
        stop = Stop(status or verdict.status, clause, verdict.reason, worst=verdict.worst)
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
            for name, expected in (change(self.exact) if change else self.exact).items():
                self.judge(expected, got, name, relation.bits, "quality-warning")

    def wants_bits(self, relation: Relation) -> bool:
        """Whether the case is about the clause that recommends equal bits here."""
        return bool(relation.bits) and relation.bits in self.case.clauses

    def same(self, relation: Relation, got: Mapping[str, Array], kept: Sequence[Callable[[str, Part], Array]]) -> None:
        """An answer must have the bits of the single call's, in the rows of every part that all of `kept` keep."""
        for name, expected in self.exact.items():
            parts = expected.parts
            for keep in kept:
                parts = tuple(pick(part, keep(name, part)) for part in parts)
            self.judge(replace(expected, parts=parts), got, name, relation.clause)

    def other_session(self, case: Case) -> Session:
        """The session of another configuration. Raises `Unsupported` when the backend has none."""
        session, served = self.engine.session(case)
        served.append(self.case.id)
        return session


# Expectations


def own(part: Part, got: Array) -> Part:
    """A part with the values that were answered. An infinity may be one of overflow, and is not compared."""
    values = got[part.index]
    if part.bound is None:
        return replace(part, value=values)
    numbers = values.astype(np.float64)
    bound = np.where(np.isinf(numbers), np.inf, 2 * part.bound)
    return replace(part, value=numbers, bound=bound, quality=bound)


def _exact(part: Part, got: Array) -> Part:
    """A part with the bits that were answered, without rows that are not judged: they are outside the domain."""
    part = replace(part, value=got[part.index]) if part.bound is None else part
    if part.bound is None:
        return part
    judged = np.asarray(np.isfinite(part.bound).all(axis=tuple(range(1, part.bound.ndim))))
    bits = replace(part, value=got[part.index], bound=None, quality=None)
    return bits if judged.all() else pick(bits, judged)


def agrees(got: Array, expected: Expected) -> bool:
    """Whether an output is plainly right: a quick look that leaves whatever is special to the judge."""
    if not isinstance(got, np.ndarray) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    for part in expected.parts:
        values = got[part.index]
        if part.bound is None:
            if values.tobytes() != part.value.tobytes():
                return False
        else:
            with np.errstate(all="ignore"):
                if not (np.abs(values.astype(np.float64) - part.value) <= part.quality).all():
                    return False
    return True


def pick(part: Part, mask: Array) -> Part:
    """The rows of a part that a mask is true for."""
    return replace(
        part,
        index=tuple(one if isinstance(one, slice) else one[mask] for one in part.index),
        value=part.value[mask],
        bound=None if part.bound is None else part.bound[mask],
        quality=None if part.quality is None else part.quality[mask],
    )


def reordered(expected: Expectation, order: Sequence[int], batch: int) -> dict[str, Expected]:
    """What is expected when of a batch's sequences those of `order` are there, in this order; shapes are left."""
    new = np.full(batch, -1, dtype=np.int64)
    new[list(order)] = np.arange(len(order))
    result = {}
    for name, one in expected.items():
        parts = one.parts if len(order) == batch else (pick(part, new[part.index[0]] >= 0) for part in one.parts)
        moved = tuple(replace(part, index=(new[part.index[0]], *part.index[1:])) for part in parts)
        result[name] = replace(one, parts=moved)
    return result


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
        parts.append(part if there.all() else pick(part, there))
    return replace(expected, shape=shape, parts=tuple(parts))
