"""Faulty and conforming implementations of SparseAttentionIndexer, each the reference with one stage replaced."""

from importlib import import_module

from conformance.faults.sparse_attention_indexer.planting import SHELF
from conformance.faults.sparse_attention_indexer.planting import Planted as backend  # noqa: N813  as a function

TOPICS = (
    "positions",
    "visibility",
    "heads",
    "scores",
    "ranking",
    "outputs",
    "batch",
    "runtime",
    "admission",
    "variants",
)

for topic in TOPICS:
    import_module(f"{__name__}.{topic}")

__all__ = ["SHELF", "TOPICS", "backend"]
