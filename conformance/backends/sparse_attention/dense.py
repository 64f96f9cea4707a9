"""Dense attention, timed beside sparse attention to tell what the selection saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conformance.backends.protocol import OperationConfig, Session


@dataclass(frozen=True)
class DensePart:
    """A runtime's own attention to all keys: it is timed, and its output is not judged."""

    name: str
    prepare: Callable[[OperationConfig], Session]
    moves: bool = False  # it moves all keys, not those that are selected
