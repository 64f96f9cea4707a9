"""The bare C++ kernel of SparseAttention."""

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

_SIZES = ("N", "H", "Hkv", "Hs", "L", "S", "E", "Ev", "KB", "r", "qb")


class Problem(ctypes.Structure):
    """`qsa::attention::Problem` of native/sparse_attention/kernel.hpp, field by field."""

    _fields_ = (
        ("element_type", ENUM),
        ("length_type", ENUM),
        ("index_type", ENUM),
        *((name, SIZE) for name in _SIZES),
        ("causal", ctypes.c_bool),
        ("query", POINTER),
        ("key", POINTER),
        ("value", POINTER),
        ("block_indices", POINTER),
        ("block_count", POINTER),
        ("key_length", POINTER),
        ("length_count", SIZE),
        ("scale", POINTER),
        ("sinks", POINTER),
        ("output", POINTER),
    )


class Kernel(Base):
    """The kernel on a fixed number of threads."""

    function, bytes_function = "qsa_attention_attend", "qsa_attention_bytes_to_move"

    def problem(self, config: OperationConfig, inputs: Mapping[str, Array]) -> tuple[Problem, Mapping[str, Array]]:
        """The structure of a call, and its output."""
        N, H, L, E = inputs["query"].shape
        _, Hkv, S, Ev = inputs["value"].shape
        _, Hs, _, KB = inputs["block_indices"].shape
        attributes = config.attributes
        sizes = (N, H, Hkv, Hs, L, S, E, Ev, KB, int(attributes["key_block_size"]))
        outputs = {"attention_output": aligned((N, H, L, Ev), inputs["query"].dtype)}
        problem = Problem(
            element_type=ELEMENT_TYPES.index(config.element_type),
            length_type=LENGTH_TYPES.index(config.length_type),
            index_type=LENGTH_TYPES.index("i32" if inputs["block_indices"].dtype == np.int32 else "i64"),
            causal=bool(attributes.get("causal", True)),
            length_count=inputs["key_length"].size if "key_length" in inputs else 0,
            **dict(zip(_SIZES, (*sizes, int(attributes.get("query_block_size", 1))), strict=True)),
            **addresses({**inputs, "output": outputs["attention_output"]}),
        )
        return problem, outputs
