"""A failure as a script of its own: inputs, what is due, and a comparison, in NumPy alone.

Small arrays are written out. Large ones are drawn again by the counter formula where that is exact, and packed
otherwise; every expression is tried out before it is written. Outputs that are large are judged in places.
"""

from __future__ import annotations

import base64
import inspect
import re
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from conformance import __version__
from conformance.errors import UsageError
from conformance.failures.calls import Made, failing, made
from conformance.judging.calling import Array
from conformance.judging.outcome import Kind
from conformance.record.recorded import Recorded
from conformance.record.records import info_of
from conformance.spec import aims
from conformance.spec.case import summary
from conformance.spec.inputs import inputs_of
from conformance.spec.operation import Operation
from conformance.spec.streams import spans
from conformance.spec.types import dtype, is_integer, smallest_normal
from reference.chosen import Chosen, Repeated
from reference.expected import Expected
from reference.parts import Fed, elements

LINES = 66  # that a script has at most
WRITTEN = 48  # elements that are written out
ROWS = 4  # rows of choices that are judged when none is the worst
JUDGED = 240  # elements of an output that are judged when there are more
CALLS, EARLY = 8, 2  # calls of a script, and how many of them are the first ones when there are more
AGAIN = 3  # more calls of the last kind when its bits differ: what alternates is right every other time
MOST = 8_000_000  # characters of a script
WIDTH = 116
BF16 = np.dtype(ml_dtypes.bfloat16)

# Helpers that a script is given when it needs them.

UNPACK = """
def unpack(t, kind, *shape): return np.frombuffer(zlib.decompress(base64.b64decode(t)), kind).reshape(shape).copy()
"""
NUMBERS = """
def numbers(start, shape):  # SplitMix64
    z = (np.arange(1, np.prod(shape) + 1, dtype=np.uint64) + np.uint64(start)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z
"""
UNIT = """
def unit(start, *shape): return ((numbers(start, shape) >> np.uint64(11)) * 2.0**-53).reshape(shape)
"""
BELL = """
def bell(start, *shape):
    total = numbers(start, shape).view(np.uint16).reshape(-1, 4).sum(1, dtype=np.uint32)
    return ((total - 131070.0) * (1.7320508075688772 / 65536.0)).reshape(shape)
"""
IGNORE = """
def ignore(x, mask, *values):  # other numbers in rows that have no effect
    rows = np.unpackbits(unpack(mask, np.uint8, -1), count=x.shape[0] * x.shape[1]).reshape(x.shape[:2]) == 1
    x[rows] = np.resize(values, x[rows].shape)
    return x
"""
NARROW = """
def narrow(x):  # to bf16: the upper half of a float32, rounded to even, as uint16
    bits = np.array(x, np.float32).view(np.uint32)
    return np.where(np.isnan(x), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
"""
WRONG = """
def wrong(name, got, shape, at, want, bound, kind=T):  # "" when the elements `at` are right; bound 0: the same bits
    got, at, want, bound = np.asarray(got), np.array(at, int), np.array(want, float), np.array(bound, float)
    if got.dtype != kind or (got.shape != shape and (got.size or shape != (0,))):
        return f"{name} is {got.dtype}{list(got.shape)}, not {np.dtype(kind)}{list(shape)}"
    x = WIDE.astype(float)
    with np.errstate(all="ignore"):
        off, over = abs(x - want), np.isinf(x) & (x * want > 0) & (abs(want) + bound > TOP) & (bound > 0)
        same = (x == want) & (np.signbit(x) == np.signbit(want)) | (x != x) & (want != want)
        share = np.where(same | over, 0, np.nan_to_num(off / bound, nan=np.inf))
    i = share.argmax() if share.max(initial=0) > 1 else None
    place = "" if i is None else [*map(int, np.unravel_index(at[i], shape))]
    return place and f"{name}{place} is {x[i]:.9g}, not {want[i]:.9g}: off by {off[i]:.3g}, allowed {bound[i]:.3g}"
"""
WRONG_WHOLE = """
def wrong(name, got, shape, at, want, bound, kind):  # "" when the elements `at` are right; a bound: judged below
    got = np.asarray(got)
    if got.dtype != kind or got.shape != shape:
        return f"{name} is {got.dtype}{list(got.shape)}, not {np.dtype(kind)}{list(shape)}"
    off = [(i, w) for i, w, b in zip(at, want, bound) if not b and got.flat[i] != w]
    place = off and [*map(int, np.unravel_index(off[0][0], shape))]
    return off and f"{name}{place} is {got.flat[off[0][0]]}, not {off[0][1]:g}"
"""
CHOICE = """
def unfit(name, got, start, count, score, error, ties):  # "" when `count` entries from `start` on are a right choice
    got, V = np.ravel(got)[start : start + count].tolist(), len(score)
    if len(set(got)) < count or min(got) < 0 or max(got) >= V:
        return f"{name} {got} are not {count} different ones of 0 to {V - 1}"
    for a, u in [(a, u) for a in got for u in range(V) if u not in got]:
        tie = ties and u < a and score[a] == score[u] and error[a] == error[u] == 0
        if tie or score[a] + error[a] < score[u] - error[u]:
            return f"{name} {got}: {a} scores {score[a]:.9g} and is taken, {u} scores {score[u]:.9g} and is left out"
"""
SEEN = """
def seen(x, at):  # the bits of what is specified; one NaN is as good as another
    x, nan = (x := np.ravel(x)[at]), NANS
    return np.where(nan, 0, x).astype(x.dtype).tobytes(), nan.tobytes()
"""
HELPERS = (UNPACK, NUMBERS, UNIT, BELL, IGNORE, NARROW)
NEEDS: Mapping[str, tuple[str, ...]] = {
    "unit(": (NUMBERS, UNIT),
    "bell(": (NUMBERS, BELL),
    "ignore(": (UNPACK, IGNORE),
    "narrow(": (NARROW,),
    "unpack(": (UNPACK,),
}

