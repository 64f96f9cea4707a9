"""The bare C++ kernel of SparseAttentionIndexer."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from conformance.backends.openvino.kernel import ELEMENT_TYPES, ENUM, LENGTH_TYPES, POINTER, SIZE, addresses, aligned
from conformance.backends.openvino.kernel import Kernel as Base
from conformance.backends.protocol import OperationConfig

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

_SIZES = ("N", "Hi", "L", "Di", "B", "Hs", "r", "K")


class Problem(ctypes.Structure):
    """`qsa::indexer::Problem` of native/sparse_attention_indexer/kernel.hpp, field by field."""

    _fields_ = (
        ("element_type", ENUM),
        ("length_type", ENUM),
        *((name, SIZE) for name in _SIZES),
        ("index_query", POINTER),
        ("block_index_keys", POINTER),
        ("key_length", POINTER),
        ("length_count", SIZE),
        ("index_weights", POINTER),
        ("block_indices", POINTER),
        ("block_count", POINTER),
    )


class Kernel(Base):
    """The kernel on a fixed number of threads."""

    function, bytes_function = "qsa_indexer_select", "qsa_indexer_bytes_to_move"

    def problem(self, config: OperationConfig, inputs: Mapping[str, Array]) -> tuple[Problem, Mapping[str, Array]]:
        """The structure of a call, and its two outputs."""
        N, Hi, L, Di = inputs["index_query"].shape
        r, Hs = int(config.attributes["key_block_size"]), int(config.attributes.get("num_selection_heads", 1))
        K = int(config.attributes["token_budget"]) // r
        whole = np.dtype(np.int32)
        outputs = {"block_indices": aligned((N, Hs, L, K), whole), "block_count": aligned((N, Hs, L), whole)}
        problem = Problem(
            element_type=ELEMENT_TYPES.index(config.element_type),
            length_type=LENGTH_TYPES.index(config.length_type),
            length_count=inputs["key_length"].size,
            **dict(zip(_SIZES, (N, Hi, L, Di, inputs["block_index_keys"].shape[1], Hs, r, K), strict=True)),
            **addresses({**inputs, **outputs}),
        )
        return problem, outputs
