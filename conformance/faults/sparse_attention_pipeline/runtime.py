"""Faults in how the pipeline behaves as a plug-in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.backends.protocol import OperationConfig
from conformance.faults.sparse_attention_pipeline.planting import Array, Arrays, Ports, Wiring, fault

OUT = "one output for all calls"


@fault("W45", "A budget that ends in the middle of a block is taken.", "ERR-1")
class AnyBudget(Wiring):
    @classmethod
    def checked(cls, config: OperationConfig) -> OperationConfig:
        attributes = dict(config.attributes)
        r = max(int(attributes["key_block_size"]), 1)
        attributes["token_budget"] = max(int(attributes["token_budget"]) // r, 1) * r
        return replace(config, attributes=attributes)


@fault("W46", "The output lies in memory that the next call of the same shape writes to.", "PLG-2")
class OutputUsedAgain(Wiring):
    def run(self, inputs: Arrays) -> Ports:
        produced = super().run(inputs)
        found = produced["attention_output"]
        kept: Array | None = self.process.get(OUT)
        if kept is None or kept.shape != found.shape or kept.dtype != found.dtype:
            kept = self.process[OUT] = np.empty_like(found)
        kept[...] = found
        return {**produced, "attention_output": kept}
