"""Electrical power while the model runs, in W: mean of a run's readings, geometric mean over runs."""

from __future__ import annotations

from typing import ClassVar

from ..measurement import LegRun
from ..protocols import Metric
from ._runs import RunMetric


class Power(RunMetric):
    """The metric."""

    unit: ClassVar[str] = "W"

    def of_run(self, run: LegRun) -> float | None:
        """None when the machine has no power sensor: missing, never 0."""
        readings = run.sensors.get("power", ())
        return sum(readings) / len(readings) if readings else None


IMPL: type[Metric] = Power
