"""Quality against latency: where every candidate stands, what the policy allows, and who is not beaten by anyone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .axes import NARROW, Axis, Box, both, chart, grid, line, mark, path, place, series, span, text, text_width
from .markup import Html, Node, h, join, sentence
from .run import Run, as_list, as_map, measured
from .units import metric_name, number
from .units import text as words


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate in the plot.

    Attributes:
        name: Its name.
        index: Its line in the table of candidates, from 1.
        x: Latency p50, ms.
        y: Quality.
        x_ends: 95 % interval of ``x``; None for a value of the search.
        y_ends: 95 % interval of ``y``.
        state: State of its row.
    """

    name: str
    index: int
    x: float
    y: float
    x_ends: tuple[float, float] | None
    y_ends: tuple[float, float] | None
    state: str

    @property
    def confirmed(self) -> bool:
        """Measured in full."""
        return self.state in ("accept", "reject", "hold")


@dataclass(frozen=True, slots=True)
class Limit:
    """A line that the policy draws."""

    axis: str
    value: float
    words: str


def points(run: Run) -> list[Point]:
    """Every candidate that has a latency and a quality: confirmed values, else those of the search."""
    found = []
    for index, row in enumerate(run.rows, 1):
        x, y = measured(row, "latency_p50"), measured(row, run.metric)
        search = as_map(row.get("search"))
        name, state = str(row.get("name")), str(row.get("state"))
        if x is not None and y is not None:
            state = state if state in ("accept", "reject", "hold") else "hold"
            found.append(Point(name, index, x["value"], y["value"], _ends(x), _ends(y), state))
            continue
        p50, quality = number(search.get("p50_ms")), number(search.get("quality"))
        if p50 is not None and quality is not None:
            found.append(Point(name, index, p50, quality, None, None, "screened"))
    return found


def lower_is_better(run: Run) -> bool:
    """Whether a smaller quality value is the better one (error rates)."""
    rows = (measured(r, run.metric) for r in run.rows)
    return next((m.get("better") == "lower" for m in rows if m is not None), False)


def frontier(found: Sequence[Point], lower: bool) -> list[Point]:
    """Points that no other beats in both latency and quality, fastest first."""
    best: list[Point] = []
    for p in sorted(found, key=lambda p: (p.x, p.y if lower else -p.y)):
        if not best or (p.y < best[-1].y if lower else p.y > best[-1].y):
            best.append(p)
    return best


def limits(run: Run) -> list[Limit]:
    """The policy's rules that are lines in this plot."""
    base = {name: measured(run.original, name) for name in ("latency_p50", run.metric)}
    lower = lower_is_better(run)
    found = []
    for rule in as_list(as_map(run.request.get("policy")).get("rules")):
        limit = _limit(as_map(rule), run.metric, base, lower)
        if limit is not None:
            found.append(limit)
    return found


def _limit(rule: Mapping[str, Any], quality: str, base: Mapping[str, Any], lower: bool) -> Limit | None:
    metric = quality if rule.get("metric") == "quality" else str(rule.get("metric"))
    if metric not in base:
        return None
    try:
        limit = float(rule.get("limit", "nan"))
    except (TypeError, ValueError):
        return None
    axis = "y" if metric == quality else "x"
    name = "quality" if axis == "y" else "p50"
    if not rule.get("relative_to"):
        return Limit(axis, limit, f"limit: {name} {_sign(rule)} {limit:g}")
    if base[metric] is None:
        return None
    at: float = base[metric]["value"]
    if rule.get("unit") == "ratio":
        return Limit(axis, at * limit, f"limit: {name} {_sign(rule)} {limit:g} × original")
    worse_is_up = lower or axis == "x"
    return Limit(axis, at + limit if worse_is_up else at - limit, f"limit: {name} drop {_sign(rule)} {limit:g}")


