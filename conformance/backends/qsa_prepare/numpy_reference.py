"""The reference as a backend: float64 NumPy, rounded once to the element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import __version__
from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.qsa_prepare import OPERATION
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON, OUTPUTS
from reference.qsa_prepare.operation import QSAPrepare, Readings

Array = np.ndarray[Any, np.dtype[Any]]


class NumPyReference:
    """Connect string `numpy`. It shows that harness and reference agree; it cannot judge itself."""

    def __init__(self, readings: Readings | None = None) -> None:
        self.readings = readings

    def describe(self) -> BackendInfo:
        return BackendInfo(
            name="numpy",
            version=f"{__version__} on NumPy {np.__version__}",
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=("rope", "norm", "left_padding"),
        )

    def prepare(self, config: OperationConfig) -> Session:
        checker = refusals.checker(config, OPERATION)
        r, epsilon = config.attributes["key_block_size"], config.attributes.get("epsilon", DEFAULT_EPSILON)
        return _Session(checker, QSAPrepare(int(r), float(epsilon), self.readings))


class _Session:
    def __init__(self, checker: refusals.Checker, op: QSAPrepare) -> None:
        self.check, self.op = checker.check, op

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.check(inputs)
        return self.op.run(inputs)

    def close(self) -> None:
        return None
