"""Expanded libraries are kept in the user's cache, so that listing and single cases start at once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from conformance.library.files import content_of
from conformance.spec.case import Case
from conformance.spec.operation import Operation

# Packages that decide how a file becomes cases.
PACKAGES = ("spec", "library")
KEPT = 24  # libraries
CHECK = hashlib.sha256().digest_size  # bytes at the start of a file: the digest of the others


class Stored(msgspec.Struct, frozen=True):
    """What is kept of a library."""

    operation: Operation
    cases: tuple[Case, ...]
    written: int


def folder() -> Path:
    """Where expanded libraries are kept."""
    from platformdirs import user_cache_path

    return user_cache_path("qsa-conformance") / "library"


def key(name: str, root: Path, folders: Sequence[Path]) -> str:
    """Digest of all files of a library and of the code that reads them."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    sources = [(path.name, path) for one in PACKAGES for path in sorted((package / one).glob("*.py"))]
    described = root / name / "operation.yaml"
    files = [(described.name, described)]
    # Under the names that places show: a library that has moved says where it is now.
    for one in folders:
        files += [(str(path), path) for path in sorted(one.glob("*/*.yaml"))]
    for shown, path in [*files, *sources]:
        try:
            content = content_of(path)
        except (OSError, RuntimeError):
            content = b"?"  # the reader says what is wrong with it
        digest.update(f"{shown} {len(content)}\n".encode(errors="surrogateescape"))
        digest.update(content)
    return f"{name}-{digest.hexdigest()[:24]}"


def read(name: str) -> Stored | None:
    """The library of a key, None when there is none or it is damaged."""
    try:
        content = (folder() / f"{name}.msgpack").read_bytes()
        if hashlib.sha256(content[CHECK:]).digest() != content[:CHECK]:
            return None
        return msgspec.msgpack.decode(content[CHECK:], type=Stored)
    except (OSError, ValueError, RecursionError):
        return None


def write(name: str, stored: Stored) -> None:
    """Keep a library. Failing to is not an error: the next start reads the files again."""
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        content = msgspec.msgpack.encode(stored)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        Path(temporary).replace(place / f"{name}.msgpack")
        old = sorted(place.glob("*.msgpack"), key=lambda p: p.stat().st_mtime, reverse=True)[KEPT:]
        for path in old:
            path.unlink(missing_ok=True)
    except (OSError, ValueError, OverflowError, RecursionError):
        return