def _sign(rule: Mapping[str, Any]) -> str:
    return {"<=": "≤", ">=": "≥"}.get(str(rule.get("op")), "")


def section(run: Run) -> Html:
    """The plot with its legend."""
    found = points(run)
    if not found:
        return sentence("No candidate has both a latency and a quality, so there is nothing to plot.")
    lines = limits(run)
    outside = [
        limit.words.removeprefix("limit: ")
        for limit in lines
        if limit.axis == "x" and not _domain_x(found)[0] <= limit.value <= _domain_x(found)[1]
    ]
    better = "lower" if lower_is_better(run) else "higher"
    legend = [
        "Filled: confirmed in fresh processes on fresh samples, with 95 % intervals. ",
        "Hollow: screened in the search, on other samples and shorter runs. ",
        f"Better is {better} and further left; the stepped line joins those that no other beats in both. ",
        "Where a name has no room, a number gives its line in the table above. ",
        f"Off the chart: {'; '.join(outside)}." if outside else None,
    ]
    return h("figure", {}, both(lambda w: _draw(run, found, lines, w)), h("figcaption", {}, *legend))


def _domain_x(found: Sequence[Point]) -> tuple[float, float]:
    ends = [e for p in found for e in (p.x_ends or (p.x, p.x))]
    low, high = span(ends, 0.08)
    return max(low, 0.0), high


def _domain_y(found: Sequence[Point], lines: Sequence[Limit], lower: bool) -> tuple[float, float]:
    """What deserves room: confirmed intervals and limits; far outliers of the search are pinned to the edge."""
    sure = [e for p in found if p.confirmed for e in (p.y_ends or (p.y, p.y))]
    sure += [limit.value for limit in lines if limit.axis == "y"]
    if not sure:
        sure = [p.y for p in found]
    low, high = min(sure), max(sure)
    room = 1.2 * (high - low) or abs(high) * 0.02 or 1.0
    near = [p.y for p in found if low - room <= p.y <= high + room]
    low, high = span([low, high, *near], 0.1)
    pinned_low = any(p.y < low for p in found)
    extra = (high - low) * 0.12
    return (low - (extra if pinned_low else 0), high + (extra if any(p.y > high for p in found) else 0))


def _draw(run: Run, found: list[Point], lines: list[Limit], width: float) -> Html:
    narrow = width == NARROW
    height = 340.0 if narrow else 440.0
    lower = lower_is_better(run)
    x = Axis(*_domain_x(found), 52, width - 12)
    y = Axis(*_domain_y(found, lines, lower), height - 46, 30)
    frame: Box = (x.start + 2, y.end, x.end, y.start)
    title = f"{metric_name(run.metric)} ({'lower' if lower else 'higher'} is better)"
    parts: list[Node] = [
        grid(x, y, y.end, y.start, "latency p50, ms", 4 if narrow else 8),
        text(4, 16, title, "start", "axis"),
    ]
    taken: list[Box] = [(x.at(p.x) - 8, y.at(p.y) - 8, x.at(p.x) + 8, y.at(p.y) + 8) for p in found]
    for p in found:
        if p.x_ends and p.y_ends:
            taken.append((x.at(p.x) - 3, y.at(p.y_ends[1]), x.at(p.x) + 3, y.at(p.y_ends[0])))
            taken.append((x.at(p.x_ends[0]), y.at(p.y) - 3, x.at(p.x_ends[1]), y.at(p.y) + 3))
    parts += [_limit_line(limit, x, y, taken) for limit in lines]
    steps = frontier(found, lower)
    corners = [(x.at(steps[0].x), y.at(steps[0].y))]
    for before, after in pairwise(steps):
        corners += [(x.at(after.x), y.at(before.y)), (x.at(after.x), y.at(after.y))]
    parts.append(path(corners, "frontier"))
    order = sorted(found, key=lambda p: (not p.confirmed, p not in steps, p.index))
    styles = {name: i for i, name in enumerate(run.legs)}
    for p in reversed(order):
        parts.append(_point(run, p, x, y, styles))
    parts += [_label(p, x, y, taken, frame) for p in order]
    return chart(width, height, "Quality against latency", _description(run, found), *parts)


