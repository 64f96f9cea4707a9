"""Faulty and conforming wirings of the pipeline: in most of them every stage by itself is right."""

from importlib import import_module

from conformance.faults.sparse_attention_pipeline.planting import SHELF
from conformance.faults.sparse_attention_pipeline.planting import Planted as backend  # noqa: N813  as in the catalogue

TOPICS = ("lengths", "feeding", "sequences", "caches", "runtime", "variants")

for topic in TOPICS:
    import_module(f"{__name__}.{topic}")

__all__ = ["SHELF", "TOPICS", "backend"]
