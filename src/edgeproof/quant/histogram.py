"""Count a stream of values in a fixed number of bins, whatever their range turns out to be.

Bins are aligned to multiples of a power-of-two width. When a value falls outside, the width doubles and neighbours
merge, which is exact on such a grid: the result depends neither on the order of the data nor on how they were split,
and is what one pass with the final width would have given. Nothing is stored but the counts, and the exact minimum
and maximum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 4096
"""Bins held; between half of them and all of them lie inside the range once data have come."""

_BLOCK = 16_384
"""Values binned at a time, so that the intermediate arrays stay in the first-level caches."""

_FULL = 8 * _BLOCK
"""Larger arrays are counted by every k-th run of values; their minimum and maximum stay exact."""


class Histogram:
    """Streaming histogram of finite values. Memory is constant.

    Attributes:
        low: Exact minimum; +inf before any value.
        high: Exact maximum; -inf before any value.
        seen: Values that passed by.
        counted: Values that entered a bin (fewer than `seen` for large arrays).
    """

    __slots__ = ("_counts", "_exponent", "_first", "bins", "counted", "high", "low", "seen", "subsample")

    def __init__(self, bins: int = BINS, *, subsample: bool = True) -> None:
        self.bins = bins
        self.subsample = subsample
        self.low = math.inf
        self.high = -math.inf
        self.seen = 0
        self.counted = 0
        self._counts = np.zeros(bins, np.int64)
        self._exponent: int | None = None
        self._first = 0

    @property
    def width(self) -> float:
        """Width of a bin, a power of two."""
        return math.ldexp(1.0, self._exponent if self._exponent is not None else -100)

    def update(self, values: NDArray[Any]) -> bool:
        """Count an array of any shape.

        Returns:
            False, and nothing counted, when it holds NaN or an infinity.
        """
        flat = np.ascontiguousarray(values).reshape(-1)
        if not flat.size:
            return True
        low, high = float(flat.min()), float(flat.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            return False
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.seen += flat.size
        self._cover()
        if flat.dtype != np.float32:
            flat = flat.astype(np.float32)
        stride = max(1, flat.size // _FULL) if self.subsample else 1
        # Runs of 16 neighbours, every stride-th run: whole cache lines are skipped, and a stride that divides a
        # row length cannot lock onto one column.
        inverse = np.float32(math.ldexp(1.0, -(self._exponent or 0)))
        if stride > 1:
            runs = flat[: flat.size // 16 * 16].reshape(-1, 16)
            start = (self.seen // 16) % stride
            flat = np.ascontiguousarray(runs[start::stride]).reshape(-1)
        for at in range(0, flat.size, _BLOCK):
            scaled = flat[at : at + _BLOCK] * inverse
            np.floor(scaled, out=scaled)
            index = scaled.astype(np.intp)
            index -= self._first
            self._counts += np.bincount(index, minlength=self.bins)
        self.counted += flat.size
        return True

    def bounds(self) -> tuple[float, float]:
        """Exact minimum and maximum, widened to hold zero; (0, 0) before any value."""
        return min(self.low, 0.0), max(self.high, 0.0)

    def counts(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Counts [n] of the bins between minimum and maximum, zero included, and their edges [n + 1]."""
        low, high = self.bounds()
        first, last = math.floor(low / self.width), math.floor(high / self.width)
        edges = np.arange(first, last + 2, dtype=np.float64) * self.width
        return self._counts[first - self._first : last + 1 - self._first], edges

    def _cover(self) -> None:
        """Double the width until minimum, maximum and zero fit the bins; merge what was counted."""
        low, high = self.bounds()
        exponent = _exponent(low, high, self.bins)
        if self._exponent is None:
            self._exponent = exponent
        first = math.floor(math.ldexp(low, -max(exponent, self._exponent)))
        if exponent <= self._exponent and first >= self._first:
            last = math.floor(math.ldexp(high, -self._exponent))
            if last < self._first + self.bins:
                return
        self._rebin(max(exponent, self._exponent), first)

    def _rebin(self, exponent: int, first: int) -> None:
        assert self._exponent is not None
        used = np.flatnonzero(self._counts)
        moved = np.zeros(self.bins, np.int64)
        if used.size:
            shift = min(exponent - self._exponent, 62)
            np.add.at(moved, ((used + self._first) >> shift) - first, self._counts[used])
        self._counts, self._exponent, self._first = moved, exponent, first


def _exponent(low: float, high: float, bins: int) -> int:
    """Smallest e such that floor(high / 2^e) - floor(low / 2^e) < bins; low ≤ 0 ≤ high."""
    span = high - low
    if span == 0.0:
        return -126
    e = max(-126, math.frexp(span)[1] - (bins.bit_length() - 1))
    while math.floor(math.ldexp(high, -e)) - math.floor(math.ldexp(low, -e)) >= bins:
        e += 1
    return e
