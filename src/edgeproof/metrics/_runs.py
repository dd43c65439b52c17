"""Numbers of a process: one score per run, the geometric mean or the largest over runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any, ClassVar

from ..measurement import Better, LegRun
from ..protocols import Kind, Needs


class RunMetric(ABC):
    """The geometric mean over runs: the bounds are on logarithms, and so the value lies where they meet."""

    needs: ClassVar[Needs] = "runs"
    kind: ClassVar[Kind] = "run"
    better: ClassVar[Better] = "lower"

    @abstractmethod
    def of_run(self, run: LegRun) -> float | None:
        """The run's number; None when the run did not record it."""

    def score(self, got: Any, want: Any) -> float | None:
        """The run's number; None when the run did not record it."""
        return self.of_run(got)

    def value(self, scores: Sequence[float]) -> float:
        """Geometric mean over runs; the arithmetic one where a run scored 0 or less."""
        if min(scores) <= 0:
            return sum(scores) / len(scores)
        return geometric_mean(scores)


class LatencyPercentile(RunMetric):
    """A percentile of one run's inference times, in ms.

    Source: Hyndman and Fan 1996, The American Statistician 50:361–365, definition 8: median-unbiased whatever the
    distribution. Definition 7, NumPy's default, lies low: a gate on it accepted a model exactly on its limit in up to
    12 % of simulations instead of 5 % (measured, benchmarks/gate_simulations).
    """

    unit: ClassVar[str] = "ms"
    percent: ClassVar[float]

    def of_run(self, run: LegRun) -> float | None:
        """The percentile; None for a run without timed inferences."""
        import numpy as np

        if not run.latency_ns:
            return None
        times = np.asarray(run.latency_ns, np.float64)
        return float(np.percentile(times, self.percent, method="median_unbiased")) / 1e6
