"""How a replaced stage becomes a backend.

An implementation is a subclass of the reference, or of `Admission` when it is wrong in what it refuses. One instance is
made per session, so that an implementation may keep state from call to call in itself; what all sessions of a process
would share is kept in `process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import __version__
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.sparse_attention_indexer import refusals
from conformance.backends.sparse_attention_indexer.numpy_reference import FEATURES, OUTPUTS, operation_of
from conformance.faults.entry import Entry, Shelf
from conformance.faults.planted import PlantedSession
from reference.sparse_attention_indexer.operation import Readings, SparseAttentionIndexer

Array = np.ndarray[Any, np.dtype[Any]]
Inputs = Mapping[str, Array]
Outputs = dict[str, Array]

SHELF = Shelf()
fault, variant = SHELF.fault, SHELF.variant


class Admission:
    """What is refused: ERR-1 to ERR-5, at the preparation and at the call."""

    def configuration(self, config: OperationConfig) -> None:
        """Raises `Rejected` for attributes and types that are refused."""
        refusals.check_attributes(config)

    def call(self, config: OperationConfig, inputs: Inputs) -> Inputs:
        """The inputs to compute with. Raises `Rejected` for inputs that are refused."""
        refusals.check_call(config, inputs)
        return inputs


class Faulty(SparseAttentionIndexer):
    """The reference, with room for what sessions share, and what it was prepared with."""

    process: dict[str, Any]
    config: OperationConfig


class Planted:
    """A backend that runs one entry; it stands for one process."""

    def __init__(self, entry: Entry, readings: Readings | None = None) -> None:
        self.entry, self.readings = entry, readings
        self.process: dict[str, Any] = {}

    def describe(self) -> BackendInfo:
        return BackendInfo(
            name=self.entry.connect,
            version=f"{__version__} on NumPy {np.__version__}",
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=FEATURES,
            operation="SparseAttentionIndexer",
        )

    def prepare(self, config: OperationConfig) -> Session:
        implementation = self.entry.implementation
        admission = implementation() if issubclass(implementation, Admission) else Admission()
        admission.configuration(config)
        kind = implementation if issubclass(implementation, SparseAttentionIndexer) else SparseAttentionIndexer
        op = operation_of(kind, config, self.readings)
        if isinstance(op, Faulty):
            op.process, op.config = self.process, config
        return PlantedSession(config, admission, op)
