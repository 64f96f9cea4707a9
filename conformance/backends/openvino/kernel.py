"""The kernels of the C++ operations without OpenVINO around them, to time them alone, and a plain copy beside them.

Nothing is checked here: what an operation would refuse must not be passed in.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
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
ISAS = ("automatic", "portable", "avx2", "avx512", "avx512_bf16")
ALIGNMENT = 64

# What structures of native/*/kernel.hpp are made of.
ENUM, SIZE, POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p


@lru_cache(maxsize=1)
def library() -> Any:
    """The built library. Raises `Unsupported` or `BackendError` as `build_native` does."""
    loaded = ctypes.CDLL(str(build_native()))
    loaded.qsa_workers_open.restype = POINTER
    loaded.qsa_workers_open.argtypes = (ctypes.c_int,)
    loaded.qsa_workers_close.argtypes = (POINTER,)
    loaded.qsa_workers_close.restype = None
    loaded.qsa_plain_copy.argtypes = (POINTER, POINTER, SIZE, POINTER)
    loaded.qsa_plain_copy.restype = None
    return loaded


class Workers:
    """A fixed number of threads. Raises `Unsupported` or `BackendError` as `build_native` does."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.handle = POINTER(library().qsa_workers_open(threads))

    def plain_copy(self, to: Array, source: Array) -> None:
        """Copies a dense array onto another of the same size, every thread its share: the bandwidth to compare with."""
        library().qsa_plain_copy(to.ctypes.data, source.ctypes.data, source.nbytes, self.handle)

    def close(self) -> None:
        """Give the threads back."""
        library().qsa_workers_close(self.handle)


class Kernel(Workers, ABC):
    """The kernel of one operation on a fixed number of threads.

    `function` and `bytes_function` are its names in the library: `function(problem, workers, isa)` computes,
    `bytes_function(problem)` tells what must move.
    """

    function: str
    bytes_function: str

    @abstractmethod
    def problem(
        self, config: OperationConfig, inputs: Mapping[str, Array]
    ) -> tuple[ctypes.Structure, Mapping[str, Array]]:
        """The structure that describes a call, and the outputs that it writes to."""

    def bind(self, config: OperationConfig, inputs: Mapping[str, Array], isa: str = "automatic") -> BoundCall:
        """One call made ready, outputs allocated. `inputs` are dense arrays under the contract's names.

        Raises `ValueError` for an instruction set that this CPU lacks.
        """
        problem, outputs = self.problem(config, inputs)
        run, size = getattr(library(), self.function), getattr(library(), self.bytes_function)
        run.argtypes = (ctypes.POINTER(type(problem)), POINTER, ctypes.c_int)
        size.argtypes, size.restype = (ctypes.POINTER(type(problem)),), SIZE
        call = BoundCall(self, problem, ISAS.index(isa), inputs, outputs)
        if run(problem, self.handle, call.isa):
            raise ValueError(f"this CPU does not run '{isa}'")
        return call


@dataclass(frozen=True)
class BoundCall:
    """A call of the kernel that can be repeated; every `run` writes the same `outputs` again."""

    kernel: Kernel
    structure: ctypes.Structure
    isa: int
    inputs: Mapping[str, Array]  # kept alive: the structure holds addresses only
    outputs: Mapping[str, Array]

    def run(self) -> None:
        """The kernel, once."""
        getattr(library(), self.kernel.function)(self.structure, self.kernel.handle, self.isa)

    @property
    def bytes_to_move(self) -> int:
        """Bytes that any implementation must read and write for this call."""
        return int(getattr(library(), self.kernel.bytes_function)(self.structure))


def addresses(arrays: Mapping[str, Array]) -> dict[str, int]:
    """Where the arrays begin, but for those without elements."""
    return {name: array.ctypes.data for name, array in arrays.items() if array.size}


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of zeros that begins at a cache line, as OpenVINO's own tensors do and NumPy's do not."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    array: Array = memory[start : start + size].view(dtype).reshape(shape)
    return array
