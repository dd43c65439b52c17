"""Largest absolute difference from the original's outputs, over all values, outputs and examples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..measurement import Better
from ..protocols import Kind, Metric
from ._outputs import OutputMetric


class MaxAbs(OutputMetric):
    """The metric, in the outputs' own unit."""

    unit: ClassVar[str] = "1"
    better: ClassVar[Better] = "lower"
    kind: ClassVar[Kind] = "max"

    def of_pair(self, got: NDArray[np.float64], want: NDArray[np.float64]) -> float:
        """Largest difference."""
        return float(np.abs(got - want).max(initial=0.0))

    def broken(self, want: NDArray[Any]) -> float:
        """The largest number that JSON holds."""
        return sys.float_info.max

    def pooled(self, scores: NDArray[np.float64]) -> float:
        """Largest over examples."""
        return float(scores.max())

    def worst(self, values: Sequence[float]) -> float:
        """The highest."""
        return max(values)


IMPL: type[Metric] = MaxAbs
