"""What a foreign runtime throws, told in its own last line under the name of the adapter."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.backends.protocol import Rejected, Unsupported

BEHIND = ("At:", "Stack trace:", "Backtrace:")  # from where on a message is about places in the code


class ForeignError(Exception):
    """An error inside a foreign runtime: the adapter's name and the last line of what the runtime says."""


@contextmanager
def calls(adapter: str) -> Iterator[None]:
    """Calls into the runtime stand in here. Raises `ForeignError`; answers of the protocol pass."""
    try:
        yield
    except (Rejected, Unsupported, ForeignError):
        raise
    except Exception as error:
        raise told(adapter, error) from error


def told(adapter: str, error: Exception) -> ForeignError:
    """What is raised in place of an error of the runtime; the runtime's whole text goes with it, for the log."""
    made = ForeignError(f"{adapter}: {type(error).__name__}: {last_line(str(error)) or line_of(error)}")
    made.add_note(str(error))
    return made.with_traceback(error.__traceback__)


def last_line(text: str) -> str:
    """The line of a message that says what is wrong: the last one that is not about a place in the code; may be ""."""
    lines = []
    for line in text.splitlines():
        if line.strip() in BEHIND:
            break
        lines += [line.strip()] if line.strip() else []
    return lines[-1] if lines else ""


def line_of(error: Exception) -> str:
    """For an error without text, as of an `assert`: the line of code that raised it, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].line} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else "no message"
