"""Faulty and conforming implementations of QSAPrepare, each the reference with one stage of it replaced."""

from importlib import import_module

from conformance.faults.qsa_prepare.planting import SHELF
from conformance.faults.qsa_prepare.planting import Planted as backend  # noqa: N813  a function to the catalogue

TOPICS = (
    "blocks", "state", "pooling", "normalization", "storing", "rotation", "rows", "batch", "shapes", "sizes", "numbers",
    "runtime", "instances", "arrays", "layouts", "keeping", "overlap", "admission", "checks", "variants", "orders",
)  # fmt: skip

for topic in TOPICS:
    import_module(f"{__name__}.{topic}")

__all__ = ["SHELF", "TOPICS", "backend"]
