"""Conforming pipelines: stages that round otherwise, and other orders of the entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.faults.qsa_prepare import variants as prepare
from conformance.faults.sparse_attention_indexer import variants as index
from conformance.faults.sparse_attention_pipeline.planting import Arrays, Ports, Wiring, variant
from reference.qsa_prepare.operation import QSAPrepare
from reference.sparse_attention.operation import SparseAttention
from reference.sparse_attention_indexer.operation import SparseAttentionIndexer


@variant("pipeline-float64", "Every stage in float64, rounded once.")
class Double(Wiring):
    pass


class Stages(Wiring):
    """The pipeline with other stages."""

    preparing: type[QSAPrepare] = QSAPrepare
    indexing: type[SparseAttentionIndexer] = SparseAttentionIndexer
    attending: type[SparseAttention] = SparseAttention

    def __init__(self, attributes: Mapping[str, Any], readings: Mapping[str, str] | None = None) -> None:
        super().__init__(attributes, readings)
        self.prepare = self.preparing(self.r, self.prepare.epsilon)
        self.index = self.indexing(self.r, self.index.token_budget, self.index.Hs, self.index.readings)
        self.attend = self.attending(self.r, readings=self.attend.readings)


@variant("pipeline-f32", "Every stage in f32, rounded once at its end.")
class Single(Stages):
    preparing, indexing = prepare.RoundOnce, index.MatrixProduct


@variant("pipeline-rounded", "Block keys are rounded at every step, and elements of the scores are summed one by one.")
class Rounded(Stages):
    preparing, indexing = prepare.RoundEveryStep, index.Forward


@variant("pipeline-other-sums", "Block keys are summed in pairs, and scores in eight lanes.")
class OtherSums(Stages):
    preparing, indexing = prepare.PairwiseSum, index.EightLanes


@variant(
    "pipeline-garbage", "Rows of block keys that no sequence has, and states not in use, hold NaN and huge numbers."
)
class Garbage(Stages):
    preparing = prepare.RestGarbage


@variant("pipeline-backwards", "SparseAttention takes the entries of a row from the last to the first.")
class Backwards(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        indices, count = ports["block_indices"], ports["block_count"]
        place = np.arange(indices.shape[3])
        turned = np.where(place < count[..., None], count[..., None] - 1 - place, place)
        return {**ports, "block_indices": np.take_along_axis(indices, turned, axis=3)}