AS_NAMED = "got = got if isinstance(got, dict) else dict(zip(due, got if isinstance(got, (tuple, list)) else [got]))"
CHOSEN_WELL = "problems = problems or [p for name, *row in choices if (p := unfit(name, got[name], *row))]"
VERDICT = [
    'print("\\n".join(f"wrong: {problem}" for problem in problems) or "right")',
    "sys.exit(bool(problems))",
]

# Exact arithmetic alone: what a cosine or a power is may differ from machine to machine.
AIMS: Mapping[str, str] = {
    "bell": "{bell} * {scale} + {offset}",
    "uniform": "{low} + {unit} * ({high} - {low})",
    "integers": "np.floor({low} + {unit} * ({high} - {low} + 1))",
    "constant": "np.full({shape}, {value}, float)",
    "choice": "np.array({values}, float)[np.floor({unit} * {count}).astype(int)]",
    "subnormal": "({unit} * 2 - 1) * {tiny} * {scale}",
    "near_largest": "np.where({unit} < 0.5, -1.0, 1.0) * TOP * {share}",
    "spikes": "np.where({other_unit} < 1.0 / {every}, {bell} * {size}, 0.0)",
}


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
    alone = len(calls) == 1 and outcome.sort not in (
        Kind.MODIFIED,
        Kind.CHANGED,
    )  # by which inputs and earlier outputs stay as they are
    return writer.script(function, *(writer.single(calls[0]) if alone else writer.several(calls)))


def _unshowable(found: Recorded, why: str) -> UsageError:
    outcome = found.outcome
    return UsageError(f"{found.case.id} cannot be shown by a script: {why} ({outcome.where}: {outcome.reason})")


