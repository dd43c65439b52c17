"""Choose the range of real values that the codes cover, from one histogram.

Every method returns (low, high) with ``low ≤ 0 ≤ high``, inside the exact minimum and maximum that were seen. The
methods that clip weigh the same candidates: the range cut to ±t, for t from a small share of the largest magnitude up
to all of it, so that a one-sided tensor is cut on its one side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean
from .histogram import Histogram

Method = Literal["minmax", "percentile", "entropy", "mse", "auto"]
Range = tuple[float, float]
METHODS: tuple[Method, ...] = get_args(Method)
CANDIDATES = 100
"""Thresholds weighed by entropy and mse, evenly spaced."""

AUTO_POWER = 4.0
"""How ``auto`` weighs errors: by their fourth power. Squares would let it cut the few large values of a transformer,
which spoil whole tokens (MiniLM, SQNR of the embedding: 8 dB by squares, 19 by fourth powers, 19 with minmax, n = 8).
It is a compromise: PP-OCRv4's recogniser prefers ``mse`` (lines read the same as their text, biases corrected and
weights rounded: .695 with auto, .750 with mse, n = 200)."""

Counts = NDArray[np.int64]
Edges = NDArray[np.float64]


def find_range(histogram: Histogram, method: str, *, percentile: float = 99.99, levels: int = 256) -> Range:
    """The range of one tensor.

    Args:
        histogram: What calibration saw of it.
        method: One of `METHODS`.
        percentile: For ``percentile``: the share of values that stay inside, in percent.
        levels: Codes available.

    Raises:
        InputError: quant.method, quant.percentile.
    """
    if method not in METHODS:
        raise InputError("quant.method", method, "is not a range method", did_you_mean(method, METHODS))
    if not 50.0 < percentile <= 100.0:
        raise InputError(
            "quant.percentile", "percentile", f"is {percentile}; expected above 50 and at most 100", "try 99.99"
        )
    low, high = histogram.bounds()
    if method == "minmax" or not histogram.counted or low == high:
        return low, high
    counts, edges = histogram.counts()
    if method == "auto":
        return _least_error(histogram, percentile, levels)[0]
    if method == "percentile":
        return _percentile(counts, edges, percentile / 100.0, (low, high))
    score = _divergence(counts, edges, levels) if method == "entropy" else _error(counts, edges, levels, 2.0)
    return _best_cut(edges, (low, high), levels, score)


def _least_error(histogram: Histogram, percentile: float, levels: int) -> tuple[Range, Method]:
    """The range of the other methods that errs least on what was seen, and the method; of equals, the widest."""
    counts, edges = histogram.counts()
    found: dict[Method, Range] = {
        m: find_range(histogram, m, percentile=percentile, levels=levels) for m in METHODS if m != "auto"
    }
    score = _error(counts, edges, levels, AUTO_POWER)
    errors = {m: score(cut) for m, cut in found.items() if cut[0] < cut[1]}
    best: Method = min(errors, key=lambda m: (errors[m], found[m][0] - found[m][1]), default="minmax")
    return found[best], best


def clipped_share(histogram: Histogram, chosen: Range) -> float:
    """Share of counted values outside a range, 0..1; bins that straddle an end are shared out evenly."""
    if not histogram.counted:
        return 0.0
    counts, edges = histogram.counts()
    cdf = np.concatenate([[0.0], np.cumsum(counts)]) / histogram.counted
    low, high = histogram.bounds()
    edges = np.clip(edges, low, high)
    return float(max(0.0, 1.0 - (np.interp(chosen[1], edges, cdf) - np.interp(chosen[0], edges, cdf))))


def _percentile(counts: Counts, edges: Edges, share: float, limits: Range) -> Range:
    """Cut (1 - share) / 2 of the values from each tail, interpolating inside a bin."""
    cdf = np.concatenate([[0.0], np.cumsum(counts)]) / counts.sum()
    tail = (1.0 - share) / 2.0
    inside = np.clip(edges, *limits)
    # np.interp wants a rising abscissa: of a run of equal shares, the upper tail ends at its first edge and the
    # lower tail at its last, so that empty bins are never covered.
    first = np.flatnonzero(np.concatenate([[True], np.diff(cdf) > 0]))
    last = np.flatnonzero(np.concatenate([np.diff(cdf) > 0, [True]]))
    low = float(np.interp(tail, cdf[last], inside[last]))
    high = float(np.interp(1.0 - tail, cdf[first], inside[first]))
    return min(low, 0.0), max(high, 0.0)


Score = Callable[[Range], float]


def _best_cut(edges: Edges, limits: Range, levels: int, score: Score) -> Range:
    """The cut with the least score: every fourth candidate first, then the neighbours of the best."""
    top = max(-limits[0], limits[1])
    scores: dict[int, float] = {}

    def cut(i: int) -> Range:
        t = top * i / CANDIDATES
        return max(limits[0], -t), min(limits[1], t)

    def weigh(candidates: Iterable[int]) -> int:
        for i in candidates:
            ends = cut(i)
            if i in scores or np.searchsorted(edges, ends[1], "right") - np.searchsorted(edges, ends[0]) <= levels:
                continue  # finer than the histogram resolves
            scores[i] = score(ends)
        return min(scores, key=lambda i: (scores[i], -i), default=CANDIDATES)

    near = weigh(range(CANDIDATES, 0, -4))
    return cut(weigh(range(max(1, near - 3), min(CANDIDATES, near + 3) + 1)))


def _divergence(counts: Counts, edges: Edges, levels: int) -> Score:
    """Kullback-Leibler divergence of the quantised distribution from the clipped one, for any cut.

    The reference keeps the clipped values in its end bins; the candidate is made without them, so that cutting costs.
    The bin of zero counts as its neighbour does: zero is exact, and the spike that ReLU leaves there would otherwise
    draw every range towards it. Empty bins take no part.

    Source: Migacz, "8-bit inference with TensorRT", GTC 2017, slides 20 to 38.
    """
    zero = int(np.searchsorted(edges, 0.0))
    work = counts.astype(np.float64)
    if zero < len(work):
        work[zero] = min(work[zero], work[zero + 1] if zero + 1 < len(work) else work[zero - 1])
    total = work.sum()
    below = np.concatenate([[0.0], np.cumsum(work)])
    filled = np.flatnonzero(work)

    def score(cut: Range) -> float:
        first = int(np.searchsorted(edges, cut[0], side="right")) - 1
        last = min(int(np.searchsorted(edges, cut[1], side="left")), len(work))
        clipped = below[first], total - below[last]
        kept = total - sum(clipped)
        if total == 0.0 or kept <= 0.0:
            return np.inf if total else 0.0
        used = filled[np.searchsorted(filled, first) : np.searchsorted(filled, last)]
        # An end bin that holds nothing but clipped values is part of the reference all the same.
        if clipped[0] and used[0] != first:
            used = np.concatenate([[first], used])
        if clipped[1] and used[-1] != last - 1:
            used = np.concatenate([used, [last - 1]])
        reference = work[used]
        level = np.minimum((used - first) * levels // (last - first), levels - 1)
        share = np.bincount(level, reference, levels) / np.maximum(np.bincount(level, minlength=levels), 1)
        reference[0] += clipped[0]
        reference[-1] += clipped[1]
        p, q = reference / total, np.maximum(share[level] / kept, 1e-12)
        return float(np.dot(p, np.log(p / q)))

    return score


def _error(counts: Counts, edges: Edges, levels: int, power: float) -> Score:
    """Sum of |error|^power of quantising to any cut, from the bins' middles; zero is exact."""
    middle = (edges[:-1] + edges[1:]) / 2.0
    middle[np.searchsorted(edges, 0.0)] = 0.0
    filled = np.flatnonzero(counts)
    middle, weights = middle[filled], counts[filled].astype(np.float64)

    def score(cut: Range) -> float:
        step = (cut[1] - cut[0]) / (levels - 1)
        zero = np.rint(-cut[0] / step)
        codes = np.rint(middle / step)
        np.clip(codes, -zero, levels - 1 - zero, out=codes)
        codes *= step
        codes -= middle
        np.square(codes, out=codes)
        return float(np.dot(weights, codes if power == 2.0 else codes ** (power / 2.0)))

    return score


def describe(histogram: Histogram, chosen: Range) -> Mapping[str, Any]:
    """Facts of one tensor's range, as JSON values."""
    low, high = histogram.bounds()
    return {
        "min": low,
        "max": high,
        "low": chosen[0],
        "high": chosen[1],
        "clipped_share": clipped_share(histogram, chosen),
        "values": histogram.seen,
    }
