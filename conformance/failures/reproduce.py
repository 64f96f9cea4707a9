"""A failure as a script of its own: inputs, what is due, and a comparison, in NumPy alone.

Which calls a script makes and how it is put together stands here; how arrays are written in `script_arrays`, what is
due of an output in `script_due`, and the functions that a script is given in `script_helpers`.
"""

from __future__ import annotations

import re
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from conformance import __version__
from conformance.errors import UsageError
from conformance.failures.calls import Made, failing, made
from conformance.failures.script_arrays import BF16, Arrays, number, numpy_name
from conformance.failures.script_due import Due
from conformance.failures.script_helpers import CHOICE, HELPERS, SEEN, UNPACK, WRONG, WRONG_WHOLE
from conformance.judging.calling import Array
from conformance.judging.outcome import Kind
from conformance.record.recorded import Recorded
from conformance.record.records import info_of
from conformance.spec.case import summary
from conformance.spec.operation import Operation
from conformance.spec.types import dtype, is_integer

LINES = 66  # that a script has at most
CALLS, EARLY = 8, 2  # calls of a script, and how many of them are the first ones when there are more
AGAIN = 3  # more calls of the last kind when its bits differ: what alternates is right every other time
MOST = 8_000_000  # characters of a script
WIDTH = 116

AS_NAMED = "got = got if isinstance(got, dict) else dict(zip(due, got if isinstance(got, (tuple, list)) else [got]))"
CHOSEN_WELL = "problems = problems or [p for name, *row in choices if (p := unfit(name, got[name], *row))]"
VERDICT = [
    'print("\\n".join(f"wrong: {problem}" for problem in problems) or "right")',
    "sys.exit(bool(problems))",
]


def script(found: Recorded, operation: Operation, function: str = "") -> str:
    """The script for a failure. `function` is MODULE:NAME or FILE.py:NAME; when empty, there is a place to put one in.

    Raises `UsageError` when a function alone cannot show the failure.
    """
    case, outcome, readings = found.case, found.outcome, found.log.header.readings
    warned = outcome.status == "quality-warning"
    if case.refusal and (warned or outcome.status == "error" or outcome.sort in (Kind.EARLY, Kind.LATE)):
        raise _unshowable(found, "it is about the kind of a refusal, which a function has no way to say")
    if warned and (outcome.worst is None or outcome.worst.bound is None):
        raise _unshowable(found, "it holds the bits of two answers against each other, and both are right")
    if case.refusal:
        writer = _Writer(found, operation, case.element_type)
        return writer.script(function, *writer.refusal())
    info = info_of(found.log.header)
    before = [first for one in found.before for first in made(one, operation, readings, info)[:1]]
    if outcome.sort is Kind.ALONE and before:  # as what it is when those have come before
        outcome = msgspec.structs.replace(outcome, kind=Kind.VALUE if outcome.worst else Kind.DIFFERS)
    calls = failing(case, outcome, operation, readings, info)
    if not calls and outcome.sort is Kind.ALONE:
        raise _unshowable(found, "it passes alone, and it is not known after which cases it fails")
    if not calls:
        raise _unshowable(found, "it shows in no call of its own")
    writer = _Writer(found, operation, calls[-1].config.element_type)
    calls = [*before, *calls]
    # Several calls also show whether inputs and earlier outputs stay as they are.
    alone = len(calls) == 1 and outcome.sort not in (Kind.MODIFIED, Kind.CHANGED)
    return writer.script(function, *(writer.single(calls[0]) if alone else writer.several(calls)))


def _unshowable(found: Recorded, why: str) -> UsageError:
    outcome = found.outcome
    return UsageError(f"{found.case.id} cannot be shown by a script: {why} ({outcome.where}: {outcome.reason})")


