"""Cases as they stand in a file: the form of what is written, and where it stands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from conformance.errors import LibraryError, Place
from conformance.library import strict_yaml
from conformance.spec.case import Injected, Refusal
from conformance.spec.operation import Level, Number, Operation, Strict

MEMORY = 1 << 30


class WrittenChange(Strict, frozen=True):
    """`Change` as written: a shape in expressions."""

    shape: list[Number] | None = None
    type: str = ""
    values: Any = None
    inject: tuple[Injected, ...] = ()
    absent: bool = False


class Expect(Strict, frozen=True):
    """What is expected where it is not the reference that says so."""

    values: dict[str, Any] = {}
    refusal: Refusal | None = None


class Cover(Strict, frozen=True):
    """A covering array: every combination of `strength` axes occurs, except where an expression of `except` holds.

    In those an axis stands for its number, or for the position of its value where that is not a number.
    """

    strength: Annotated[int, msgspec.Meta(ge=1)]
    axes: dict[str, Any]
    excluded: list[str] = msgspec.field(name="except", default_factory=list)


class Written(Strict, frozen=True):
    """A case as it stands in a file."""

    id: str
    says: str
    clauses: tuple[str, ...]
    level: Level = "required"
    attributes: dict[str, Number] = {}
    dims: dict[str, Number] = {}
    past: Number | list[Number] | None = None
    pad: Number | list[Number] = 0
    length_shape: Literal["each", "one"] = "each"
    element_type: str = "f32"
    length_type: str = "i64"
    types: dict[str, str] = {}
    forms: dict[str, str] = {}
    disabled: list[str] = []
    seed: int | None = None
    data: dict[str, Any] = {}
    poison: Literal["mixed", "nan", "huge", "zero"] = "mixed"
    streams: Any = None
    change: dict[str, WrittenChange] = {}
    expect: Expect = Expect()
    relations: tuple[str, ...] = ()
    audits: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    matrix: dict[str, Any] = {}
    cover: Cover | None = None


class File(Strict, frozen=True):
    """A file of the library."""

    cases: list[dict[str, Any]]
    defaults: dict[str, Any] = {}
    says: str = ""


@dataclass(frozen=True)
class Origin:
    """Where a case comes from, for its errors."""

    places: strict_yaml.Places
    keys: tuple[Hashable, ...]
    topic: str
    operation: Operation
    memory: int = MEMORY  # bytes that the inputs and outputs of a case may have

    def error(self, problem: str, *keys: Hashable) -> LibraryError:
        return LibraryError(problem, self.at(*keys))

    def at(self, *keys: Hashable) -> Place:
        """Where something of the case is written: in the case, or else in the file's defaults."""
        marks = self.places.marks
        if keys and (*self.keys, *keys) not in marks and ("defaults", *keys) in marks:
            return self.places.at("defaults", *keys)
        return self.places.at(*self.keys, *keys)

    def convert(self, raw: Mapping[str, Any]) -> Written:
        """The case in its form. Raises `LibraryError`."""
        return strict_yaml.convert(raw, Written, self.at)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key; anything else is replaced. A mapping with an `aim` is a whole of its own."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and "aim" not in value:
            value = merge(old, value)
        result[key] = value
    return result
