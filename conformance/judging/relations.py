"""Relations between calls that need no reference: what one answer says of another.

A second call is made from the inputs of the single call; what it must answer follows from the single call alone.
Copies, and whatever the contract says has no effect, are compared bit for bit; computed elements within the bounds of
both answers, since a conforming implementation may round differently for another batch, split or session. The ports
and outputs that a relation speaks of are data of the operation.

Some relations rewrite the single call; several of these are put as one question, and one by one when its answer is
wrong. The others are procedures of several calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import numpy as np

from conformance.backends.protocol import Unsupported
from conformance.errors import Lost
from conformance.judging.calling import Answer, Array, Caller, Inapplicable, Inputs, Open, Run, Stop
from conformance.judging.outcome import Where
from conformance.judging.rewritings import EXACT, REWRITINGS, ROUNDED, Question, copied, exactly_scaled
from conformance.judging.scene import Expectation, Scene, fitted, kept
from conformance.spec.case import Case
from conformance.spec.expression import evaluate
from conformance.spec.operation import Relation
from conformance.spec.streams import (
    aligned,
    call_inputs,
    can_split,
    joined,
    random_partition,
    spans,
    step_of,
    tokens_axis,
)
from reference.expected import after
from reference.parts import finite, together

T = TypeVar("T")


def check(names: Sequence[str], engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Check relations of the single call `whole`, answered by `single` and judged already.

    Every further answer is judged against what the single call's expectation says of it. Raises `Stop` for the first
    relation that does not hold; those that cannot be checked are noted in `run.skipped` with the reason.
    """
    _check(Scene(engine, run, to, whole, single), names)


