"""Element, length and tensor types: their names, and what NumPy knows of them. Everything else asks here."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Dtype = np.dtype[Any]

ELEMENT_TYPES = ("f32", "f16", "bf16")  # what T can be
LENGTH_TYPES = ("i32", "i64")  # what I can be
# Every type a tensor can have, refused ones included, with its name in NumPy or ml_dtypes.
NUMPY_NAMES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "bool": "bool",
}
TENSOR_TYPES = tuple(NUMPY_NAMES)
INTEGER_TYPES = ("i32", "i64", "i16", "i8", "u8", "u16", "u32", "u64", "bool")


@cache
def dtype(name: str) -> Dtype:
    """The NumPy type of "f32", "bf16", "i64" and so on. Raises `KeyError` for an unknown name."""
    import ml_dtypes
    import numpy as np

    kind: Dtype = np.dtype(ml_dtypes.bfloat16 if name == "bf16" else NUMPY_NAMES[name])
    return kind


@cache
def _names() -> dict[Any, str]:
    return {dtype(name): name for name in TENSOR_TYPES}


def name_of(kind: Dtype) -> str | None:
    """The name of a NumPy type, None for one that has none here."""
    return _names().get(kind)


@cache
def largest(kind: Dtype) -> float:
    """Largest finite number of an element type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(kind).max)


@cache
def smallest_normal(kind: Dtype) -> float:
    """Smallest positive normal number of an element type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(kind).smallest_normal)


def is_integer(kind: Dtype) -> bool:
    """Whether a NumPy type holds whole numbers or truth values."""
    # ml_dtypes.bfloat16 has kind "V".
    return kind.kind in "iub"