def function_name(operation: Operation) -> str:
    """The operation's name as that of a function."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", operation.operation).lower()


class _Writer:
    """Writes the parts of one script, and notes the helpers that they need; T is the type of the call that is wrong."""

    def __init__(self, found: Recorded, operation: Operation, element_type: str) -> None:
        self.found, self.operation, self.case = found, operation, found.case
        self.name = function_name(operation)
        self.element_type, self.type = element_type, dtype(element_type)
        self.top = float(ml_dtypes.finfo(self.type).max)
        self.whole = inputs_of(self.case, operation)
        self.whole_numbers = all(is_integer(dtype(operation.type_of(o.type, self.case))) for o in operation.outputs)
        self.chooses = False
        self.needs: set[str] = set()
        self.names = {"np": np, "zlib": zlib, "base64": base64, "nan": np.nan, "inf": np.inf, "TOP": self.top}
        self.names["T"] = np.dtype(np.uint16) if self.type == BF16 else self.type
        for helper in HELPERS:
            exec(helper, self.names)  # to try expressions out

    # The whole

    def script(self, function: str, inputs: list[str], body: list[str]) -> str:
        """All of it; `inputs` are lines that may be put together. Raises `UsageError` when it gets too large."""
        helpers = [helper for helper in HELPERS if helper in self.needs]
        if "wrong(" in "".join(body) and self.whole_numbers:
            helpers.append(WRONG_WHOLE)
        elif "wrong(" in "".join(body):
            wide = (
                "(got.ravel()[at] if kind != T else (got.ravel()[at].astype(np.uint32) << 16).view(np.float32))"
                if self.type == BF16
                else "got.ravel()[at]"
            )
            helpers.append(WRONG.replace("WIDE", wide))
        if "unfit(" in "".join(body):
            helpers.append(CHOICE)
        if "seen(" in "".join(body):
            nans = "(x & 0x7FFF) > 0x7F80 if x.dtype == T else x != x" if self.type == BF16 else "x != x"
            helpers.append(SEEN.replace("NANS", nans))
        above = [
            *self._docstring(),
            "import base64, sys, zlib" if UNPACK in helpers else "import sys",
            "import numpy as np",
            *self._function(function),
            "",
            f"T, TOP, nan, inf = {_numpy(self.type)}, {self.top!r}, np.nan, np.inf",
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
        bits = "; bf16 numbers come and go as uint16 bits" if self.type == BF16 else ""
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
            *self._due(call),
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
        rows = [self._rows(call) for call in calls]
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

    def _rows(self, call: Made) -> list[str]:
        if call.refused or call.config.element_type != self.element_type:
            return []
        return [
            self._row(name, expected, part, unit)
            for name, expected in self._expect(call).items()
            for part in expected.parts
            if isinstance(part, Chosen)
            for unit in self._units(name, part)
        ]

    def _units(self, name: str, part: Chosen) -> list[int]:
        worst = self.found.outcome.worst
        index = np.stack([np.asarray(one) for one in part.index], axis=1)
        if worst and worst.output == name and len(worst.index) == index.shape[1]:
            found = np.flatnonzero((index == worst.index).all(axis=1))
            if len(found):
                return [int(found[0])]
        return list(range(min(len(index), ROWS)))

    def _row(self, name: str, expected: Expected, part: Chosen, unit: int) -> str:
        score, error, ties = part.ranking.scores(int(part.rows[unit]))
        start = np.ravel_multi_index((*(int(one[unit]) for one in part.index), 0), expected.shape)
        arrays = (_nested(a) if a.size <= WRITTEN else f"{self._packed(a)}.tolist()" for a in (score, error))
        return f'("{name}", {start}, {int(part.count[unit])}, {", ".join(arrays)}, {ties})'

    def several(self, calls: Sequence[Made]) -> tuple[list[str], list[str]]:
        """Calls one after the other: each is judged, and its bits are held against those of its equals before."""
        bits = self._bits_differ(calls[-1])
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
                    arrays.append(f"    {self._array(array)},")
                places.append(pool[key])
            # Of a call of another type, or one to be refused, which only has to come before, nothing is judged.
            judged = call.config.element_type == self.element_type and not call.refused
            due = " ".join(line.strip() for line in self._due(call, only_worst=bits)) if judged else ""
            settings = _settings(call.config.attributes)
            equals = "all" if bits else _short(f"{settings} {places}")
            held = self._held(call, only_worst=bits) if judged else ""
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
            '        problems.append(f"call {number} gives other bits than its equal before")',
            "    returned += [(number, n, x, x.tobytes()) for n, x in got.items()]",
            'problems += [f"{n} of call {c} changed later" for c, n, x, bits in returned if x.tobytes() != bits]',
            *VERDICT,
        ]

    def refusal(self) -> tuple[list[str], list[str]]:
        """One call that is to be refused."""
        due = self.case.refusal
        assert due
        return self._named(self.whole), [
            "try:",
            f"    {self.name}(**inputs, {_settings(self.case.attributes)})",
            "except Exception as error:",
            '    print(f"right: it refuses, with {type(error).__name__}: {error}")',
            "    sys.exit(0)",
            f'print("wrong: it computes, where {", ".join(due.names)} must be refused ({due.kind})")',
            "sys.exit(1)",
        ]

    def _named(self, inputs: Mapping[str, Array]) -> list[str]:
        return ["inputs = {", *(f'    "{name}": {self._array(array, name)},' for name, array in inputs.items()), "}"]

    # Arrays

    def _array(self, array: Array, port: str = "") -> str:
        """An expression for an input, which is drawn again if its port is named."""
        for text in (self._literal(array), self._drawn(array, port) if port else ""):
            if text and self._gives(text, array):
                return self._noted(text)
        return self._packed(array)

    def _noted(self, text: str) -> str:
        """An expression; the helpers that it calls are needed."""
        self.needs |= {helper for name, helpers in NEEDS.items() if name in text for helper in helpers}
        return text

    def _gives(self, text: str, array: Array) -> bool:
        """Whether an expression gives the bits of an array, but for those of NaN."""
        with np.errstate(all="ignore"):
            got = np.asarray(eval(text, self.names))
        if array.dtype == BF16 and got.dtype == np.uint16:
            got = got.view(BF16)
        if got.dtype != array.dtype or got.shape != array.shape:
            return False
        if array.dtype.kind in "iu":
            return bool((got == array).all())
        a, b = got.astype(np.float64), array.astype(np.float64)
        same: Array = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        return bool(same.all())

    def _literal(self, array: Array) -> str:
        """The numbers themselves, when they are few or all the same."""
        if not array.size:
            return f"np.zeros({array.shape}, {self._kind(array)})"
        if array.size > 4 and len({value.tobytes() for value in array.ravel()[: WRITTEN + 1]}) == 1:
            text = f"np.full({array.shape}, {_number(array.ravel()[0])}"
        elif array.size > WRITTEN:
            return ""
        else:
            text = f"np.array({_nested(array)}"
        return f"narrow({text}))" if array.dtype == BF16 else f"{text}, {self._kind(array)})"

    def _drawn(self, array: Array, name: str) -> str:
        """The counter formula of a port: of the whole, or of the tokens of a call."""
        port = self.operation.port[name]
        spec = self.case.data.get(name, port.aim)
        if port.type != "T" or not isinstance(spec, dict) or "inject" in spec or spec.get("aim", "bell") not in AIMS:
            return ""
        whole, cut = self.whole[name], ""
        if array.shape != whole.shape:
            edges = [edge for stream in self.case.streams for edge in spans(stream)]
            cuts = [f"[:, {a}:{b}]" for a, b in edges if port.shape[1:2] == (self.operation.tokens,)
                    and array.tobytes() == whole[:, a:b].tobytes()]  # fmt: skip
            if not cuts:
                return ""
            cut = cuts[0]
        text = self._aim(name, spec, whole.shape)
        ignored = self._ignored(name)
        if ignored.any():
            values = {"mixed": "nan, TOP, -TOP", "nan": "nan", "huge": "TOP, -TOP", "zero": "0.0"}[self.case.poison]
            text = f'ignore({text}, "{_pack(np.packbits(ignored))}", {values})'
        return (f"narrow({text})" if self.type == BF16 else f"({text}).astype(T)") + cut

    def _aim(self, name: str, spec: Mapping[str, Any], shape: tuple[int, ...]) -> str:
        aim = str(spec.get("aim", "bell"))
        known = list(inspect.signature(aims.AIMS[aim]).parameters.values())[1:]
        parameters = {one.name: one.default for one in known} | {k: v for k, v in spec.items() if k != "aim"}
        sizes = ", ".join(map(str, shape))
        start, other = (hex(aims.start_of(self.case.seed, name, stream)) for stream in (0, 1))
        values = {key: repr(value) for key, value in parameters.items()}
        values |= {
            "shape": repr(shape),
            "unit": f"unit({start}, {sizes})",
            "other_unit": f"unit({other}, {sizes})",
            "bell": f"bell({start}, {sizes})",
            "count": str(len(parameters.get("values", ()))),
            "tiny": repr(smallest_normal(self.type)),
        }
        return AIMS[aim].format(**values).replace(" * 1.0 + 0.0", "").replace(" + 0.0", "")

    def _ignored(self, name: str) -> Array:
        """Mask over the first two axes of a port's elements that are not read."""
        poisoned, zeroed = (
            inputs_of(msgspec.structs.replace(self.case, poison=poison, change={}), self.operation)[name]
            for poison in ("nan", "zero")
        )
        mask: Array = np.isnan(poisoned.astype(np.float64)) & ~np.isnan(zeroed.astype(np.float64))
        return mask[..., 0] if mask.ndim > 2 and mask.size else mask

    def _packed(self, array: Array) -> str:
        sizes = ", ".join(map(str, array.shape))
        return self._noted(f'unpack("{_pack(array)}", {self._kind(array)}, {sizes})')

    def _kind(self, array: Array) -> str:
        return "T" if array.dtype == self.type else _numpy(array.dtype)

    # What is due

    def _bits_differ(self, call: Made) -> bool:
        """Whether the worst element is within its bound, and its bits are not those of the single call."""
        worst = self.found.outcome.worst
        if worst is None or worst.bound is not None:
            return False
        expected = self.operation.oracle(call.config.attributes, self.found.log.header.readings).expect(call.inputs)
        _, bound = _flat(expected[worst.output])
        shape = expected[worst.output].shape
        return _within(worst.index, shape) and bool(bound[np.ravel_multi_index(worst.index, shape)] > 0)

    def _held(self, call: Made, *, only_worst: bool) -> str:
        """The places of every output whose bits are those of an equal call: whatever is specified, in bounds or not."""
        expected, worst = self._expect(call), self.found.outcome.worst
        if only_worst:
            assert worst
            return f'"{worst.output}": [{np.ravel_multi_index(worst.index, expected[worst.output].shape)}]'
        found = []
        for name, one in expected.items():
            mask = _specified(one)
            few = str(np.flatnonzero(mask).tolist()) if mask.sum() <= WRITTEN else ""
            packed = "" if few or mask.all() else f"np.unpackbits({self._packed(np.packbits(mask))})[: {mask.size}] > 0"
            found.append(f'"{name}": {few or packed or "slice(None)"}')
        return ", ".join(found)

    def _expect(self, call: Made) -> Mapping[str, Expected]:
        readings = self.found.log.header.readings
        expected = self.operation.oracle(call.config.attributes, readings).expect(call.inputs)
        return {name: expected[name] for name in self.found.log.header.backend.outputs}

    def _due(self, call: Made, *, only_worst: bool = False) -> list[str]:
        """A line for every output: shape, places, values and largest errors."""
        expected = self._expect(call)
        worst = self.found.outcome.worst
        lines = []
        for name in self.found.log.header.backend.outputs:
            index = worst.index if worst and worst.output == name else ()
            lines.append(f'    "{name}": {self._expected(expected[name], index, only=only_worst)},')
        return lines

    def _expected(self, expected: Expected, worst: tuple[int, ...], *, only: bool) -> str:
        want, bound = _flat(expected, quality=self.found.outcome.status == "quality-warning")
        at = _chosen(_judged(expected, bound).reshape(expected.shape), worst)
        kind = "" if expected.dtype == self.type else f", {_numpy(expected.dtype)}"
        if only:
            at = at[at == np.ravel_multi_index(worst, expected.shape)] if worst else at[:0]
        values, limits = want[at], bound[at]
        if at.size > WRITTEN:
            return f"({expected.shape}, {', '.join(map(self._packed, (at, values, limits)))}{kind})"
        short = [value if not limit else float(f"{value:.12g}") for value, limit in zip(values, limits, strict=True)]
        shown = [float(f"{limit * (1 + 5e-5):.4g}") for limit in limits]  # rounded up
        places = f"range({at.size})" if at.size > 4 and at[-1] == at.size - 1 else str(at.tolist())
        return f"({expected.shape}, {places}, {_nested(np.array(short))}, {_nested(np.array(shown))}{kind})"


