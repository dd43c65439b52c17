"""Inference time that 90 % of a run's inferences stay within, in ms; mean over runs."""

from __future__ import annotations

from typing import ClassVar

from ..protocols import Metric
from ._runs import LatencyPercentile


class LatencyP90(LatencyPercentile):
    """The metric."""

    percent: ClassVar[float] = 90.0


IMPL: type[Metric] = LatencyP90
