"""Tell when more samples would hardly move the ranges, so that calibration may stop early.

At 32, 64, 128, … samples, the range that holds 99.99 % of a tensor's values is compared with that at half as many. A
tensor has settled when neither end moved by more than 5 % of the range; calibration has when 9 tensors in 10 have.

Measured on PP-OCRv4, 512 lines: the recogniser stops at 32, the classifier at 256, with scales (``mse``) within 1.8 %
and 1.3 % (median; 95 % of the tensors: 11 %) of those from all. The extremes themselves never settle (more data, wider
tails), which is why minmax gains least from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from .histogram import Histogram
from .ranges import Range, find_range

FIRST = 16
"""Samples before the first look."""

MOVE = 0.05
"""How far an end may move, as a share of the range."""

SHARE = 0.9
"""How many of the tensors must have settled."""


@final
@dataclass(slots=True)
class Settling:
    """Asked after every sample, as `calibrate` asks its ``enough``.

    Attributes:
        samples: How many samples it was told of.
        done: Whether the ranges have settled.
        settled_share: Share of tensors that had settled at the last look; 0 before the second.
    """

    samples: int = 0
    done: bool = False
    settled_share: float = 0.0
    _next: int = FIRST
    _before: dict[str, Range] = field(default_factory=dict)

    def __call__(self, seen: Mapping[str, Histogram], count: int) -> bool:
        """Whether calibration may stop.

        Args:
            seen: Tensor → what was seen of it.
            count: Samples so far.
        """
        self.samples = count
        if count < self._next:
            return False
        self._next = 2 * count
        now = {name: find_range(h, "percentile", percentile=99.99) for name, h in seen.items() if h.seen}
        if self._before and now:
            still = [name for name, r in now.items() if _stayed(self._before.get(name), r)]
            self.settled_share = len(still) / len(now)
            self.done = self.settled_share >= SHARE
        self._before = now
        return self.done

    def facts(self, total: int) -> dict[str, Any]:
        """What to report, given how many samples there were."""
        return {
            "stopped_early": self.done and self.samples < total,
            "samples": self.samples,
            "of": total,
            "settled_share": self.settled_share,
        }


def told(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of an early stop, given `Settling.facts` (or nothing); no line when all samples were read."""
    if not facts.get("stopped_early"):
        return ()
    share = f"{facts['settled_share']:.0%} of the ranges had settled"
    return (f"calibrated on {facts['samples']} of {facts['of']} samples: {share}",)


def _stayed(before: Range | None, now: Range) -> bool:
    if before is None:
        return False
    width = now[1] - now[0]
    return max(abs(now[0] - before[0]), abs(now[1] - before[1])) <= MOVE * width
