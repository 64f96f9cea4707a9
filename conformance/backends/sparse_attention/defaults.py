"""What stands for the ports of SparseAttention that may be left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from conformance.backends.protocol import Array


def lengths_of(inputs: Mapping[str, Array]) -> Array:
    """Sn, the tokens of every sequence, int64 [N]: one length may be for all, and without any it is S (LEN-2)."""
    N, S = inputs["key"].shape[0], inputs["key"].shape[2]
    given = inputs["key_length"].astype(np.int64) if "key_length" in inputs else np.int64(S)
    return np.broadcast_to(given, (N,))


def scale_of(inputs: Mapping[str, Array]) -> float:
    """The factor of the logits: 1 / sqrt(E) unless it is given (ATT-2)."""
    return float(inputs["scale"].reshape(-1)[0]) if "scale" in inputs else 1 / math.sqrt(inputs["query"].shape[3])
