"""The reference as a backend: float64 NumPy, rounded once to the element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import __version__
from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.sparse_attention.values import check_values
from reference.sparse_attention.operation import Readings, SparseAttention

Array = np.ndarray[Any, np.dtype[Any]]

OPERATION = "SparseAttention"


class NumPyReference:
    """Connect string `numpy`. It shows that harness and reference agree; it cannot judge itself."""

    def __init__(self, readings: Readings | None = None) -> None:
        self.readings = readings

    def describe(self) -> BackendInfo:
        return info("numpy")

    def prepare(self, config: OperationConfig) -> Session:
        return _Session(
            config, refusals.checker(config, OPERATION), operation_of(SparseAttention, config, self.readings)
        )


class _Session:
    def __init__(self, config: OperationConfig, checker: refusals.Checker, op: SparseAttention) -> None:
        self.config, self.checker, self.op = config, checker, op

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.checker.check(inputs)
        check_values(self.config, inputs)
        return self.op.run(inputs)

    def close(self) -> None:
        return None


def info(name: str) -> BackendInfo:
    """What an implementation on top of the reference says of itself."""
    return BackendInfo(
        name=name,
        version=f"{__version__} on NumPy {np.__version__}",
        vendor="qsa-conformance",
        element_types=("f32", "f16", "bf16"),
        outputs=("attention_output",),
        features=("key_length", "scale", "sinks", "left_padding"),
        operation=OPERATION,
    )


def operation_of(
    kind: type[SparseAttention], config: OperationConfig, readings: Readings | None = None
) -> SparseAttention:
    """An implementation of this class for the attributes of a configuration."""
    attributes = config.attributes
    return kind(
        int(attributes["key_block_size"]),
        int(attributes.get("query_block_size", 1)),
        bool(attributes.get("causal", True)),
        readings,
    )
