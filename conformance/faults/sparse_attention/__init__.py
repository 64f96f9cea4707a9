"""Faulty and conforming implementations of SparseAttention, each the reference with one stage of it replaced."""

from importlib import import_module

from conformance.faults.sparse_attention.planting import SHELF
from conformance.faults.sparse_attention.planting import Planted as backend  # noqa: N813  a function to the catalogue

TOPICS = ("tokens", "selection", "sinks", "softmax", "precision", "runtime", "admission", "variants")

for topic in TOPICS:
    import_module(f"{__name__}.{topic}")

__all__ = ["SHELF", "TOPICS", "backend"]
