"""What is said between the suite and the process of an isolated backend; both ends are always of one version."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from conformance.backends.plugin.arrays import Laid
from conformance.backends.protocol import BackendInfo


class Config(msgspec.Struct, frozen=True):
    """An `OperationConfig`."""

    operation: str
    attributes: dict[str, Any]
    element_type: str
    length_type: str
    disabled: tuple[str, ...]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Connect the backend, and ask it who it is."""

    connect: str
    operation: str = ""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Prepare a session under a number."""

    session: int
    config: Config


class Input(msgspec.Struct, frozen=True):
    """An input: in the area, or the very array that an earlier call returned."""

    name: str
    laid: Laid
    kept: int = 0


class Call(msgspec.Struct, frozen=True, tag=True):
    """One call; outputs of the numbers `dropped` are not held by anybody any more."""

    session: int
    inputs: tuple[Input, ...]
    dropped: tuple[int, ...] = ()


class Look(msgspec.Struct, frozen=True, tag=True):
    """Which outputs of earlier calls have changed since?"""

    dropped: tuple[int, ...] = ()


class Release(msgspec.Struct, frozen=True, tag=True):
    """Close a session."""

    session: int


Request = Start | Prepare | Call | Look | Release
AnyRequest = Request


class Started(msgspec.Struct, frozen=True, tag=True):
    """The backend is there, with a description for each of its operations."""

    infos: tuple[BackendInfo, ...]
    environment: dict[str, str]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is done."""


class Output(msgspec.Struct, frozen=True):
    """An output under a number; `other` is the type of what is not an array, or empty for an array of objects."""

    name: str
    laid: Laid | None = None
    number: int = 0
    other: str = ""
    shape: tuple[int, ...] = ()


class Returned(msgspec.Struct, frozen=True, tag=True):
    """What a call returned, the inputs that it wrote into, and those whose shape or strides it set."""

    outputs: tuple[Output, ...] = ()
    touched: tuple[str, ...] = ()
    reshaped: tuple[str, ...] = ()


class NotOutputs(msgspec.Struct, frozen=True, tag=True):
    """A call returned something of this type."""

    kind: str
    touched: tuple[str, ...] = ()


class Unsupported(msgspec.Struct, frozen=True, tag=True):
    """As the exception."""

    feature: str
    reason: str
    url: str = ""


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """As the exception."""

    kind: str
    phase: str
    names: tuple[str, ...]


class Raised(msgspec.Struct, frozen=True, tag=True):
    """Anything else that was raised."""

    kind: str
    text: str
    trace: str


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """Why there is no backend."""

    reason: str


class WasLost(msgspec.Struct, frozen=True, tag=True):
    """The plug-in is a command of its own, and its process was lost."""

    kind: str
    says: str


AnyAnswer = Started | Done | Returned | NotOutputs | Unsupported | Rejected | Raised | Unusable | WasLost


def packed(message: msgspec.Struct) -> bytes:
    """A message as a line. Not JSON, which has no NaN."""
    return base64.b64encode(msgspec.msgpack.encode(message))
