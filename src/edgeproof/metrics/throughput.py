"""Inferences per second of one stream: timed inferences over their total time; mean over runs."""

from __future__ import annotations

from typing import ClassVar

from ..measurement import Better, LegRun
from ..protocols import Metric
from ._runs import RunMetric


class Throughput(RunMetric):
    """The metric."""

    unit: ClassVar[str] = "1/s"
    better: ClassVar[Better] = "higher"

    def of_run(self, run: LegRun) -> float | None:
        """None for a run without timed inferences."""
        total = sum(run.latency_ns)
        return len(run.latency_ns) * 1e9 / total if total else None


IMPL: type[Metric] = Throughput