def check_free(names: Sequence[str], engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Check relations without a reference's values: answers are compared with each other only.

    Of the expectation it takes which elements are specified, their bounds and shapes.
    """
    scene = Scene(engine, run, to, whole, single, free=True)
    for name, expected in single.expected.items():
        scene.judge(replace(expected, parts=()), single.got, name, engine.operation.output[name].shape_clause)
    _check(scene, names)


def _check(scene: Scene, names: Sequence[str]) -> None:
    relations = [scene.operation.relation[name] for name in names]
    done: set[str] = set()
    for relation in relations:
        if relation.name in done:
            continue
        several = [relation]
        for group in (_is_rounded, _is_alike, _is_exact):
            if group(relation) and not scene.wants_bits(relation):
                several = [one for one in relations if group(one) and not scene.wants_bits(one)]
        done.update(one.name for one in several)
        if len(several) > 1:
            _check_together(scene, several)
        else:
            _noted(scene, relation, _check_one)


def _is_rounded(relation: Relation) -> bool:
    """Whether numbers may be rounded otherwise in the second call."""
    return relation.kind in ROUNDED


def _is_alike(relation: Relation) -> bool:
    """Whether the second call differs only where nothing follows from it, and the same bits are but recommended."""
    return relation.kind in EXACT and bool(relation.bits)


def _is_exact(relation: Relation) -> bool:
    """Whether the second call must give the same bits."""
    return relation.kind in EXACT and not relation.bits


def _noted(scene: Scene, relation: Relation, step: Callable[..., T], *arguments: Any) -> T | None:
    """Do a step for a relation; where that is not possible, note why and give None."""
    scene.begin(relation)
    try:
        scene.applies(relation)
        return step(scene, relation, *arguments)
    except (Inapplicable, Unsupported) as reason:
        scene.run.skipped[relation.name] = str(reason)
        return None


def _check_together(scene: Scene, relations: Sequence[Relation]) -> None:
    """Put one question for several relations; when its answer is wrong, one for each, to tell which it is."""
    question = Question(scene.case, scene.whole)
    asked = []
    for relation in relations:
        rewritten = _noted(scene, relation, REWRITINGS[relation.kind], question)
        if rewritten:
            question = rewritten
            asked.append(relation)
    where = scene.run.where = Where("together", tuple(relation.name for relation in asked))
    failure: Exception | None = None
    if len(asked) > 1:
        try:
            _ask(scene, asked[0], question)
            if not any(relation.name == scene.engine.doubted for relation in asked):
                return
        except Lost:
            raise
        except Exception as error:
            failure = error
    for relation in asked:
        _noted(scene, relation, _check_one)
    if failure and not isinstance(failure, Unsupported):
        scene.run.where = where
        raise failure


def _check_one(scene: Scene, relation: Relation) -> None:
    if relation.kind in PROCEDURES:
        PROCEDURES[relation.kind](scene, relation)
        return
    question = REWRITINGS[relation.kind](scene, relation, Question(scene.case, scene.whole))
    where = scene.run.where = scene.run.where.then(*question.says)
    try:
        _ask(scene, relation, question)
    except Stop:
        for port, clause in relation.blames.items():
            scene.run.where = where.then(port)
            if port in question.inputs and question.inputs[port] is not scene.whole[port]:
                only = replace(question, inputs={**scene.whole, port: question.inputs[port]})
                _ask(scene, msgspec.structs.replace(relation, clause=clause), only)
        scene.run.where = where
        raise


def _ask(scene: Scene, relation: Relation, question: Question) -> None:
    """Put a question and hold its answer against what follows from the single call."""
    if question.case.length_type == scene.case.length_type:
        _answer(scene, relation, question, scene.session)
        return
    session = scene.other_session(question.case)
    with _dropped_after_failure(scene, question.case):
        _answer(scene, relation, question, session)


@contextmanager
def _dropped_after_failure(scene: Scene, case: Case) -> Iterator[None]:
    """Nothing is known of a session that failed: it is not used again."""
    try:
        yield
    except Exception:
        scene.engine.drop(case)
        raise


def _answer(scene: Scene, relation: Relation, question: Question, session: Open) -> None:
    got = scene.ask(question.inputs, session)
    if _is_exact(relation):
        scene.same(relation, got, question.kept)
        return
    shapes = scene.shapes(question.case, question.inputs)

    def follow(expected: Expectation) -> Expectation:
        for keep in question.kept:
            expected = kept(expected, keep)
        for step in question.steps:
            expected = step(expected)
        return fitted(expected, shapes)

    scene.follows(relation, got, follow)


# Procedures: each takes the scene and the relation


def scaled(scene: Scene, relation: Relation) -> None:
    """Ports times a power of two; computed elements change by a power of it, copies by the factor or not at all."""
    factor, ports = exactly_scaled(scene, relation)
    scene.run.where = scene.run.where.then(f"factor {factor:g}")
    inputs = {**scene.whole, **ports}
    got = scene.ask(inputs)
    expected = after(scene.engine.oracle(scene.case).expect(inputs), got)
    change = factor**relation.computed
    for name, one in scene.own.items():
        parts = []
        for mine, theirs in zip(one.parts, expected[name].parts, strict=True):
            both = together(mine, theirs, change)
            if both is not None:
                parts.append(both)
            elif scene.free:
                # With a reference the rest is judged below, whatever the reading says of rows that are not in use.
                parts.append(mine.scaled(copied(name, relation, factor), change))
        scene.judge(replace(one, parts=tuple(parts)), got, name, relation.clause)
        if not scene.free:
            scene.judge(expected[name], got, name, relation.clause)


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
        if scene.operation.port[name].optional:
            del off[name]
        else:
            off[name] = np.zeros((0,), dtype=array.dtype)
    disabled = tuple(sorted({*scene.case.disabled, *relation.features}))
    case = msgspec.structs.replace(scene.case, disabled=disabled)
    session = scene.other_session(case)
    with_it = scene.ask(on)
    expected = after(scene.engine.oracle(scene.case).expect(on), with_it)
    if not scene.free:
        for name, one in expected.items():
            scene.judge(one, with_it, name, relation.clause)
    with _dropped_after_failure(scene, case):
        without = scene.ask(off, session)
        for output in scene.operation.outputs:
            if output.name in scene.engine.info.outputs and output.feature not in relation.features:
                one = expected[output.name]
                parts = tuple(finite(part.answered(with_it[output.name][part.index])) for part in one.parts)
                scene.judge(replace(one, parts=parts), without, output.name, relation.clause)


def split(scene: Scene, relation: Relation) -> None:
    """The tokens in several calls: in the case's own streams, or in one that is drawn."""
    streams = scene.case.streams
    if streams and not scene.free:
        raise Inapplicable("the streams of the case are run and judged call by call")
    if not streams:
        _needs_tokens(scene, 1)
        drawn = random_partition(scene.L, 1 + scene.below(3), scene.below(1 << 16))
        streams = (aligned(drawn, step_of(scene.case, scene.operation)),)
    _needs_parts(scene)
    for stream in streams:
        where = msgspec.structs.replace(scene.run.where, label="+".join(map(str, stream)), steps=())
        carried: Inputs = {}
        pieces: list[Mapping[str, Array]] = []
        for start, end in spans(stream):
            scene.run.where = where.then(f"{end} tokens")
            pieces.append(_step(scene, scene.whole, start, end, carried))
            carried = _carry(scene, pieces[-1])
        ended = joined(pieces, scene.operation)
        if ended is None:
            raise Inapplicable("the outputs of the calls do not fit together")
        scene.follows(relation, ended)


def rewind(scene: Scene, relation: Relation) -> None:
    """A state is kept, other tokens follow it and are dropped; the right ones, from the kept state, count."""
    _needs_tokens(scene, 2)
    _needs_state(scene)
    kept = 1 + scene.below(scene.L - 1)
    drafted = kept + 1 + scene.below(scene.L - kept)
    scene.run.where = scene.run.where.then(f"kept after {kept} tokens", f"{drafted - kept} dropped")
    first = _step(scene, scene.whole, 0, kept, {})
    carried = _carry(scene, first)
    drafts = dict(scene.whole)
    for port in scene.operation.ports:
        if scene.is_on(port.name) and scene.operation.tokens in port.shape:
            array = drafts[port.name]
            drafts[port.name] = np.ascontiguousarray(np.flip(array, axis=port.shape.index(scene.operation.tokens)))
    _step(scene, drafts, kept, drafted, carried)
    ended = joined([first, _step(scene, scene.whole, kept, scene.L, carried)], scene.operation)
    if ended is None:
        raise Inapplicable("the outputs of the calls do not fit together")
    scene.follows(relation, ended)


def _needs_tokens(scene: Scene, least: int) -> None:
    if not scene.operation.tokens:
        raise Inapplicable("the operation has no streams")
    tokens = scene.L
    if tokens < least:
        raise Inapplicable("there are too few new tokens")


def _needs_parts(scene: Scene) -> None:
    """A stream hands its state on from call to call, or every call has rows of its own tokens."""
    if not can_split(scene.case, scene.operation):
        raise Inapplicable("the tokens of this case cannot be split")
    if not any(tokens_axis(output.shape, scene.operation) is not None for output in scene.operation.outputs):
        _needs_state(scene)


def _needs_state(scene: Scene) -> None:
    if not scene.operation.carried:
        raise Inapplicable("the operation carries nothing from call to call")
    missing = [name for name in scene.operation.carried.values() if name not in scene.engine.info.outputs]
    if missing:
        raise Inapplicable(f"{scene.engine.info.name} does not return {', '.join(missing)}")


def _step(scene: Scene, whole: Inputs, start: int, end: int, carried: Inputs) -> Mapping[str, Array]:
    return scene.ask(call_inputs(whole, scene.case, scene.operation, start, end, carried))


def _carry(scene: Scene, got: Mapping[str, Array]) -> Inputs:
    return {port: got[output].copy() for port, output in scene.operation.carried.items()}


def raised(scene: Scene, relation: Relation) -> None:
    """Attributes at other values, by which the answer follows from less than before."""
    known = scene.geometry.symbols
    attributes = {**scene.case.attributes, **{n: evaluate(text, known) for n, text in relation.attributes.items()}}
    if attributes == scene.case.attributes:
        raise Inapplicable("the attributes have these values already")
    scene.run.where = scene.run.where.then(", ".join(f"{name}={attributes[name]}" for name in relation.attributes))
    case = msgspec.structs.replace(scene.case, attributes=attributes)
    session = scene.other_session(case)
    with _dropped_after_failure(scene, case):
        got = scene.ask(scene.whole, session)
        for name, one in after(scene.engine.oracle(case).expect(scene.whole), got).items():
            scene.judge(one, got, name, "")


def duplicated(scene: Scene, relation: Relation) -> None:
    """A row of a port copied over a later one."""
    inputs = dict(scene.whole)
    for port in relation.ports:
        array, mask = scene.whole[port], scene.read(port)
        if not scene.is_on(port) or array.ndim < 2:
            raise Inapplicable(f"{port} has a shape of its own")
        mask = np.ones(array.shape[:2], dtype=bool) if mask is None else mask
        rows = [(n, np.nonzero(mask[n])[0]) for n in range(len(array)) if mask[n].sum() > 1]
        if not rows:
            raise Inapplicable("there are not two rows")
        inputs[port] = array.copy()
        for n, read in rows:
            source = read[scene.below(len(read) - 1)]
            copies = read[read > source]
            target = copies[scene.below(len(copies))]
            inputs[port][n, target] = array[n, source]
            scene.run.where = scene.run.where.then(f"row {target} as row {source} of sequence {n}")
    got = scene.ask(inputs)
    for name, one in after(scene.engine.oracle(scene.case).expect(inputs), got).items():
        scene.judge(one, got, name, "")


PROCEDURES: Mapping[str, Callable[[Scene, Relation], None]] = {
    "scaled": scaled,
    "neutral": neutral,
    "split": split,
    "rewind": rewind,
    "raised": raised,
    "duplicated": duplicated,
}
