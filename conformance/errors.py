"""Errors that a user can do something about: one sentence, the place, and what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal, NamedTuple


class Place(NamedTuple):
    """Where in a file something stands; lines and columns count from 1."""

    path: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}" if self.line else self.path


class UsageError(Exception):
    """The user asked for something that cannot be; exit code 2."""

    exit_code = 2


class LibraryError(UsageError):
    """A file of the case library cannot be read or breaks a rule of the library."""

    def __init__(self, problem: str, place: Place | None = None) -> None:
        super().__init__(f"{place}: {problem}" if place else problem)
        self.problem, self.place = problem, place


class BackendError(Exception):
    """A backend cannot be found, loaded or used at all; exit code 3."""

    exit_code = 3


class Lost(Exception):  # noqa: N818  it happened to a process of ours; whose fault it is, is decided elsewhere
    """The process that ran a backend is gone, by itself or because it went beyond a limit."""

    def __init__(self, kind: Literal["crash", "killed", "timeout", "memory", "output"], says: str) -> None:
        super().__init__(kind, says)
        self.kind, self.says = kind, says

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}"


MOST = 300  # characters of a text that is not ours


def text_of(thing: object, most: int = MOST) -> str:
    """What an object says of itself, on one line that is safe to print, whatever its methods do."""
    try:
        text = thing if type(thing) is str else str(thing)
        lines = text.strip().splitlines()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"no text: str() raises {type(error).__name__}"
    return plain(lines[0] if lines else "", most) or "no message"


def plain(text: str, most: int = MOST) -> str:
    """A text of somebody else's, cut to a sensible length, with everything that does not print written as an escape.

    Control characters, halves of surrogate pairs and marks that turn the direction of writing are escaped; line ends
    and tabs stay.
    """
    if len(text) > most:
        text = text[:most] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def nearest(word: str, known: list[str] | tuple[str, ...]) -> str:
    """' (did you mean ...?)' for a word that is close to a known one, else an empty string."""
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def plural(number: int, noun: str, many: str = "") -> str:
    """A number with its noun, as '1 case', '2,017 cases' or '3 classes' (`many` where an s is not enough)."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def article(noun: str) -> str:
    """A noun with 'a' or 'an', by its first letter."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"
