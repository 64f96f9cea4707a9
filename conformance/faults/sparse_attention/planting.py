"""How a replaced stage becomes a backend.

An implementation is a subclass of the reference, or of `Admission` when it is wrong in what it refuses. One instance is
made per session, so that an implementation may keep state from call to call in itself; what all sessions of a process
would share is kept in `process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.sparse_attention.numpy_reference import OPERATION, info, operation_of
from conformance.backends.sparse_attention.values import check_values
from conformance.faults.entry import Entry, Shelf
from conformance.faults.planted import PlantedSession
from reference.sparse_attention.operation import Readings, SparseAttention

Array = np.ndarray[Any, np.dtype[Any]]

SHELF = Shelf()
fault, variant = SHELF.fault, SHELF.variant


class Admission:
    """What is refused: attributes at the preparation, everything else at the call."""

    def configuration(self, config: OperationConfig) -> None:
        """Raises `Rejected` for attributes and types that are refused."""
        self.checker = refusals.checker(config, OPERATION)

    def call(self, config: OperationConfig, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The inputs to compute with. Raises `Rejected` for inputs that are refused."""
        self.checker.check(inputs)
        check_values(config, inputs)
        return inputs


class Faulty(SparseAttention):
    """The reference, with room for what sessions share."""

    process: dict[str, Any]


class Planted:
    """A backend that runs one entry; it stands for one process."""

    def __init__(self, entry: Entry, readings: Readings | None = None) -> None:
        self.entry, self.readings = entry, readings
        self.process: dict[str, Any] = {}

    def describe(self) -> BackendInfo:
        return info(self.entry.connect)

    def prepare(self, config: OperationConfig) -> Session:
        implementation = self.entry.implementation
        admission = implementation() if issubclass(implementation, Admission) else Admission()
        admission.configuration(config)
        operation = implementation if issubclass(implementation, SparseAttention) else SparseAttention
        op = operation_of(operation, config, self.readings)
        if isinstance(op, Faulty):
            op.process = self.process
        return PlantedSession(config, admission, op)
