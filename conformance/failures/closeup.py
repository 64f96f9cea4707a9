"""One case close up, for whoever debugs it: the call that went wrong, its inputs, what came back and what was due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.backends.protocol import Backend, BackendInfo, OperationConfig, Session
from conformance.errors import plural
from conformance.judging.engine import Engine, Outcome
from conformance.judging.judge import judge, type_name
from conformance.library.reading import Library
from conformance.reporting.plain import clean, line
from conformance.reporting.repeating import repeat
from conformance.spec.case import Case, summary
from reference.expected import after

Array = np.ndarray[Any, np.dtype[Any]]

AROUND = 4  # elements on either side of the worst
SMALL = 40  # elements up to which an input is printed whole
KEPT = 64  # calls that are looked through for the one that went wrong


@dataclass
class Call:
    """One call of a session."""

    number: int
    config: OperationConfig
    inputs: Mapping[str, Array]
    got: Any = None
    error: BaseException | None = None


@dataclass
class Watched:
    """A backend whose calls are kept. `on_error` gets what a call raises, before anything else does."""

    backend: Backend
    on_error: Callable[[BaseException], None] = lambda error: None
    calls: list[Call] = field(default_factory=list)
    made: int = 0

    def describe(self) -> BackendInfo | tuple[BackendInfo, ...]:
        return self.backend.describe()

    def prepare(self, config: OperationConfig) -> Session:
        try:
            return _WatchedSession(self.backend.prepare(config), self, config)
        except Exception as error:
            self.on_error(error)
            raise

    def close(self) -> None:
        from conformance.backends.protocol import close

        close(self.backend)


class _WatchedSession:
    def __init__(self, session: Session, watched: Watched, config: OperationConfig) -> None:
        self.session, self.watched, self.config = session, watched, config

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.watched.made += 1
        call = Call(self.watched.made, self.config, {name: array.copy() for name, array in inputs.items()})
        self.watched.calls = [*self.watched.calls[-KEPT + 1 :], call]
        try:
            got = self.session.run(inputs)
        except Exception as error:
            call.error = error
            self.watched.on_error(error)
            raise
        call.got = {k: np.array(v) for k, v in got.items()} if isinstance(got, Mapping) else got
        return got

    def close(self) -> None:
        self.session.close()


def closeup(
    library: Library,
    backend: Backend,
    info: BackendInfo,
    case: Case,
    *,
    connect: str,
    say: Callable[[str], None],
    readings: Mapping[str, str] | None = None,
    debug: bool = False,
) -> Outcome:
    """Run one case and `say` all about it. With `debug` the debugger starts where it goes wrong."""
    stopped: list[BaseException] = []

    def stop(error: BaseException) -> None:
        if debug and not stopped and not case.refusal:
            stopped.append(error)
            post_mortem(error)

    watched = Watched(backend, stop)
    engine = Engine(library.operation, watched, readings or {}, info)
    try:
        outcome = engine.run(case)
        call = _wrong_call(watched.calls, engine, case, outcome)
        name = library.operation.operation
        again = line(repeat(connect, case.id, readings=readings, operation=name, own=library.own))
        say("\n".join([*_lines(engine, case, outcome, call), f"to repeat: {again}"]))
        if debug and not stopped and outcome.status in ("fail", "error") and call:
            look_around(call, engine, case)
    finally:
        engine.close()
    return outcome


def _lines(engine: Engine, case: Case, outcome: Outcome, call: Call | None) -> Iterator[str]:
    yield f"{outcome.status}  {case.id}  {outcome.clause}".rstrip()
    yield f"    {line(case.says)}"
    yield f"    {line(summary(case, engine.operation))}"
    if outcome.status in ("pass", "unsupported", "not-run"):
        yield f"    {line(outcome.reason) or plural(outcome.verdicts, 'verdict')}"
        return
    yield f"    {line(str(outcome.where))}: {line(outcome.reason)}"
    if call:
        yield ""
        yield f"call {call.number}: {_configuration(call.config)}"
        yield from _inputs(call.inputs)
        yield from _around(engine, case, outcome, call)
    if outcome.detail:
        yield ""
        yield clean(outcome.detail).rstrip()
    if outcome.stderr:
        yield ""
        yield "printed:"
        yield clean(outcome.stderr).rstrip()


def _configuration(config: OperationConfig) -> str:
    parts = [f"{name}={value:g}" for name, value in config.attributes.items()]
    parts += [config.element_type, config.length_type, *(f"no {name}" for name in sorted(config.disabled))]
    return f"{config.operation} {' '.join(parts)}"


def _inputs(inputs: Mapping[str, Array]) -> Iterator[str]:
    for name, array in inputs.items():
        yield f"  {name}  {typed(array)} {list(array.shape)}"
        if array.size:
            yield from (f"    {row}" for row in shown(array).splitlines())


def typed(array: Array) -> str:
    """The element type as the contract names it: i64 of int64."""
    return f"{array.dtype.kind}{8 * array.dtype.itemsize}" if array.dtype.kind in "iu" else type_name(array.dtype)


def shown(array: Array) -> str:
    """The values of an array, whole where it is small, else its corners."""
    plain = array if array.dtype.kind in "iub" or array.dtype.itemsize == 8 else array.astype(np.float32)
    return np.array2string(plain, threshold=SMALL, edgeitems=2, max_line_width=110, precision=6)


def _around(engine: Engine, case: Case, outcome: Outcome, call: Call) -> Iterator[str]:
    """Got and wanted beside each other, in the row of the worst element."""
    worst = outcome.worst
    if worst is None or not isinstance(call.got, Mapping) or worst.output not in call.got:
        if isinstance(call.got, Mapping):
            yield "  returned " + ", ".join(f"{line(str(k))} {typed(v)} {list(v.shape)}" for k, v in call.got.items())
        return
    got = call.got[worst.output]
    expected = after(engine.oracle(case).expect(call.inputs), call.got)[worst.output]
    if got.shape != expected.shape or not worst.index or len(worst.index) != got.ndim:
        return
    want, defined = expected.fill(), expected.defined()
    *rest, at = worst.index
    yield f"  {worst.output} around {list(worst.index)}, {line(worst.region)}:"
    for i in range(max(at - AROUND, 0), min(at + AROUND + 1, got.shape[-1])):
        index = (*rest, i)
        due = f"{want[index]!s:>16}" if defined[index] else f"{'not specified':>16}"
        mark = "  <- the worst" if i == at else ""
        yield f"    {list(index)!s:<16} got {got[index]!s:>16}   wanted {due}{mark}"
    if worst.bound is not None:
        yield f"    error {worst.error:.4g}, bound {worst.bound:.4g}" if worst.error is not None else ""


def _wrong_call(calls: list[Call], engine: Engine, case: Case, outcome: Outcome) -> Call | None:
    """The latest call that raised or whose outputs are wrong; the latest of all where the fault is not in one call."""
    if outcome.status in ("pass", "unsupported", "not-run"):
        return None
    if outcome.worst is not None:
        name = outcome.worst.output
        for call in reversed(calls):
            if isinstance(call.got, Mapping) and name in call.got and _is_wrong(call, name, engine, case):
                return call
    return next((call for call in reversed(calls) if call.error is not None), calls[-1] if calls else None)


def _is_wrong(call: Call, name: str, engine: Engine, case: Case) -> bool:
    try:
        return (
            judge(name, call.got[name], after(engine.oracle(case).expect(call.inputs), call.got)[name]).status == "fail"
        )
    except Exception:
        return False  # a call that the reference cannot take was a refusal, and went wrong in another way


def post_mortem(error: BaseException) -> None:
    """The debugger, where something was raised."""
    import pdb
    import traceback

    traceback.print_exception(error)
    pdb.post_mortem(error.__traceback__)


def look_around(call: Call, engine: Engine, case: Case) -> None:
    """The debugger, with the call that went wrong at hand."""
    import bdb
    import pdb
    from contextlib import suppress

    def debug(case: Case, inputs: Mapping[str, Array], got: Any, expected: Any) -> None:
        pdb.Pdb(nosigint=True).set_trace()

    with suppress(bdb.BdbQuit):
        debug(case, call.inputs, call.got, engine.oracle(case).expect(call.inputs))
