"""Files of the library: regular ones of a limited size, opened so that none can keep the process waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST = 4 << 20  # bytes of a file of the library


def content_of(path: Path, inside: Path | None = None) -> bytes:
    """The bytes of a file. Raises `OSError` with a sentence for one that cannot be read, is too large or not regular.

    With `inside`, a link that leads out of that folder is not followed.
    """
    if inside is not None and not path.resolve().is_relative_to(inside.resolve()):
        raise OSError(0, "it is a link that leads out of the library")
    # Without blocking: opening a FIFO would wait for somebody to write to it.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is not a regular file")
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(0, f"it has more than {LARGEST >> 20} MiB")
    return content
