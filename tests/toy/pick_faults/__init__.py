"""Faulty and conforming implementations of the toy operation, each the reference with one stage replaced."""

from __future__ import annotations

import numpy as np
from pick_backend import Pick, Session
from pick_reference import Oracle

from conformance.faults.entry import Shelf

SHELF = Shelf()
fault, variant = SHELF.fault, SHELF.variant


class backend(Pick):  # noqa: N801  a function to the catalogue
    """A backend that runs one entry."""

    def __init__(self, entry, readings=None):
        self.entry, self.readings = entry, readings

    def oracle(self, attributes):
        return self.entry.implementation(attributes, self.readings)

    def prepare(self, config):
        if issubclass(self.entry.implementation, Careless):
            return self.entry.implementation(Oracle(config.attributes, self.readings))
        return super().prepare(config)


class Careless(Session):
    """Checks nothing."""


@fault("T01", "Takes the last of equal values.", breaks="CHO-2", reading="ties=last")
class LastOfTies(Oracle):
    def __init__(self, attributes, readings=None):
        super().__init__(attributes, {"ties": "last"})


@fault("T02", "Always takes the largest value.", breaks="CHO-1")
class AlwaysLargest(Oracle):
    def __init__(self, attributes, readings=None):
        super().__init__({**attributes, "largest": True}, readings)


@fault("T03", "Looks at all values of a row.", breaks="CHO-3")
class AllValues(Oracle):
    def seen(self, row, count):
        return row if count else row[:0]


@fault("T04", "Gives 0 for an empty row.", breaks="CHO-3")
class ZeroForNone(Oracle):
    def none(self):
        return 0


@fault("T05", "Forgets the bias.", breaks="CHO-1")
class NoBias(Oracle):
    def biased(self, inputs):
        return inputs["values"].astype(np.float64)


@fault("T06", "Returns the index once, whatever 'copies' says.", breaks="SIZ-1")
class OneCopy(Oracle):
    def __init__(self, attributes, readings=None):
        super().__init__({**attributes, "copies": 1}, readings)


@fault("T07", "Refuses nothing.", breaks="BAD-1 BAD-2 BAD-3")
class RefusesNothing(Careless):
    def run(self, inputs):
        return {"best": np.zeros((len(inputs["values"]), max(self.oracle.copies, 1)), np.int32)}


@variant("sorted", "Sorts a row and takes the first.")
class Sorted(Oracle):
    def best(self, row):
        if not len(row):
            return self.none()
        return int(np.argsort(-row if self.largest else row, kind="stable")[0])


@variant("loops", "Looks at one value after the other.")
class Loops(Oracle):
    def best(self, row):
        found = self.none()
        for index, value in enumerate(row):
            if found < 0 or (value > row[found] if self.largest else value < row[found]):
                found = index
        return found
