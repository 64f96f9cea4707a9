"""Whose code a backend judges: foreign code, a runtime's operations put together here, or this project's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.backends.embedded import origin
from conformance.record.log import Log

OWN = "qsa-conformance"  # the vendor that this project's backends name


@dataclass(frozen=True)
class Origin:
    """One kind: a word, and what it means."""

    name: str
    word: str
    says: str


ORIGINS: Mapping[str, Origin] = {
    one.name: one
    for one in (
        Origin("foreign", "foreign", "code that this project did not write"),
        Origin("composed", "composed", "standard operations of a foreign runtime, put together by this project"),
        Origin("project", "this project", "code of this project"),
    )
}


def origin_of(log: Log) -> Origin:
    """As the log says it, else as the table of bundled backends does now, else by the vendor."""
    head = log.header
    said = head.backend.origin or origin(head.backend.connect, head.operation)
    return ORIGINS.get(said) or ORIGINS["project" if head.backend.vendor == OWN else "foreign"]
