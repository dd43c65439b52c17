"""What was seen of a bundle, for its receipt: every sample, up to a bound that is told."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_SAMPLES = 5_000
"""Samples of one metric that a receipt holds; the last ones, and how many there were before."""


@dataclass(slots=True)
class Record:
    """Counts and samples since a bundle was taken, or was kept.

    Attributes:
        inferences: Those that gave an answer.
        failed: Those that the runtime refused.
        crashes: Ends of the model's process.
        nan_outputs: Outputs that held a NaN.
        seen: Metric → number of samples.
        samples: Metric → the last of them, in the metric's unit.
    """

    inferences: int = 0
    failed: int = 0
    crashes: int = 0
    nan_outputs: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    samples: dict[str, deque[float]] = field(default_factory=dict)

    def inference(self, values: Mapping[str, float]) -> None:
        """One inference."""
        self.inferences += 1
        self.nan_outputs += int(values.get("nan_outputs", 0))
        self.reading({metric: v for metric, v in values.items() if metric != "nan_outputs"})

    def reading(self, values: Mapping[str, float]) -> None:
        """What sensors gave."""
        for metric, value in values.items():
            self.seen[metric] += 1
            self.samples.setdefault(metric, deque(maxlen=MOST_SAMPLES)).append(value)

    def to_json(self, *, samples: bool) -> dict[str, Any]:
        """As JSON.

        Args:
            samples: With the samples, rounded to 1e-6 of their unit.
        """
        value: dict[str, Any] = {
            "inferences": self.inferences,
            "failed": self.failed,
            "crashes": self.crashes,
            "nan_outputs": self.nan_outputs,
            "seen": dict(self.seen),
            "last": {metric: round(kept[-1], 6) for metric, kept in self.samples.items()},
        }
        if samples:
            value["samples"] = {metric: [round(v, 6) for v in kept] for metric, kept in self.samples.items()}
        return value
