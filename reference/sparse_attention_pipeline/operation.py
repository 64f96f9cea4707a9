"""The three operations of an attention layer one after the other, each in float64 and rounded once.

What goes from stage to stage are the outputs as they are; key_length is one tensor for all. A variant, faulty or of
another wiring, overrides what a stage takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from reference.qsa_prepare import operation as prepare
from reference.sparse_attention import operation as attend
from reference.sparse_attention_indexer import operation as index

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array]

PREPARE = tuple(field.name for field in fields(prepare.Call) if field.init)
INDEX = tuple(field.name for field in fields(index.Call) if field.init)
ATTEND = tuple(field.name for field in fields(attend.Call) if field.init)
OUTPUTS = (
    "block_index_keys", "present_incomplete_raw_keys", "present_incomplete_rope", "block_indices", "block_count",
    "attention_output",
)  # fmt: skip


class SparseAttentionPipeline:
    """The stages for one set of attributes; nothing is kept between calls."""

    def __init__(self, attributes: Mapping[str, Any], readings: Mapping[str, str] | None = None) -> None:
        given = readings or {}
        r = int(attributes["key_block_size"])
        self.r = r
        self.prepare = prepare.QSAPrepare(r, float(attributes["epsilon"]), _of(prepare.Readings, given))
        self.index = index.SparseAttentionIndexer(
            r,
            int(attributes["token_budget"]),
            int(attributes["num_selection_heads"]),
            _of(index.Readings, given),
        )
        self.attend = attend.SparseAttention(r, readings=_of(attend.Readings, given))

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """One call: the ports that no stage produces in, the outputs of all stages out."""
        produced = dict(self.prepare.run(self.to_prepare(inputs)))
        produced |= self.index.run(self.to_index(inputs, produced))
        produced |= self.attend.run(self.to_attend(inputs, produced))
        return produced

    def to_prepare(self, inputs: Arrays) -> dict[str, Array]:
        """What QSAPrepare takes."""
        return taken(PREPARE, inputs)

    def to_index(self, inputs: Arrays, produced: Arrays) -> dict[str, Array]:
        """What SparseAttentionIndexer takes: the block keys that were just built."""
        return taken(INDEX, inputs, block_index_keys=produced["block_index_keys"])

    def to_attend(self, inputs: Arrays, produced: Arrays) -> dict[str, Array]:
        """What SparseAttention takes: the blocks that were just selected."""
        chosen = {name: produced[name] for name in ("block_indices", "block_count")}
        return taken(ATTEND, inputs, **chosen)


def taken(ports: tuple[str, ...], inputs: Arrays, **produced: Array) -> dict[str, Array]:
    """The ports of a stage, those that an earlier stage produced in place of inputs."""
    both = {**inputs, **produced}
    return {name: both[name] for name in ports if name in both}


def _of(kind: type[Any], given: Mapping[str, str]) -> Any:
    """The readings of a stage, of those given for all."""
    known = {field.name for field in fields(kind)}
    return kind(**{name: choice for name, choice in given.items() if name in known})
