"""What an implementation under test looks like to the suite.

A backend takes no base class: any object with these methods will do. Everything here is fixed; plug-ins in other
repositories rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


# A feature of any operation, for a bare kernel whose callers check its inputs: no refusal case is asked of it.
UNCHECKED = "unchecked"


@dataclass(frozen=True)
class BackendInfo:
    """What a backend says of itself and of one operation; it decides which cases apply and stands in every report."""

    name: str
    version: str
    vendor: str
    element_types: tuple[str, ...]  # of "f32", "f16", "bf16"
    outputs: tuple[str, ...]  # the outputs it returns, by contract name
    features: tuple[str, ...] = ()  # the operation's features it can do without or copes with, and `UNCHECKED`
    device: str = "cpu"
    url: str = ""  # where its issues go
    operation: str = "QSAPrepare"


@dataclass(frozen=True)
class OperationConfig:
    """All that is known when an instance is prepared. Shapes are not: one session serves any of them."""

    operation: str  # "QSAPrepare"
    attributes: Mapping[str, int | float | bool]
    element_type: str  # "f32" | "f16" | "bf16"
    length_type: str  # "i32" | "i64"
    disabled: frozenset[str]  # subset of the operation's features

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What configurations are told apart by, as the key of a mapping; 1, 1.0 and True are not the same."""
        attributes = tuple(sorted((name, repr(value)) for name, value in self.attributes.items()))
        return self.operation, attributes, self.element_type, self.length_type, self.disabled


class Session(Protocol):
    """One prepared instance. State is in the tensors, never in the session."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call: all ports by contract name in, the declared outputs by contract name out.

        A port that is switched off is an array with no elements or, where the contract calls it optional, missing.
        bf16 is ``ml_dtypes.bfloat16``. As any NumPy array an input may have strides.
        """
        ...

    def close(self) -> None:
        """Give resources back; the session is not used again."""
        ...


class Backend(Protocol):
    """An implementation under test."""

    def describe(self) -> BackendInfo | tuple[BackendInfo, ...]:
        """Say who it is and what it can do, once for each operation served; called before anything is prepared."""
        ...

    def prepare(self, config: OperationConfig) -> Session:
        """Build one instance. Raises `Unsupported` or `Rejected`; anything else is an error."""
        ...


class Unsupported(Exception):  # noqa: N818  fixed name: it is an answer, not a failure
    """The backend cannot do this case, and says so. Never counted as passed."""

    def __init__(self, feature: str, reason: str, url: str = "") -> None:
        super().__init__(feature, reason, url)
        self.feature, self.reason, self.url = feature, reason, url

    def __str__(self) -> str:
        return f"{self.feature}: {self.reason}" + (f" ({self.url})" if self.url else "")


class Rejected(Exception):  # noqa: N818  fixed name: it is the right answer to a refusal case
    """The backend refuses the call or the configuration, as its contract asks.

    kind: "attribute" | "shape" | "type" | "rope" | "value"; phase: "prepare" | "call"; names: the offending
    attributes or ports, by contract name.
    """

    def __init__(self, kind: str, phase: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(kind, phase, tuple(names))
        self.kind, self.phase, self.names = kind, phase, tuple(names)

    def __str__(self) -> str:
        return f"{self.kind} at {self.phase}: {', '.join(self.names) or 'no name given'}"


# What a backend or a session may offer besides; whoever wants it asks with `isinstance`.


@runtime_checkable
class Closing(Protocol):
    """A backend that holds something: `close` is called when it is not used again."""

    def close(self) -> None: ...


@runtime_checkable
class Printing(Protocol):
    """A backend whose implementation prints: the end of what it printed since this was last asked."""

    def stderr(self) -> str: ...


@runtime_checkable
class Documented(Protocol):
    """A backend that says what it runs on; the log records it."""

    @property
    def environment(self) -> Mapping[str, str]: ...


class TimedPart(Protocol):
    """A part of a backend that is timed next to it. Its outputs are not judged.

    `prepare` is as of a backend; `moves` says whether it moves the bytes that the operation must move.
    """

    @property
    def name(self) -> str: ...

    @property
    def prepare(self) -> Callable[[OperationConfig], Session]: ...

    @property
    def moves(self) -> bool: ...


@runtime_checkable
class Divisible(Protocol):
    """A backend with parts of its own to be timed on this number of threads."""

    def timing_targets(self, threads: int) -> Sequence[TimedPart]: ...


@runtime_checkable
class Copying(Protocol):
    """A backend that offers its way to copy one dense array onto another, to compare times with."""

    def plain_copy(self, threads: int) -> Callable[[Array, Array], None]: ...


@runtime_checkable
class Binding(Protocol):
    """A session that can make a call ready: what `bind` returns runs it again and again, for timing alone."""

    def bind(self, inputs: Mapping[str, Array]) -> Callable[[], None]: ...


def close(backend: object) -> None:
    """Close a backend that can be closed."""
    if isinstance(backend, Closing):
        backend.close()


def printed(backend: object) -> str:
    """What a backend printed since this was last asked; nothing for one that does not tell."""
    return backend.stderr() if isinstance(backend, Printing) else ""


def environment_of(backend: object) -> dict[str, str]:
    """What a backend says it runs on; nothing for one that does not tell."""
    return dict(backend.environment) if isinstance(backend, Documented) else {}


def infos_of(backend: Backend) -> tuple[BackendInfo, ...]:
    """What a backend says of itself, one entry for each operation served; unchecked."""
    said = backend.describe()
    return said if isinstance(said, tuple) else (said,)


def info_for(backend: Backend, operation: str) -> BackendInfo:
    """What a backend says of itself for one operation. Raises `Unsupported` when it does not serve it."""
    infos = infos_of(backend)
    for info in infos:
        if info.operation == operation:
            return info
    raise Unsupported(operation, f"{infos[0].name} serves {listed([info.operation for info in infos])} only")


def serve_only(config: OperationConfig, operation: str) -> None:
    """For a backend of one operation. Raises `Unsupported` when another one is asked for."""
    if config.operation != operation:
        raise Unsupported(config.operation, f"this backend serves {operation} only")


def listed(names: Sequence[str]) -> str:
    """Names as they stand in a sentence."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
