"""Faults under other readings of the contract, for diagnosis."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.protocol import Backend
from conformance.backends.sparse_attention.numpy_reference import NumPyReference
from conformance.faults.entry import Entry
from conformance.faults.sparse_attention.planting import Planted
from reference.sparse_attention.operation import Readings


def backend(entry: Entry | None, readings: Mapping[str, str]) -> Backend:
    """The fault of `entry`, if any, in an implementation that reads the contract as `readings` say."""
    chosen = Readings(**readings)
    return NumPyReference(chosen) if entry is None else Planted(entry, chosen)
