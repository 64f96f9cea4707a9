"""What a list of measured times says, and what two of them say of each other. Nothing is assumed of their shape."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.99
RESAMPLES = 1000
FEW = 8  # samples below which an interval is their range
TELLING = 2.0  # an interval around 1 whose ends lie further apart tells nothing

# Two-sided 99 % quantiles of Student's t, by degrees of freedom.
_T99 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169)


class Growth(NamedTuple):
    """Exponent of a power law and its 99 % interval; no interval from two points."""

    exponent: float
    low: float | None
    high: float | None


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """A 99 % interval of the median by order statistics; None for fewer than eight samples, which have none.

    The k-th smallest and k-th largest are its ends, for the largest k with P(fewer than k of n fall on one side of the
    median) <= 1/2 %, by the binomial distribution.
    """
    ordered, n = sorted(samples), len(samples)
    tail, k = 0, 0
    allowed = (1 - CONFIDENCE) / 2
    while k < n // 2:
        tail += math.comb(n, k)
        # As a quotient of whole numbers: 2**n is beyond a float from n = 1024 on.
        if tail / 2**n > allowed:
            break
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def interquartile(samples: Sequence[float]) -> float:
    """Distance of the quartiles; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low


def fastest(samples: Sequence[float]) -> float:
    """The median of the fastest tenth: what the call takes when nothing disturbs it."""
    ordered = sorted(samples)
    return statistics.median(ordered[: max(1, len(ordered) // 10)])


class Ratio(NamedTuple):
    """Ratio of two times and the 99 % interval that it lies in."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """How many times the one end of the interval is the other."""
        return self.high / self.low

    @property
    def says(self) -> str:
        """Whether the other is faster or slower than the first."""
        if self.high < 1:
            return "faster"
        if self.low > 1:
            return "slower"
        return "cannot tell" if self.width > TELLING else "no clear difference"


def paired_ratio(first: Sequence[float], other: Sequence[float], resamples: int = RESAMPLES) -> Ratio:
    """Median of the ratios other / first of samples that were taken in pairs, with its bootstrap interval.

    What slows a machine down for a while slows both of a pair, so that their ratio is known long before either time is.
    Raises `ValueError` when the numbers of samples differ or are zero.
    """
    if not first or len(first) != len(other):
        raise ValueError("the ratio needs as many samples on either side")
    ratios = np.array(other, dtype=float) / np.array(first, dtype=float)
    drawn = np.random.default_rng(0).integers(len(ratios), size=(resamples, len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    if len(ratios) < FEW:  # resampling a handful says less than the range of it
        low, high = ratios.min(), ratios.max()
    return Ratio(float(np.median(ratios)), float(low), float(high))


def growth(sizes: Sequence[float], times: Sequence[float]) -> Growth | None:
    """The exponent of time over size by least squares on logarithms; None when there are not two sizes.

    The interval is Student's, of a straight line's slope: it is wide where the points do not lie on one.
    """
    if len(set(sizes)) < 2:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    slope, intercept = statistics.linear_regression(x, y)
    freedom = len(x) - 2
    if freedom == 0:
        return Growth(slope, None, None)
    rest = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    half = _T99[min(freedom, len(_T99)) - 1] * math.sqrt(rest / freedom / spread)
    return Growth(slope, slope - half, slope + half)
