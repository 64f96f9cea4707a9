"""What the harness asks of the reference: an answer, and what any answer must be like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from reference.chosen import Chosen
from reference.expected import Expected
from reference.parts import Copy, Part
from reference.sparse_attention_indexer.operation import Array, Call, Readings, SparseAttentionIndexer
from reference.sparse_attention_indexer.ranking import Scores


class Oracle:
    """The reference for one set of attributes and readings."""

    def __init__(self, attributes: Mapping[str, int | float], readings: Mapping[str, str] | None = None) -> None:
        self.op = SparseAttentionIndexer(
            int(attributes["key_block_size"]),
            int(attributes["token_budget"]),
            int(attributes["num_selection_heads"]),
            Readings(**(readings or {})),
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of one call, by contract name."""
        return self.op.run(inputs)

    def expect(self, inputs: Mapping[str, Array]) -> dict[str, Expected]:
        """What is specified of the outputs of one call, by contract name."""
        return expect(self.op, inputs)


def expect(op: SparseAttentionIndexer, inputs: Mapping[str, Array]) -> dict[str, Expected]:
    """What is specified of the outputs of one call, by contract name."""
    call = op.call(inputs)
    answer = op.run(inputs)
    indices, counts = answer["block_indices"], answer["block_count"]
    given = np.ones(counts.shape, dtype=bool)
    if op.readings.padding_rows == "unspecified":
        given &= (call.p >= 0)[:, None]
    return {
        "block_indices": Expected(indices.shape, indices.dtype, tuple(_index_parts(op, call, indices, given))),
        "block_count": Expected(counts.shape, counts.dtype, tuple(_count_parts(call, counts, given))),
    }


def _index_parts(op: SparseAttentionIndexer, call: Call, indices: Array, given: Array) -> Iterator[Part]:
    count = np.broadcast_to(call.m[:, None], given.shape)
    index = np.nonzero(given & (count > 0))
    if len(index[0]):
        rows = np.ravel_multi_index(index, given.shape)
        yield Chosen("selected", "SEL-2", index, indices[index], count[index], rows, Scores(op, call))
    if op.readings.beyond == "minus_one":
        beyond = np.arange(indices.shape[3]) >= count[..., None]
        rest = np.nonzero(beyond & given[..., None])
        if len(rest[0]):
            yield Copy("beyond the count", "OUT-3", rest, indices[rest])


def _count_parts(call: Call, counts: Array, given: Array) -> Iterator[Part]:
    seen = np.broadcast_to((call.v > 0)[:, None], given.shape)
    for region, clause, where in (("some visible", "CNT-1", given & seen), ("none visible", "VIS-3", given & ~seen)):
        index = np.nonzero(where)
        if len(index[0]):
            yield Copy(region, clause, index, counts[index])
