"""Audits of memory: what the arrays of a call lie in, and what the caller may do with them between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from conformance.judging import layouts
from conformance.judging.calling import Answer, Array, Caller, Inapplicable, Inputs, Open, Run, Stop
from conformance.judging.outcome import Kind, Where
from conformance.spec.case import Case
from conformance.spec.inputs import Poison
from conformance.spec.streams import call_inputs

DRAWN = 6  # layouts that are tried when not all are


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


def _drawn(case: Case) -> Callable[[int], int]:
    """Whole numbers below a given one, which follow from the case alone."""
    state = case.seed

    def below(count: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        return (state >> 33) % count

    return below


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
