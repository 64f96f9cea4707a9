"""The kernel of the C++ operation without OpenVINO around it: for timing it alone, and a plain copy to compare with.

Nothing is checked here: what the operation would refuse must not be passed in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.backends.openvino.build import build_native
from conformance.backends.protocol import OperationConfig

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

ELEMENT_TYPES = ("f32", "f16", "bf16")
LENGTH_TYPES = ("i32", "i64")
ISAS = ("automatic", "portable", "avx2", "avx512")
ALIGNMENT = 64

_SIZES = ("N", "L", "Di", "Dr", "Bp", "B", "r")


class _Problem(ctypes.Structure):
    """`qsa::Problem` of native/kernel.hpp, field by field."""

    _fields_ = (
        ("element_type", ctypes.c_int),
        ("length_type", ctypes.c_int),
        *((name, ctypes.c_size_t) for name in _SIZES),
        ("epsilon", ctypes.c_double),
        ("raw_index_keys", ctypes.c_void_p),
        ("past_block_index_keys", ctypes.c_void_p),
        ("key_length", ctypes.c_void_p),
        ("length_count", ctypes.c_size_t),
        ("rope_cos", ctypes.c_void_p),
        ("rope_sin", ctypes.c_void_p),
        ("k_norm_weight", ctypes.c_void_p),
        ("past_incomplete_raw_keys", ctypes.c_void_p),
        ("past_incomplete_rope", ctypes.c_void_p),
        ("block_index_keys", ctypes.c_void_p),
        ("present_incomplete_raw_keys", ctypes.c_void_p),
        ("present_incomplete_rope", ctypes.c_void_p),
    )


@lru_cache(maxsize=1)
def _library() -> Any:
    library = ctypes.CDLL(str(build_native()))
    pointer = ctypes.c_void_p
    library.qsa_workers_open.restype = pointer
    library.qsa_workers_open.argtypes = (ctypes.c_int,)
    library.qsa_workers_close.argtypes = (pointer,)
    library.qsa_workers_close.restype = None
    library.qsa_prepare.argtypes = (ctypes.POINTER(_Problem), pointer, ctypes.c_int)
    library.qsa_bytes_to_move.argtypes = (ctypes.POINTER(_Problem),)
    library.qsa_bytes_to_move.restype = ctypes.c_size_t
    library.qsa_plain_copy.argtypes = (pointer, pointer, ctypes.c_size_t, pointer)
    library.qsa_plain_copy.restype = None
    return library


class Kernel:
    """The kernel on a fixed number of threads. Raises `Unsupported` or `BackendError` as `build_native` does."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._workers = ctypes.c_void_p(_library().qsa_workers_open(threads))

    def bind(self, config: OperationConfig, inputs: Mapping[str, Array], isa: str = "automatic") -> BoundCall:
        """One call made ready, outputs allocated. `inputs` are dense arrays under the contract's names.

        Raises `ValueError` for an instruction set that this CPU lacks.
        """
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
        problem = _Problem(
            element_type=ELEMENT_TYPES.index(config.element_type),
            length_type=LENGTH_TYPES.index(config.length_type),
            epsilon=float(config.attributes.get("epsilon", 1e-6)),
            length_count=lengths.size,
            **dict(zip(_SIZES, (N, L, Di, Dr, inputs["past_block_index_keys"].shape[1], B, r), strict=True)),
            **{name: array.ctypes.data for name, array in {**inputs, **outputs}.items() if array.size},
        )
        call = BoundCall(self._workers, problem, ISAS.index(isa), inputs, outputs)
        if _library().qsa_prepare(problem, self._workers, call.isa):
            raise ValueError(f"this CPU does not run '{isa}'")
        return call

    def plain_copy(self, to: Array, source: Array) -> None:
        """Copies a dense array onto another of the same size, every thread its share: the bandwidth to compare with."""
        _library().qsa_plain_copy(to.ctypes.data, source.ctypes.data, source.nbytes, self._workers)

    def close(self) -> None:
        """Give the threads back."""
        _library().qsa_workers_close(self._workers)


@dataclass(frozen=True)
class BoundCall:
    """A call of the kernel that can be repeated; every `run` writes the same `outputs` again."""

    workers: ctypes.c_void_p
    problem: _Problem
    isa: int
    inputs: Mapping[str, Array]  # kept alive: the problem holds addresses only
    outputs: Mapping[str, Array]

    def run(self) -> None:
        """The kernel, once."""
        _library().qsa_prepare(self.problem, self.workers, self.isa)

    @property
    def bytes_to_move(self) -> int:
        """Bytes that any implementation must read and write for this call."""
        return int(_library().qsa_bytes_to_move(self.problem))


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of zeros that begins at a cache line, as OpenVINO's own tensors do and NumPy's do not."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array: Array = memory[start : start + size].view(dtype).reshape(shape)
    return array
