"""Faults under other readings of the contract, for diagnosis."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.protocol import Backend, OperationConfig, Session
from conformance.backends.qsa_prepare.numpy_reference import NumPyReference
from conformance.faults.entry import Entry
from conformance.faults.planted import PlantedSession
from conformance.faults.qsa_prepare.planting import Planted
from reference.qsa_prepare.operation import QSAPrepare, Readings


def backend(entry: Entry | None, readings: Mapping[str, str]) -> Backend:
    """The fault of `entry`, if any, in an implementation that reads the contract as `readings` say."""
    chosen = Readings(**readings)
    return NumPyReference(chosen) if entry is None else _Reader(entry, chosen)


class _Reader(Planted):
    def __init__(self, entry: Entry, readings: Readings) -> None:
        super().__init__(entry)
        self.readings = readings

    def prepare(self, config: OperationConfig) -> Session:
        session = super().prepare(config)
        assert isinstance(session, PlantedSession) and isinstance(session.op, QSAPrepare)
        session.op.readings = self.readings
        return session
