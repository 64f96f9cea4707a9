"""Narrow arithmetic, emulated: values in float64, rounded where an implementation would round."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values as they are in another type, in float64 again."""
    with np.errstate(over="ignore", invalid="ignore"):
        result: Array = values.astype(dtype).astype(np.float64)
    return result


def accumulated(x: Array, dtype: np.dtype[Any]) -> Array:
    """Running sum over axis 1, rounded to `dtype` after every addition: [A, R, W] to float64 [A, W]."""
    total = np.zeros((x.shape[0], *x.shape[2:]))
    with np.errstate(over="ignore", invalid="ignore"):
        for j in range(x.shape[1]):
            total = rounded(total + x[:, j].astype(np.float64), dtype)
    return total
