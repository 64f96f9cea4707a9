"""The same numbers in other memory layouts: every way in which a caller may hand an array over.

A layout takes an array and gives one of equal shape, type and values whose memory is another: a base aligned to the
element only, another order of axes, a part of a larger array along any axis, steps, negative strides, read-only memory.
What lies around it is poisoned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from conformance.spec.inputs import Poison

Array = np.ndarray[Any, np.dtype[Any]]
Layout = Callable[[Array], Array]

AROUND = 2  # rows of a larger array before and after a part


def filler(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What lies around an array: poison, and -1 among whole numbers."""
    if dtype.kind in "iub":
        return np.full(shape, -1 if dtype.kind == "i" else 1, dtype=dtype)
    return Poison("mixed").values(shape, dtype)


def offset(array: Array) -> Array:
    """Dense, but its base is aligned to one element only."""
    larger = filler((array.size + 1,), array.dtype)
    # Wherever the memory of `larger` begins, one of its first two elements is aligned no better than an element.
    start = 1 if larger.ctypes.data % (2 * array.itemsize) == 0 else 0
    view = larger[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


def ordered(axes: Sequence[int]) -> Layout:
    """Axes in this order in memory, the last one innermost."""

    def layout(array: Array) -> Array:
        larger = filler(tuple(array.shape[axis] for axis in axes), array.dtype)
        view = larger.transpose(np.argsort(axes))
        view[...] = array
        return view

    return layout


def within(axes: Sequence[int]) -> Layout:
    """A part of an array that is larger along these axes."""

    def layout(array: Array) -> Array:
        shape = tuple(size + 2 * AROUND * (axis in axes) for axis, size in enumerate(array.shape))
        larger = filler(shape, array.dtype)
        view = larger[tuple(slice(AROUND, AROUND + n) if a in axes else slice(None) for a, n in enumerate(array.shape))]
        view[...] = array
        return view

    return layout


def stepped(axes: Sequence[int], step: int = 2) -> Layout:
    """Every second or so element along these axes."""

    def layout(array: Array) -> Array:
        shape = tuple(size * (step if axis in axes else 1) for axis, size in enumerate(array.shape))
        view = filler(shape, array.dtype)[tuple(slice(None, None, step if a in axes else 1) for a in range(array.ndim))]
        view[...] = array
        return view

    return layout


def backwards(axes: Sequence[int]) -> Layout:
    """Negative strides along these axes."""

    def layout(array: Array) -> Array:
        view = filler(array.shape, array.dtype)[
            tuple(slice(None, None, -1 if a in axes else 1) for a in range(array.ndim))
        ]
        view[...] = array
        return view

    return layout


def read_only(array: Array) -> Array:
    """Memory that must not be written to."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def layouts(ndim: int) -> Iterator[tuple[str, Layout]]:
    """All layouts of an array of this rank, with names."""
    yield "base aligned to the element", offset
    yield "read-only", read_only
    for order in list(permutations(range(ndim)))[1:]:
        yield f"axes in the order {','.join(map(str, order))}", ordered(order)
    alone = [(axis,) for axis in range(ndim)]
    for axes in [*alone, tuple(range(ndim))] if ndim > 1 else alone:
        told = "axis " + ",".join(map(str, axes)) if axes else "no axis"
        yield f"part of a larger array along {told}", within(axes)
        yield f"steps along {told}", stepped(axes)
        yield f"steps of three along {told}", stepped(axes, 3)
        yield f"negative strides along {told}", backwards(axes)


def repeated(array: Array, axis: int) -> tuple[Array, Array] | None:
    """One place along an axis everywhere, dense and with a stride of zero; None where there is nothing to repeat."""
    if array.shape[axis] < 2 or not array.size:
        return None
    rows = np.moveaxis(array, axis, 0)
    finite = np.isfinite(rows.astype(np.float64)).reshape(len(rows), -1).sum(axis=1)
    row = rows[int(finite.argmax())].copy()
    view = np.moveaxis(np.broadcast_to(row, rows.shape), 0, axis)
    return np.ascontiguousarray(view), view


def side_by_side(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays of one shape and type as parts of one larger array, next to each other along the last axis."""
    groups: dict[Any, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim and array.size:
            groups.setdefault((array.shape, array.dtype), []).append(name)
    views = dict(arrays)
    for (shape, dtype), names in groups.items():
        if len(names) > 1:
            table = filler((*shape[:-1], shape[-1] * len(names)), dtype)
            for place, name in enumerate(names):
                views[name] = table[..., place * shape[-1] : (place + 1) * shape[-1]]
                views[name][...] = arrays[name]
    return views
