"""What a reference says of an output: values, bounds, and which elements are specified at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


Expectation = Mapping[str, Expected]


class Following(Mapping[str, Expected]):
    """What is expected of a call whose outputs follow from each other: each output from those that came before it.

    `make(got)` gives the expectation of an answer; an output of it is worked out when it is asked for, so that nothing
    is made of outputs that were found wrong before. Without an answer, that of the reference counts.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any] | None], Expectation],
        got: Mapping[str, Any] | None = None,
    ) -> None:
        self._make, self._found = make, make(got)

    def after(self, got: Mapping[str, Any]) -> Following:
        """What is expected when these outputs came."""
        return Following(self._make, got)

    def then(self, step: Callable[[str, Expected], Expected]) -> Following:
        """The same with every output changed by a step."""
        return Following(lambda got: _Changed(self._make(got), step))

    def __getitem__(self, name: str) -> Expected:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class _Changed(Mapping[str, Expected]):
    def __init__(self, inner: Expectation, step: Callable[[str, Expected], Expected]) -> None:
        self._inner, self._step = inner, step

    def __getitem__(self, name: str) -> Expected:
        return self._step(name, self._inner[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


def after(expected: Expectation, got: Mapping[str, Any]) -> Expectation:
    """What is expected of an answer: the same for every one, unless outputs follow from each other."""
    return expected.after(got) if isinstance(expected, Following) else expected
