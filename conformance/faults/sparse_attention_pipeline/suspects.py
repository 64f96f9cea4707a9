"""Faults under other readings of the contract, for diagnosis."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.protocol import Backend
from conformance.faults.entry import Entry
from conformance.faults.sparse_attention_pipeline.planting import SHELF, Planted


def backend(entry: Entry | None, readings: Mapping[str, str]) -> Backend:
    """The fault of `entry`, if any, in a pipeline that reads the contract as `readings` say."""
    return Planted(SHELF.entries["pipeline-float64"] if entry is None else entry, readings)
