"""Where the time of single inferences lies: a histogram per leg, and how the rounds drifted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .axes import NARROW, Axis, both, chart, grid, line, mark, path, series, text
from .markup import Column, Html, Node, h, join, sentence, table
from .run import ORIGINAL, Run, as_list, as_map, measured
from .units import factor, measurement, metric_name, number, percent, plain, show
from .units import text as words

ROW, STRIP = 74.0, 66.0
BINS_WIDE, BINS_NARROW = 120, 60


def section(run: Run) -> Html:
    """Histograms, strip of rounds and the table of every confirmed measurement."""
    if not any(run.samples_ms(leg) for leg in run.legs):
        return join(
            sentence("This run holds no latency samples of a confirmation (confirm/round-….json)."), everything(run)
        )
    rounds = len({r.round for r in run.rounds})
    count = sum(len(r.latency_ns) for r in run.rounds)
    return join(
        h(
            "figure",
            {},
            h("figcaption", {}, _intro(rounds, count)),
            both(lambda w: _histograms(run, w)),
        ),
        h("h3", {}, "Round by round"),
        h(
            "figure",
            {},
            h(
                "figcaption",
                {},
                "The median of each round (one fresh process), as its deviation from the mean of that leg. "
                "Legs that move together show the machine drifting; the original and its control are the same model.",
            ),
            both(lambda w: _strip(run, w)),
        ),
        h("h3", {}, "Every confirmed measurement"),
        everything(run),
    )


def _intro(rounds: int, count: int) -> str:
    return (
        f"{count:,} timed inferences in {rounds} fresh processes. Each height is the share of the leg's inferences; "
        "the axis is logarithmic and leaves out the slowest 0.1 %. Lines mark the pooled p50 and p95."
    )


def _range(run: Run) -> tuple[float, float]:
    samples = np.concatenate([np.asarray(run.samples_ms(leg)) for leg in run.legs])
    samples = samples[samples > 0]
    if not samples.size:
        return 0.1, 1.0
    low, high = float(samples.min()), float(np.quantile(samples, 0.999))
    return low * 0.97, max(high, low * 1.02) * 1.03


def _p95_limit(run: Run) -> float | None:
    for rule in as_list(as_map(run.request.get("policy")).get("rules")):
        if as_map(rule).get("metric") == "latency_p95" and not rule.get("relative_to"):
            try:
                return float(rule.get("limit"))
            except (TypeError, ValueError):
                return None
    return None


def _histograms(run: Run, width: float) -> Html:
    low, high = _range(run)
    top, bottom = 8.0, 8.0 + ROW * len(run.legs)
    x = Axis(low, high, 4, width - 12, log=True)
    parts: list[Node] = [grid(x, None, top, bottom, "latency of one inference, ms (logarithmic)", 5)]
    limit = _p95_limit(run)
    if limit is not None and low <= limit <= high:
        parts.append(line(x.at(limit), top, x.at(limit), bottom, "limit"))
        parts.append(text(x.at(limit) - 4, top + 10, f"p95 limit {limit:g} ms", "end", "limit-text"))
    edges = np.geomspace(low, high, (BINS_NARROW if width == NARROW else BINS_WIDE) + 1)
    description = []
    for i, leg in enumerate(run.legs):
        samples = np.asarray(run.samples_ms(leg))
        if not samples.size:
            continue
        p50, p95 = (float(v) for v in np.quantile(samples, (0.5, 0.95)))
        description.append(f"{leg}: p50 {words(p50, 'ms')}, p95 {words(p95, 'ms')}")
        parts.append(_histogram(samples, edges, x, top + ROW * i, i, leg, (p50, p95)))
    return chart(width, bottom + 42, "Latency distributions", "; ".join(description), *parts)


def _histogram(samples: Any, edges: Any, x: Axis, top: float, index: int, leg: str, marks: tuple[float, float]) -> Html:
    counts, _ = np.histogram(samples, edges)
    base, tall = top + ROW - 6, ROW - 36
    peak = max(int(counts.max()), 1)
    outline = [(x.at(float(edges[0])), base)]
    for left, right, n in zip(edges[:-1], edges[1:], counts, strict=True):
        level = base - tall * int(n) / peak
        outline += [(x.at(float(left)), level), (x.at(float(right)), level)]
    outline.append((x.at(float(edges[-1])), base))
    p50, p95 = marks
    beyond = int((samples > edges[-1]).sum())
    note = f"p50 {words(p50, 'ms')}, p95 {words(p95, 'ms')}" + (f", {beyond} beyond →" if beyond else "")
    label = _heading(x.start + 2, top + 13, leg, index, note)
    ticks: list[Node] = []
    for name, value in (("p50", p50), ("p95", p95)):
        at = x.at(value)
        ticks.append(line(at, top + 20, at, base, f"quantile {series(index)}"))
        ticks.append(text(at + 3, top + 28, name, "start", "tick small"))
    return join(
        path(outline, f"area {series(index)}", closed=True), line(x.start, base, x.end, base, "base"), label, *ticks
    )


def _strip(run: Run, width: float) -> Html:
    legs = [leg for leg in run.legs if run.medians_ms(leg)]
    rounds = sorted({r.round for r in run.rounds})
    deviations = {leg: _deviations(run.medians_ms(leg)) for leg in legs}
    most = max((abs(v) for d in deviations.values() for v in d.values()), default=0.0)
    reach = max(math.ceil(most * 1.1), 1.0)
    x = Axis(0, max(len(rounds) - 1, 1), 60, width - 14)
    parts: list[Node] = []
    for i, leg in enumerate(legs):
        top = i * STRIP
        y = Axis(-reach, reach, top + STRIP - 8, top + 26)
        parts.append(_heading(2, top + 13, leg, run.legs.index(leg), _spread(run.medians_ms(leg))))
        parts.append(line(x.start - 8, y.at(0), x.end, y.at(0), "base"))
        parts += [
            text(x.start - 14, y.at(v) + 4, percent(v / 100, signed=True), "end", "tick small") for v in (-reach, reach)
        ]
        parts += [line(x.start - 8, y.at(v), x.end, y.at(v), "grid") for v in (-reach, reach)]
        dots = [(x.at(rounds.index(k)), y.at(v)) for k, v in deviations[leg].items()]
        parts.append(path(dots, f"thread {series(run.legs.index(leg))}"))
        for (cx, cy), (k, v) in zip(dots, deviations[leg].items(), strict=True):
            title = f"{leg}, round {k + 1}: median {words(run.medians_ms(leg)[k], 'ms')} ({v:+.2f} %)"
            parts.append(mark(cx, cy, run.legs.index(leg), f"filled little {series(run.legs.index(leg))}", title))
    bottom = len(legs) * STRIP
    every = max(math.ceil(len(rounds) / (8 if width == NARROW else 20)), 1)
    for i, k in enumerate(rounds):
        if i % every == 0:
            parts.append(text(x.at(i), bottom + 16, str(k + 1), "middle", "tick"))
    parts.append(text(x.end, bottom + 34, "round", "end", "axis"))
    return chart(width, bottom + 42, "Median of every round", f"Deviations within ±{reach:.0f} %", *parts)


def _heading(x: float, y: float, leg: str, index: int, note: str) -> Html:
    """A leg's name in its colour, with its figures."""
    name = h("tspan", {"class": f"strong fill {series(index)}"}, leg)
    return h("text", {"x": x, "y": y}, name, h("tspan", {"class": "tick", "dx": 8}, note))