def _flat(expected: Expected, *, quality: bool = False) -> tuple[Array, Array]:
    """Values and bounds of a whole output, flat: 0 for copies, infinite for what is not judged."""
    want = np.zeros(expected.shape)
    bound = np.full(expected.shape, np.inf)
    for part in expected.parts:
        limits = elements(part, recommended=quality)
        if isinstance(part, Chosen):
            want[part.index] = part.value
        if limits is not None:
            # Where parts overlap the first one counts that judges an element at all.
            free = np.isinf(bound[part.index])
            want[part.index] = np.where(free, limits[0], want[part.index])
            bound[part.index] = np.where(free, limits[1], bound[part.index])
    return want.ravel(), bound.ravel()


def _specified(expected: Expected) -> Array:
    """Mask of the elements that an equal call gives again, flat."""
    mask = np.zeros(expected.shape, dtype=bool)
    for part in expected.parts:
        inner = part.part if isinstance(part, Fed) else part
        mask[part.index] |= (
            np.arange(inner.value.shape[1]) < inner.count[:, None] if isinstance(inner, Chosen | Repeated) else True
        )
    return mask.ravel()


def _judged(expected: Expected, bound: Array) -> Array:
    """Mask of the elements whose bits are looked at, flat: those with a bound, and the entries of choices."""
    judged = np.isfinite(bound).reshape(expected.shape)
    for part in expected.parts:
        if isinstance(part, Chosen):
            judged[part.index] |= np.arange(part.value.shape[1]) < part.count[:, None]
    return judged.ravel()


