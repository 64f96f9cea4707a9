"""Audits: what a caller may do between and around calls, each asked for by name in a case.

Each takes the engine, the run, the session, the inputs of the single call and its answer, and raises `Stop` when a
backend does not bear it. Which clause broke is said by the operation's `rules`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from threading import Barrier, Thread
from typing import Any

import msgspec
import numpy as np

from conformance.backends.protocol import Unsupported
from conformance.judging import layouts
from conformance.judging.calling import Answer, Array, Caller, Inapplicable, Inputs, Open, Run, Stop, taken
from conformance.judging.outcome import Kind, Where
from conformance.spec.broken import spoilt
from conformance.spec.case import Case
from conformance.spec.inputs import Poison
from conformance.spec.operation import Operation
from conformance.spec.resized import reshaped, with_other_attributes
from conformance.spec.streams import call_inputs
from conformance.spec.types import LENGTH_TYPES

Audit = Callable[[Caller, Run, Open, Inputs, Answer], None]

CROWDS = (2, 3, 8)  # sessions at once: as many as cores, and more
ROUNDS = 6  # calls of each of them
FURTHER = 300  # calls after which an output is looked at again
DRAWN = 6  # layouts that are tried when not all are


def interleave(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Another call in between does not show."""
    other = reshaped(run.case, engine.operation, {}, seed=run.case.seed + 1)
    _judged(engine, run, to, other)
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("repeatable", run.case)
    engine.same(run, again, single, clause, "an intervening call changes the result's bits")


