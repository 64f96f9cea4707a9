"""Faults in what goes from one stage to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from conformance.faults.sparse_attention_pipeline.planting import (
    Arrays,
    Ports,
    Wiring,
    fault,
    lengths_of,
    rolled,
)
from reference.sparse_attention.operation import SparseAttention
from reference.sparse_attention_indexer.operation import SparseAttentionIndexer


@fault("W12", "SparseAttentionIndexer takes the block keys of the call before.", "WIR-2 INDEX-SEL-2")
class PastBlockKeys(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        keys, past = np.zeros_like(ports["block_index_keys"]), inputs["past_block_index_keys"]
        rows = min(keys.shape[1], past.shape[1])
        keys[:, :rows] = np.nan_to_num(past[:, :rows].astype(np.float32), posinf=1, neginf=-1).astype(keys.dtype)
        return {**ports, "block_index_keys": keys}


@fault(
    "W13",
    "Block keys are aligned on the right for SparseAttentionIndexer, as keys and values are.",
    "WIR-3 INDEX-SEL-2",
)
class BlockKeysOnTheRight(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        spare = ports["block_index_keys"].shape[1] - lengths_of(inputs) // self.r
        return {**ports, "block_index_keys": rolled(ports["block_index_keys"], spare)}


@fault(
    "W14", "Block keys are cast to bf16 on their way to SparseAttentionIndexer.", "WIR-2 INDEX-SEL-2", types="f32 f16"
)
class BlockKeysCast(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        keys = ports["block_index_keys"]
        return {**ports, "block_index_keys": keys.astype(ml_dtypes.bfloat16).astype(keys.dtype)}


@fault("W15", "The weights of the index heads are not passed on.", "WIR-2 INDEX-SEL-2")
class WeightsLost(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        ports.pop("index_weights", None)
        return ports


@fault("W16", "Indices go through 8 bits on their way to SparseAttention.", "WIR-2 ATTEND-ATT-1 ATTEND-NUM-4")
class IndicesInAByte(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, "block_indices": ports["block_indices"] & 0xFF}


@fault("W17", "Every query token has the selection of the token before.", "WIR-2 ATTEND-ATT-1")
class SelectionOneLate(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        for name in ("block_indices", "block_count"):
            if ports[name].shape[2]:
                ports[name] = np.concatenate([ports[name][:, :, :1], ports[name][:, :, :-1]], axis=2)
        return ports


@fault("W18", "All query tokens of a call have the selection of the first one.", "WIR-2 ATTEND-ATT-1")
class FirstSelection(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        for name in ("block_indices", "block_count"):
            if ports[name].shape[2]:
                ports[name] = np.repeat(ports[name][:, :, :1], ports[name].shape[2], axis=2)
        return ports


@fault("W19", "All query heads have the first selection.", "WIR-2 ATTEND-ATT-1")
class FirstHead(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        for name in ("block_indices", "block_count"):
            ports[name] = np.repeat(ports[name][:, :1], ports[name].shape[1], axis=1)
        return ports


@fault("W20", "The last block of every selection is dropped, for the open one.", "WIR-4 END-2 ATTEND-ATT-1")
class OpenBlockInTheBudget(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, "block_count": np.maximum(ports["block_count"] - 1, 0)}


@fault("W21", "SparseAttentionIndexer has room for one block less than the budget.", "END-2 INDEX-OUT-1 INDEX-SEL-1")
class BudgetLessOne(Wiring):
    def __init__(self, attributes: Mapping[str, Any], readings: Mapping[str, str] | None = None) -> None:
        super().__init__(attributes, readings)
        budget = max(self.index.token_budget - self.r, self.r)
        self.index = SparseAttentionIndexer(self.r, budget, self.index.Hs, self.index.readings)


@fault("W22", "SparseAttention is prepared with blocks of another size.", "WIR-2 WIR-4 ATTEND-ATT-1 ATTEND-NUM-4")
class OtherBlockSize(Wiring):
    def __init__(self, attributes: Mapping[str, Any], readings: Mapping[str, str] | None = None) -> None:
        super().__init__(attributes, readings)
        self.attend = SparseAttention(self.r + 1, readings=self.attend.readings)


@fault("W23", "The sinks are not passed on.", "WIR-2 ATTEND-ATT-1")
class SinksLost(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        ports.pop("sinks", None)
        return ports


@fault("W24", "The scale is not passed on.", "WIR-2 ATTEND-ATT-1")
class ScaleLost(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        ports.pop("scale", None)
        return ports


@fault("W25", "Index queries are those of the token before.", "WIR-2 INDEX-SEL-2")
class QueriesOneLate(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        q = ports["index_query"]
        return {**ports, "index_query": np.concatenate([q[:, :, :1], q[:, :, :-1]], axis=2) if q.shape[2] else q}


@fault("W26", "Index queries are rounded to multiples of 1/16 on their way.", "SCL-1 WIR-2 INDEX-SEL-2")
class QueriesOnAGrid(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        q = ports["index_query"]
        return {**ports, "index_query": (np.round(q.astype(np.float32) * 16) / 16).astype(q.dtype)}


@fault("W27", "Selections are counted from the first row, padding included.", "WIR-3 ATTEND-ATT-1")
class BlocksFromTheFirstRow(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        pad = np.maximum(inputs["key"].shape[2] - lengths_of(inputs), 0) // self.r
        indices = ports["block_indices"]
        moved = np.maximum(indices - pad[:, None, None, None].astype(indices.dtype), 0)
        return {**ports, "block_indices": np.where(indices < 0, indices, moved)}


@fault(
    "W28",
    "Queries of the main attention are in the order of the key-value heads, selections are not.",
    "WIR-2 ATTEND-ATT-1",
)
class HeadsReordered(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, **{name: ports[name][:, ::-1] for name in ("block_indices", "block_count")}}


@fault("W29", "Block keys without their last row go to SparseAttentionIndexer.", "WIR-2 INDEX-SEL-2")
class LastBlockKeyLost(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        keys = ports["block_index_keys"].copy()
        keys[:, -1:] = 0
        return {**ports, "block_index_keys": keys}
