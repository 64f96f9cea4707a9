"""All faults and variants of all operations, by id."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conformance.backends.connect import Family
from conformance.backends.protocol import Backend, Unsupported, infos_of, listed
from conformance.errors import BackendError, nearest
from conformance.faults.entry import Entry, Kind
from conformance.library.operations import name_of, operations, own_operations


def modules() -> Mapping[str, str]:
    """Operation to the package of its faults, with its SHELF and a `backend` that runs an entry of it.

    The package is a folder here that is called as that of the operation's cases is, or what the description of an
    operation of one's own names.
    """
    return {**_bundled(), **{one.operation: one.faults for one in own_operations() if one.faults}}


@cache
def _bundled() -> Mapping[str, str]:
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


def find(kind: Kind, id: str, operation: str = "") -> Entry:
    """The entry of this kind and id, of one operation or of the first that has it. Raises as `named` does."""
    return named(kind, id, operation)[0]


def named(kind: Kind, id: str, operation: str = "") -> tuple[Entry, ...]:
    """The entries of this kind and id: an id belongs to an operation, and several may have it.

    With an operation, its own alone. Raises `BackendError` with the nearest id where there is none, `Unsupported` where
    only other operations have it.
    """
    everywhere = {entry.id: entry for entry in entries(kind)}
    if id not in everywhere:
        hint = nearest(id, list(everywhere)) or f"; known: {', '.join(everywhere)}"
        raise BackendError(f"no {kind} '{id}'{hint}")
    serving = [name for name in modules() if f"{kind}:{id}" in _connects(name)]
    if operation and operation not in serving:
        raise Unsupported(operation, f"'{kind}:{id}' does not serve {operation}; it serves {listed(serving)}")
    return tuple(_module(name).SHELF.entries[id] for name in serving if operation in ("", name))


def _connects(operation: str) -> set[str]:
    return {entry.connect for entry in entries(operation=operation)}


def backend(kind: Kind, id: str, operation: str = "") -> Backend:
    """The implementation as a backend: what `fault:ID` and `variant:ID` connect to.

    An id that several operations have stands for the entries of all of them, unless one operation is named. Raises
    `BackendError` and `Unsupported`.
    """
    found = [backend_of(entry) for entry in named(kind, id, operation)]
    return found[0] if len(found) == 1 else Family({info.operation: one for one in found for info in infos_of(one)})


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
