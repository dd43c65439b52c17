"""Peak resident memory of a fresh process that only loads and runs the model, in bytes; largest of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..measurement import LegRun
from ..protocols import Kind, Metric
from ._runs import RunMetric


class PeakMemory(RunMetric):
    """The metric."""

    unit: ClassVar[str] = "bytes"
    kind: ClassVar[Kind] = "max"

    def of_run(self, run: LegRun) -> float | None:
        """None when it was not measured."""
        return None if run.peak_rss_bytes is None else float(run.peak_rss_bytes)

    def value(self, scores: Sequence[float]) -> float:
        """Largest of the runs."""
        return max(scores)


IMPL: type[Metric] = PeakMemory
