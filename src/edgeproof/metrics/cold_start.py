"""From a file that is loaded for the first time in a process to the first output, in ms; mean over runs."""

from __future__ import annotations

from typing import ClassVar

from ..measurement import LegRun
from ..protocols import Metric
from ._runs import RunMetric


class ColdStart(RunMetric):
    """The metric."""

    unit: ClassVar[str] = "ms"

    def of_run(self, run: LegRun) -> float | None:
        """None when it was not measured."""
        return None if run.cold_start_ns is None else run.cold_start_ns / 1e6


IMPL: type[Metric] = ColdStart
