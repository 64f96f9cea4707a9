"""Relations between calls that need no reference: what one answer says of another.

A second call is made from the inputs of the single call; what it must answer follows from the single call alone.
Copies, and whatever the contract says has no effect, are compared bit for bit; computed elements within the bounds of
both answers, since a conforming implementation may round differently for another batch, split or session. The ports
and outputs that a relation speaks of are data of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from conformance import tensors
from conformance.backends.protocol import Session, Unsupported
from conformance.case import Case
from conformance.engine import Answer, Array, Engine, Inputs, Run, Stop, spans
from conformance.expression import evaluate
from conformance.library import random_partition
from conformance.operation import Relation
from conformance.scene import Inapplicable, Scene, own, rearranged
from reference.expected import Part

PLAIN = 1.0  # what stands in elements that are not read, where poison stood before


def check(names: Sequence[str], engine: Engine, run: Run, session: Session, whole: Inputs, single: Answer) -> None:
    """Check relations of the single call `whole`, answered by `single` and judged already.

    Every further answer is judged against what the single call's expectation says of it. Raises `Stop` for the first
    relation that does not hold; those that cannot be checked are noted in `run.skipped` with the reason.
    """
    _check(Scene(engine, run, session, whole, single), names)


class RelationsOnly(Engine):
    """An engine that never compares with a reference's values, only answers with each other.

    Of the reference it takes which elements are specified, their bounds and shapes.
    """

    def _calls(self, run: Run, session: Session) -> None:
        whole = self.inputs(run.case)
        run.where = "single call"
        single = self.call(run, session, whole, self.oracle(run.case).expect(whole), check=False)
        scene = Scene(self, run, session, whole, single, free=True)
        for name, expected in single.expected.items():
            scene.judge(replace(expected, parts=()), single.got, name, self.operation.output[name].shape_clause)
        _check(scene, run.case.relations or tuple(self.operation.relation))
        again = self.call(run, session, whole, single.expected, check=False)
        self.same(run, again, single, "PLG-1", "the same call gives other bits the second time")
        self._unchanged(run)


def _check(scene: Scene, names: Sequence[str]) -> None:
    for name in names:
        relation = scene.operation.relation[name]
        scene.begin(relation)
        try:
            scene.applies(relation)
            KINDS[relation.kind](scene, relation)
        except Inapplicable as reason:
            scene.run.skipped[name] = str(reason)
        except Unsupported as reason:
            scene.run.skipped[name] = str(reason)


# Kinds: each takes the scene and the relation


def _rearranged(scene: Scene, relation: Relation, order: list[int]) -> None:
    operation, case = scene.operation, scene.case
    inputs = {}
    for port in operation.ports:
        array = scene.whole[port.name]
        axis = port.shape.index(operation.batch) if operation.batch in port.shape else -1
        one_for_all = port.name == operation.lengths and case.length_shape == "one"
        if axis >= 0 and scene.is_on(port.name) and not one_for_all:
            array = np.ascontiguousarray(array.take(order, axis=axis))
        inputs[port.name] = array
    fewer = msgspec.structs.replace(
        case,
        dims={**case.dims, operation.batch: len(order)},
        past=tuple(case.past[n] for n in order),
        pad=tuple(case.pad[n] for n in order),
    )
    shapes = scene.shapes(fewer, inputs)
    scene.follows(relation, scene.ask(inputs), lambda expected: rearranged(expected, order, shapes, scene.N))


def alone(scene: Scene, relation: Relation) -> None:
    """One of the sequences alone."""
    if scene.N < 2:
        raise Inapplicable("there are not two sequences")
    n = scene.below(scene.N)
    scene.run.where += f", sequence {n}"
    _rearranged(scene, relation, [n])


def permuted(scene: Scene, relation: Relation) -> None:
    """The sequences in another order."""
    if scene.N < 2:
        raise Inapplicable("there are not two sequences")
    order = list(range(scene.N))
    while order == sorted(order):
        order.sort(key=lambda n: scene.below(1 << 30))
    scene.run.where += f", order {','.join(map(str, order))}"
    _rearranged(scene, relation, order)


def one_length(scene: Scene, relation: Relation) -> None:
    """One length for all sequences in place of equal ones, or the other way round."""
    name = scene.operation.lengths
    array = scene.whole[name]
    if len(set(scene.lengths)) > 1:
        raise Inapplicable("the lengths differ")
    if scene.N == 1:
        raise Inapplicable("both are the same for one sequence")
    shape = (scene.N,) if scene.case.length_shape == "one" else (1,)
    length = scene.lengths[0] if scene.lengths else scene.L
    other = np.full(shape, length, dtype=array.dtype)
    scene.run.where += f", {name} {list(shape)}"
    scene.follows(relation, scene.ask({**scene.whole, name: other}))


def length_type(scene: Scene, relation: Relation) -> None:
    """The lengths in the other type, on a session prepared for it."""
    name = scene.operation.lengths
    other = "i32" if scene.case.length_type == "i64" else "i64"
    case, session = scene.other_session(relation, length_type=other)
    scene.run.where += f", {other}"
    inputs = {**scene.whole, name: scene.whole[name].astype(tensors.DTYPES[other])}
    with _dropped_after_failure(scene, case):
        scene.follows(relation, scene.ask(inputs, session))


class _dropped_after_failure:  # noqa: N801  a context
    """A session that gave a wrong answer is not used again."""

    def __init__(self, scene: Scene, case: Case) -> None:
        self.scene, self.case = scene, case

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.scene.engine.drop(self.case)


def longer(scene: Scene, relation: Relation) -> None:
    """More rows than are in use along a dimension, poisoned."""
    more = 1 + scene.below(3)
    poison = tensors.Poison("mixed" if scene.case.poison == "zero" else scene.case.poison)
    inputs = dict(scene.whole)
    for port in scene.operation.ports:
        array = inputs[port.name]
        if relation.dim in port.shape and scene.is_on(port.name):
            axis = port.shape.index(relation.dim)
            shape = (*array.shape[:axis], more, *array.shape[axis + 1 :])
            inputs[port.name] = np.concatenate([array, poison.values(shape, array.dtype)], axis=axis)
    case = msgspec.structs.replace(
        scene.case, dims={**scene.case.dims, relation.dim: scene.case.dims[relation.dim] + more}
    )
    shapes = scene.shapes(case, inputs)
    scene.run.where += f", {relation.dim} + {more}"
    scene.follows(
        relation,
        scene.ask(inputs),
        lambda expected: {name: replace(one, shape=shapes[name]) for name, one in expected.items()},
    )


def ignored(scene: Scene, relation: Relation) -> None:
    """Other values in all elements that are not read. After a failure the ports are tried one by one for the clause."""
    changed = {}
    for name in relation.blames:
        mask = scene.read(name)
        if mask is not None and not mask.all():
            array = scene.whole[name].copy()
            shape = array[~mask].shape
            poison = tensors.Poison("mixed").values(shape, array.dtype)
            array[~mask] = poison if scene.case.poison == "zero" else np.full(shape, PLAIN, dtype=array.dtype)
            changed[name] = array
    if not changed:
        raise Inapplicable("every element is read")
    try:
        scene.same(relation, scene.ask({**scene.whole, **changed}), None)
    except Stop as stop:
        where = scene.run.where
        for name, array in changed.items():
            one = msgspec.structs.replace(relation, clause=relation.blames[name])
            scene.run.where = f"{where}, {name}"
            scene.same(one, scene.ask({**scene.whole, name: array}), None)
        scene.run.where = f"{where}, {', '.join(changed)}"
        raise stop from None


def changed(scene: Scene, relation: Relation) -> None:
    """Another token, NaN, infinite or finite, in place of one of the new ones."""
    rows = [(n, row) for n in range(scene.N) for row in range(scene.pads[n], scene.L)]
    if not rows:
        raise Inapplicable("there is no new token")
    n, row = rows[scene.below(len(rows))]
    value = (np.nan, np.inf, -PLAIN)[scene.below(3)]
    token = scene.lengths[n] - scene.L + row
    scene.run.where += f", token {token} of sequence {n} is {value:g}"
    inputs = dict(scene.whole)
    for name in relation.ports:
        if scene.is_on(name):
            inputs[name] = inputs[name].copy()
            inputs[name][n, row] = value
    symbols = {**scene.scalars, **{name: values[n] for name, values in scene.columns.items()}, "token": token}

    def untouched(output: str, part: Part) -> Array:
        if output not in relation.touches:
            return np.ones(len(part.index[0]), dtype=bool)
        at = part.index[1] if len(part.index) > 1 and not isinstance(part.index[1], slice) else 0
        touched = evaluate(relation.touches[output], {**symbols, "row": at})
        result: Array = ~((part.index[0] == n) & touched)
        return result

    scene.same(relation, scene.ask(inputs), untouched)


def scaled(scene: Scene, relation: Relation) -> None:
    """Ports times a power of two; computed elements change by a power of it, copies by the factor or not at all."""
    ways = [(factor, _scaled(scene, relation, factor)) for factor in relation.factors]
    exact = [(factor, ports) for factor, ports in ways if ports is not None]
    if not exact:
        raise Inapplicable("some numbers cannot be scaled exactly")
    factor, ports = exact[scene.below(len(exact))]
    scene.run.where += f", factor {factor:g}"
    inputs = {**scene.whole, **ports}
    got = scene.ask(inputs)
    expected = scene.single.expected if relation.within else scene.engine.oracle(scene.case).expect(inputs)
    for name, one in scene.own.items():
        parts = []
        for mine, theirs in zip(one.parts, expected[name].parts, strict=True):
            if mine.bound is None or theirs.bound is None:
                # With a reference the copies are judged below, whatever the reading says of rows that are not in use.
                if scene.free:
                    parts.append(_times(mine, factor if name in relation.copied else 1.0))
            else:
                change = factor**relation.computed
                bound = mine.bound / 2 * change + theirs.bound
                bound[~np.isfinite(mine.value)] = np.inf
                parts.append(replace(mine, value=mine.value * change, bound=bound, quality=bound))
        scene.judge(replace(one, parts=tuple(parts)), got, name, relation.clause)
        if not scene.free and not relation.within:
            scene.judge(expected[name], got, name, relation.clause)


def _times(part: Part, factor: float) -> Part:
    """A copied part times a power of two."""
    if factor == 1:
        return part
    return replace(part, value=(part.value.astype(np.float64) * factor).astype(part.value.dtype))


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
    """Mask of numbers that a device may flush (NUM-3)."""
    size = np.abs(values.astype(np.float64))
    mask: Array = (size > 0) & (size < tensors.smallest_normal(values.dtype))
    return mask


def neutral(scene: Scene, relation: Relation) -> None:
    """A feature with values that do nothing, next to the feature switched off."""
    for feature in relation.features:
        if feature not in scene.engine.info.features:
            raise Inapplicable(f"{scene.engine.info.name} does not declare the feature '{feature}'")
    on, off = dict(scene.whole), dict(scene.whole)
    for name, values in relation.values.items():
        array, mask = scene.whole[name], scene.read(name)
        if not scene.is_on(name):
            raise Inapplicable(f"{name} has a shape of its own")
        neutral = np.repeat(np.array(values), array.shape[-1] // len(values)).astype(array.dtype)
        on[name] = np.broadcast_to(neutral, array.shape).copy()
        if mask is not None:
            on[name][~mask] = array[~mask]
        off[name] = np.zeros((0,), dtype=array.dtype)
    case, session = scene.other_session(
        relation, disabled=tuple(sorted({*scene.case.disabled, *relation.features})), change={}
    )
    expected = scene.engine.oracle(scene.case).expect(on)
    with_it = scene.ask(on)
    if not scene.free:
        for name, one in expected.items():
            scene.judge(one, with_it, name, relation.clause)
    with _dropped_after_failure(scene, case):
        without = scene.ask(off, session)
        for output in scene.operation.outputs:
            if output.name in scene.engine.info.outputs and output.feature not in relation.features:
                one = expected[output.name]
                parts = tuple(_finite(own(part, with_it[output.name])) for part in one.parts)
                scene.judge(replace(one, parts=parts), without, output.name, relation.clause)


def _finite(part: Part) -> Part:
    """A part in which only finite elements are compared: nothing can be said of zero times infinity."""
    if part.bound is None:
        return part
    bound = np.where(np.isfinite(part.value), part.bound, np.inf)
    return replace(part, bound=bound, quality=bound)


def split(scene: Scene, relation: Relation) -> None:
    """The tokens in several calls: in the case's own streams, or in one that is drawn."""
    streams = scene.case.streams
    if streams and not scene.free:
        raise Inapplicable("the streams of the case are run and judged call by call")
    if not streams:
        _needs_tokens(scene, 1)
        streams = (random_partition(scene.L, 1 + scene.below(3), scene.below(1 << 16)),)
    _needs_state(scene)
    where = scene.run.where
    for stream in streams:
        carried: Inputs = {}
        got: Mapping[str, Array] = scene.single.got
        for start, end in spans(stream):
            scene.run.where = f"{where} {'+'.join(map(str, stream))}, {end} tokens"
            got = _step(scene, scene.whole, start, end, carried)
            carried = _carry(scene, got)
        scene.follows(relation, got)


