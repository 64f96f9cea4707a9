"""All faults and variants of all operations, by id."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conformance.backends.protocol import Backend
from conformance.errors import BackendError, nearest
from conformance.faults.entry import Entry, Kind
from conformance.library.operations import name_of, operations


@cache
def modules() -> Mapping[str, str]:
    """Operation to the package of its faults, with its SHELF and a `backend` that runs an entry of it.

    The package is a folder here that is called as that of the operation's cases is.
    """
    folders = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg]
    return {name_of(folder): f"{__package__}.{folder}" for folder in folders if folder in operations()}


def entries(kind: Kind | None = None, operation: str | None = None) -> tuple[Entry, ...]:
    """The entries of one kind and one operation, or of all, in the order of the modules."""
    return tuple(
        entry
        for name in modules()
        if operation in (None, name)
        for entry in _module(name).SHELF.entries.values()
        if kind in (None, entry.kind)
    )


def faults(operation: str | None = None) -> tuple[Entry, ...]:
    """The faulty implementations."""
    return entries("fault", operation)


def variants(operation: str | None = None) -> tuple[Entry, ...]:
    """The conforming implementations."""
    return entries("variant", operation)


def find(kind: Kind, id: str) -> Entry:
    """The entry of this kind and id. Raises `BackendError` with the nearest one."""
    known = {entry.id: entry for entry in entries(kind)}
    if id not in known:
        hint = nearest(id, list(known)) or f"; known: {', '.join(known)}"
        raise BackendError(f"no {kind} '{id}'{hint}")
    return known[id]


def backend(kind: Kind, id: str) -> Backend:
    """The implementation as a backend: what `fault:ID` and `variant:ID` connect to. Raises `BackendError`."""
    return backend_of(find(kind, id))


def backend_of(entry: Entry) -> Backend:
    """A new backend of an entry; each stands for a process of its own."""
    for name in modules():
        module = _module(name)
        if module.SHELF.entries.get(entry.id) is entry:
            made: Backend = module.backend(entry)
            return made
    raise BackendError(f"'{entry.connect}' is in no catalogue")


def _module(operation: str) -> Any:
    return importlib.import_module(modules()[operation])
