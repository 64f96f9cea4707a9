"""What the faults of every operation share: sessions of a planted implementation, and the wrong ways to refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from conformance.backends.protocol import OperationConfig, Rejected

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = Mapping[str, Array]


class Admission(Protocol):
    """What is refused of an operation."""

    def configuration(self, config: OperationConfig) -> None:
        """Raises `Rejected` for attributes and types that are refused."""
        ...

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        """The inputs to compute with. Raises `Rejected` for inputs that are refused."""
        ...


class Implementation(Protocol):
    """What computes once a call is admitted."""

    def run(self, inputs: Inputs) -> Mapping[str, Array]: ...


class PlantedSession:
    """A session of a planted implementation; NumPy does not warn of what it computes from poison."""

    def __init__(self, config: OperationConfig, admission: Admission, op: Implementation) -> None:
        self.config, self.admission, self.op = config, admission, op

    def run(self, inputs: Inputs) -> Mapping[str, Array]:
        with np.errstate(all="ignore"):
            return self.op.run(self.admission.call(self.config, inputs))

    def close(self) -> None:
        return None


# Wrong ways to refuse, to be put before an operation's own admission


class _Refusing:
    """Refuses nothing by itself; the operation's admission comes next in line."""

    def configuration(self, config: OperationConfig) -> None:
        return super().configuration(config)  # type: ignore[misc, no-any-return]

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        return super().call(config, inputs)  # type: ignore[misc, no-any-return]


class CallErrors(_Refusing):
    """What is wrong with a call is found by an error somewhere inside."""

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        try:
            return super().call(config, inputs)
        except Rejected as rejected:
            raise ValueError(f"operands could not be broadcast together ({rejected})") from None


class AttributeErrors(_Refusing):
    """An attribute out of range is found by an error inside."""

    def configuration(self, config: OperationConfig) -> None:
        try:
            super().configuration(config)
        except Rejected as rejected:
            raise ZeroDivisionError(str(rejected)) from None


class BrokenAfterRefusal(_Refusing):
    """Once it has refused a call, it serves none any more."""

    broken = False

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        if self.broken:
            raise RuntimeError("the request is in a failed state")
        try:
            return super().call(config, inputs)
        except Rejected:
            self.broken = True
            raise
