"""Signal to quantisation noise ratio against the original's outputs, in dB: pooled over examples, worst output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..measurement import Better
from ..protocols import Metric
from ._outputs import OutputMetric

LIMIT_DB = 300.0
"""Stands for infinity, which JSON cannot hold: equal outputs give +300 dB, noise without signal −300 dB."""


class Sqnr(OutputMetric):
    """The metric: 10 log10(Σ want² / Σ (got − want)²), both sums over all values of all examples of an output."""

    unit: ClassVar[str] = "dB"
    better: ClassVar[Better] = "higher"

    def of_pair(self, got: NDArray[np.float64], want: NDArray[np.float64]) -> list[float]:
        """[energy of the signal, energy of the noise]."""
        noise = got - want
        return [float(want @ want), float(noise @ noise)]

    def broken(self, want: NDArray[Any]) -> list[float]:
        """Noise without end."""
        return [0.0, 1e300]

    def pooled(self, scores: NDArray[np.float64]) -> float:
        """Ratio of the summed energies, within ±300 dB."""
        signal, noise = map(float, scores.sum(axis=0))
        if noise == 0:
            return LIMIT_DB
        if signal == 0:
            return -LIMIT_DB
        return min(LIMIT_DB, max(-LIMIT_DB, 10 * (math.log10(signal) - math.log10(noise))))

    def worst(self, values: Sequence[float]) -> float:
        """The lowest."""
        return min(values)


IMPL: type[Metric] = Sqnr
