"""A case: what is fed to an implementation, how it is cut into calls, and what must come back.

Cases come from the YAML library, from covering arrays and from the generator; all are of this one type, plain frozen
data, so that a case found in any way can be shrunk, written down, and run again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from conformance.spec.operation import ELEMENT, LENGTH, Level, Operation, Scalar, Strict


class Injected(Strict, frozen=True):
    """A single number, and where it is put."""

    at: tuple[int, ...]
    value: int | float


class Change(Strict, frozen=True, omit_defaults=True):
    """What is put in place of a port's own shape, type or values, or of single ones; or the port is left out."""

    shape: tuple[int, ...] | None = None
    type: str = ""
    values: Any = None
    inject: tuple[Injected, ...] = ()
    absent: bool = False


class Refusal(Strict, frozen=True):
    """The refusal that is due: kind and phase of the protocol's `Rejected`, and the offending attributes or ports."""

    kind: Literal["attribute", "shape", "type", "rope", "value"]
    phase: Literal["prepare", "call"]
    names: tuple[str, ...]


class Case(Strict, frozen=True, omit_defaults=True):
    """One case with all numbers worked out.

    `dims` holds the free dimensions of the single call; `past` and `pad` are per sequence, and empty for operations
    without a history. `types` and `forms` are chosen types and shapes of ports that have a choice, where they are not
    the usual ones. `streams` are partitions of the new tokens: each is run from the same start, next to the single
    call, which always is. Without `values` or `refusal` the reference says what is expected.
    """

    id: str
    says: str
    clauses: tuple[str, ...]
    operation: str
    attributes: dict[str, Scalar]
    dims: dict[str, int]
    past: tuple[int, ...]
    pad: tuple[int, ...]
    level: Level = "required"
    length_shape: Literal["each", "one"] = "each"
    element_type: str = "f32"
    length_type: str = "i64"
    types: dict[str, str] = {}
    forms: dict[str, str] = {}
    disabled: tuple[str, ...] = ()
    seed: int = 0
    data: dict[str, Any] = {}
    poison: Literal["mixed", "nan", "huge", "zero"] = "mixed"
    streams: tuple[tuple[int, ...], ...] = ()
    change: dict[str, Change] = {}
    values: dict[str, Any] = {}
    refusal: Refusal | None = None
    relations: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    place: str = ""  # file:line it was written at

    @property
    def topic(self) -> str:
        return self.id.partition("/")[0]

    @property
    def digest(self) -> str:
        """Twelve hex digits over everything that decides what is run and expected."""
        plain = msgspec.structs.replace(self, id="", says="", kills=(), place="")
        return hashlib.sha256(msgspec.json.encode(with_words(as_plain(plain)), order="sorted")).hexdigest()[:12]


KINDS = {ELEMENT: "element_type", LENGTH: "length_type"}  # types of ports to the fields that choose them


def new_tokens(case: Case, operation: Operation) -> int:
    """New tokens of every sequence in the single call, 0 for an operation without tokens."""
    return case.dims[operation.tokens] if operation.tokens else 0


def lengths(case: Case, operation: Operation) -> tuple[int, ...]:
    """The length of every sequence in the single call; none for an operation without a history."""
    new = new_tokens(case, operation)
    return tuple(past + new - pad for past, pad in zip(case.past, case.pad, strict=True))


def prefix_lengths(total: tuple[int, ...], new: int, end: int) -> tuple[int, ...]:
    """The length of every sequence after the first `end` of `new` tokens; left padding comes first."""
    return tuple(max(S - new + end, 0) for S in total)


def summary(case: Case, operation: Operation) -> str:
    """One line for people: dimensions, attributes, types and what is special, in the contract's symbols."""
    scalars = operation.scalars(case.attributes, case.dims)
    off = {s for p in operation.ports if p.feature in case.disabled for s in p.shape}
    on = {s for p in operation.ports if p.feature not in case.disabled for s in p.shape}
    shown = [f"{name}={value:g}" for name, value in scalars.items() if name not in off - on]
    shown += [getattr(case, field) for kind, field in KINDS.items() if any(p.type == kind for p in operation.ports)]
    shown += [f"{name}={kind}" for name, kind in case.types.items()]
    for name in ("past", "pad"):
        if any(getattr(case, name)):
            shown.append(f"{name}={','.join(map(str, getattr(case, name)))}")
    shown += [f"no {feature}" for feature in case.disabled]
    shown += [f"{port} {form}" for port, form in case.forms.items()]
    if case.length_shape == "one":
        shown.append(f"{operation.lengths}[1]")
    return " ".join(shown)


def as_plain(case: Case) -> Mapping[str, Any]:
    """The case as plain data, defaults left out."""
    # msgspec leaves out a text only when it is the very object of the default.
    plain: dict[str, Any] = msgspec.to_builtins(case)
    return {key: value for key, value in plain.items() if key not in USUAL or value != USUAL[key]}


USUAL = {one.name: one.default for one in msgspec.structs.fields(Case) if isinstance(one.default, str)}

# JSON has no NaN and no infinity: in these fields they are written as words.
NUMBERS = ("attributes", "data", "change", "values")
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def with_words(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A case as plain data, in a form that JSON can hold."""
    return {key: _spelled(value) if key in NUMBERS else value for key, value in plain.items()}


def with_numbers(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data that `with_words` was given."""
    return {key: _read(value) if key in NUMBERS else value for key, value in plain.items()}


def _spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return _each(value, _spelled)


def _read(value: Any) -> Any:
    return WORDS.get(value, value) if isinstance(value, str) else _each(value, _read)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: change(item) for key, item in value.items()}
    return [change(item) for item in value] if isinstance(value, list | tuple) else value
