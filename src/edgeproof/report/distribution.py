"""Draw how a tensor's values are spread, and the range that was chosen, as an SVG file that stands on its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..quant.histogram import Histogram
from .axes import Axis, line, nice_step, path, text, tick_text
from .markup import Attribute, Html, Node, h, join
from .units import count

WIDTH, HEIGHT = 860.0, 380.0
BARS = 256
"""Columns drawn at most."""

STYLE = """
svg { color-scheme: light dark; background: #fbfbf9; font: 12px system-ui, "DejaVu Sans", sans-serif; }
text { fill: #1c2126; } .tick, .axis { fill: #56606a; } .title { font-size: 15px; font-weight: 650; }
.grid { stroke: #e7e9ea; } .area { fill: #0b62a8; fill-opacity: .35; stroke: #0b62a8; stroke-width: 1; }
.outside { fill: #a8261c; fill-opacity: .12; } .zero { stroke: #56606a; stroke-width: .75; stroke-dasharray: 2 3; }
.range { stroke-width: 1.75; } .r0 { stroke: #a8261c; fill: #a8261c; } .r1 { stroke: #b4500b; fill: #b4500b; }
.r2 { stroke: #00796b; fill: #00796b; } .r3 { stroke: #8f3a84; fill: #8f3a84; } text.r { stroke: none; }
.code { stroke: #56606a; stroke-width: .5; stroke-opacity: .5; }
@media (prefers-color-scheme: dark) {
svg { background: #14171a; } text { fill: #e6e8ea; } .tick, .axis { fill: #a5aeb6; } .grid { stroke: #2b3136; }
.area { fill: #6db3f2; stroke: #6db3f2; } .outside { fill: #ff9d91; } .zero, .code { stroke: #a5aeb6; }
.r0 { stroke: #ff9d91; fill: #ff9d91; } .r1 { stroke: #f0a05a; fill: #f0a05a; }
.r2 { stroke: #55c4b2; fill: #55c4b2; } .r3 { stroke: #e39bd8; fill: #e39bd8; }
}
"""


def picture(
    name: str,
    source: str,
    histogram: Histogram,
    ranges: Mapping[str, tuple[float, float]],
    step: float | None = None,
) -> str:
    """An SVG document: counts on a logarithmic scale, the ends of ranges, what lies outside, the codes if few.

    Args:
        name: The tensor.
        source: What the values are of.
        histogram: Its values.
        ranges: Name → (low, high); the first is the one that what lies outside is shaded for.
        step: Between codes; codes are drawn where at most 64 fit the picture.
    """
    low, high = histogram.bounds()
    ends = [v for r in ranges.values() for v in r]
    low, high = min([low, *ends]), max([high, *ends])
    margin = (high - low) * 0.04 or 1.0
    x = Axis(low - margin, high + margin, 64, WIDTH - 20)
    edges, density = _columns(histogram, x)
    top = max(float(density.max(initial=0.0)), 1.0)
    y = Axis(0.0, float(np.log10(top)) + 0.3, HEIGHT - 48, 76)
    parts: list[Node] = [
        text(20, 26, name, "start", "title"),
        text(
            20, 46, f"{count(histogram.seen, 'value')} of {source}; counts are on a logarithmic scale", "start", "tick"
        ),
        *_axes(x, y),
    ]
    first = next(iter(ranges.values()), None)
    if first is not None:
        for a, b in ((x.low, first[0]), (first[1], x.high)):
            box: dict[str, Attribute] = {
                "x": x.at(a),
                "y": y.end,
                "width": max(x.at(b) - x.at(a), 0.0),
                "height": y.start - y.end,
            }
            parts.append(h("rect", {**box, "class": "outside"}))
        if step is not None and step > 0 and (first[1] - first[0]) / step <= 64:
            codes = np.arange(round(first[0] / step), round(first[1] / step) + 1) * step
            parts += [line(x.at(float(c)), y.start, x.at(float(c)), y.start - 10, "code") for c in codes]
    parts.append(_area(edges, density, x, y))
    parts.append(line(x.at(0.0), y.start, x.at(0.0), y.end, "zero"))
    parts += _ends(ranges, x, y)
    label = f"Values of {name}, {source}. " + "; ".join(f"{n}: {r[0]:.4g} to {r[1]:.4g}" for n, r in ranges.items())
    frame: dict[str, Attribute] = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}",
        "width": WIDTH,
        "height": HEIGHT,
        "role": "img",
        "aria-label": label,
    }
    return str(h("svg", frame, Html(f"<style>{STYLE}</style>"), join(*parts))) + "\n"


def _columns(histogram: Histogram, x: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Edges [n + 1] and counts [n] of at most `BARS` equal columns over the bins that were counted."""
    if not histogram.seen:
        return np.array([0.0, 1.0]), np.zeros(1)
    counts, edges = histogram.counts()
    group = max(1, -(-len(counts) // BARS))
    padded = np.concatenate([counts, np.zeros(-len(counts) % group, counts.dtype)]).reshape(-1, group).sum(1)
    starts = edges[0] + np.arange(len(padded) + 1) * (edges[1] - edges[0]) * group
    return np.clip(starts, x.low, x.high), padded.astype(np.float64)


def _area(edges: np.ndarray, counts: np.ndarray, x: Axis, y: Axis) -> Html:
    points = [(x.at(float(edges[0])), y.start)]
    for i, n in enumerate(counts):
        # A count of 1 stands a little above the floor, so that single values can be seen.
        level = y.at(float(np.log10(n)) + 0.15) if n >= 1 else y.start
        points += [(x.at(float(edges[i])), level), (x.at(float(edges[i + 1])), level)]
    points.append((x.at(float(edges[-1])), y.start))
    return path(points, "area", closed=True)


def _axes(x: Axis, y: Axis) -> list[Node]:
    parts: list[Node] = []
    ticks = x.ticks(8)
    for v in ticks:
        parts.append(line(x.at(v), y.start, x.at(v), y.end, "grid"))
        parts.append(text(x.at(v), y.start + 17, _tick(v, ticks), "middle", "tick"))
    step = max(1, int(nice_step(y.high / 5)))
    for power in range(0, int(y.high) + 1, step):
        level = y.at(power + 0.15)
        parts.append(line(x.start, level, x.end, level, "grid"))
        parts.append(text(x.start - 8, level + 4, f"{10**power:,}" if power < 5 else f"1e{power}", "end", "tick"))
    parts.append(text(x.end, y.start + 36, "value", "end", "axis"))
    return parts


def _tick(value: float, ticks: list[float]) -> str:
    """Very large and very small numbers in powers of ten, the others with as many decimals as they need."""
    most = max(abs(t) for t in ticks)
    return tick_text(value, ticks) if 1e-3 <= most < 1e6 else f"{value:.3g}"


def _ends(ranges: Mapping[str, tuple[float, float]], x: Axis, y: Axis) -> list[Node]:
    """Lines at the ends of every range, and a legend."""
    parts: list[Node] = []
    for i, (name, (low, high)) in enumerate(ranges.items()):
        style = f"range r{i % 4}"
        parts += [line(x.at(value), y.start, x.at(value), y.end - 4, style) for value in (low, high)]
        left = x.start + i * min(200.0, (x.end - x.start) / len(ranges))
        parts.append(line(left, 62, left + 18, 62, style))
        parts.append(text(left + 24, 66, f"{name} {low:.4g} … {high:.4g}", "start", "tick"))
    return parts
