"""Arrays as MLX arrays and back, bf16 included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

KEPT = 1 << 28  # bytes of freed memory that MLX may keep: it has a place for every size there was


def mlx() -> Any:
    """MLX on the CPU, uncompiled: it would call a C++ compiler for every new shape. Raises `ImportError`."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    mx.disable_compile()
    mx.set_cache_limit(KEPT)
    return mx


def mlx_of(array: Array) -> Any:
    """An MLX array with a copy of an array of any strides."""
    import mlx.core as mx

    copy = np.array(array, order="C")
    if copy.dtype.name == "bfloat16":
        return mx.array(copy.view(np.uint16)).view(mx.bfloat16)
    return mx.array(copy)


def array_of(array: Any) -> Array:
    """The dense array of an MLX array."""
    import mlx.core as mx

    if array.dtype == mx.bfloat16:
        bits: Array = np.array(array.view(mx.uint16))
        return bits.view(ml_dtypes.bfloat16)
    dense: Array = np.array(array)
    return dense
