"""A part whose elements must lie between two numbers: what a weighted mean can be when its weights are not known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference.parts import Array, Comparison, Copy, Detail, Index, pick_index, same_bits


@dataclass(frozen=True)
class Hull:
    """Elements that lie in a hull, whatever the weights were.

    `low` and `high` are the smallest and the largest number that enters the mean, `slack` how far rounding may carry
    the result beyond them; all float64 of the part's shape.
    """

    region: str
    clause: str
    index: Index
    low: Array
    high: Array
    slack: Array

    def compare(self, got: Array) -> Comparison:
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            beyond = self._beyond(got)
            ratio = np.where(beyond == 0, 0.0, beyond / self.slack)
            # An element that another part bounds is wrong by that bound in the first place: no share is above 2 here.
            ratio = np.where(ratio <= 1, ratio, np.where(ratio > 1, 2 - 1 / ratio, 2.0))
        return Comparison(ratio, np.zeros(got.shape, dtype=bool), measured=True)

    def detail(self, got: Array, at: tuple[int, ...]) -> Detail:
        low, high = float(self.low[at]), float(self.high[at])
        beyond = float(self._beyond(got)[at])
        nearest = low if not float(got[at]) > high else high
        return Detail(
            self.clause,
            got[at],
            nearest,
            beyond if np.isfinite(beyond) else None,
            float(self.slack[at]),
            f"outside the range {low:.9g} to {high:.9g} of what enters the mean",
        )

    def agrees(self, got: Array) -> bool:
        with np.errstate(all="ignore"):
            return bool((self._beyond(got) <= self.slack).all())

    def _beyond(self, got: Array) -> Array:
        """How far every element lies outside; NaN for NaN."""
        value = got.astype(np.float64)
        outside: Array = np.maximum(np.maximum(self.low - value, value - self.high), 0.0)
        return outside

    def interval(self) -> tuple[Array, Array]:
        """The middle of the hull, and how far an element may be from there."""
        return self.low / 2 + self.high / 2, self.high / 2 - self.low / 2 + self.slack

    def filled(self, dtype: np.dtype[Any]) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            middle: Array = (self.low / 2 + self.high / 2).astype(dtype)
        return middle

    def pick(self, mask: Array) -> Hull:
        return replace(
            self,
            index=pick_index(self.index, mask),
            low=self.low[mask],
            high=self.high[mask],
            slack=self.slack[mask],
        )

    def moved(self, index: Index) -> Hull:
        return replace(self, index=index)

    def answered(self, got: Array) -> Hull:
        """An answer narrows nothing: another one may lie anywhere in the hull."""
        return self

    def repeated(self, got: Array) -> Copy:
        return Copy(self.region, self.clause, self.index, got)

    def alike(self, got: Array) -> Copy:
        return self.repeated(got)

    def differing(self, got: Array, other: Array, *, recommended: bool = False) -> Array:
        return ~same_bits(got, other)

    def scaled(self, copied: float, computed: float) -> Hull:
        return replace(self, low=self.low * computed, high=self.high * computed, slack=self.slack * computed)

    def written(self, values: Array, known: Array, dtype: np.dtype[Any]) -> Hull:
        """Values written by hand are compared with the other parts; the hull follows from the inputs."""
        return self


__all__ = ["Hull"]
