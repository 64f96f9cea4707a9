"""The case library: strict YAML files in, concrete cases out.

A file holds `defaults` and `cases`. A case is written in the contract's symbols; numbers may be expressions of the
attributes, the dimensions and the axes of its `matrix` or `cover`, which expand it into many.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from conformance.errors import LibraryError, Place, UsageError, nearest
from conformance.library import cache as library_cache
from conformance.library.operations import DEFAULT, cases_root, folder_of, load_operation
from conformance.spec.case import Case
from conformance.spec.operation import Operation


@dataclass(frozen=True)
class Library:
    """The cases of one operation."""

    operation: Operation
    cases: tuple[Case, ...]
    written: int  # cases as written, before expansion

    @property
    def digest(self) -> str:
        """Twelve hex digits over all cases; two runs with the same digest ran the same library."""
        return hashlib.sha256("".join(f"{c.id} {c.digest}\n" for c in self.cases).encode()).hexdigest()[:12]

    def find(self, name: str) -> Case:
        """The case of this id. Raises `UsageError` with the nearest one."""
        for case in self.cases:
            if case.id == name:
                return case
        raise UsageError(f"no case '{name}'{nearest(name, [c.id for c in self.cases])}")


def load_library(name: str = DEFAULT, root: Path | None = None) -> Library:
    """All cases of an operation, in the order of the files. Raises `LibraryError` at the first problem.

    What was read before is taken from a cache, as long as no file of the library or of this package has changed.
    """
    root = root or cases_root()
    name = folder_of(name, root)
    key = library_cache.key(root / name)
    stored = library_cache.read(key)
    if stored is None:
        library = read_library(name, root)
        library_cache.write(key, library_cache.Stored(library.operation, library.cases, library.written))
        return library
    return Library(stored.operation, stored.cases, stored.written)


def read_library(name: str, root: Path) -> Library:
    """All cases of an operation, from its files."""
    name = folder_of(name, root)
    operation = load_operation(name, root)
    cases: list[Case] = []
    written = 0
    seen: dict[str, str] = {}
    for path in case_files(root / name):
        found, count = load_file(path, operation, f"cases/{path.relative_to(root).as_posix()}")
        written += count
        for case in found:
            if case.id in seen:
                raise LibraryError(f"case id '{case.id}' is taken by {seen[case.id]}", Place(case.place))
            seen[case.id] = case.place
        cases += found
    return Library(operation, tuple(cases), written)


def case_files(folder: Path) -> list[Path]:
    """The files with cases: everything in a folder of its own, but for the expectations."""
    return sorted(p for p in folder.glob("*/*.yaml") if p.parent.name != "expectations")


def load_file(path: Path, operation: Operation, shown: str = "") -> tuple[list[Case], int]:
    """The expanded cases of one file and the number of written ones. Raises `LibraryError`."""
    # A library that is in the cache needs none of these.
    from conformance.library import strict_yaml
    from conformance.library.concrete import concrete
    from conformance.library.expansion import expand
    from conformance.library.written import File, Origin, merge

    data, places = strict_yaml.load(path, shown)
    file = strict_yaml.convert(data, File, places.at)
    topic = path.parent.name.lstrip("0123456789-")
    cases: list[Case] = []
    for index, raw in enumerate(file.cases):
        merged = merge(file.defaults, raw)
        here = Origin(places, ("cases", index), topic, operation)
        for label, variables, patched in expand(merged, here):
            cases.append(concrete(patched, variables, label, here))
    return cases, len(file.cases)
