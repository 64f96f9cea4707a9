"""Strategies that draw whole cases from the operation's description: valid ones, and ones that break a single rule.

A case is a handful of small choices; its tensors come from aims and a seed. The configurations, for which a backend
prepares sessions, are given from outside, few at a time, so that generated cases share sessions as written ones do.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st

from conformance.backends.protocol import BackendInfo
from conformance.judging.audits import AUDITS, SELDOM
from conformance.spec.broken import applies, breach, due, ways
from conformance.spec.case import Case
from conformance.spec.expression import evaluate, symbols_of, whole
from conformance.spec.geometry import Geometry
from conformance.spec.operation import Operation, Range, RefusalRule, Scalar
from conformance.spec.streams import aligned, can_split, step_of
from conformance.spec.types import LENGTH_TYPES

Poison = Literal["mixed", "nan", "huge", "zero"]

TOPIC = "generated"
POISONS: tuple[Poison, ...] = ("mixed", "mixed", "nan", "huge", "zero")
LARGE = 25  # in one of so many examples one thing is large
HUGE = 40  # and in one of so many configurations one attribute
PLAIN = 4  # corners that the rest is then drawn from, so that the example does not take long
PAST = "past"
AUDITED = 50  # one in so many valid examples has an audit as well
REFUSED = 8  # one in so many examples breaks a rule
ONE_BY_ONE = 12  # tokens up to which a stream of single tokens is drawn

OFTEN = tuple(AUDITS) + tuple(audit for audit in AUDITS if audit not in SELDOM) * 2

# Hypothesis mixes in constants of loaded modules where a range is wider than this; narrower ones are drawn the same way
# whatever is loaded.
WIDEST = 99

Below = Callable[[int], int]  # a drawn number from 0 to one less than the argument


class Drawn(st.SearchStrategy[Case]):
    """Cases made of drawn numbers.

    The numbers are drawn without a strategy for each, which would make Hypothesis spend most examples on copying one
    of them over another; every example is drawn anew, or climbs towards a target. Hypothesis has no public way to do so
    (`composite` and `integers` give half as many different shapes, in twice the time), so that its version is pinned.
    """

    def __init__(self, make: Callable[[Below], Case]) -> None:
        super().__init__()
        self.make = make

    def do_draw(self, data: Any) -> Case:
        return self.make(lambda count: int(data.draw_integer(0, count - 1)))


@dataclass(frozen=True)
class Configuration:
    """What a session is prepared for, but for the type of the lengths."""

    attributes: Mapping[str, Scalar]
    element_type: str
    disabled: tuple[str, ...] = ()


def configurations(
    operation: Operation, info: BackendInfo, seed: int, count: int = 8, *, without: Sequence[str] = ()
) -> tuple[Configuration, ...]:
    """Configurations that a backend supports, spread over attributes, element types and features, from a seed.

    `without` names features that are not asked for.
    """
    rng = random.Random(seed)
    switchable = [name for name in operation.switchable if name in info.features and name not in without]
    everything_on: tuple[str, ...] = ()
    # With everything on as often as with anything off.
    ways = [everything_on, *((name,) for name in switchable), tuple(sorted(switchable))]
    ways = [way for way in dict.fromkeys(map(operation.closed, ways)) if set(way) <= set(switchable)]
    ways += [everything_on] * (len(ways) - 2)
    columns: dict[str, list[Any]] = {
        name: _spread(attribute.draw or (attribute.default,), count, rng)
        for name, attribute in operation.attributes.items()
    }
    for name, attribute in operation.attributes.items():
        if attribute.large:
            columns[name] = [
                attribute.large[int(rng.random() * len(attribute.large))] if rng.random() * HUGE < 1 else value
                for value in columns[name]
            ]
    types = _spread(info.element_types, count, rng)
    disabled = _spread(ways, count, rng)
    chosen = [operation.attributes_of({name: values[i] for name, values in columns.items()}) for i in range(count)]
    return tuple(Configuration(chosen[i], types[i], disabled[i]) for i in range(count))


def _spread(values: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    """`count` of the values, each about as often, in an order that is drawn."""
    rows: list[Any] = []
    while len(rows) < count:
        rows += sorted(values, key=lambda value: rng.random())
    # random() alone is promised to stay the same across Python versions.
    return rows[:count]


def cited(operation: Operation) -> tuple[str, ...]:
    """Clauses that every valid generated case is about; the first one is blamed when a call raises."""
    refused = {rule.clause for rule in operation.refusals}
    required = [c.id for c in operation.clauses if c.level == "required" and c.id not in refused]
    return tuple(dict.fromkeys([operation.rules.serves, *required]))


@dataclass(frozen=True)
class Generator:
    """Where cases are drawn from.

    `padding` allows sequences shorter than the call's new tokens; `salt` goes into the seed of the tensors, so that
    campaigns of different salts have no case in common.
    """

    operation: Operation
    configurations: Sequence[Configuration]
    padding: bool = True
    salt: int = 0

    def cases(self) -> st.SearchStrategy[Case]:
        """Valid cases, with all relations."""
        return self._strategy(self._valid)

    def refusals(self) -> st.SearchStrategy[Case]:
        """Valid cases with exactly one rule of the operation broken, and the refusal that is due."""
        return self._strategy(self._refused)

    def examples(self) -> st.SearchStrategy[Case]:
        """Valid cases, and one refusal among `REFUSED` of them."""
        return self._strategy(
            lambda below: self._refused(below) if below(REFUSED) == REFUSED - 1 else self._valid(below)
        )

    def _strategy(self, make: Callable[[Below], Case]) -> st.SearchStrategy[Case]:
        def named(below: Below) -> Case:
            case = make(below)
            return msgspec.structs.replace(case, id=f"{TOPIC}/{case.digest}")

        return Drawn(named)

    @cached_property
    def _clauses(self) -> tuple[str, ...]:
        return cited(self.operation)

    @cached_property
    def _relations(self) -> tuple[str, ...]:
        return tuple(self.operation.relation)

    @cached_property
    def _used(self) -> dict[tuple[str, ...], frozenset[str]]:
        """Dimensions of the ports that are on, by the features that are not."""
        return {
            off: frozenset(
                name
                for port in self.operation.ports
                if port.feature not in off
                for size in port.shape
                for name in symbols_of(size)
            )
            for off in {configuration.disabled for configuration in self.configurations}
        }

    @cached_property
    def _large(self) -> tuple[str, ...]:
        """What can be large: dimensions, and the past tokens of a sequence."""
        past = self.operation.draws.past
        sizes = [name for name, dim in self.operation.dims.items() if dim.draw and dim.draw.large]
        return (PAST, *sizes) if past and past.large else tuple(sizes)

    def _valid(self, below: Below, smallest: int = 0) -> Case:
        """A case without a name; no free dimension is below `smallest`."""
        operation = self.operation
        configuration = self.configurations[below(len(self.configurations))]
        large = self._large[below(len(self._large))] if below(LARGE) == LARGE - 1 and self._large else ""
        scalars: dict[str, Any] = operation.scalars(configuration.attributes, {})
        scalars |= {name: int(name not in configuration.disabled) for name in operation.switchable}
        dims: dict[str, int] = {}
        later: dict[str, Range | None] = {}
        for name, dim in operation.dims.items():
            if dim.follows:
                later[name] = dim.draw
            elif dim.draw and name in self._used[configuration.disabled]:
                size = (
                    _large(below, dim.draw, scalars)
                    if name == large
                    else _ranged(below, dim.draw, scalars, plain=bool(large))
                )
                scalars[name] = dims[name] = max(size, smallest)
            else:
                scalars[name] = dims[name] = whole(dim.default, scalars)
        N, L = dims[operation.batch], dims[operation.tokens] if operation.tokens else 0
        unsaid = bool(operation.lengths) and operation.port[operation.lengths].feature in configuration.disabled
        past, pad = self._history(below, scalars, N, L, equal=unsaid)
        if large == PAST and N and operation.draws.past and not unsaid:
            past[0], pad[0] = _large(below, operation.draws.past, scalars), 0
        total = [had + L - missing for had, missing in zip(past, pad, strict=True)]
        columns = operation.columns(operation.per_sequence(scalars, total))
        for name, span in later.items():
            known = {**scalars, **columns}
            # Where the lengths are not said, they follow from the shapes, which leave no row to spare.
            if unsaid or span is None:
                dims[name] = whole(operation.dims[name].default, known)
            else:
                dims[name] = _ranged(below, span, known)
        data: dict[str, Any] = {}
        for filling in operation.draws.fillings:
            if any(operation.port[port].feature not in configuration.disabled for port in filling.ports):
                data |= filling.data(below(len(filling.aims)))
        one = bool(operation.lengths) and not unsaid and len(set(total)) == 1 and below(2) == 1
        kind = below(len(LENGTH_TYPES) * len(POISONS))
        types = {name: symbol.choices[below(len(symbol.choices))] for name, symbol in operation.types.items()}
        forms: dict[str, str] = {}
        for port in operation.ports:
            if port.forms and port.feature not in configuration.disabled:
                form = ["", *port.forms][below(len(port.forms) + 1)]
                forms |= {port.name: form} if form else {}
        case = Case(
            id="",
            says="Drawn by the generator.",
            clauses=self._clauses,
            operation=operation.operation,
            attributes=dict(configuration.attributes),
            dims=dims,
            past=tuple(past),
            pad=tuple(pad),
            length_shape="one" if one else "each",
            element_type=configuration.element_type,
            length_type=LENGTH_TYPES[::-1][kind % len(LENGTH_TYPES)],
            disabled=configuration.disabled,
            seed=zlib.crc32(f"{self.salt}/{below(WIDEST + 1)}".encode()),
            data=data,
            poison=POISONS[kind // len(LENGTH_TYPES)],
            types=types,
            forms=forms,
            relations=self._relations,
        )
        streams = _streams(below, L)
        if not can_split(case, operation):
            streams = ()
        step = step_of(case, operation) if streams else 1
        streams = tuple(dict.fromkeys(aligned(stream, step) for stream in streams))
        audits = (OFTEN[below(len(OFTEN))],) if below(AUDITED) == AUDITED - 1 else ()
        return msgspec.structs.replace(case, streams=streams, audits=audits)

    def _history(
        self, below: Below, symbols: Mapping[str, Any], N: int, L: int, *, equal: bool
    ) -> tuple[list[int], list[int]]:
        """Past tokens and padding of every sequence: none, the same for all, ragged, or with some sequences padded."""
        span = self.operation.draws.past
        if not self.operation.history:
            return [], []
        if span is None:
            return [0] * N, [0] * N
        if equal:
            return [_ranged(below, span, symbols)] * N, [0] * N
        kind = below(8 if self.padding and L else 6)
        if kind == 1:
            return [0] * N, [0] * N
        if kind in (2, 3):
            return [_ranged(below, span, symbols)] * N, [0] * N
        past, pad = [], []
        for _ in range(N):
            padded = kind >= 6 and below(4) > 0
            pad.append(1 + below(min(L, WIDEST + 1)) if padded else 0)
            past.append(0 if padded else _ranged(below, span, symbols))
        return past, pad

    def _refused(self, below: Below) -> Case:
        """A case without a name that breaks a rule: the drawn one, or the next that applies to the case."""
        rules = self.operation.refusals
        first = below(len(rules))
        base = self._valid(below, smallest=1)
        for rule in (*rules[first:], *rules[:first]):
            case = self._broken(below, base, rule)
            if case:
                return case
        raise AssertionError("no rule of the operation can be broken")

    def _lengths(self, case: Case) -> int:
        """How many numbers the port of lengths holds."""
        return 1 if case.length_shape == "one" else Geometry(case, self.operation).sequences

    def _broken(self, below: Below, base: Case, rule: RefusalRule) -> Case | None:
        """The case with a rule broken; None when it does not apply to the case."""
        operation = self.operation
        if not applies(rule, base, operation):
            return None
        way = below(ways(rule))
        counted = operation.lengths in rule.values
        broken = breach(base, operation, rule, way, below(self._lengths(base)) if counted else None)
        if broken is None:
            return None
        return msgspec.structs.replace(
            self._room_for(base, broken.attributes),
            says=f"A valid call but for one rule that is broken: {rule.id}.",
            clauses=(rule.clause,),
            level=operation.clause[rule.clause].level,
            attributes={**base.attributes, **broken.attributes},
            change=dict(broken.change),
            streams=(),
            relations=(),
            audits=(),
            refusal=due(rule),
        )

    def _room_for(self, base: Case, spoilt: Mapping[str, Scalar]) -> Case:
        """The case with dimensions that suit a spoilt attribute, so that nothing else is wrong with the call."""
        if not spoilt:
            return base
        wanted = msgspec.structs.replace(base, attributes={**base.attributes, **spoilt})
        known = Geometry(wanted, self.operation)
        least = {
            name: whole(dim.default, known.symbols)
            for name, dim in self.operation.dims.items()
            if dim.follows and dim.draw
        }
        return msgspec.structs.replace(base, dims={name: max(n, least.get(name, n)) for name, n in base.dims.items()})


def _ranged(below: Below, span: Range, symbols: Mapping[str, Any], *, plain: bool = False) -> int:
    """A corner of a range, or any of its numbers; with `plain` one of the first corners."""
    least, most = int(evaluate(span.least, symbols)), int(evaluate(span.most, symbols))
    step = max(whole(span.step, symbols), 1)
    count = (most - least) // step + 1
    if count <= 1:
        return least
    index = below(min(PLAIN, len(span.corners)) if plain else len(span.corners) + 1)
    if index == len(span.corners):
        return least + below(min(count, WIDEST + 1)) * step
    corner = int(evaluate(span.corners[index], symbols))
    return least + max(min(corner - least, most - least), 0) // step * step


def _large(below: Below, span: Range, symbols: Mapping[str, Any]) -> int:
    """One of the large numbers of a range."""
    return int(evaluate(span.large[below(len(span.large))], symbols))


def _streams(below: Below, L: int) -> tuple[tuple[int, ...], ...]:
    """At most one partition of the new tokens; calls without tokens may occur in it.

    A case without one is split by a relation, call by call unjudged.
    """
    kind = below(8)
    if kind < 3:
        return ()
    if kind == 3 and 1 < L <= ONE_BY_ONE:
        return ((1,) * L,)
    cuts = sorted(below(min(L, WIDEST) + 1) for _ in range(1 + kind // 6))
    return (tuple(b - a for a, b in pairwise((0, *cuts, L))),)
