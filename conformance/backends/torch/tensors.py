"""Arrays as PyTorch tensors and back, bf16 included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from conformance.backends.protocol import Array

URL = "https://github.com/pytorch/pytorch/issues"


def one_thread() -> Any:
    """PyTorch, with sums in one order on every machine."""
    import torch

    torch.set_num_threads(1)
    return torch


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """PyTorch on so many threads for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor_of(array: Array) -> Any:
    """A tensor with a copy of an array of any strides.

    PyTorch shares memory with what it is given, complains about arrays that may not be written to, and does not know
    NumPy's bf16.
    """
    import torch

    copy = np.array(array, order="C")
    if copy.dtype.name == "bfloat16":
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copy)


def array_of(tensor: Any) -> Array:
    """The dense array of a tensor."""
    import torch

    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: Array = tensor.contiguous().numpy()
    return array
