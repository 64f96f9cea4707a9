"""The bare C++ kernel of QSAPrepare."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

from conformance.backends.openvino.kernel import ELEMENT_TYPES, ENUM, LENGTH_TYPES, POINTER, SIZE, addresses, aligned
from conformance.backends.openvino.kernel import Kernel as Base
from conformance.backends.protocol import OperationConfig
from conformance.backends.qsa_prepare.ports import DEFAULT_EPSILON

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

_SIZES = ("N", "L", "Di", "Dr", "Bp", "B", "r")


class Problem(ctypes.Structure):
    """`qsa::Problem` of native/qsa_prepare/kernel.hpp, field by field."""

    _fields_ = (
        ("element_type", ENUM),
        ("length_type", ENUM),
        *((name, SIZE) for name in _SIZES),
        ("epsilon", ctypes.c_double),
        ("raw_index_keys", POINTER),
        ("past_block_index_keys", POINTER),
        ("key_length", POINTER),
        ("length_count", SIZE),
        ("rope_cos", POINTER),
        ("rope_sin", POINTER),
        ("k_norm_weight", POINTER),
        ("past_incomplete_raw_keys", POINTER),
        ("past_incomplete_rope", POINTER),
        ("block_index_keys", POINTER),
        ("present_incomplete_raw_keys", POINTER),
        ("present_incomplete_rope", POINTER),
    )


class Kernel(Base):
    """The kernel on a fixed number of threads."""

    function, bytes_function = "qsa_prepare", "qsa_bytes_to_move"

    def problem(self, config: OperationConfig, inputs: Mapping[str, Array]) -> tuple[Problem, Mapping[str, Array]]:
        """The structure of a call, and its three outputs."""
        N, L, Di = inputs["raw_index_keys"].shape
        Dr = 0 if "rope" in config.disabled else inputs["rope_cos"].shape[-1]
        r = int(config.attributes["key_block_size"])
        lengths, dtype = inputs["key_length"], inputs["raw_index_keys"].dtype
        B = int((lengths // r).max(initial=0)) if N else 0
        outputs = {
            "block_index_keys": aligned((N, B, Di), dtype),
            "present_incomplete_raw_keys": aligned((N, r - 1, Di), dtype),
            "present_incomplete_rope": aligned((N, 2 * Dr) if Dr else (0,), dtype),
        }
        problem = Problem(
            element_type=ELEMENT_TYPES.index(config.element_type),
            length_type=LENGTH_TYPES.index(config.length_type),
            epsilon=float(config.attributes.get("epsilon", DEFAULT_EPSILON)),
            length_count=lengths.size,
            **dict(zip(_SIZES, (N, L, Di, Dr, inputs["past_block_index_keys"].shape[1], B, r), strict=True)),
            **addresses({**inputs, **outputs}),
        )
        return problem, outputs
