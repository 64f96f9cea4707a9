"""What a list of measured times says, and what two of them say of each other. Nothing is assumed of their shape."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.99

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


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test: how likely samples so far apart are when neither tends to be larger.

    Normal approximation with corrections for ties and continuity. Raises `ValueError` for an empty side.
    """
    if not a or not b:
        raise ValueError("the test needs samples on both sides")
    ranked = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
    total, rank_sum, ties, start = len(ranked), 0.0, 0, 0
    while start < total:
        end = start
        while end < total and ranked[end][0] == ranked[start][0]:
            end += 1
        count = end - start
        rank = (start + 1 + end) / 2
        rank_sum += rank * sum(1 for _, side in ranked[start:end] if side == 0)
        ties += count**3 - count
        start = end
    u = rank_sum - len(a) * (len(a) + 1) / 2
    mean = len(a) * len(b) / 2
    variance = len(a) * len(b) / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0  # all samples are equal
    z = max(abs(u - mean) - 0.5, 0.0) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


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
