"""The reference of the toy operation."""

from __future__ import annotations

import numpy as np

from reference.expected import Expected
from reference.parts import Copy


class Oracle:
    """Picks in float64; whole numbers leave no doubt about what is best."""

    def __init__(self, attributes, readings=None):
        self.largest, self.copies = attributes["largest"], attributes["copies"]
        self.last = (readings or {}).get("ties", "first") == "last"

    def run(self, inputs):
        values, count = self.biased(inputs), inputs["count"]
        best = [self.best(self.seen(row, n)) for row, n in zip(values, count, strict=True)]
        return {"best": np.repeat(np.array(best, dtype=np.int32)[:, None], self.copies, axis=1)}

    def biased(self, inputs):
        """The values that are compared."""
        values = inputs["values"].astype(np.float64)
        return values + inputs["bias"].astype(np.float64) if "bias" in inputs else values

    def seen(self, row, count):
        """The values of a row that matter."""
        return row[:count]

    def best(self, row):
        """The index of the best value, -1 where there is none."""
        if not len(row):
            return self.none()
        best = row.max() if self.largest else row.min()
        return int(np.nonzero(row == best)[0][-1 if self.last else 0])

    def none(self):
        """What is said of an empty row."""
        return -1

    def expect(self, inputs):
        best = self.run(inputs)["best"]
        some = np.nonzero(inputs["count"] > 0)[0]
        none = np.nonzero(inputs["count"] <= 0)[0]
        parts = (Copy("choice", "CHO-1", (some,), best[some]), Copy("empty row", "CHO-3", (none,), best[none]))
        return {"best": Expected(best.shape, best.dtype, parts)}
