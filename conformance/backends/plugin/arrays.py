"""Arrays on their way between two processes: their bytes go through a file in memory, their layout through a message.

An input arrives as it was: same alignment, strides, order of axes, gaps between its elements and write protection, so
that an implementation in a process of its own is handed what it would be handed in this one.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.lib.array_utils import byte_bounds

from conformance.spec.types import TENSOR_TYPES, dtype, name_of

Array = np.ndarray[Any, np.dtype[Any]]

LINE = 64  # bytes that alignment is kept to
MOST = 1 << 30  # bytes of one read or write; systems limit it to somewhat less than 2 GiB


class Laid(msgspec.Struct, frozen=True):
    """Where an array is in the area, and how it lies there."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # of its lowest byte, in the area
    span: int  # bytes from its lowest to its highest one
    first: int  # bytes from the lowest one to its first element
    align: int  # of its lowest byte in memory, modulo `LINE`
    writable: bool = True


class Area:
    """A file in memory that two processes have open; what does not fit makes it grow. No process maps it."""

    def __init__(self, fd: int = -1) -> None:
        """Open the area of a descriptor, or a new one."""
        if fd < 0:
            if hasattr(os, "memfd_create"):
                fd = os.memfd_create("qsa-conformance")
            else:
                fd, path = tempfile.mkstemp(prefix="qsa-conformance-")
                Path(path).unlink()
        self.fd = fd

    def put(self, array: Array, offset: int) -> Laid:
        """Write the memory of an array at an offset."""
        low, high = byte_bounds(array) if array.size else (0, 0)
        at = 0
        while at < high - low:
            size = min(MOST, high - low - at)
            at += os.pwrite(self.fd, (ctypes.c_char * size).from_address(low + at), offset + at)
        first = array.ctypes.data - low if array.size else 0
        kind = name_of(array.dtype) or array.dtype.str
        layout = array.shape, array.strides, offset, high - low, first, low % LINE
        return Laid(kind, *layout, array.flags.writeable)

    def bytes_of(self, laid: Laid) -> Array:
        """The bytes from the lowest to the highest, in fresh memory. Raises `ValueError` when they are not there."""
        memory = np.empty(laid.span + LINE, np.uint8)
        skip = (laid.align - memory.ctypes.data) % LINE
        data: Array = memory[skip : skip + laid.span]
        self.read_into(data, laid.offset)
        return data

    def read_into(self, data: Array, offset: int) -> None:
        """Fill an array of bytes. Raises `ValueError` when there are fewer of them."""
        at = 0
        while at < len(data):
            got = os.preadv(self.fd, [data[at : at + MOST].data], offset + at)
            if not got:
                raise ValueError("there are fewer bytes than announced")
            at += got

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def array_on(data: Array, laid: Laid) -> Array:
    """The array on these bytes. Raises `ValueError` or `TypeError` when the layout does not fit them."""
    kind = dtype_of(laid.dtype)
    if not data.size:
        return np.empty(laid.shape, kind)
    array: Array = np.ndarray(laid.shape, kind, data, laid.first, laid.strides)
    array.flags.writeable = laid.writable
    return array


def overwrite(array: Array, area: Area, laid: Laid) -> None:
    """Bring the bytes of the area into the memory of an array, whether it may be written to or not."""
    low, high = byte_bounds(array)
    memory = np.ctypeslib.as_array((ctypes.c_ubyte * (high - low)).from_address(low))
    area.read_into(memory, laid.offset)


def next_offset(laid: Laid) -> int:
    """Where the next array can be put."""
    return -(-(laid.offset + laid.span) // LINE) * LINE


def dtype_of(name: str) -> np.dtype[Any]:
    """The type of a name. Raises `TypeError` when there is none."""
    return dtype(name) if name in TENSOR_TYPES else np.dtype(name)
