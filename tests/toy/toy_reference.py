"""The reference of the toy operation, and a backend that conforms."""

from __future__ import annotations

import numpy as np

from conformance.backends.protocol import BackendInfo, Rejected, Unsupported
from reference.expected import Expected
from reference.parts import Copy


class Oracle:
    """Picks in float64; whole numbers leave no doubt about what is best."""

    def __init__(self, attributes, readings=None):
        self.largest, self.copies = attributes["largest"], attributes["copies"]

    def run(self, inputs):
        values, count = inputs["values"].astype(np.float64), inputs["count"]
        if "bias" in inputs:
            values = values + inputs["bias"].astype(np.float64)
        best = [self.best(row[:n]) for row, n in zip(values, count, strict=True)]
        return {"best": np.repeat(np.array(best, dtype=np.int32)[:, None], self.copies, axis=1)}

    def best(self, row):
        if not len(row):
            return -1
        return int(np.argmax(row) if self.largest else np.argmin(row))

    def expect(self, inputs):
        best = self.run(inputs)["best"]
        some = np.nonzero(inputs["count"] > 0)[0]
        none = np.nonzero(inputs["count"] <= 0)[0]
        parts = (Copy("choice", "CHO-1", (some,), best[some]), Copy("empty row", "CHO-3", (none,), best[none]))
        return {"best": Expected(best.shape, best.dtype, parts)}


class Pick:
    """A backend that conforms."""

    def describe(self):
        return BackendInfo("pick", "1", "tests", ("f32", "f16", "bf16"), ("best",), ("bias",), operation="Pick")

    def prepare(self, config):
        if config.operation != "Pick":
            raise Unsupported(config.operation, "only Pick")
        if config.attributes["copies"] < 1:
            raise Rejected("attribute", "prepare", ("copies",))
        return Session(Oracle(config.attributes))


class Session:
    def __init__(self, oracle):
        self.oracle = oracle

    def run(self, inputs):
        if inputs["count"].shape != inputs["values"].shape[:1]:
            raise Rejected("shape", "call", ("count",))
        if (inputs["count"] < 0).any():
            raise Rejected("value", "call", ("count",))
        return self.oracle.run(inputs)

    def close(self):
        pass
