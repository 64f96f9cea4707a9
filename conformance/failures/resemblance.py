"""Whether a case went on a suspect as it went on a backend, by the backend's recorded outcome alone."""

from __future__ import annotations

import numpy as np

from conformance.failures.suspects import Sketch
from conformance.judging.judge import Worst
from conformance.judging.outcome import Kind, Outcome, Where

GOOD = ("pass", "quality-warning")
BAD = ("fail", "error")
NEARLY = 2.0  # error / bound up to which rounding may decide on which side a case falls
SHARE = 0.02  # of a deviation, by which two implementations of one mistake may differ
ROUNDINGS = 4.0  # units in the last place by which they may, besides the bounds


def alike(seen: Outcome, sketch: Sketch) -> bool | None:
    """Whether a case went in the same way; None where it cannot tell: not judged, or off by about the bound."""
    mine = sketch.outcome
    if seen.status not in GOOD + BAD or mine.status not in GOOD + BAD:
        return None
    if seen.status in GOOD or mine.status in GOOD:
        failed = mine if seen.status in GOOD else seen
        return (seen.status in GOOD and mine.status in GOOD) or (None if _barely(failed) else False)
    if _at(seen.place) != _at(mine.place):
        return False
    if seen.sort not in (mine.sort, Kind.ALONE):
        return False
    if seen.worst or mine.worst:
        return bool(seen.worst and mine.worst) and _same_number(seen.worst, mine.worst, sketch)
    if seen.sort in (Kind.SHAPE, Kind.TYPE, Kind.OUTPUTS, Kind.RAISED):
        return seen.about == mine.about and seen.reason == mine.reason
    return seen.sort is Kind.ALONE or seen.about == mine.about


def _barely(outcome: Outcome) -> bool:
    worst = outcome.worst
    return worst is not None and worst.bound is not None and worst.ratio is not None and worst.ratio <= NEARLY


def _at(place: Where) -> tuple[object, ...]:
    return place.at, place.names, place.stream, place.call


def _same_number(seen: Worst | None, mine: Worst | None, sketch: Sketch) -> bool:
    """Whether the suspect has, where the backend is furthest off, the same wrong number up to rounding."""
    assert seen and mine
    if seen.output != mine.output:
        return False
    last = sketch.last
    if last is None or len(seen.index) != last.ndim or not _inside(seen.index, last.shape) or seen.says:
        return (seen.index, seen.got, seen.says) == (mine.index, mine.got, mine.says)
    try:
        got, want = float(seen.got), float(seen.want)
    except ValueError:
        return seen.index == mine.index and seen.got == mine.got
    here = float(last[seen.index])
    if not (np.isfinite(got) and np.isfinite(here)):
        return bool(got == here) or bool(np.isnan(got) and np.isnan(here))
    if last.dtype.kind in "iub":
        return got == here
    unit = float(np.finfo(np.float32).eps) if last.dtype.itemsize >= 4 else 2.0**-7
    bound = seen.bound or 0.0
    off = abs(got - want) if np.isfinite(want) else 0.0
    return abs(got - here) <= SHARE * off + 2 * bound + ROUNDINGS * unit * max(abs(got), abs(here))


def _inside(index: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(0 <= i < size for i, size in zip(index, shape, strict=True))
