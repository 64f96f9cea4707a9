"""Faults in which a stage takes another length than the others."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_pipeline.planting import (
    Array,
    Arrays,
    Ports,
    Wiring,
    fault,
    lengths_of,
    with_lengths,
)


def before(inputs: Arrays) -> Array:
    """Lengths before the call."""
    lengths: Array = lengths_of(inputs) - inputs["raw_index_keys"].shape[1]
    return lengths


@fault("W01", "SparseAttentionIndexer takes the length before the append.", "WIR-1 INDEX-CNT-1 INDEX-SEL-2")
class IndexBeforeAppend(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        return with_lengths(super().to_index(inputs, produced), before(inputs))


@fault("W02", "SparseAttention takes the length before the append.", "WIR-1 ATTEND-ATT-1 ATTEND-NUM-4")
class AttendBeforeAppend(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        return with_lengths(super().to_attend(inputs, produced), before(inputs))


@fault("W03", "QSAPrepare takes the length before the append.", "WIR-1 PREPARE-OUT-3")
class PrepareBeforeAppend(Wiring):
    def to_prepare(self, inputs: Arrays) -> Ports:
        return with_lengths(super().to_prepare(inputs), before(inputs))


@fault(
    "W04",
    "SparseAttentionIndexer takes one length, that of the first sequence, for a ragged batch.",
    "WIR-1 SEP-1 INDEX-VIS-1 ATTEND-ATT-1",
)
class IndexFirstLength(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        return {**super().to_index(inputs, produced), "key_length": inputs["key_length"][:1]}


@fault(
    "W05",
    "SparseAttention takes one length, that of the first sequence, for a ragged batch.",
    "WIR-1 SEP-1 INDEX-VIS-1 ATTEND-ATT-1",
)
class AttendFirstLength(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        return {**super().to_attend(inputs, produced), "key_length": inputs["key_length"][:1]}


@fault(
    "W06", "SparseAttentionIndexer takes the longest length for every sequence.", "WIR-1 SEP-1 INDEX-VIS-1 ATTEND-ATT-1"
)
class IndexLongest(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        S = lengths_of(inputs)
        return with_lengths(super().to_index(inputs, produced), np.full_like(S, S.max(initial=0)))


@fault(
    "W07",
    "SparseAttention is given no length: every sequence has as many tokens as the cache has rows.",
    "WIR-1 WIR-3 INDEX-VIS-1 ATTEND-NUM-4",
)
class AttendWithoutLength(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        rows = np.full_like(lengths_of(inputs), inputs["key"].shape[2])
        return with_lengths(super().to_attend(inputs, produced), rows)


@fault("W08", "SparseAttentionIndexer counts the rows of the cache, spare ones too.", "WIR-1 INDEX-VIS-1")
class IndexCountsRows(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        rows = np.full_like(lengths_of(inputs), inputs["key"].shape[2])
        most = produced["block_index_keys"].shape[1] * self.r + self.r - 1
        return with_lengths(super().to_index(inputs, produced), np.minimum(rows, most))


@fault(
    "W09", "Padding counts as tokens of the sequence in SparseAttentionIndexer.", "WIR-1 WIR-3 INDEX-VIS-1 ATTEND-NUM-4"
)
class IndexCountsPadding(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        L, most = inputs["raw_index_keys"].shape[1], produced["block_index_keys"].shape[1] * self.r + self.r - 1
        return with_lengths(super().to_index(inputs, produced), np.minimum(np.maximum(lengths_of(inputs), L), most))


@fault("W10", "SparseAttentionIndexer is one token behind.", "WIR-1 INDEX-CNT-1 INDEX-SEL-2")
class IndexOneBehind(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        return with_lengths(super().to_index(inputs, produced), lengths_of(inputs) - 1)


@fault("W11", "SparseAttention is one token behind.", "WIR-1 ATTEND-ATT-1 ATTEND-NUM-4")
class AttendOneBehind(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        return with_lengths(super().to_attend(inputs, produced), lengths_of(inputs) - 1)
