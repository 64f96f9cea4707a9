"""Where a plug-in's answers come in: whatever it says, returns or raises is turned into something plain here.

An implementation under test can raise anything, also what ends a program; its texts can hold any character, its arrays
can be of classes with methods of their own. Behind this border there are `Unsupported` and `Rejected` with fields of
the right types, `Raised` for everything else, and outputs that are NumPy's own arrays.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from conformance.backends.protocol import (
    Backend,
    BackendInfo,
    OperationConfig,
    Rejected,
    Session,
    Unsupported,
    close,
    environment_of,
    printed,
)
from conformance.errors import BackendError, Lost

Array = np.ndarray[Any, np.dtype[Any]]

TEXT = 2000  # characters of a text that are kept
FRAMES = 4  # of a traceback
MOST = 1000  # outputs that are looked at
OURS = ("/judging/border.py", "/judging/engine.py", "/plugin/isolated_worker.py")


class Raised(Exception):  # noqa: N818  it is the plug-in's error, not ours
    """What a plug-in raised; the class is named like the plug-in's, and `trace` says where it happened."""

    trace = ""


def raised(kind: str, text: str, trace: str = "") -> Raised:
    """A `Raised` whose class has the name of what was raised."""
    name = clean(kind, 80)
    error: Raised = type(name, (Raised,), {})(clean(text))
    error.trace = clean(trace)
    return error


def taken(error: BaseException) -> Raised:
    """What a plug-in raised, without calling any method of its more than is needed for a text."""
    if isinstance(error, Raised):
        return error
    kind = type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.endswith(OURS)]
    with suppress(BaseException):
        frames = frames[-FRAMES:]
        text = str(error)
        return raised(kind, text, "".join(traceback.format_list(frames)) + f"{kind}: {text}" + _notes(error))
    return raised(kind, "its text cannot be had: str() of it raises", "".join(traceback.format_list(frames[-FRAMES:])))


def _notes(error: BaseException) -> str:
    notes = getattr(error, "__notes__", None)
    return "".join(f"\n{note}" for note in notes if isinstance(note, str)) if isinstance(notes, list) else ""


def clean(text: str, limit: int = TEXT) -> str:
    """A text that can be written anywhere: no control characters, nothing that changes the direction, not too long."""
    text = str.__str__(text)
    cut = text if len(text) <= limit else text[:limit] + " ..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in cut)


# The keyboard


class _Keyboard:
    """Whether Ctrl-C was pressed, which tells it from a plug-in that raises KeyboardInterrupt."""

    watched = False
    pressed = False


def interrupt(number: int = 0, frame: object = None) -> None:
    """Handle a signal that ends the run: raises `KeyboardInterrupt`, which is not taken for the plug-in's."""
    _Keyboard.pressed = True
    raise KeyboardInterrupt


@contextmanager
def watched_keyboard() -> Iterator[None]:
    """Note when Ctrl-C is pressed. Does nothing in another thread, or where somebody else handles it."""
    there = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if there else None
    if _Keyboard.watched or before not in (signal.default_int_handler, signal.SIG_IGN):
        yield
        return

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    _Keyboard.watched, _Keyboard.pressed = True, False
    try:
        yield
    finally:
        _Keyboard.watched = False
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


@contextmanager
def at_the_border() -> Iterator[None]:
    """Code of a plug-in runs in here. Raises `Unsupported`, `Rejected`, `Lost` and `Raised`, nothing else of it."""
    try:
        yield
    except KeyboardInterrupt as error:
        if _Keyboard.pressed or not _Keyboard.watched:
            raise
        raise taken(error) from None
    except (Lost, BackendError, OutOfTime):
        raise
    except Unsupported as answer:
        raise _unsupported(answer) from None
    except Rejected as answer:
        raise _rejected(answer) from None
    except BaseException as error:
        raise taken(error) from None


def _unsupported(answer: Unsupported) -> Exception:
    values = [vars(answer).get(name) for name in ("feature", "reason", "url")]
    for name, value in zip(("feature", "reason", "url"), values, strict=True):
        if type(value) is not str:
            return raised("Unsupported", f"its {name} is not a text but of type {type(value).__name__}")
    return Unsupported(*(clean(str(value)) for value in values))


def _rejected(answer: Rejected) -> Exception:
    known = vars(answer)
    kind, phase, names = known.get("kind"), known.get("phase"), known.get("names")
    for name, value in (("kind", kind), ("phase", phase)):
        if type(value) is not str:
            return raised("Rejected", f"its {name} is not a text but of type {type(value).__name__}")
    if type(names) is not tuple or any(type(name) is not str for name in names):
        return raised("Rejected", "its names are not a tuple of texts")
    return Rejected(clean(str(kind), 80), clean(str(phase), 80), tuple(clean(name, 200) for name in names))


