"""What a foreign runtime throws, told in its own last line under the name of the adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    made = ForeignError(f"{adapter}: {type(error).__name__}: {last_line(str(error))}")
    made.add_note(str(error))
    return made.with_traceback(error.__traceback__)


def last_line(text: str) -> str:
    """The line of a message that says what is wrong: the last one that is not about a place in the code."""
    lines = []
    for line in text.splitlines():
        if line.strip() in BEHIND:
            break
        lines += [line.strip()] if line.strip() else []
    return lines[-1] if lines else "no message"