def shapes(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """One session serves other shapes, smaller and larger, and then the first again."""
    where = run.where
    for dims in _other_dims(run.case, engine.operation):
        run.where = where.then(", ".join(f"{k}={v}" for k, v in dims.items()))
        _judged(engine, run, to, reshaped(run.case, engine.operation, dims))
    run.where = where.then("the first again")
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("instances_shared", run.case)
    engine.same(run, again, single, clause, "calls of other shapes in between change the bits")


def _other_dims(case: Case, operation: Operation) -> list[dict[str, int]]:
    """Dimensions of other calls that the same session serves."""
    batch, tokens = operation.batch, operation.tokens
    if not tokens:
        return [{batch: case.dims[batch] + 3}, {batch: 1}] if batch else []
    L = case.dims[tokens]
    found = [{tokens: 1}, {tokens: 3 * L + 2}]
    found += [{batch: case.dims[batch] + 3}, {batch: 1, tokens: 2}] if batch else []
    return [*found, {tokens: 0}]


def sessions(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Two instances with other attributes do not affect each other."""
    other = reshaped(with_other_attributes(run.case, engine.operation), engine.operation, {})
    clause = engine.rule("instances_shared", run.case)
    with _own(engine, other) as second:
        for _ in range(2):
            _judged(engine, run, second, other)
            again = engine.call(run, to, whole, single.expected)
            engine.same(run, again, single, clause, "an instance with other attributes changes the bits")


def order(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Configurations prepared one after the other, types first, in an order of the case's own, keep nothing."""
    where = run.where
    others = list(_neighbours(run.case, engine))
    turn = run.case.seed % max(len(others), 1)
    for says, case in (*others[turn:], *others[:turn]):
        run.where = where.then(says)
        with suppress(Unsupported), _own(engine, case) as one:
            _judged(engine, run, one, case)
    run.where = where.then("the first again")
    with _own(engine, run.case) as fresh:
        again = engine.call(run, fresh, whole, single.expected)
        clause = engine.rule("instances_shared", run.case)
        engine.same(run, again, single, clause, "instances of other configurations in between change the bits")


def _neighbours(case: Case, engine: Caller) -> Iterator[tuple[str, Case]]:
    """Cases that differ in one thing that sessions are prepared for."""
    operation = engine.operation
    plain = reshaped(case, operation, {})
    for kind in engine.info.element_types:
        if kind != case.element_type:
            yield kind, msgspec.structs.replace(plain, element_type=kind)
    if operation.lengths:
        for kind in LENGTH_TYPES:
            if kind != case.length_type:
                yield kind, msgspec.structs.replace(plain, length_type=kind)
    for name in case.attributes:
        other = with_other_attributes(case, operation, only=name)
        if other.attributes != case.attributes:
            yield f"{name}={other.attributes[name]:g}", reshaped(other, operation, {})
    for feature in operation.switchable:
        if feature in engine.info.features:
            is_off = feature in case.disabled
            off = tuple(n for n in case.disabled if n not in _needed(feature, operation)) if is_off else case.disabled
            off = operation.closed(off if is_off else (*off, feature))
            yield f"{feature} {'on' if is_off else 'off'}", msgspec.structs.replace(plain, disabled=off)


def _needed(feature: str, operation: Operation) -> set[str]:
    """A feature and all that it needs."""
    return {feature}.union(*(_needed(name, operation) for name in operation.features[feature].needs))


def concurrent(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Requests at the same time, each on a session and numbers of its own, give the bits of each alone.

    Two, three and eight at once, some of them of another configuration.
    """
    case, where = run.case, run.where
    other = reshaped(with_other_attributes(case, engine.operation), engine.operation, {})
    requests = [(case, whole, single)]
    with _own(engine, other) as second:
        for number in range(1, max(CROWDS)):
            foreign = number % 3 == 2
            asked = reshaped(other if foreign else case, engine.operation, {}, seed=case.seed + number)
            inputs = engine.inputs(asked)
            alone = engine.call(run, second if foreign else to, inputs, engine.oracle(asked).expect(inputs))
            requests.append((asked, inputs, alone))
    for count in CROWDS:
        run.where = where if count == 2 else where.then(f"{count} sessions")
        _at_once(engine, run, requests[:count])


def _at_once(engine: Caller, run: Run, requests: list[tuple[Case, Inputs, Answer]]) -> None:
    opened = [engine.prepare(engine.config(case)) for case, _, _ in requests]
    answers: list[tuple[Answer, Any]] = []
    start = Barrier(len(requests))

    def serve(one: Open, arrays: Inputs, alone: Answer) -> None:
        start.wait()
        for _ in range(ROUNDS):
            try:
                answers.append((alone, one.session.run({name: array.copy() for name, array in arrays.items()})))
            except BaseException as error:  # raised where the audit waits for it
                answers.append((alone, error))
                return

    threads = [
        Thread(target=serve, args=(one, inputs, alone))
        for one, (_, inputs, alone) in zip(opened, requests, strict=True)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads take turns more often than usual
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for one in opened:
        one.session.close()
    clause = engine.rule("repeatable", run.case)
    for alone, got in answers:
        if isinstance(got, BaseException):
            raise got
        outputs = taken(got, engine.info.outputs, engine.operation.output, engine.rule("serves", run.case))
        engine.same(run, Answer(outputs, alone.expected), alone, clause, "concurrent requests give different bits")


def strided(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Inputs that are regions of larger arrays give the bits of dense ones."""
    clause = run.serves = engine.rule("any_layout", run.case)
    views = {name: region(array, run.case.poison) for name, array in whole.items()}
    again = engine.hand_over(run, to, views, single.expected, check=False)
    engine.same(run, again, single, clause, "inputs with strides give different bits")


def every_layout(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Every port alone in every memory layout, all others in it, and all together."""
    _laid_out(engine, run, to, single, list(_ways(whole)))
    _repeated(engine, run, to, whole, list(_repeats(engine, run.case, whole)))


def some_layouts(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """A few memory layouts, which the case's seed decides."""
    below = _drawn(run.case)
    ways, repeats = list(_ways(whole)), list(_repeats(engine, run.case, whole))
    _laid_out(engine, run, to, single, [ways[below(len(ways))] for _ in range(DRAWN)])
    mixed = {}
    for name, array in whole.items():
        choices = list(layouts.layouts(array.ndim))
        mixed[name] = choices[below(len(choices))][1](array) if array.ndim else array
    _laid_out(engine, run, to, single, [("all ports, each in a layout of its own", lambda: mixed)])
    _repeated(engine, run, to, whole, [repeats[below(len(repeats))]] if repeats else [])


def _ways(whole: Inputs) -> Iterator[tuple[str, Callable[[], Inputs]]]:
    """Ways to hand the same numbers over."""

    def handed(chosen: Mapping[str, layouts.Layout]) -> Callable[[], Inputs]:
        return lambda: {name: chosen[name](array) if name in chosen else array.copy() for name, array in whole.items()}

    ranked = {name: array.ndim for name, array in whole.items() if array.ndim and array.size}
    together: dict[str, dict[str, layouts.Layout]] = {}
    for name, ndim in ranked.items():
        for says, layout in layouts.layouts(ndim):
            yield f"{name}: {says}", handed({name: layout})
            together.setdefault(says, {})[name] = layout
    for says, chosen in together.items():
        if len(chosen) > 1:
            yield f"all: {says}", handed(chosen)
            for name in chosen:  # one stays dense beside the others
                yield f"all but {name}: {says}", handed({n: one for n, one in chosen.items() if n != name})
    yield "ports of one shape side by side", lambda: layouts.side_by_side(whole)


def _laid_out(engine: Caller, run: Run, to: Open, single: Answer, ways: list[tuple[str, Callable[[], Inputs]]]) -> None:
    """Answers must be right in any layout; the same bits are what is recommended."""
    where = run.where
    clause = run.serves = engine.rule("any_layout", run.case)
    for says, make in ways:
        run.where = where.then(says)
        views = make()
        around = _bases(views)
        answer = engine.hand_over(run, to, views, single.expected, check=False)
        engine.judge(run, answer, clause)
        _left_alone(engine, run, around)
        bits = engine.operation.rules.same_bits
        if bits in run.case.clauses:
            engine.same(run, answer, single, bits, "another memory layout gives different bits", "quality-warning")


def _bases(views: Inputs) -> list[tuple[str, Array, bytes]]:
    """What the views are parts of, and its bytes."""
    return [(name, view.base, view.base.tobytes()) for name, view in views.items() if isinstance(view.base, np.ndarray)]


def _left_alone(engine: Caller, run: Run, around: list[tuple[str, Array, bytes]]) -> None:
    for name, base, before in around:
        if base.tobytes() != before:
            reason = f"the call writes to memory around its input {name}"
            raise Stop("fail", engine.rule("inputs_untouched", run.case), reason, Kind.MODIFIED, about=name)


def _repeats(engine: Caller, case: Case, whole: Inputs) -> Iterator[tuple[str, str, Array, Array]]:
    """Ports with one place along an axis everywhere: what is said of it, the port, dense, and with stride zero."""
    for port in engine.operation.ports:
        if port.name in whole and port.name != engine.operation.lengths:
            array = whole[port.name]
            if array.dtype.kind in "iub":
                continue
            for axis in range(array.ndim):
                pair = layouts.repeated(array, axis)
                if pair:
                    yield f"{port.name}: stride zero along axis {axis}", port.name, *pair


def _repeated(engine: Caller, run: Run, to: Open, whole: Inputs, repeats: list[tuple[str, str, Array, Array]]) -> None:
    where = run.where
    clause = run.serves = engine.rule("any_layout", run.case)
    for says, name, dense, view in repeats:
        run.where = where.then(says)
        inputs = {**whole, name: dense}
        expected = engine.oracle(run.case).expect(inputs)
        handed = {port: array.copy() for port, array in inputs.items()} | {name: view}
        engine.judge(run, engine.hand_over(run, to, handed, expected, check=False), clause)


def feedback(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """The very arrays that a call returned are inputs of the next one, and stay as they are."""
    operation, case = engine.operation, run.case
    if not operation.carried or not operation.tokens:
        raise Inapplicable("no output is an input of the next call")
    missing = [name for name in operation.carried.values() if name not in engine.info.outputs]
    if missing:
        raise Inapplicable(f"{engine.info.name} does not return {', '.join(missing)}")
    where, clause = run.where, engine.rule("any_layout", case)
    run.serves = clause
    tokens = case.dims[operation.tokens]
    cuts = sorted({0, tokens // 3, tokens // 2, tokens})
    carried: dict[str, Any] = {}
    for start, end in pairwise(cuts):
        run.where = where.then(f"tokens {start} to {end}")
        inputs = call_inputs(whole, case, operation, start, end, carried)
        expected = engine.oracle(case).expect(inputs)
        handed = {name: array.copy() for name, array in inputs.items()} | carried
        answer = engine.hand_over(run, to, handed, expected, check=False)
        engine.judge(run, answer, clause if start else "")
        carried = {port: answer.raw[output] for port, output in operation.carried.items()}
    _changed_feedback(engine, run, to, whole, cuts[1] if len(cuts) > 1 else 0)


def _changed_feedback(engine: Caller, run: Run, to: Open, whole: Inputs, cut: int) -> None:
    """The caller may write to what a call returned, and hand it over then: its numbers at that time count."""
    operation, case = engine.operation, run.case
    tokens = case.dims[operation.tokens]
    run.where = Where("audit", ("feedback",), steps=("outputs changed by the caller",))
    first = call_inputs(whole, case, operation, 0, cut, {})
    answer = engine.call(run, to, first, engine.oracle(case).expect(first))
    carried = {port: answer.raw[output] for port, output in operation.carried.items()}
    plain = {port: np.ndarray.view(array, np.ndarray) for port, array in carried.items()}
    run.watched = [one for one in run.watched if not any(np.shares_memory(one[1], array) for array in plain.values())]
    for array in plain.values():
        if array.dtype.kind not in "iub" and array.flags.writeable:
            with np.errstate(all="ignore"):
                array *= np.array(0.5, dtype=array.dtype)
    inputs = call_inputs(whole, case, operation, cut, tokens, carried)
    expected = engine.oracle(case).expect(inputs)
    handed = {name: array.copy() for name, array in inputs.items()} | carried
    engine.judge(run, engine.hand_over(run, to, handed, expected, check=False), engine.rule("repeatable", case))


def kept(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Outputs stay as they are over hundreds of further calls, of this session and of another."""
    case = run.case
    others = [reshaped(case, engine.operation, {}, seed=case.seed + 1)]
    others += [reshaped(case, engine.operation, dims) for dims in _other_dims(case, engine.operation)[:2]]
    inputs = [engine.inputs(other) for other in others]
    with _own(engine, case) as second:
        for number in range(FURTHER):
            one = second if number % 3 == 2 else to
            one.session.run({name: array.copy() for name, array in inputs[number % len(inputs)].items()})
    for name, array, before in run.watched:
        if array.tobytes() != before:
            reason = f"{name} of an earlier call changed after it was returned"
            raise Stop("fail", engine.rule("outputs_untouched", case), reason, Kind.CHANGED, about=name)
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("repeatable", case)
    engine.same(run, again, single, clause, f"{FURTHER} calls in between change the bits")


def changed_in_place(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """Arrays whose numbers the caller changes between two calls, and others at the same address, are read anew."""
    case, where, clause = run.case, run.where, engine.rule("repeatable", run.case)
    changes = _changes(engine, case, whole)
    memory = {name: bytearray(array.tobytes()) for name, array in whole.items()}

    def at_the_same_address() -> Inputs:
        return {name: np.ndarray(whole[name].shape, whole[name].dtype, bits) for name, bits in memory.items()}

    handed = at_the_same_address()
    engine.hand_over(run, to, handed, single.expected)
    for change in changes:
        for says, arrays in (("changed in place", handed), ("another array at the same address", None)):
            run.where = where.then(f"{' and '.join(change)}, {says}")
            given = arrays if arrays is not None else at_the_same_address()
            for name, array in change.items():
                given[name][...] = array
            answer = engine.hand_over(run, to, given, engine.oracle(case).expect({**whole, **change}), check=False)
            engine.judge(run, answer, clause)
            for name in change:
                given[name][...] = whole[name]
            again = engine.hand_over(run, to, given, single.expected, check=False)
            engine.same(run, again, single, clause, "numbers that were changed and changed back give different bits")


def _changes(engine: Caller, case: Case, whole: Inputs) -> list[Inputs]:
    """Other numbers for one port at a time; ports of whole numbers, which must fit each other, change together."""
    operation = engine.operation
    other = engine.inputs(msgspec.structs.replace(_plain(case), seed=case.seed + 1))
    found: list[Inputs] = [
        {name: other[name]} for name in whole if name in other and name not in {operation.lengths, *operation.counted}
    ]
    found.append({name: other[name] for name in operation.counted if name in other})
    if operation.lengths:
        past = tuple(past // 2 for past in case.past)
        shorter = engine.inputs(msgspec.structs.replace(_plain(case), past=past))
        found.append({n: shorter[n] for n in (operation.lengths, *operation.counted) if n in shorter})
    return [change for change in found if _differs(change, whole)]


def _differs(change: Inputs, whole: Inputs) -> bool:
    """Whether arrays could stand in place of those of a call, and hold other numbers."""
    fits = all(n in whole and a.shape == whole[n].shape and a.dtype == whole[n].dtype for n, a in change.items())
    return fits and any(a.size and a.tobytes() != whole[n].tobytes() for n, a in change.items())


def refused(engine: Caller, run: Run, to: Open, whole: Inputs, single: Answer) -> None:
    """A call that is refused in between does not show."""
    broken = (spoilt(run.case, engine.operation, rule) for rule in engine.operation.refusals if rule.shapes)
    wrong = next((case for case in broken if case), run.case)
    engine.offer(run, to, engine.inputs(wrong))
    again = engine.call(run, to, whole, single.expected)
    clause = engine.rule("instances_shared", run.case)
    engine.same(run, again, single, clause, "a refused call in between changes the bits")


def _judged(engine: Caller, run: Run, to: Open, case: Case) -> None:
    inputs = engine.inputs(case)
    engine.call(run, to, inputs, engine.oracle(case).expect(inputs))


@contextmanager
def _own(engine: Caller, case: Case) -> Iterator[Open]:
    """A session of its own, closed afterwards."""
    one = engine.prepare(engine.config(case))
    try:
        yield one
    finally:
        one.session.close()


def _drawn(case: Case) -> Callable[[int], int]:
    """Whole numbers below a given one, which follow from the case alone."""
    state = case.seed

    def below(count: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        return (state >> 33) % count

    return below


AUDITS: Mapping[str, Audit] = {
    "interleave": interleave,
    "shapes": shapes,
    "sessions": sessions,
    "concurrent": concurrent,
    "strided": strided,
    "refused": refused,
    "layouts": some_layouts,
    "every-layout": every_layout,
    "feedback": feedback,
    "kept": kept,
    "changed-in-place": changed_in_place,
    "order": order,
}
# Those that prepare sessions or make hundreds of calls: seldom drawn by the generator.
SELDOM = ("sessions", "concurrent", "every-layout", "kept", "order")

# Those that show in calls one after the other with arrays of their own, whatever memory these lie in.
BY_CALLS = ("interleave", "shapes", "sessions", "refused", "order")


# Cases and arrays that audits make of those they have


def region(array: Array, poison: str) -> Array:
    """The same values as a region of a larger, poisoned array: rows further apart, or every other element."""
    if not array.ndim:
        return array
    shape = (2 * len(array),) if array.ndim == 1 else (*array.shape[:-1], array.shape[-1] + 3)
    if array.dtype.kind in "iub":
        larger = np.full(shape, -1 if array.dtype.kind == "i" else 1, dtype=array.dtype)
    else:
        larger = Poison(poison).values(shape, array.dtype)
    view: Array = larger[::2] if array.ndim == 1 else larger[..., : array.shape[-1]]
    view[...] = array
    return view


def _plain(case: Case) -> Case:
    """The case with nothing written by hand, so that other seeds give other numbers."""
    data = {name: spec for name, spec in case.data.items() if isinstance(spec, Mapping) and "inject" not in spec}
    return msgspec.structs.replace(case, data=data, change={}, values={})
