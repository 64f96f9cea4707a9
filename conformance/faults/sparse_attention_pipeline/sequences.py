"""Faults in which a sequence is given something of another one."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_pipeline.planting import Arrays, Ports, Wiring, fault


@fault("W30", "SparseAttentionIndexer takes the block keys of the next sequence.", "SEP-1 WIR-2 INDEX-SEL-2")
class BlockKeysOfAnother(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        return {**ports, "block_index_keys": np.roll(ports["block_index_keys"], 1, axis=0)}


@fault("W31", "SparseAttention takes the selections of the next sequence.", "SEP-1 WIR-2 ATTEND-ATT-1")
class SelectionOfAnother(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, **{name: np.roll(ports[name], 1, axis=0) for name in ("block_indices", "block_count")}}


@fault("W32", "SparseAttention takes the counts of the next sequence.", "SEP-1 WIR-2 ATTEND-ATT-1")
class CountOfAnother(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, "block_count": np.roll(ports["block_count"], 1, axis=0)}


@fault(
    "W33",
    "All sequences are indexed by the block keys of the first one, as if they had one prompt.",
    "SEP-1 INDEX-SEL-2",
)
class OnePrompt(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        keys = ports["block_index_keys"]
        return {**ports, "block_index_keys": np.repeat(keys[:1], len(keys), axis=0)}


@fault("W34", "Index queries and main queries stand in different orders of the sequences.", "SEP-1 WIR-2 INDEX-SEL-2")
class QueriesInAnotherOrder(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        return {**ports, "index_query": ports["index_query"][::-1]}