def function_name(operation: Operation) -> str:
    """The operation's name as that of a function."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", operation.operation).lower()


class _Writer:
    """Writes one script; T is the type of the call that is wrong."""

    def __init__(self, found: Recorded, operation: Operation, element_type: str) -> None:
        self.found, self.operation, self.case = found, operation, found.case
        self.name = function_name(operation)
        self.arrays = Arrays(found.case, operation, element_type)
        self.due = Due(found, operation, self.arrays)
        self.bf16 = self.arrays.type == BF16
        self.whole_numbers = all(is_integer(dtype(operation.type_of(o.type, self.case))) for o in operation.outputs)
        self.chooses = False

    # The whole

    def script(self, function: str, inputs: list[str], body: list[str]) -> str:
        """All of it; `inputs` are lines that may be put together. Raises `UsageError` when it gets too large."""
        helpers = [helper for helper in HELPERS if helper in self.arrays.needs]
        if "wrong(" in "".join(body) and self.whole_numbers:
            helpers.append(WRONG_WHOLE)
        elif "wrong(" in "".join(body):
            wide = (
                "(got.ravel()[at] if kind != T else (got.ravel()[at].astype(np.uint32) << 16).view(np.float32))"
                if self.bf16
                else "got.ravel()[at]"
            )
            helpers.append(WRONG.replace("WIDE", wide))
        if "unfit(" in "".join(body):
            helpers.append(CHOICE)
        if "seen(" in "".join(body):
            nans = "(x & 0x7FFF) > 0x7F80 if x.dtype == T else x != x" if self.bf16 else "x != x"
            helpers.append(SEEN.replace("NANS", nans))
        above = [
            *self._docstring(),
            "import base64, sys, zlib" if UNPACK in helpers else "import sys",
            "import numpy as np",
            *self._function(function),
            "",
            f"T, TOP, nan, inf = {numpy_name(self.arrays.type)}, {self.arrays.top!r}, np.nan, np.inf",
            *(line for helper in helpers for line in helper.strip().splitlines()),
            "",
        ]
        text = "\n".join([*above, *_together(inputs, LINES - len(above) - len(body)), *body]) + "\n"
        if len(text) > MOST:
            raise _unshowable(
                self.found, f"it would have {len(text) / 1e6:.0f} million characters; shrink the case first"
            )
        return text

    def _docstring(self) -> list[str]:
        outcome = self.found.outcome
        clause = self.operation.clause.get(outcome.clause)
        lines = [
            f"{self.operation.operation} on {self.found.source}: {self.case.id}",
            *([textwrap.shorten(f"{clause.id}: {clause.says}", WIDTH)] if clause else []),
            *textwrap.wrap(textwrap.shorten(f"{outcome.where}: {outcome.reason}", 2 * WIDTH - 20), WIDTH),
            textwrap.shorten(summary(self.case, self.operation), WIDTH),
            f"It needs NumPy alone. Exit code 0: right, 1: wrong, 2: no function yet. qsa-conformance {__version__}.",
        ]
        text = "\n".join(lines).replace("\\", "/").replace('"', "'")
        return f'"""{text}"""'.splitlines()

    def _function(self, function: str) -> list[str]:
        if function:
            return _import(function, self.name)
        ports = [f"{port.name}=None" if port.optional else port.name for port in self.operation.ports]
        given = ", ".join([*ports, "*", *self.case.attributes])
        bits = "; bf16 numbers come and go as uint16 bits" if self.bf16 else ""
        return [
            "",
            *textwrap.wrap(f"def {self.name}({given}):", WIDTH, subsequent_indent="    "),
            f"    # PUT YOUR FUNCTION HERE. It returns its outputs in their order, or by name{bits}.",
            f'    sys.exit(print("put your function into this script, as {self.name}") or 2)',
        ]

    # Inputs, and what is done with them

    def single(self, call: Made) -> tuple[list[str], list[str]]:
        """One call."""
        return self._named(call.inputs), [
            "due = {  # shape; places in the flat array that are judged, their values, the largest errors",
            *self.due.lines(call),
            "}",
            f"got = {self.name}(**inputs, {_settings(call.config.attributes)})",
            AS_NAMED,
            "problems = [problem for name in due if (problem := wrong(name, got.get(name), *due[name]))]",
            *self._choices([call]),
            *([CHOSEN_WELL] if self.chooses else []),
            *VERDICT,
        ]

    def _choices(self, calls: Sequence[Made]) -> list[str]:
        """Lines that judge rows of choices, of every call the worst one or the first few: a list for each call."""
        rows = [self.due.rows(call) for call in calls]
        self.chooses = any(rows)
        if not self.chooses:
            return []
        lines = [f"    {', '.join(one)}," for one in rows if one]
        if len(rows) > 1:
            lines = [f"    [{', '.join(one)}]," for one in rows]
        return [
            "choices = [  # output; place of the first entry; entries; scores; errors; is the smaller of equals due",
            *_together(["", *lines, ""], 3)[1:-1],
            "]",
        ]

    def several(self, calls: Sequence[Made]) -> tuple[list[str], list[str]]:
        """Calls one after the other: each is judged, and its bits are held against those of its equals before."""
        bits = self.due.bits_differ(calls[-1])
        if bits:
            calls = [calls[0], calls[-1]]
        elif len(calls) > CALLS:
            calls = [*calls[:EARLY], *calls[EARLY - CALLS :]]
        again = AGAIN * (self.found.outcome.sort is Kind.DIFFERS)
        pool: dict[tuple[bytes, str, tuple[int, ...]], int] = {}
        arrays: list[str] = []
        lines = []
        for call in calls:
            places: list[int | None] = []
            for port in self.operation.ports:
                array = call.inputs.get(port.name)
                if array is None:
                    places.append(None)
                    continue
                key = (array.tobytes(), array.dtype.name, array.shape)
                if key not in pool:
                    pool[key] = len(arrays)
                    arrays.append(f"    {self.arrays.of(array)},")
                places.append(pool[key])
            # Of a call of another type, or one to be refused, which only has to come before, nothing is judged.
            judged = call.config.element_type == self.arrays.element_type and not call.refused
            due = " ".join(line.strip() for line in self.due.lines(call, only_worst=bits)) if judged else ""
            settings = _settings(call.config.attributes)
            equals = "all" if bits else _short(f"{settings} {places}")
            held = self.due.held(call, only_worst=bits) if judged else ""
            lines.append(f'    ("{equals}", dict({settings}), {places}, {{{due}}}, {{{held}}}),')
        ports = " ".join(port.name for port in self.operation.ports)
        call_lines = [f"    got = {self.name}(**given, **settings)"]
        if any(call.refused for call in calls):
            call_lines = [
                f"    try: got = {self.name}(**given, **settings)",
                "    except Exception:  # some are to be refused",
                "        if due: raise",
                "        continue",
            ]
        every = f"calls + calls[-1:] * {again}" if again else "calls"
        return ["arrays = [", *arrays, "]"], [
            "calls = [  # equals; attributes; inputs; outputs: shape, places, values, largest errors; places of bits",
            *_together(["", *lines, ""], CALLS // 2)[1:-1],
            "]",
            *self._choices(calls),
            f'ports, problems, before, returned = "{ports}".split(), [], {{}}, []',
            f"for number, (equals, settings, places, due, held) in enumerate({every}, 1):",
            "    given = {name: arrays[i].copy() for name, i in zip(ports, places) if i is not None}",
            *call_lines,
            f"    {AS_NAMED}",
            "    changed = [n for n, x in given.items() if x.tobytes() != arrays[places[ports.index(n)]].tobytes()]",
            '    problems += [f"call {number} modifies its input {name}" for name in changed]',
            '    problems += [f"call {number}: {p}" for n in due if (p := wrong(n, got.get(n), *due[n]))]',
            *(
                [f"    {CHOSEN_WELL.replace('in choices', 'in choices[min(number, len(choices)) - 1]')}"]
                if self.chooses
                else []
            ),
            "    bits = [] if problems else [seen(got[n], at) for n, at in held.items()]",
            "    if before.setdefault(equals, bits) != bits:",
            '        problems.append(f"call {number} returns different bits than the identical call before it")',
            "    returned += [(number, n, x, x.tobytes()) for n, x in got.items()]",
            'problems += [f"{n} of call {c} changed later" for c, n, x, bits in returned if x.tobytes() != bits]',
            *VERDICT,
        ]

    def refusal(self) -> tuple[list[str], list[str]]:
        """One call that is to be refused."""
        due = self.case.refusal
        assert due
        return self._named(self.arrays.whole), [
            "try:",
            f"    {self.name}(**inputs, {_settings(self.case.attributes)})",
            "except Exception as error:",
            '    print(f"right: it refuses, with {type(error).__name__}: {error}")',
            "    sys.exit(0)",
            f'print("wrong: it computes, where {", ".join(due.names)} must be refused ({due.kind})")',
            "sys.exit(1)",
        ]

    def _named(self, inputs: Mapping[str, Array]) -> list[str]:
        return ["inputs = {", *(f'    "{name}": {self.arrays.of(array, name)},' for name, array in inputs.items()), "}"]


def _together(lines: list[str], room: int) -> list[str]:
    """Lines of a list, the shortest neighbours joined until there is room for them."""
    first, *items, last = lines
    while len(items) > 1 and len(items) + 2 > room:
        i = min(range(len(items) - 1), key=lambda i: len(items[i]) + len(items[i + 1]))
        items[i : i + 2] = [f"{items[i]} {items[i + 1].strip()}"]
    return [first, *items, last]


def _settings(attributes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={number(value)}" for name, value in attributes.items())


def _short(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _import(function: str, name: str) -> list[str]:
    module, colon, attribute = function.rpartition(":")
    path = Path(module)
    stem = path.stem if module.endswith(".py") else module
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in stem.split(".")):
        raise UsageError(f"'{function}' names no function; write MODULE:NAME or FILE.py:NAME")
    folder = [f"sys.path.insert(0, {str(path.resolve().parent)!r})"] if module.endswith(".py") else []
    return [*folder, f"from {stem} import {attribute} as {name}"]
