"""One case on one implementation of the catalogue, again and again: what depends on the case alone is worked out once.

Every implementation gets a fresh backend and fresh sessions for every case, so that no result depends on the order.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.faults import catalogue
from conformance.faults.entry import Entry
from conformance.judging.calling import Inputs
from conformance.judging.engine import Engine, Source
from conformance.judging.outcome import Outcome
from conformance.library.selection import size
from conformance.spec.case import Case
from conformance.spec.operation import Operation, Reference
from reference.expected import Expected

Array = np.ndarray[Any, np.dtype[Any]]

CASES_KEPT = 200
LARGE = 400_000  # bytes of a case of which no more than one is kept


class Remembering:
    """A reference that works out the same call once."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._known: dict[bytes, dict[str, Expected]] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return self._reference.run(inputs)

    def expect(self, inputs: Mapping[str, Array]) -> dict[str, Expected]:
        key = _identity(inputs)
        if key not in self._known:
            self._known[key] = self._reference.expect(inputs)
        return self._known[key]


def _identity(inputs: Mapping[str, Array]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in inputs.items():
        digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.digest()


class Common:
    """What all implementations share in one case: inputs and expectations."""

    def __init__(self, case: Case) -> None:
        self.case, self.size = case, 0
        self.inputs: dict[str, Inputs] = {}
        self.oracles: dict[Any, Remembering] = {}


class Sharing(Source):
    """Inputs and references from what all implementations share."""

    def __init__(self, operation: Operation, common: Common) -> None:
        super().__init__(operation, {})
        self.common = common

    def inputs(self, case: Case) -> Inputs:
        key = "" if case is self.common.case else case.digest
        if key not in self.common.inputs:
            self.common.inputs[key] = super().inputs(case)
        inputs = self.common.inputs[key]
        # A refusal hands its inputs over as they are.
        return {name: array.copy() for name, array in inputs.items()} if case.refusal else inputs

    def oracle(self, case: Case) -> Reference:
        key = tuple(sorted(case.attributes.items()))
        if key not in self.common.oracles:
            self.common.oracles[key] = Remembering(super().oracle(case))
        return self.common.oracles[key]


class Trial:
    """Runs cases on implementations; what belongs to a case is kept for the latest cases."""

    def __init__(self, operation: Operation, *, relations_only: bool = False) -> None:
        self.operation = operation
        self._free = relations_only
        self._common: OrderedDict[int, Common] = OrderedDict()

    def run(self, entry: Entry, case: Case) -> Outcome:
        """The outcome of a case on an implementation of its own process."""
        source = Sharing(self.operation, self._of(case))
        engine = Engine(self.operation, catalogue.backend_of(entry), free=self._free, source=source)
        try:
            return engine.run(case)
        finally:
            engine.close()

    def _of(self, case: Case) -> Common:
        key = id(case)  # of a case that `Common` keeps, so that the number stays its own
        if key not in self._common:
            for other in [k for k, kept in self._common.items() if kept.size >= LARGE]:
                del self._common[other]
            self._common[key] = Common(case)
            self._common[key].size = size(case, self.operation)
            while len(self._common) > CASES_KEPT:
                self._common.popitem(last=False)
        self._common.move_to_end(key)
        return self._common[key]


def killed(outcome: Outcome, fault: Entry, operation: Operation) -> bool:
    """Whether an outcome shows a fault to be one.

    A warning does not, unless the fault breaks nothing but recommended clauses, and it is of one of them.
    """
    if outcome.status in ("fail", "error"):
        return True
    recommended = all(operation.clause[clause].level == "recommended" for clause in fault.clauses)
    return outcome.status == "quality-warning" and recommended and outcome.clause in fault.clauses
