"""What any answer of the pipeline must be like.

Every stage is judged alone, on what the implementation's own stage before it produced: the block keys against the
bound of QSAPrepare, the selection by scores of these very block keys, the output over the very blocks that were
selected. Where the selection follows from the first inputs, whatever the keys are rounded to (`margins`), it is judged
against these too, and what is said of such a row's output holds for every call that asks the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from reference.chosen import Chosen, Repeated
from reference.expected import Expected, Following
from reference.parts import Bounded, Comparison, Detail, Fed, Part
from reference.qsa_prepare import bounds as prepare
from reference.sparse_attention import bounds as attend
from reference.sparse_attention_indexer import oracle as index
from reference.sparse_attention_pipeline.margins import Decided, decided
from reference.sparse_attention_pipeline.operation import OUTPUTS, Array, Arrays, SparseAttentionPipeline

PREPARE, INDEX, ATTEND = "PREPARE", "INDEX", "ATTEND"  # in front of the clauses of a stage


class Oracle:
    """The reference for one set of attributes and readings."""

    def __init__(self, attributes: Mapping[str, Any], readings: Mapping[str, str] | None = None) -> None:
        self.op = SparseAttentionPipeline(attributes, readings)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """The outputs of all stages, by contract name."""
        return self.op.run(inputs)

    def expect(self, inputs: Arrays) -> Following:
        """What is specified of the outputs of all stages; `after` an answer, of that answer."""
        return Following(partial(Judged, First(self.op, inputs)))


@dataclass(frozen=True)
class First:
    """What follows from the inputs alone."""

    op: SparseAttentionPipeline
    inputs: Arrays

    @cached_property
    def prepared(self) -> dict[str, Expected]:
        """The outputs of the first stage."""
        return prepare.expect(self.op.prepare, self.op.to_prepare(self.inputs))

    @cached_property
    def decided(self) -> Decided:
        """The selections that are the same for all conforming block keys."""
        keys = self.prepared["block_index_keys"]
        value, errors = np.zeros(keys.shape), np.full(keys.shape, np.inf)
        for part in keys.parts:
            if isinstance(part, Bounded):
                value[part.index], errors[part.index] = part.value, part.bound
            else:
                value[part.index], errors[part.index] = part.filled(keys.dtype).astype(np.float64), 0.0
        call = self.op.index.call(self.op.to_index(self.inputs, {"block_index_keys": value}))
        return decided(self.op.index, call, errors)


class Judged(Mapping[str, Expected]):
    """What is expected of one answer, stage by stage; what it lacks, or has in another shape, is the reference's."""

    def __init__(self, first: First, got: Mapping[str, Any] | None) -> None:
        self._first, self._got = first, got or {}

    def __iter__(self) -> Iterator[str]:
        return iter(OUTPUTS)

    def __len__(self) -> int:
        return len(OUTPUTS)

    def __getitem__(self, name: str) -> Expected:
        if name in self._keys:
            return self._keys[name]
        return self._attention[name] if name == "attention_output" else self._selection[name]

    @cached_property
    def _keys(self) -> dict[str, Expected]:
        return _named(self._first.prepared, PREPARE)

    @cached_property
    def _selection(self) -> dict[str, Expected]:
        given = self._first.op.to_index(self._first.inputs, self._produced(self._first.prepared, "block_index_keys"))
        found = _named(index.expect(self._first.op.index, given), INDEX)
        indices = found["block_indices"]
        parts = tuple(Fed(part) if isinstance(part, Chosen) else part for part in indices.parts)
        return found | {"block_indices": replace(indices, parts=(*parts, *self._settled(indices)))}

    @cached_property
    def _attention(self) -> dict[str, Expected]:
        produced = self._produced(self._selection, "block_indices", "block_count")
        K = produced["block_indices"].shape[3]
        produced["block_count"] = np.clip(produced["block_count"], 0, K)
        given = self._first.op.to_attend(self._first.inputs, produced)
        found = _named(attend.expect(self._first.op.attend, given), ATTEND)
        settled, result = self._first.decided.mask, {}
        for name, one in found.items():
            group = max(one.shape[1] // max(settled.shape[1], 1), 1)
            parts: list[Part] = []
            for part in one.parts:
                n, h, row = part.index[:3]
                same = settled[n, h // group, row]
                parts += [part.pick(same)] if same.any() else []
                parts += [Fed(part.pick(~same))] if not same.all() else []
            result[name] = replace(one, parts=tuple(parts))
        return result

    def _produced(self, expected: Mapping[str, Expected], *names: str) -> dict[str, Array]:
        produced = {}
        for name in names:
            got, due = self._got.get(name), expected[name]
            fits = isinstance(got, np.ndarray) and got.shape == due.shape and got.dtype == due.dtype
            produced[name] = got if fits and got is not None else due.fill()
        return produced

    def _settled(self, indices: Expected) -> Iterator[Part]:
        """END-1: the sets of the rows that are decided."""
        found = self._first.decided
        count = (found.sets >= 0).sum(axis=3)
        at = np.nonzero(found.mask & (count > 0))
        if len(at[0]):
            sets = found.sets[at].astype(indices.dtype)
            yield Repeated("decided rows", "END-1", at, sets, count[at], ordered=False, confirms=True)


# Clauses of a stage as clauses of the pipeline


def _named(expected: Mapping[str, Expected], stage: str) -> dict[str, Expected]:
    def named(part: Part) -> Part:
        changes: dict[str, Any] = {"clause": f"{stage}-{part.clause}"}
        if isinstance(part, Bounded) and part.unbiased:
            changes["unbiased"] = f"{stage}-{part.unbiased}"
        if isinstance(part, Chosen):
            changes["ranking"] = Named(part.ranking, stage)
        return replace(part, **changes)  # type: ignore[type-var]

    return {name: replace(one, parts=tuple(map(named, one.parts))) for name, one in expected.items()}


@dataclass(frozen=True)
class Named:
    """A ranking whose clauses are those of the pipeline."""

    ranking: Any
    stage: str

    def judge(self, rows: Array, got: Array, instead: Array | None) -> Comparison:
        result: Comparison = self.ranking.judge(rows, got, instead)
        return result

    def detail(self, row: int, got: Array, instead: Array | None) -> Detail:
        found: Detail = self.ranking.detail(row, got, instead)
        return replace(found, clause=f"{self.stage}-{found.clause}")

    def judged(self, rows: Array) -> Array:
        mask: Array = self.ranking.judged(rows)
        return mask
