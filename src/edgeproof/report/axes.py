"""Axes, ticks and labels of the SVG charts. Charts are drawn twice, for a wide window and for a phone's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .markup import Attribute, Html, Node, h, join

WIDE, NARROW = 860.0, 350.0
"""Widths of the two drawings, in CSS pixels."""

TEXT = 12.0
"""Size of text in charts, in CSS pixels."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to pixels.

    Attributes:
        low: Smallest value.
        high: Largest value, more than ``low``.
        start: Pixel of the smallest.
        end: Pixel of the largest; less than ``start`` on an axis that points up.
        log: Logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Pixel of a value; values outside land on the nearer end."""
        low, high, v = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, v = math.log(low), math.log(high), math.log(v)
        return self.start + (v - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """About ``count`` round values on the axis."""
        if self.log and self.high / self.low > 8:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            values = [m * 10.0**d for d in range(first, last + 1) for m in (1, 2, 5)]
            inside = [v for v in values if self.low <= v <= self.high]
            return inside if len(inside) <= 2 * count else [v for v in inside if f"{v:e}"[0] == "1"]
        step = nice_step((self.high - self.low) / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least ``rough``.

    >>> nice_step(0.013), nice_step(3.1)
    (0.02, 5.0)
    """
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(float(f"{m * power:.12g}") for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def span(values: Sequence[float], pad: float = 0.06) -> tuple[float, float]:
    """The range of values with a margin; never empty."""
    low, high = min(values), max(values)
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    return low - (high - low) * pad, high + (high - low) * pad


def tick_text(value: float, ticks: Sequence[float]) -> str:
    """A tick's number, with as many decimals as neighbours need to differ."""
    gaps = [b - a for a, b in pairwise(ticks)]
    step = min(gaps) if gaps else abs(value) or 1.0
    places = next((p for p in range(9) if abs(round(step, p) - step) < step * 1e-6), 9)
    return f"{value:,.{places}f}"


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> Html:
    """Text in a chart; ``y`` is its base line."""
    return h("text", {"x": x, "y": y, "text-anchor": anchor, "class": style or None}, words)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    """A straight line."""
    return h("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": style})


def path(points: Sequence[tuple[float, float]], style: str, *, closed: bool = False) -> Html:
    """A line through points."""
    d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if closed else "")
    return h("path", {"d": d, "class": style})


def grid(x: Axis, y: Axis | None, top: float, bottom: float, title: str, count: int) -> Html:
    """Vertical grid lines with their numbers below and the axis' title under them."""
    ticks = x.ticks(count)
    parts: list[Node] = []
    for v in ticks:
        parts.append(line(x.at(v), top, x.at(v), bottom, "grid"))
        parts.append(text(x.at(v), bottom + 16, tick_text(v, ticks), "middle", "tick"))
    parts.append(text(x.end, bottom + 34, title, "end", "axis"))
    if y is not None:
        rows = y.ticks(5)
        for v in rows:
            parts.append(line(x.start, y.at(v), x.end, y.at(v), "grid"))
            parts.append(text(x.start - 6, y.at(v) + 4, tick_text(v, rows), "end", "tick"))
    return join(*parts)


def series(index: int) -> str:
    """Style of a leg: the original and its control have their own, finalists share four in turn."""
    return f"s{index if index < 2 else 2 + (index - 2) % 4}"


def mark(x: float, y: float, shape: int, style: str, title: str) -> Html:
    """A mark whose shape differs by series, so that colour is not needed to tell them apart."""
    r = 5.5
    kind = shape % 5
    attributes: dict[str, Attribute] = {"class": f"mark {style}"}
    if kind == 0:
        return h("circle", {**attributes, "cx": x, "cy": y, "r": r}, h("title", {}, title))
    corners = {
        1: ((-r, -r), (r, -r), (r, r), (-r, r)),
        2: ((0, -r * 1.35), (r * 1.35, 0), (0, r * 1.35), (-r * 1.35, 0)),
        3: ((0, -r * 1.25), (r * 1.2, r), (-r * 1.2, r)),
        4: ((-r * 1.2, -r), (r * 1.2, -r), (0, r * 1.25)),
    }[kind]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return h("polygon", {**attributes, "points": points}, h("title", {}, title))


def chart(width: float, height: float, title: str, description: str, *parts: Node) -> Html:
    """An SVG image with its title for people who cannot see it."""
    attributes: dict[str, Attribute] = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "class": "chart",
        "role": "img",
        "aria-label": f"{title}. {description}",
    }
    return h("svg", attributes, *parts)


def both(draw: Callable[[float], Html]) -> Html:
    """The same chart for a wide window and for a phone; the style sheet shows one of them."""
    return join(h("div", {"class": "wide"}, draw(WIDE)), h("div", {"class": "narrow"}, draw(NARROW)))


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def text_width(words: str) -> float:
    """Width of a text in a chart, on the safe side for sans-serif fonts."""
    return len(words) * TEXT * 0.58 + 2


def place(x: float, y: float, words: str, taken: list[Box], frame: Box) -> tuple[Box, bool] | None:
    """A free place for a label near a point; it is added to ``taken``.

    Returns:
        The label's box and whether it lies so far off that a leader line is needed; None when there is no room.
    """
    wide, tall = text_width(words), TEXT + 2
    for distance in (9.0, 18.0, 30.0, 44.0, 60.0):
        for dx, dy in ((1, 0), (0, -1), (0, 1), (-1, 0), (1, -1), (1, 1), (-1, -1), (-1, 1)):
            left = x + dx * distance - (wide if dx < 0 else wide / 2 if dx == 0 else 0)
            top = y + dy * distance - tall / 2
            box = (left, top, left + wide, top + tall)
            inside = box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]
            if inside and not any(overlaps(box, other) for other in taken):
                taken.append(box)
                return box, distance > 18
    return None


def overlaps(a: Box, b: Box) -> bool:
    """Whether two boxes share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
