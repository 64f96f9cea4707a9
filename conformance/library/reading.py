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
from conformance.library.operations import (
    DEFAULT,
    FILE,
    cases_root,
    folder_of,
    importable,
    load_operation,
    located,
    operations,
)
from conformance.spec.case import Case
from conformance.spec.operation import Operation

CASES = 200_000  # of a library


@dataclass(frozen=True)
class Library:
    """The cases of one operation. `own` names the folder that they are from where it is not the bundled library."""

    operation: Operation
    cases: tuple[Case, ...]
    written: int  # cases as written, before expansion
    own: str = ""

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


@dataclass(frozen=True)
class Source:
    """Where the files of a library are.

    `folders` hold topics with files; the first is the operation's own folder unless only others are asked for.
    """

    name: str  # folder of the operation
    root: Path  # of the operation's description
    folders: tuple[Path, ...]
    own: str = ""


def source_of(
    name: str = DEFAULT, root: Path | None = None, extra: Path | None = None, *, only: bool = False
) -> Source:
    """Where the cases of an operation are.

    `root` is the folder of all operations, the bundled ones by default. `extra` is a folder of one's own: with an
    operation.yaml for the operation, in `extra/NAME`, it takes the place of the bundled library; else its topics, in
    `extra/NAME` or in `extra` itself, stand beside the bundled ones, or in place of them with `only`. Raises
    `UsageError` when it holds nothing of this operation.
    """
    if extra is None:
        if only:
            raise UsageError("without the bundled cases there is nothing to run; name a folder with --library")
        root, folder = located(name, root)
        return Source(folder, root, (root / folder,), "" if root == cases_root() else str(root.absolute()))
    root = root or cases_root()
    if not extra.is_dir():
        raise UsageError(f"--library {extra}: there is no such folder")
    if operations(extra):
        try:
            folder = folder_of(name, extra)
        except UsageError:
            folder = ""
        if folder:
            return Source(folder, extra, (extra / folder,), str(extra.absolute()))
    folder = folder_of(name, root)
    own = extra / folder if (extra / folder).is_dir() else extra
    if not case_files(own):
        raise UsageError(f"--library {extra}: there are no cases in it; they are in {extra}/TOPIC/*.yaml")
    return Source(folder, root, (own,) if only else (root / folder, own), str(extra.absolute()))


def load_library(
    name: str = DEFAULT, root: Path | None = None, extra: Path | None = None, *, only: bool = False
) -> Library:
    """All cases of an operation, in the order of the files. Raises `UsageError` or `LibraryError` at the first problem.

    `name` is the operation's folder or its own name; for `extra` and `only` see `source_of`. What was read before is
    taken from a cache, as long as no file of the library or of the code that reads it has changed.
    """
    source = source_of(name, root, extra, only=only)
    importable(source.root)
    key = library_cache.key(source.name, source.root, source.folders)
    stored = library_cache.read(key)
    if stored is None:
        library = read_library(source)
        library_cache.write(key, library_cache.Stored(library.operation, library.cases, library.written))
        return library
    return Library(stored.operation, stored.cases, stored.written, source.own)


def read_library(source: Source, problems: list[LibraryError] | None = None) -> Library:
    """All cases of an operation, from its files.

    Raises `LibraryError` at the first problem; with a list for `problems`, those of single files are put into it, and
    the others are read all the same.
    """
    operation = load_operation(source.name, source.root)
    cases: list[Case] = []
    written = 0
    seen: dict[str, str] = {}
    for folder in source.folders:
        for path in case_files(folder):
            inside = source.root if path.is_relative_to(source.root) else folder
            bundled = inside == source.root and source.root == cases_root()
            shown = path.relative_to(source.root).as_posix() if bundled else ""
            try:
                found, count = load_file(path, operation, f"cases/{shown}" if shown else str(path), inside)
                for case in found:
                    if case.id in seen:
                        raise LibraryError(f"case id '{case.id}' is taken by {seen[case.id]}", Place(case.place))
                    seen[case.id] = case.place
            except LibraryError as error:
                if problems is None:
                    raise
                problems.append(error)
                continue
            written += count
            cases += found
            if len(cases) > CASES:
                raise LibraryError(f"the library has more than {CASES:,} cases", Place(str(path)))
    return Library(operation, tuple(cases), written, source.own)


def case_files(folder: Path) -> list[Path]:
    """The files with cases: everything in a folder of its own, but for the expectations."""
    return sorted(p for p in folder.glob("*/*.yaml") if p.parent.name != "expectations" and p.name != FILE)


def load_file(path: Path, operation: Operation, shown: str = "", inside: Path | None = None) -> tuple[list[Case], int]:
    """The expanded cases of one file and the number of written ones. Raises `LibraryError`.

    `shown` is how its places name the file; no link may lead out of the folder `inside`.
    """
    # A library that is in the cache needs none of these.
    from conformance.library import strict_yaml
    from conformance.library.concrete import concrete
    from conformance.library.expansion import expand
    from conformance.library.written import File, Origin, merge

    data, places = strict_yaml.load(path, shown, inside)
    file = strict_yaml.convert(data, File, places.at)
    topic = path.parent.name.lstrip("0123456789-")
    cases: list[Case] = []
    for index, raw in enumerate(file.cases):
        merged = merge(file.defaults, raw)
        here = Origin(places, ("cases", index), topic, operation)
        for label, variables, patched in expand(merged, here):
            cases.append(concrete(patched, variables, label, here))
    return cases, len(file.cases)
