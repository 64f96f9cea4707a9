"""What an implementation under test looks like to the suite.

A backend takes no base class: any object with these methods will do. Everything here is fixed; plug-ins in other
repositories rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class BackendInfo:
    """What a backend says of itself; it decides which cases apply and is printed in every report."""

    name: str
    version: str
    vendor: str
    element_types: tuple[str, ...]  # of "f32", "f16", "bf16"
    outputs: tuple[str, ...]  # the outputs it returns, by contract name
    features: tuple[str, ...] = ()  # of the operation's features it can switch off, and "left_padding"
    device: str = "cpu"
    url: str = ""  # where its issues go


@dataclass(frozen=True)
class OperationConfig:
    """All that is known when an instance is prepared. Shapes are not: one session serves any of them."""

    operation: str  # "QSAPrepare"
    attributes: Mapping[str, int | float]
    element_type: str  # "f32" | "f16" | "bf16"
    length_type: str  # "i32" | "i64"
    disabled: frozenset[str]  # subset of the operation's features


class Session(Protocol):
    """One prepared instance. State is in the tensors, never in the session (PLG-1, PLG-3)."""

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """One call: all ports by contract name in, the declared outputs by contract name out.

        A disabled port is an array with no elements; bf16 is ``ml_dtypes.bfloat16``. As any NumPy array an input may
        have strides.
        """
        ...

    def close(self) -> None:
        """Give resources back; the session is not used again."""
        ...


class Backend(Protocol):
    """An implementation under test."""

    def describe(self) -> BackendInfo:
        """Say who it is and what it can do; called before anything is prepared."""
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
    """The backend refuses the call or the configuration, as ERR-1 to ERR-5 ask.

    kind: "attribute" | "shape" | "type" | "rope" | "value"; phase: "prepare" | "call"; names: the offending
    attributes or ports, by contract name.
    """

    def __init__(self, kind: str, phase: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(kind, phase, tuple(names))
        self.kind, self.phase, self.names = kind, phase, tuple(names)

    def __str__(self) -> str:
        return f"{self.kind} at {self.phase}: {', '.join(self.names) or 'no name given'}"
