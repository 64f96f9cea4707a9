"""How another wiring becomes a backend: a subclass of the reference's pipeline, one instance a session.

What all sessions of a process would share is kept in `process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance import __version__
from conformance.backends import refusals
from conformance.backends.protocol import BackendInfo, OperationConfig, Session
from conformance.faults.entry import Entry, Shelf
from reference.sparse_attention_pipeline.operation import OUTPUTS, SparseAttentionPipeline

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]
Ports = dict[str, Array]

OPERATION = "SparseAttentionPipeline"
SHELF = Shelf()
fault, variant = SHELF.fault, SHELF.variant


class Wiring(SparseAttentionPipeline):
    """The pipeline, with room for what sessions share, and which configurations it takes."""

    process: dict[str, Any]

    @classmethod
    def checked(cls, config: OperationConfig) -> OperationConfig:
        """The configuration that is looked at for what has to be refused."""
        return config


class Planted:
    """A backend that runs one entry; it stands for one process."""

    def __init__(self, entry: Entry, readings: Mapping[str, str] | None = None) -> None:
        self.entry, self.readings = entry, readings
        self.process: dict[str, Any] = {}

    def describe(self) -> BackendInfo:
        return info(self.entry.connect)

    def prepare(self, config: OperationConfig) -> Session:
        kind: type[Wiring] = self.entry.implementation
        checker = refusals.checker(kind.checked(config), OPERATION)
        op = kind(config.attributes, self.readings)
        op.process = self.process
        return PlantedSession(checker, op)


class PlantedSession:
    def __init__(self, checker: refusals.Checker, op: SparseAttentionPipeline) -> None:
        self.checker, self.op = checker, op

    def run(self, inputs: Arrays) -> Arrays:
        self.checker.check(inputs)
        with np.errstate(all="ignore"):
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
        outputs=OUTPUTS,
        features=("rope", "norm", "weights", "scale", "sinks", "left_padding"),
        operation=OPERATION,
    )


def lengths_of(inputs: Arrays) -> Array:
    """The length of every sequence, int64 [N]."""
    S = inputs["key_length"].astype(np.int64)
    return np.broadcast_to(S, (inputs["raw_index_keys"].shape[0],))


def with_lengths(ports: Arrays, lengths: Array) -> Ports:
    """The ports of a stage with other lengths, none of them negative."""
    return {**ports, "key_length": np.maximum(lengths, 0).astype(ports["key_length"].dtype)}


def rolled(array: Array, steps: Array, axis: int = 0) -> Array:
    """Every sequence rolled by steps of its own [N]; `axis` counts the axes behind that of the sequences."""
    result = np.empty_like(array)
    for n, step in enumerate(steps):
        result[n] = np.roll(array[n], int(step), axis=axis)
    return result
