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
from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.qsa_prepare import OPERATION
from conformance.faults.entry import Entry, Shelf
from conformance.faults.planted import PlantedSession
from reference.qsa_prepare.operation import QSAPrepare

Array = np.ndarray[Any, np.dtype[Any]]

SHELF = Shelf()
fault, variant = SHELF.fault, SHELF.variant


class Admission:
    """What is refused: ERR-1 at the preparation, ERR-2 to ERR-5 at the call."""

    _checker: refusals.Checker | None = None

    def configuration(self, config: OperationConfig) -> None:
        """Raises `Rejected` for attributes and types that are refused."""
        refusals.checker(config, OPERATION)

    def call(self, config: OperationConfig, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The inputs to compute with. Raises `Rejected` for inputs that are refused."""
        if self._checker is None or self._checker.config is not config:
            self._checker = refusals.Checker(config, refusals.operation_called(OPERATION))
        self._checker.check(inputs)
        return inputs


class Faulty(QSAPrepare):
    """The reference, with room for what sessions share."""

    process: dict[str, Any]


class Planted:
    """A backend that runs one entry; it stands for one process."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.process: dict[str, Any] = {}

    def describe(self) -> BackendInfo:
        return BackendInfo(
            name=self.entry.connect,
            version=f"{__version__} on NumPy {np.__version__}",
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope"),
            features=("rope", "norm", "left_padding"),
        )

    def prepare(self, config: OperationConfig) -> Session:
        implementation = self.entry.implementation
        admission = implementation() if issubclass(implementation, Admission) else Admission()
        admission.configuration(config)
        operation = implementation if issubclass(implementation, QSAPrepare) else QSAPrepare
        op = operation(int(config.attributes["key_block_size"]), float(config.attributes["epsilon"]))
        if isinstance(op, Faulty):
            op.process = self.process
        return PlantedSession(config, admission, op)
