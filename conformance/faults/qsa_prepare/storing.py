"""Faults in storing the block keys in the element type."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from conformance.faults.qsa_prepare.planting import Array, fault
from conformance.faults.qsa_prepare.rounding import rounded
from reference.qsa_prepare.operation import QSAPrepare

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)


@fault("F37s", "Results beyond the type's largest number become that number, not infinity.", "NUM-3")
class Saturated(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        top = float(ml_dtypes.finfo(dtype).max)
        return super().store(np.clip(values, -top, top), dtype)


@fault("F37h", "Block keys are rounded to f16 on the way out.", "NUM-2 NUM-3", types="f32 bf16")
class StoredThroughHalf(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        return super().store(rounded(values, F16), dtype)


@fault("F37b", "Block keys are rounded to bf16 on the way out.", "NUM-2", types="f32 f16")
class StoredThroughBrainFloat(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        return super().store(rounded(values, BF16), dtype)


@fault("F37n", "NaN in a result is replaced by zero.", "SEP-2 NUM-3")
class NanReplaced(QSAPrepare):
    def store(self, values: Array, dtype: np.dtype[np.generic]) -> Array:
        return super().store(np.where(np.isnan(values), 0, values), dtype)
