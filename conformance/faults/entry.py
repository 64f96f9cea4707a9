"""What a catalogue consists of: faulty implementations and conforming variants of an operation, each named by an id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["fault", "variant"]
Implementation = TypeVar("Implementation", bound=type)

KINDS: tuple[Kind, ...] = ("fault", "variant")
ELEMENT_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Entry:
    """One implementation of a catalogue.

    `says` is one sentence: what a fault does wrong, or what a variant does in its own way. `clauses` are those that a
    fault breaks, `reports` the public threads (repository#number) in which it or a close relative was seen,
    `element_types` those in which it can show. `reading` names the choice of the contract ("name=choice") under which
    the fault would be right. `rounding` says of a variant that stands for a family of rounding where it rounds to the
    element type. `topic` is the module it is written in.
    """

    kind: Kind
    id: str
    says: str
    implementation: type
    topic: str
    clauses: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    element_types: tuple[str, ...] = ELEMENT_TYPES
    reading: str = ""
    rounding: str = ""

    @property
    def connect(self) -> str:
        """The connect string."""
        return f"{self.kind}:{self.id}"


class Shelf:
    """The catalogue of one operation, filled by decorators on the implementations."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def fault(
        self, id: str, says: str, breaks: str, reports: str = "", *, types: str = "", reading: str = ""
    ) -> Callable[[Implementation], Implementation]:
        """Register a faulty implementation; `breaks`, `reports` and `types` are lists of words."""
        return self._register(
            "fault",
            id,
            says,
            clauses=tuple(breaks.split()),
            reports=tuple(reports.split()),
            element_types=tuple(types.split()) or ELEMENT_TYPES,
            reading=reading,
        )

    def variant(self, id: str, says: str, *, rounding: str = "") -> Callable[[Implementation], Implementation]:
        """Register a conforming implementation."""
        return self._register("variant", id, says, rounding=rounding)

    def _register(self, kind: Kind, id: str, says: str, **fields: Any) -> Callable[[Implementation], Implementation]:
        def register(implementation: Implementation) -> Implementation:
            if id in self.entries:
                raise ValueError(f"two entries of the catalogue are called '{id}'")
            topic = implementation.__module__.rpartition(".")[2]
            self.entries[id] = Entry(kind, id, says, implementation, topic, **fields)
            return implementation

        return register
