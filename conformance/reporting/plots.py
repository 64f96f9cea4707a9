"""Pictures of a report as inline SVG: room below the error bound, latency by tokens.

Every function gives a whole `<svg>` with title and description. Widths are for a telephone; larger screens scale them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 340
LEAST, MOST = -4.0, 1.0  # decades of error / bound that are drawn
# Their number and that of the colours have no common factor, so that many series differ in one or the other.
MARKS = ("circle", "square", "diamond", "up", "down", "left", "right")


@dataclass(frozen=True)
class Room:
    """Error / bound of one clause on one backend: of what passed, and of the worst that did not."""

    title: str
    median: float | None = None
    most: float | None = None
    failed: float | None = None  # infinite for an error without a number


@dataclass(frozen=True)
class Point:
    """A timed call: tokens, median seconds, and the interval the median lies in."""

    tokens: float
    seconds: float
    low: float | None = None
    high: float | None = None


def headroom(clause: str, rooms: Sequence[Room]) -> Markup:
    """One line a backend from the median to the largest error / bound, on a log axis; the bound is the line at 1."""
    row, top = 30, 14
    height = top + row * len(rooms) + 24
    bottom = top + row * len(rooms)
    parts = [f'<line class="bound" x1="{_ratio(1)}" x2="{_ratio(1)}" y1="4" y2="{bottom}"/>']
    for decade in range(int(LEAST), int(MOST) + 1):
        x = _ratio(10.0**decade)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
        name = {0: "bound", 1: "10 x"}.get(decade, f"{10.0**decade:g}")
        anchor = {LEAST: "start", MOST: "end"}.get(decade, "middle")
        parts.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}">{name}</text>')
    said = []
    titles = distinct([room.title for room in rooms], 30)
    for index, room in enumerate(rooms):
        y = top + row * index
        text = "no numbers"
        line = y + 20
        if room.most is not None:
            low, high = _ratio(room.median or 0.0), _ratio(room.most)
            parts.append(f'<line class="span s{index % 5}" x1="{low}" x2="{high}" y1="{line}" y2="{line}"/>')
            parts.append(_mark(index, high, line))
            text = f"{room.most:.3g}"
        if room.failed is not None:
            parts.append(f'<text class="cross" x="{_ratio(room.failed)}" y="{line + 5}" text-anchor="middle">✗</text>')
            text += f", failed at {room.failed:.3g}" if math.isfinite(room.failed) else ", failed without a number"
        parts.append(f'<text x="6" y="{y + 12}">{escape(titles[index])}</text>')
        parts.append(f'<text x="{WIDTH - 6}" y="{y + 12}" text-anchor="end">{text}</text>')
        said.append(f"{room.title}: {text}")
    return _svg(height, f"Largest error over bound, {clause}", "; ".join(said), parts)


def latency(title: str, series: Mapping[str, Sequence[Point]], copy: Sequence[Point] = ()) -> Markup:
    """Seconds over tokens, both on log axes: one line a series, and dashed the time a plain copy takes."""
    left, right, top, height = 46, 12, 8, 250
    bottom = height - 30
    everything = [point for points in (*series.values(), copy) for point in points]
    x_low, x_high = _decades([p.tokens for p in everything], base=2.0)
    y_low, y_high = _decades([p.seconds for p in everything], base=10.0)

    def x(tokens: float) -> float:
        return round(left + (math.log2(tokens) - x_low) / (x_high - x_low) * (WIDTH - left - right), 1)

    def y(seconds: float) -> float:
        return round(bottom - (math.log10(seconds) - y_low) / (y_high - y_low) * (bottom - top), 1)

    parts = []
    for decade in range(math.ceil(y_low), math.floor(y_high) + 1):
        at = y(10.0**decade)
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{left - 5}" y="{at + 4}" text-anchor="end">{duration(10.0**decade)}</text>')
    step = max(1, math.ceil((x_high - x_low) / 6))
    for power in range(math.ceil(x_low), math.floor(x_high) + 1, step):
        at = x(2.0**power)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 15}" text-anchor="middle">{tokens_text(2.0**power)}</text>')
    if copy:
        path = " ".join(f"{x(p.tokens)},{y(p.seconds)}" for p in sorted(copy, key=lambda p: p.tokens))
        parts.append(f'<polyline class="copy" points="{path}"/>')
    said = []
    for index, (name, points) in enumerate(series.items()):
        ordered = sorted(points, key=lambda p: p.tokens)
        path = " ".join(f"{x(p.tokens)},{y(p.seconds)}" for p in ordered)
        parts.append(f'<polyline class="line s{index % 5}" points="{path}"/>')
        for point in ordered:
            at = x(point.tokens)
            if point.low and point.high:
                ends = f'y1="{y(point.low)}" y2="{y(point.high)}"'
                parts.append(f'<line class="line s{index % 5}" x1="{at}" x2="{at}" {ends}/>')
            parts.append(_mark(index, at, y(point.seconds)))
        said.append(name + ": " + ", ".join(f"{tokens_text(p.tokens)} {duration(p.seconds)}" for p in ordered))
    return _svg(height, f"Time of a call by new tokens, {title}", "; ".join(said), parts)


def key(titles: Sequence[str]) -> Markup:
    """The marks of the series, as a list."""
    items = []
    for index, title in enumerate(titles):
        mark = _mark(index, 8, 8)
        items.append(f'<li><svg width="16" height="16" aria-hidden="true">{mark}</svg> {escape(title)}</li>')
    return Markup(f'<ul class="key">{"".join(items)}</ul>')


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def tokens_text(count: float) -> str:
    """A number of tokens, in Ki and Mi where it is a multiple."""
    for unit, size in (("Mi", 2**20), ("Ki", 2**10)):
        if count >= size and count % size == 0:
            return f"{count / size:g} {unit}"
    return f"{count:g}"


def _svg(height: float, title: str, text: str, parts: Sequence[str]) -> Markup:
    label = escape(f"{title}. {text}")
    inside = "".join(parts)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">{inside}</svg>')


def _ratio(value: float) -> float:
    decade = min(max(math.log10(value) if value > 0 else LEAST, LEAST), MOST)
    return round(14 + (decade - LEAST) / (MOST - LEAST) * (WIDTH - 28), 1)


def _decades(values: Sequence[float], base: float) -> tuple[float, float]:
    """Logarithms of an axis's ends: a little beyond the values, never empty."""
    low, high = math.log(min(values), base), math.log(max(values), base)
    room = max((high - low) * 0.06, 0.15)
    return low - room, high + room


