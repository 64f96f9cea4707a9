"""Streams: a case whose tokens come in several calls, each with what the one before carried over.

Every call is judged against the reference for its own inputs; what all of them returned together, against what is due
of the single call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from conformance.judging.calling import Answer, Array, Caller, Inputs, Open, Run
from conformance.judging.outcome import Where, partition_label
from conformance.spec.case import Case
from conformance.spec.operation import Operation
from conformance.spec.streams import call_inputs, joined, spans, tokens_axis
from reference.expected import after

if TYPE_CHECKING:
    from reference.expected import Expected


def stream(engine: Caller, run: Run, to: Open, whole: Inputs, number: int, single: Answer) -> None:
    """The calls of a stream, each judged for what it was given, and what they come to against the single call."""
    case, oracle = run.case, engine.oracle(run.case)
    steps = case.streams[number]
    carried: dict[str, Array] = {}
    answer, pieces = single, []
    place = Where("stream", stream=number, label=partition_label(steps))
    for count, (start, end) in enumerate(spans(steps), 1):
        run.where = msgspec.structs.replace(place, call=count)
        inputs = call_inputs(whole, case, engine.operation, start, end, carried)
        answer = engine.call(run, to, inputs, oracle.expect(inputs))
        pieces.append(answer.got)
        carried = carry(engine.operation, answer)
    run.where = place
    ended = joined(pieces, engine.operation)
    if ended is None:
        return
    # Under a reading the number of rows, and what stands where the contract specifies nothing, may follow from the
    # cuts; the last call was judged for it. What the last stage of several is due follows from what the stream's own
    # stages before it gave.
    lasting = after(_lasting(engine, case, whole) or single.expected, ended)
    outputs = engine.operation.output
    due = {
        name: one
        if tokens_axis(outputs[name].shape, engine.operation) is not None
        else replace(one, shape=answer.expected[name].shape)
        for name, one in lasting.items()
    }
    engine.judge(run, Answer(ended, due), engine.operation.rules.split)
    bits = engine.operation.rules.same_bits
    if bits in case.clauses:
        cut = {name: array[tuple(map(slice, single.got[name].shape))] for name, array in ended.items()}
        reason = "the stream's bits differ from the single call's"
        engine.same(run, Answer(cut, due), Answer(single.got, lasting), bits, reason, "quality-warning")


def _lasting(engine: Caller, case: Case, whole: Inputs) -> Mapping[str, Expected] | None:
    """The single call's expectation without readings that specify more than the contract; None without such."""
    narrower = {r.name for r in engine.operation.readings if engine.readings.get(r.name) in r.narrower}
    if not narrower:
        return None
    readings = {name: choice for name, choice in engine.readings.items() if name not in narrower}
    return engine.operation.oracle(case.attributes, readings).expect(whole)


def carry(operation: Operation, answer: Answer) -> dict[str, Array]:
    """Ports of the next call: the outputs as they came, or the reference's where a backend returns none.

    Copies, so that a backend that writes into its old outputs is not taken for one that modifies its inputs.
    """
    carried = {}
    for port, output in operation.carried.items():
        got = answer.got.get(output)
        carried[port] = answer.expected[output].fill(np.nan) if got is None else got.copy()
    return carried
