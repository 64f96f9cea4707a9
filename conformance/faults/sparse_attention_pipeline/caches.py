"""Faults in states and caches: they move apart, or are those of another layer."""

from __future__ import annotations

import numpy as np

from conformance.faults.sparse_attention_pipeline.planting import (
    Array,
    Arrays,
    Ports,
    Wiring,
    fault,
    lengths_of,
    rolled,
)

LAST = "block keys of the layer before"


def shifted(inputs: Arrays, cache: Array) -> Array:
    """A cache with its rows on the left."""
    return rolled(cache, lengths_of(inputs) - cache.shape[2], axis=1)


@fault("W35", "Keys and values are aligned on the left, as block keys are.", "WIR-3 ATTEND-ATT-1 ATTEND-NUM-4")
class CachesOnTheLeft(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, "key": shifted(inputs, ports["key"]), "value": shifted(inputs, ports["value"])}


@fault("W36", "Values are aligned on the left, keys on the right.", "WIR-3 ATTEND-ATT-1 ATTEND-NUM-4")
class ValuesOnTheLeft(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, "value": shifted(inputs, ports["value"])}


@fault("W37", "Past block keys are taken to stand on the right.", "WIR-3 STA-1 PREPARE-OUT-1")
class PastKeysOnTheRight(Wiring):
    def to_prepare(self, inputs: Arrays) -> Ports:
        ports = super().to_prepare(inputs)
        past = ports["past_block_index_keys"]
        held = np.maximum(lengths_of(inputs) - ports["raw_index_keys"].shape[1], 0) // self.r
        return {**ports, "past_block_index_keys": rolled(past, held - past.shape[1])}


@fault(
    "W38", "The block keys of another layer are indexed: those that were built in the call before.", "WIR-2 INDEX-SEL-2"
)
class KeysOfAnotherLayer(Wiring):
    def to_index(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_index(inputs, produced)
        keys = ports["block_index_keys"]
        other: Array | None = self.process.get(LAST)
        self.process[LAST] = keys.copy()
        if other is None or other.shape != keys.shape or other.dtype != keys.dtype:
            other = np.flip(keys, axis=2).copy()
        return {**ports, "block_index_keys": other}


@fault("W39", "Past block keys are those of another layer.", "STA-1 WIR-2 PREPARE-OUT-1")
class PastOfAnotherLayer(Wiring):
    def to_prepare(self, inputs: Arrays) -> Ports:
        ports = super().to_prepare(inputs)
        return {**ports, "past_block_index_keys": np.flip(ports["past_block_index_keys"], axis=2)}


@fault(
    "W40",
    "Sequences change places in the caches of keys and values, but not in the states.",
    "STA-1 SEP-1 ATTEND-ATT-1",
)
class CachesReordered(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        return {**ports, "key": ports["key"][::-1], "value": ports["value"][::-1]}


@fault(
    "W41",
    "Sequences change places in the block keys, but not in the raw keys that wait.",
    "STA-1 SEP-1 PREPARE-STA-1 PREPARE-ROT-1",
)
class RawStateReordered(Wiring):
    def to_prepare(self, inputs: Arrays) -> Ports:
        ports = super().to_prepare(inputs)
        return {**ports, "past_incomplete_raw_keys": ports["past_incomplete_raw_keys"][::-1]}


@fault(
    "W42",
    "Sequences change places in the block keys, but not in the RoPE that waits.",
    "STA-1 SEP-1 PREPARE-STA-2 PREPARE-ROT-1",
)
class RopeStateReordered(Wiring):
    def to_prepare(self, inputs: Arrays) -> Ports:
        ports = super().to_prepare(inputs)
        return {**ports, "past_incomplete_rope": ports["past_incomplete_rope"][::-1]}


@fault("W43", "The raw keys that wait are not handed on.", "STA-1 PREPARE-STA-1 PREPARE-ROT-1")
class RawStateLost(Wiring):
    def to_prepare(self, inputs: Arrays) -> Ports:
        ports = super().to_prepare(inputs)
        return {**ports, "past_incomplete_raw_keys": np.zeros_like(ports["past_incomplete_raw_keys"])}


@fault(
    "W44",
    "Keys and values of the new tokens come into the caches after the call.",
    "STA-1 WIR-3 ATTEND-ATT-1 ATTEND-NUM-4",
)
class CachesOneCallLate(Wiring):
    def to_attend(self, inputs: Arrays, produced: Arrays) -> Ports:
        ports = super().to_attend(inputs, produced)
        L = inputs["raw_index_keys"].shape[1]
        for name in ("key", "value"):
            ports[name] = np.roll(ports[name], L, axis=2)
        return ports