def _mark(index: int, x: float, y: float) -> str:
    """A mark of a form of its own, so that the series can be told apart without colour."""
    kind = MARKS[index % len(MARKS)]
    if kind == "circle":
        return f'<circle class="mark s{index % 5}" cx="{x:g}" cy="{y:g}" r="4"/>'
    points = {
        "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
        "up": ((0, -5), (5, 4), (-5, 4)),
        "down": ((0, 5), (5, -4), (-5, -4)),
        "left": ((-5, 0), (4, -5), (4, 5)),
        "right": ((5, 0), (-4, -5), (-4, 5)),
    }[kind]
    path = " ".join(f"{x + a:g},{y + b:g}" for a, b in points)
    return f'<polygon class="mark s{index % 5}" points="{path}"/>'


def distinct(titles: Sequence[str], most: int) -> list[str]:
    """The titles at most so long, cut in the middle, and numbered where that would leave two of them the same."""
    half = (most - 1) // 2
    cut = [text if len(text) <= most else f"{text[: most - 1 - half]}…{text[-half:]}" for text in titles]
    return [
        text if cut.count(text) == 1 or titles.count(full) > 1 else f"{text[: most - 5]} ({number})"
        for number, (text, full) in enumerate(zip(cut, titles, strict=True), 1)
    ]
