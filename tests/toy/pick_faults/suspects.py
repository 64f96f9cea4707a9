"""Faults under other readings of the contract, for diagnosis."""

from __future__ import annotations

from pick_reference import Oracle

from conformance.faults.entry import Entry
from pick_faults import backend as planted


def backend(entry, readings):
    """The fault of `entry`, if any, in an implementation that reads the contract as `readings` say."""
    return planted(entry or Entry("variant", "reference", "The reference.", Oracle, "suspects"), readings)
