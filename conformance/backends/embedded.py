"""The backends that this package holds: found in its folders, one folder an operation.

The `__init__` of such a folder names its `OPERATION` and holds the table `BACKENDS`; nothing else has to be told of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

PACKAGE = __package__ or "conformance.backends"


@dataclass(frozen=True)
class Embedded:
    """One backend of one operation."""

    module: str  # beside the table
    factory: str
    says: str
    argument: str = ""  # keyword that the text after the colon of a connect string is passed as
    extra: str = ""  # extra of this package that it needs
    origin: str = ""  # whose code is judged, one of "foreign", "composed", "project"; by default as the vendor says
    readings: Mapping[str, str] = field(default_factory=dict)  # of the contract, that foreign code was written to


@cache
def embedded() -> Mapping[tuple[str, str], tuple[str, Embedded]]:
    """(Name, operation) to the folder's package and the entry; operations in the order of their folders."""
    found = {}
    for folder in sorted(m.name for m in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__) if m.ispkg):
        package = importlib.import_module(f"{PACKAGE}.{folder}")
        for name, entry in getattr(package, "BACKENDS", {}).items():
            found[name, package.OPERATION] = package.__name__, entry
    return found


def names(operation: str = "") -> tuple[str, ...]:
    """The backends that serve an operation, or any."""
    return tuple(dict.fromkeys(name for name, served in embedded() if operation in ("", served)))


def usual_readings(connect: str, operation: str) -> dict[str, str]:
    """The readings under which a backend is judged unless others are switched: of a bundled one those of its entry."""
    _, entry = embedded().get((connect.partition(":")[0], operation), ("", None))
    return dict(entry.readings) if entry else {}


def operations(name: str = "") -> tuple[str, ...]:
    """The operations that a backend serves, or any backend."""
    return tuple(dict.fromkeys(served for known, served in embedded() if name in ("", known)))


def origin(connect: str, operation: str) -> str:
    """What the table says of whose code a connect string reaches; empty where it says nothing."""
    found = embedded().get((connect.partition(":")[0], operation))
    return found[1].origin if found else ""