def _limit_line(limit: Limit, x: Axis, y: Axis, taken: list[Box]) -> Html | None:
    axis = x if limit.axis == "x" else y
    if not axis.low <= limit.value <= axis.high:
        return None
    wide = text_width(limit.words)
    if limit.axis == "y":
        at = y.at(limit.value)
        left = x.end - wide
        for candidate in (x.end - wide, x.start + 6, (x.start + x.end - wide) / 2):
            box = (candidate, at + 2, candidate + wide, at + 17)
            if not any(b[0] < box[2] and box[0] < b[2] and b[1] < box[3] and box[1] < b[3] for b in taken):
                left = candidate
                break
        taken.append((left, at - 1, left + wide, at + 17))
        taken.append((x.start, at - 1, x.end, at + 1))
        return join(line(x.start, at, x.end, at, "limit"), text(left, at + 14, limit.words, "start", "limit-text"))
    at = x.at(limit.value)
    left = at - wide - 4 if at - wide > x.start else at + 4
    taken.append((left, y.end, left + wide, y.end + 16))
    taken.append((at - 1, y.end, at + 1, y.start))
    return join(line(at, y.end, at, y.start, "limit"), text(left, y.end + 12, limit.words, "start", "limit-text"))


def _point(run: Run, p: Point, x: Axis, y: Axis, styles: Mapping[str, int]) -> Html:
    cx, cy = x.at(p.x), y.at(p.y)
    bars: list[Node] = []
    if p.x_ends:
        bars.append(line(x.at(p.x_ends[0]), cy, x.at(p.x_ends[1]), cy, "error-bar"))
    if p.y_ends:
        bars.append(line(cx, y.at(p.y_ends[0]), cx, y.at(p.y_ends[1]), "error-bar"))
    kind = "filled" if p.confirmed else "hollow"
    shape = styles.get(p.name, 0)
    style = f"{kind} {series(shape)}" if p.confirmed else kind
    return join(*bars, mark(cx, cy, shape, style, _title(run, p)))


def _label(p: Point, x: Axis, y: Axis, taken: list[Box], frame: Box) -> Html | None:
    cx, cy = x.at(p.x), y.at(p.y)
    pinned = not y.low <= p.y <= y.high
    arrow = f" {p.y:.3g} {'↓' if p.y < y.low else '↑'}" if pinned else ""
    style = "label strong" if p.confirmed else "label"
    for words_ in (p.name + arrow, f"{p.index}{arrow}"):
        if len(words_) > 34:
            continue
        free = place(cx, cy, words_, taken, frame)
        if free is not None:
            box, far = free
            leader = line(cx, cy, min(max(cx, box[0]), box[2]), (box[1] + box[3]) / 2, "leader") if far else None
            return join(leader, text(box[0] + 1, box[3] - 3.5, words_, "start", style))
    return None


def _title(run: Run, p: Point) -> str:
    quality = f"{metric_name(run.metric)} {p.y:.4g}" + (f" [{p.y_ends[0]:.4g}, {p.y_ends[1]:.4g}]" if p.y_ends else "")
    ends = f" [{words(p.x_ends[0], 'ms')}, {words(p.x_ends[1], 'ms')}]" if p.x_ends else ""
    return f"{p.name} ({p.state}): p50 {words(p.x, 'ms')}{ends}, {quality}"


def _description(run: Run, found: Sequence[Point]) -> str:
    sure = [p for p in found if p.confirmed]
    return f"{len(sure)} confirmed and {len(found) - len(sure)} screened. " + "; ".join(_title(run, p) for p in sure)


def _ends(m: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = number(m.get("low")), number(m.get("high"))
    return None if low is None or high is None else (low, high)
