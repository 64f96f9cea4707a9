"""The reference as a backend: scores in float64 NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import __version__
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.backends.sparse_attention_indexer import refusals
from reference.sparse_attention_indexer.operation import Readings, SparseAttentionIndexer

Array = np.ndarray[Any, np.dtype[Any]]

OUTPUTS = ("block_indices", "block_count")
FEATURES = ("weights", "left_padding")


class NumPyReference:
    """Connect string `numpy`. It shows that harness and reference agree; it cannot judge itself."""

    def __init__(self, readings: Readings | None = None) -> None:
        self.readings = readings or Readings()

    def describe(self) -> BackendInfo:
        return BackendInfo(
            name="numpy",
            version=f"{__version__} on NumPy {np.__version__}",
            vendor="qsa-conformance",
            element_types=("f32", "f16", "bf16"),
            outputs=OUTPUTS,
            features=FEATURES,
            operation="SparseAttentionIndexer",
        )

    def prepare(self, config: OperationConfig) -> Session:
        refusals.check_attributes(config, floor_budget=self.readings.budget == "floor")
        return _Session(config, operation_of(SparseAttentionIndexer, config, self.readings))


class _Session:
    def __init__(self, config: OperationConfig, op: SparseAttentionIndexer) -> None:
        self.config, self.op = config, op

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        refusals.check_call(self.config, inputs)
        return self.op.run(inputs)

    def close(self) -> None:
        return None


def operation_of(
    kind: type[SparseAttentionIndexer], config: OperationConfig, readings: Readings | None = None
) -> SparseAttentionIndexer:
    """An implementation of this class for the attributes of a configuration."""
    attributes = config.attributes
    return kind(
        int(attributes["key_block_size"]),
        int(attributes["token_budget"]),
        int(attributes.get("num_selection_heads", 1)),
        readings,
    )
