"""Expanded libraries are kept in the user's cache, so that listing and single cases start at once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from conformance.spec.case import Case
from conformance.spec.operation import Operation

# Packages that decide how a file becomes cases.
PACKAGES = ("spec", "library")
KEPT = 8  # libraries


class Stored(msgspec.Struct, frozen=True):
    """What is kept of a library."""

    operation: Operation
    cases: tuple[Case, ...]
    written: int


def folder() -> Path:
    """Where expanded libraries are kept."""
    from platformdirs import user_cache_path

    return user_cache_path("qsa-conformance") / "library"


def key(cases: Path) -> str:
    """Digest of all files of a library and of the code that reads them."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    sources = [path for name in PACKAGES for path in sorted((package / name).glob("*.py"))]
    for path in [*sorted(cases.rglob("*.yaml")), *sources]:
        try:
            content = path.read_bytes()
        except OSError:
            content = b"?"  # the reader says what is wrong with it
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return f"{cases.name}-{digest.hexdigest()[:24]}"


def read(name: str) -> Stored | None:
    """The library of a key, None when there is none or it is unreadable."""
    try:
        return msgspec.msgpack.decode((folder() / f"{name}.msgpack").read_bytes(), type=Stored)
    except (OSError, msgspec.DecodeError):
        return None


def write(name: str, stored: Stored) -> None:
    """Keep a library. Failing to is no error: the next start reads the files again."""
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.msgpack.encode(stored))
        Path(temporary).replace(place / f"{name}.msgpack")
        old = sorted(place.glob("*.msgpack"), key=lambda p: p.stat().st_mtime, reverse=True)[KEPT:]
        for path in old:
            path.unlink(missing_ok=True)
    except OSError:
        return
