"""What a reference says of an output: values, bounds, and which elements are specified at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.parts import Part

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Expected:
    """One output: shape, element type, and its specified parts. Elements in no part are don't-care."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    parts: tuple[Part, ...]

    def fill(self, rest: float = 0.0) -> Array:
        """The output with every specified element in place, rounded to T, and `rest` in all others.

        Where parts overlap the first one counts. Whole numbers cannot be NaN: in its place stands the smallest of
        their type.
        """
        if self.dtype.kind in "iu" and np.isnan(rest):
            out = np.full(self.shape, np.iinfo(self.dtype).min, dtype=self.dtype)
        else:
            out = np.full(self.shape, rest, dtype=self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            for part in reversed(self.parts):
                out[part.index] = part.filled(self.dtype)
        return out

    def defined(self) -> Array:
        """Mask of the specified elements, same shape as the output."""
        mask = np.zeros(self.shape, dtype=bool)
        for part in self.parts:
            mask[part.index] = True
        return mask
