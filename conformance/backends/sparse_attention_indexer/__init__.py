"""Backends of SparseAttentionIndexer."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.backends.embedded import Embedded

OPERATION = "SparseAttentionIndexer"

BACKENDS: Mapping[str, Embedded] = {
    "numpy": Embedded("numpy_reference", "NumPyReference", "the reference itself"),
}