def _deviations(medians: dict[int, float]) -> dict[int, float]:
    mean = sum(medians.values()) / len(medians)
    return {k: (v / mean - 1) * 100 if mean else 0.0 for k, v in sorted(medians.items())}


def _spread(medians: dict[int, float]) -> str:
    return f"medians {words(min(medians.values()), 'ms')} to {words(max(medians.values()), 'ms')}"


def everything(run: Run) -> Html:
    """Every measurement of every confirmed candidate, and the per-round speed-up."""
    rows = [r for r in run.rows if as_map(r.get("measured"))]
    if not rows:
        return sentence("No candidate was confirmed, so there are no confirmed measurements.")
    names = list(dict.fromkeys(n for r in rows for n in as_map(r.get("measured"))))
    columns = [Column("metric"), *(Column(str(r.get("name")), "number") for r in rows)]
    body: list[Sequence[Node]] = []
    for name in names:
        cells = [measurement(measured(r, name)) or "not measured" for r in rows]
        body.append([metric_name(name), *cells])
    fidelity = list(dict.fromkeys(n for r in rows for n in as_map(r.get("fidelity"))))
    for name in fidelity:
        values = [number(as_map(r.get("fidelity")).get(name)) for r in rows]
        body.append(
            [
                f"{metric_name(name)} against the original's outputs",
                *(_fidelity(name, v) for v in values),
            ]
        )
    faster = [run.speedup(str(r.get("name"))) if r.get("name") != ORIGINAL else (1.0, None, None) for r in rows]
    if any(faster):
        body.append(["speed-up, from medians of rounds", *(factor(*f) if f else "not measured" for f in faster)])
    return table(columns, body, "Every confirmed measurement with its 95 % interval")


def _fidelity(name: str, value: float | None) -> Node:
    if value is None:
        return "identical or not known"
    if name == "sqnr":
        return show(value, "dB")
    return h("data", {"value": repr(value)}, f"{value:.6f}" if name == "cosine" else plain(value))
