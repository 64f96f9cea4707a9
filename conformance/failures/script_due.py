"""What a script holds an answer against: values and bounds of every output, choices, and places of bits.

Outputs that are large are judged in places: around the worst element, and spread over all others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from conformance.failures.calls import Made
from conformance.failures.script_arrays import WRITTEN, Arrays, nested, numpy_name
from conformance.judging.calling import Array
from conformance.record.recorded import Recorded
from conformance.spec.operation import Operation
from reference.chosen import Chosen, Repeated
from reference.expected import Expected
from reference.parts import Fed, elements

ROWS = 4  # rows of choices that are judged when none is the worst
JUDGED = 240  # elements of an output that are judged when there are more


class Due:
    """Writes what is due of the calls of one script."""

    def __init__(self, found: Recorded, operation: Operation, arrays: Arrays) -> None:
        self.found, self.operation, self.arrays = found, operation, arrays

    def rows(self, call: Made) -> list[str]:
        """Rows of choices to judge of a call: the worst one, or the first few."""
        if call.refused or call.config.element_type != self.arrays.element_type:
            return []
        return [
            self._row(name, expected, part, unit)
            for name, expected in self._expect(call).items()
            for part in expected.parts
            if isinstance(part, Chosen)
            for unit in self._units(name, part)
        ]

    def _units(self, name: str, part: Chosen) -> list[int]:
        worst = self.found.outcome.worst
        index = np.stack([np.asarray(one) for one in part.index], axis=1)
        if worst and worst.output == name and len(worst.index) == index.shape[1]:
            found = np.flatnonzero((index == worst.index).all(axis=1))
            if len(found):
                return [int(found[0])]
        return list(range(min(len(index), ROWS)))

    def _row(self, name: str, expected: Expected, part: Chosen, unit: int) -> str:
        score, error, ties = part.ranking.scores(int(part.rows[unit]))
        start = np.ravel_multi_index((*(int(one[unit]) for one in part.index), 0), expected.shape)
        arrays = (nested(a) if a.size <= WRITTEN else f"{self.arrays.packed(a)}.tolist()" for a in (score, error))
        return f'("{name}", {start}, {int(part.count[unit])}, {", ".join(arrays)}, {ties})'

    def bits_differ(self, call: Made) -> bool:
        """Whether the worst element is within its bound, and its bits are not those of the single call."""
        worst = self.found.outcome.worst
        if worst is None or worst.bound is not None:
            return False
        expected = self.operation.oracle(call.config.attributes, self.found.log.header.readings).expect(call.inputs)
        _, bound = _flat(expected[worst.output])
        shape = expected[worst.output].shape
        return _within(worst.index, shape) and bool(bound[np.ravel_multi_index(worst.index, shape)] > 0)

    def held(self, call: Made, *, only_worst: bool) -> str:
        """The places of every output whose bits are those of an equal call: whatever is specified, in bounds or not."""
        expected, worst = self._expect(call), self.found.outcome.worst
        if only_worst:
            assert worst
            return f'"{worst.output}": [{np.ravel_multi_index(worst.index, expected[worst.output].shape)}]'
        found = []
        for name, one in expected.items():
            mask = _specified(one)
            few = str(np.flatnonzero(mask).tolist()) if mask.sum() <= WRITTEN else ""
            bits = "" if few or mask.all() else self.arrays.packed(np.packbits(mask))
            packed = bits and f"np.unpackbits({bits})[: {mask.size}] > 0"
            found.append(f'"{name}": {few or packed or "slice(None)"}')
        return ", ".join(found)

    def _expect(self, call: Made) -> Mapping[str, Expected]:
        """What is expected of the outputs that the backend returns."""
        readings = self.found.log.header.readings
        expected = self.operation.oracle(call.config.attributes, readings).expect(call.inputs)
        return {name: expected[name] for name in self.found.log.header.backend.outputs}

    def lines(self, call: Made, *, only_worst: bool = False) -> list[str]:
        """A line for every output: shape, places, values and largest errors."""
        expected = self._expect(call)
        worst = self.found.outcome.worst
        lines = []
        for name in self.found.log.header.backend.outputs:
            index = worst.index if worst and worst.output == name else ()
            lines.append(f'    "{name}": {self._expected(expected[name], index, only=only_worst)},')
        return lines

    def _expected(self, expected: Expected, worst: tuple[int, ...], *, only: bool) -> str:
        want, bound = _flat(expected, quality=self.found.outcome.status == "quality-warning")
        at = _chosen(_judged(expected, bound).reshape(expected.shape), worst)
        kind = "" if expected.dtype == self.arrays.type else f", {numpy_name(expected.dtype)}"
        if only:
            at = at[at == np.ravel_multi_index(worst, expected.shape)] if worst else at[:0]
        values, limits = want[at], bound[at]
        if at.size > WRITTEN:
            return f"({expected.shape}, {', '.join(map(self.arrays.packed, (at, values, limits)))}{kind})"
        short = [value if not limit else float(f"{value:.12g}") for value, limit in zip(values, limits, strict=True)]
        shown = [float(f"{limit * (1 + 5e-5):.4g}") for limit in limits]  # rounded up
        places = f"range({at.size})" if at.size > 4 and at[-1] == at.size - 1 else str(at.tolist())
        return f"({expected.shape}, {places}, {nested(np.array(short))}, {nested(np.array(shown))}{kind})"


def _flat(expected: Expected, *, quality: bool = False) -> tuple[Array, Array]:
    """Values and bounds of a whole output, flat: 0 for copies, infinite for what is not judged."""
    want = np.zeros(expected.shape)
    bound = np.full(expected.shape, np.inf)
    for part in expected.parts:
        limits = elements(part, recommended=quality)
        if isinstance(part, Chosen):
            want[part.index] = part.value
        if limits is not None:
            # Where parts overlap the first one counts that judges an element at all.
            free = np.isinf(bound[part.index])
            want[part.index] = np.where(free, limits[0], want[part.index])
            bound[part.index] = np.where(free, limits[1], bound[part.index])
    return want.ravel(), bound.ravel()


def _specified(expected: Expected) -> Array:
    """Mask of the elements that an equal call gives again, flat."""
    mask = np.zeros(expected.shape, dtype=bool)
    for part in expected.parts:
        inner = part.part if isinstance(part, Fed) else part
        mask[part.index] |= (
            np.arange(inner.value.shape[1]) < inner.count[:, None] if isinstance(inner, Chosen | Repeated) else True
        )
    return mask.ravel()


def _judged(expected: Expected, bound: Array) -> Array:
    """Mask of the elements whose bits are looked at, flat: those with a bound, and the entries of choices."""
    judged = np.isfinite(bound).reshape(expected.shape)
    for part in expected.parts:
        if isinstance(part, Chosen):
            judged[part.index] |= np.arange(part.value.shape[1]) < part.count[:, None]
    return judged.ravel()


def _chosen(judged: Array, worst: tuple[int, ...]) -> Array:
    """Places, in the flat output, of the elements to judge: around the worst one, and a spread over all others."""
    places = np.flatnonzero(judged)
    if len(places) <= JUDGED:
        return places
    spread = places[np.linspace(0, len(places) - 1, JUDGED - WRITTEN).astype(np.int64)]
    if not _within(worst, judged.shape):
        return spread
    here = int(np.ravel_multi_index(worst, judged.shape))
    return np.unique(np.concatenate([spread, places[abs(places - here) <= WRITTEN // 2]]))


def _within(index: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of the shape has an element there."""
    return len(index) == len(shape) and all(i < size for i, size in zip(index, shape, strict=True))
