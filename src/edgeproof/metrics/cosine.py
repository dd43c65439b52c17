"""Cosine similarity to the original's outputs: mean over examples, worst output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..measurement import Better
from ..protocols import Metric
from ._outputs import OutputMetric


class Cosine(OutputMetric):
    """The metric: a·b / (|a| |b|) per example and output; 1 for two zero vectors, 0 when only one is zero."""

    unit: ClassVar[str] = "1"
    better: ClassVar[Better] = "higher"

    def of_pair(self, got: NDArray[np.float64], want: NDArray[np.float64]) -> float:
        """Cosine of the angle between them."""
        if np.array_equal(got, want):
            return 1.0
        a, b = np.abs(got).max(), np.abs(want).max()
        if a == 0 or b == 0:
            return 0.0
        got, want = got / a, want / b  # so that squares neither overflow nor vanish
        cosine = float(got @ want / np.sqrt((got @ got) * (want @ want)))
        return min(1.0, max(-1.0, cosine))

    def broken(self, want: NDArray[Any]) -> float:
        """−1, as if it pointed the other way."""
        return -1.0

    def pooled(self, scores: NDArray[np.float64]) -> float:
        """Mean over examples."""
        return float(scores.mean())

    def worst(self, values: Sequence[float]) -> float:
        """The lowest."""
        return min(values)


IMPL: type[Metric] = Cosine
