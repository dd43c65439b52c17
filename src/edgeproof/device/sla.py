"""Decide from what was watched: keep the bundle, go back, or go on watching. Pure: no clock, no file.

An objective is broken when at least k of its last n windows are outside its limit; a hard limit when one sample is.
A bundle is kept after a clean run: enough inferences since the last window that was outside, and in that run n windows
of every objective. One that flaps, that is never used, or whose sensor is missing thus stays undecided, and undecided
at the deadline means back to the old one.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import fmean
from typing import Literal, final

from ..manifest import HardLimit, Objective, Op, Rollback, Sla

COUNTED = ("nan_outputs", "crashes")
"""Metrics whose hard limit is held against their sum."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do.

    Attributes:
        kind: Keep it, leave it, or go on.
        code: Which rule said so: ``sla.kept``, ``sla.hard``, ``sla.broken``, ``sla.undecided`` or ``sla.watching``.
        why: In words.
    """

    kind: Literal["commit", "roll_back", "go_on"]
    code: str
    why: str


@final
class Watch:
    """What was watched so far; takes a constant amount of memory.

    Args:
        sla: The objectives and hard limits.
        rollback: What a commit needs.
    """

    def __init__(self, sla: Sla, rollback: Rollback) -> None:
        self._sla, self._rollback = sla, rollback
        self._windows = tuple(_Windows(o) for o in sla.objectives)
        self._counts: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._hard = ""
        self.inferences = 0
        self.clean = 0
        """Inferences since the last window that was outside an objective."""

    def inference(self, values: Mapping[str, float]) -> None:
        """One inference that gave an answer.

        Args:
            values: Metric → value in its unit; what could not be measured is not in it.
        """
        self.inferences += 1
        self.clean += 1
        self.reading({"crashes": 0.0, **values})

    def reading(self, values: Mapping[str, float]) -> None:
        """What a sensor or an event gave, such as one crash.

        Args:
            values: Metric → value in its unit.
        """
        for metric, value in values.items():
            self._seen.add(metric)
            self._counts[metric] += int(value) if metric in COUNTED else 1
            self._check_hard(metric, value)
        for windows in self._windows:
            if windows.objective.metric in values and windows.add(values[windows.objective.metric]) is False:
                self._start_again()

    def failed(self) -> None:
        """An inference gave no answer: no run is clean across it."""
        self._start_again()

    def decide(self, elapsed_s: float, boots: int) -> Decision:
        """What a bundle on trial deserves now.

        Args:
            elapsed_s: Time on trial so far, in s.
            boots: Starts on trial so far.
        """
        violated = self.violated()
        if violated is not None:
            return violated
        waiting = self._waits_for()
        if not waiting:
            return Decision("commit", "sla.kept", f"{self.clean} inferences in a row inside the SLA")
        if elapsed_s >= self._rollback.trial_seconds or boots > self._rollback.boots:
            limit = f"{self._rollback.trial_seconds} s and {self._rollback.boots} starts"
            return Decision("roll_back", "sla.undecided", f"undecided after {limit}: {waiting}")
        return Decision("go_on", "sla.watching", waiting)

    def violated(self) -> Decision | None:
        """What a bundle must be left for, on trial or not."""
        if self._hard:
            return Decision("roll_back", "sla.hard", self._hard)
        for windows in self._windows:
            if windows.broken:
                return Decision("roll_back", "sla.broken", f"{windows} in {windows.outside} of the last windows")
        return None

    def _waits_for(self) -> str:
        """What a commit still lacks; empty when nothing."""
        metrics = {o.metric for o in self._sla.objectives} | {h.metric for h in self._sla.hard}
        unseen = sorted(metrics - self._seen)
        if self.clean < self._rollback.samples:
            return f"{self.clean} of {self._rollback.samples} inferences in a row inside the SLA"
        if unseen:
            return f"nothing measures {', '.join(unseen)} here"
        for windows in self._windows:
            if windows.clean < windows.objective.n:
                return f"{windows.clean} of {windows.objective.n} windows in a row of {windows.objective.metric} inside"
        return ""

    def _start_again(self) -> None:
        self.clean = 0
        for windows in self._windows:
            windows.clean = 0

    def _check_hard(self, metric: str, value: float) -> None:
        for limit in self._sla.hard:
            if limit.metric == metric and not self._hard:
                found = float(self._counts[metric]) if metric in COUNTED else value
                if not holds(found, limit.op, limit.limit):
                    self._hard = f"{_rule(limit)} does not hold: {found:g}"


@dataclass(slots=True)
class _Windows:
    """The windows of one objective."""

    objective: Objective
    clean: int = 0
    samples: list[float] = field(default_factory=list)
    last: deque[bool] = field(default_factory=deque)

    def add(self, value: float) -> bool | None:
        """Take a sample; gives whether the window that it ends is inside, None when it ends none."""
        self.samples.append(value)
        if len(self.samples) < self.objective.window:
            return None
        found = statistic(self.objective.statistic, self.samples)
        inside = holds(found, self.objective.op, self.objective.limit)
        self.samples.clear()
        self.last.append(inside)
        if len(self.last) > self.objective.n:
            self.last.popleft()
        self.clean += 1
        return inside

    @property
    def outside(self) -> int:
        return sum(not inside for inside in self.last)

    @property
    def broken(self) -> bool:
        return self.outside >= self.objective.k

    def __str__(self) -> str:
        return f"{self.objective.statistic} of {_rule(self.objective)} was missed"


def statistic(name: str, samples: Sequence[float]) -> float:
    """A statistic of one window; percentiles by nearest rank, NaN when a sample is.

    Source: NIST/SEMATECH e-Handbook, 7.2.6.2, nearest rank: the smallest value that at least p % do not exceed.

    >>> statistic("p50", [4.0, 1.0, 3.0, 2.0]), statistic("p95", [1.0, 2.0]), statistic("mean", [1.0, 2.0])
    (2.0, 2.0, 1.5)
    """
    if any(math.isnan(s) for s in samples):
        return math.nan
    if name == "mean":
        return fmean(samples)
    ordered = sorted(samples)
    if name in ("min", "max"):
        return ordered[0 if name == "min" else -1]
    return ordered[math.ceil(int(name.removeprefix("p")) * len(ordered) / 100) - 1]


def holds(value: float, op: Op, limit: Decimal) -> bool:
    """Whether a limit holds; exactly met is met, and NaN or infinite never is.

    >>> holds(0.1, "<=", Decimal("0.1")), holds(float("nan"), "<=", Decimal(1)), holds(30.0, ">=", Decimal(30))
    (True, False, True)
    """
    if not math.isfinite(value):
        return False
    exact = Decimal(repr(value))
    return exact <= limit if op == "<=" else exact >= limit


def _rule(limit: HardLimit | Objective) -> str:
    return f"{limit.metric} {limit.op} {limit.limit}"