def _chosen(judged: Array, worst: tuple[int, ...]) -> Array:
    """Places, in the flat output, of the elements to judge: around the worst one, and a spread over all others."""
    places = np.flatnonzero(judged)
    if len(places) <= JUDGED:
        return places
    spread = places[np.linspace(0, len(places) - 1, JUDGED - WRITTEN).astype(np.int64)]
    if not _within(worst, judged.shape):
        return spread
    here = int(np.ravel_multi_index(worst, judged.shape))
    return np.unique(np.concatenate([spread, places[abs(places - here) <= WRITTEN // 2]]))


def _within(index: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of the shape has an element there."""
    return len(index) == len(shape) and all(i < size for i, size in zip(index, shape, strict=True))


def _together(lines: list[str], room: int) -> list[str]:
    """Lines of a list, the shortest neighbours joined until there is room for them."""
    first, *items, last = lines
    while len(items) > 1 and len(items) + 2 > room:
        i = min(range(len(items) - 1), key=lambda i: len(items[i]) + len(items[i + 1]))
        items[i : i + 2] = [f"{items[i]} {items[i + 1].strip()}"]
    return [first, *items, last]


def _settings(attributes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_number(value)}" for name, value in attributes.items())


def _short(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _number(value: Any) -> str:
    """A number with as few digits as give it again in its type."""
    if isinstance(value, np.generic) and value.dtype in (np.float32, np.float16, BF16):
        short = float(str(value))
        return repr(short if np.asarray(short).astype(value.dtype) == value else float(value))
    return repr(value.item() if isinstance(value, np.generic) else value)


def _nested(array: Array) -> str:
    return f"[{', '.join(map(_nested, array))}]" if array.ndim else _number(array[()])


def _numpy(dtype: np.dtype[Any]) -> str:
    return "np.uint16" if dtype == BF16 else f"np.{dtype.name}"


def _pack(array: Array) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def _import(function: str, name: str) -> list[str]:
    module, colon, attribute = function.rpartition(":")
    path = Path(module)
    stem = path.stem if module.endswith(".py") else module
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in stem.split(".")):
        raise UsageError(f"'{function}' names no function; write MODULE:NAME or FILE.py:NAME")
    folder = [f"sys.path.insert(0, {str(path.resolve().parent)!r})"] if module.endswith(".py") else []
    return [*folder, f"from {stem} import {attribute} as {name}"]
