"""Generated cases that failed, kept in the user's cache: the next campaign on the same backend begins with them."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from conformance.spec.case import Case

KEPT = 200  # cases of a backend


class Saved:
    """The saved cases of one backend, each in a file of its own."""

    def __init__(self, connect: str, root: Path | None = None) -> None:
        from platformdirs import user_cache_path

        name = re.sub(r"[^\w.-]+", "_", connect)[:40] + "-" + hashlib.sha256(connect.encode()).hexdigest()[:8]
        self.folder = (root or user_cache_path("qsa-conformance") / "examples") / name

    def cases(self) -> list[Case]:
        """The saved cases, smallest file first; what cannot be read any more is left out."""
        found = []
        for path in sorted(self.folder.glob("*.msgpack"), key=lambda p: (p.stat().st_size, p.name)):
            with suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.msgpack.decode(path.read_bytes(), type=Case))
        return found

    def keep(self, case: Case) -> None:
        """Save a case. Failing to is not an error: it is in the log as well."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if len(list(self.folder.iterdir())) < KEPT:
                self._path(case).write_bytes(msgspec.msgpack.encode(case))

    def forget(self, case: Case) -> None:
        """A case that passes now is not tried again."""
        with suppress(OSError):
            self._path(case).unlink(missing_ok=True)

    def _path(self, case: Case) -> Path:
        return self.folder / f"{case.digest}.msgpack"