def rewind(scene: Scene, relation: Relation) -> None:
    """A state is kept, other tokens follow it and are dropped; the right ones, from the kept state, count."""
    _needs_tokens(scene, 2)
    _needs_state(scene)
    kept = 1 + scene.below(scene.L - 1)
    drafted = kept + 1 + scene.below(scene.L - kept)
    scene.run.where += f", kept after {kept} tokens, {drafted - kept} dropped"
    carried = _carry(scene, _step(scene, scene.whole, 0, kept, {}))
    drafts = dict(scene.whole)
    for port in scene.operation.ports:
        array = drafts[port.name]
        if scene.operation.tokens in port.shape and scene.is_on(port.name):
            drafts[port.name] = np.ascontiguousarray(np.flip(array, axis=port.shape.index(scene.operation.tokens)))
    _step(scene, drafts, kept, drafted, carried)
    scene.follows(relation, _step(scene, scene.whole, kept, scene.L, carried))


def _needs_tokens(scene: Scene, least: int) -> None:
    tokens = scene.L
    if tokens < least:
        raise Inapplicable("there are too few new tokens")


def _needs_state(scene: Scene) -> None:
    missing = [name for name in scene.operation.carried.values() if name not in scene.engine.info.outputs]
    if missing:
        raise Inapplicable(f"{scene.engine.info.name} does not return {', '.join(missing)}")


def _step(scene: Scene, whole: Inputs, start: int, end: int, carried: Inputs) -> Mapping[str, Array]:
    return scene.ask(tensors.call_inputs(whole, scene.case, scene.operation, start, end, carried))


def _carry(scene: Scene, got: Mapping[str, Array]) -> Inputs:
    return {port: got[output].copy() for port, output in scene.operation.carried.items()}


KINDS: Mapping[str, Callable[[Scene, Relation], None]] = {
    "split": split,
    "rewind": rewind,
    "alone": alone,
    "permuted": permuted,
    "one-length": one_length,
    "length-type": length_type,
    "longer": longer,
    "ignored": ignored,
    "changed": changed,
    "scaled": scaled,
    "neutral": neutral,
}
