"""The reference as a backend: float64 NumPy, rounded once to the element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import __version__
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.qsa_prepare import refusals
from reference.qsa_prepare.operation import QSAPrepare, Readings

Array = np.ndarray[Any, np.dtype[Any]]


class NumPyReference:
    """Connect string `numpy`. It shows that harness and reference agree; it is no oracle for itself."""

    def __init__(self, readings: Readings | None = None) -> None:
        self.readings = readings

    def describe(self) -> BackendInfo:
        return BackendInfo(
            name="numpy",
            version=f"{__version__} on NumPy {np.__version__}",
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=("block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope"),
            features=("rope", "norm", "left_padding"),
        )

    def prepare(self, config: OperationConfig) -> Session:
        refusals.check_attributes(config)
        attributes = config.attributes
        return _Session(
            config, QSAPrepare(int(attributes["key_block_size"]), float(attributes["epsilon"]), self.readings)
        )


class _Session:
    def __init__(self, config: OperationConfig, op: QSAPrepare) -> None:
        self.config, self.op = config, op

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        refusals.check_call(self.config, inputs)
        return self.op.run(inputs)

    def close(self) -> None:
        return None