# Time


class OutOfTime(BaseException):
    """The time limit of something that runs in this process."""


@contextmanager
def within(seconds: float | None, what: str) -> Iterator[None]:
    """Raise `BackendError` in here when it takes longer.

    Works for Python code in the main thread of a system with alarms; what hangs inside a C function cannot be
    interrupted, other than with --isolate.
    """
    usable = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not seconds or not usable or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    seconds = min(seconds, 1e6)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, should the plug-in swallow the first one
    try:
        yield
    except OutOfTime:
        raise BackendError(f"{what} does not come back within {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# What comes back


def outputs_of(answer: object) -> Any:
    """The outputs of a call as a plain dictionary of plain arrays; an answer that is not a mapping is given back."""
    if not isinstance(answer, Mapping):
        return stand_in(answer)
    # One that never ends is cut: it has too many outputs in any event.
    return {_name(name): plain(value) for name, value in islice(answer.items(), MOST)}


def _name(name: object) -> str:
    return clean(name, 200) if isinstance(name, str) else clean(repr(name), 200)


def plain(value: object) -> Any:
    """An array as one of NumPy's own class on the same memory; something else as a stand-in of its type's name."""
    if not isinstance(value, np.ndarray):
        return stand_in(value)
    if value.dtype.hasobject:
        return np.empty(value.shape, dtype=object)
    if type(value) is np.ndarray:
        return value
    array = np.ndarray.view(value, np.ndarray)
    return np.array(array) if isinstance(value, np.memmap) else array


def stand_in(value: object, name: str = "") -> Any:
    """An object that is nothing but its class's name, so that a message can say what was there."""
    return type(clean(name or type(value).__name__, 80), (), {})()


def cleaned(info: Any) -> Any:
    """A description with clean texts; whether it is one is asked elsewhere."""
    if not isinstance(info, BackendInfo):
        return info
    return BackendInfo(**{field.name: _clean_field(getattr(info, field.name)) for field in fields(BackendInfo)})


def _clean_field(value: object) -> Any:
    if isinstance(value, str):
        return clean(value, 500)
    if isinstance(value, tuple | list):
        return tuple(clean(one, 200) if isinstance(one, str) else one for one in value)
    return value


@runtime_checkable
class Mirrored(Protocol):
    """A backend in another process: `refresh` shows what it has done to outputs since it returned them."""

    def refresh(self) -> None: ...


# A backend behind the border


class Guarded:
    """A backend of which nothing hostile comes out."""

    behind_the_border = True

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def describe(self) -> Any:
        """Its description, or those of its operations, with clean texts. Raises `Unsupported` and `Raised`."""
        with at_the_border():
            said: object = self.inner.describe()
            return tuple(map(cleaned, said)) if isinstance(said, tuple) else cleaned(said)

    def prepare(self, config: OperationConfig) -> Session:
        """One of its sessions, guarded as well."""
        with at_the_border():
            return GuardedSession(self.inner.prepare(config))

    def close(self) -> None:
        """Close it where it can be; what it raises then is of no interest any more."""
        with suppress(Raised, Unsupported, Rejected, Lost, BackendError), at_the_border():
            close(self.inner)

    def stderr(self) -> str:
        """What it printed, where it tells."""
        with suppress(Raised, Unsupported, Rejected), at_the_border():
            said = printed(self.inner)
            return clean(said) if isinstance(said, str) else ""
        return ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What it says of its environment, as far as it is texts."""
        with suppress(Raised, Unsupported, Rejected), at_the_border():
            found = environment_of(self.inner).items()
            return {clean(k, 100): clean(v) for k, v in found if isinstance(k, str) and isinstance(v, str)}
        return {}

    def __getattr__(self, name: str) -> Any:
        """Optional methods and fields of the backend."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class GuardedSession:
    """A session of which nothing hostile comes out."""

    def __init__(self, inner: Session) -> None:
        self.inner = inner

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call; outputs as plain arrays."""
        with at_the_border():
            outputs: Mapping[str, Array] = outputs_of(self.inner.run(dict(inputs)))
        return outputs

    def close(self) -> None:
        """Close it. Raises as any call does."""
        with at_the_border():
            self.inner.close()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def guarded(backend: Backend) -> Backend:
    """The backend behind the border; one that is there already is given back."""
    return backend if getattr(type(backend), "behind_the_border", False) else Guarded(backend)
