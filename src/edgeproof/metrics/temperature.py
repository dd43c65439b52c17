"""Temperature while the model runs, in °C: highest reading of a run, largest of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..measurement import LegRun
from ..protocols import Kind, Metric
from ._runs import RunMetric


class Temperature(RunMetric):
    """The metric."""

    unit: ClassVar[str] = "°C"
    kind: ClassVar[Kind] = "max"

    def of_run(self, run: LegRun) -> float | None:
        """None when the machine has no temperature sensor: missing, never 0."""
        return max(run.sensors.get("temperature", ()), default=None)

    def value(self, scores: Sequence[float]) -> float:
        """Largest of the runs."""
        return max(scores)


IMPL: type[Metric] = Temperature
