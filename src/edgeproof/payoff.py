"""Say in one sentence when INT8 does not pay on a target, by how much, and which layers cost most.

Figures come from what the search measured: each candidate interleaved with the original, in fresh processes. Two
candidates are compared through the original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median, stdev
from typing import Any

from .bounds import t_bounds, t_quantile
from .layers import layer_report
from .measurement import LegRun
from .trial import Candidate, Setup

LAYERS = 3
"""So many of the layers that cost most are named."""

OPEN = ("accept", "hold")


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate of the search.

    Attributes:
        candidate: The candidate.
        state: What became of it.
        why: One sentence.
        search: ``speedup`` over the original and quality ``drop``.
    """

    candidate: Candidate
    state: str
    why: str
    search: Mapping[str, float]

    @property
    def int8(self) -> bool:
        """Whether its layers run in integers."""
        return any(step.name == "int8" for step in self.candidate.recipe.steps)


def int8_payoff(setup: Setup, tried: Sequence[Tried], limit: float, clean: Candidate | None) -> dict[str, Any] | None:
    """Why the answer is a float model although INT8 was tried.

    Args:
        setup: The run.
        tried: What the search measured, the original left out.
        limit: Quality drop that is allowed.
        clean: The clean float graph, against whose layers those of the INT8 model are held.

    Returns:
        ``why`` (the sentence), ``candidate``, ``against``, ``ratio`` (time of INT8 over float: value, low, high) and
        ``layers`` (name, op, float_ms, int8_ms, most expensive first); None when INT8 was not tried, or when an INT8
        candidate was accepted or is on hold.
    """
    if any(t.int8 and t.state in OPEN for t in tried):
        return None
    tried = [t for t in tried if _logs(setup, t.candidate)]  # the same model as another has no bench of its own
    integer = [t for t in tried if t.int8]
    if not integer:
        return None
    fastest = max(integer, key=lambda t: t.search["speedup"])
    alike = [t for t in tried if not t.int8 and t.candidate.recipe.runtime == fastest.candidate.recipe.runtime]
    floats = [t for t in alike if t.search["drop"] <= limit and t.search["speedup"] > 1]
    against = max(floats, key=lambda t: t.search["speedup"], default=None)
    name, beside = fastest.candidate.name, "the original" if against is None else against.candidate.name
    ratio = _apart(_logs(setup, fastest.candidate), [] if against is None else _logs(setup, against.candidate))
    if ratio[0] >= 1:
        text = f"{name}, the fastest, takes {_range(ratio)} times as long as {beside}"
    else:
        text = f"{name} takes {_range(ratio)} times as long as {beside}, but {_lost(fastest, limit)}"
    return {
        "why": f"INT8 does not pay on {setup.target.name}: {text}; the float model stays",
        "candidate": name,
        "against": "original" if against is None else against.candidate.name,
        "ratio": list(ratio),
        "layers": _costly(setup, fastest.candidate, clean) if ratio[0] >= 1 else [],
    }


def costliest(payoff: Mapping[str, Any]) -> str:
    """The layers that cost most, as one line; empty when no layer was timed."""
    named = [f"{v['name']} {v['int8_ms']:.3f} ms ({v['float_ms']:.3f} in float)" for v in payoff["layers"]]
    return f"costs most in INT8: {', '.join(named)}" if named else ""


def _lost(tried: Tried, limit: float) -> str:
    if tried.search["drop"] > limit:
        return f"loses {tried.search['drop']:.4f} of quality in the search, limit {limit:g}"
    return tried.why or "was not accepted"


def _costly(setup: Setup, candidate: Candidate, clean: Candidate | None) -> list[dict[str, Any]]:
    """Layers that lose most time in INT8, by the runtime's profiles of this model and the float one."""
    report = setup.workspace.once(
        f"candidates/{candidate.name}/layers.json", partial(layer_report, setup, candidate, clean)
    )
    timed = [r for r in report["quantised"] if r["before_ms"] is not None and r["after_ms"] is not None]
    timed.sort(key=lambda r: float(r["before_ms"] - r["after_ms"]))
    worse = [r for r in timed[:LAYERS] if r["after_ms"] > r["before_ms"]]
    return [{"name": r["name"], "op": r["op"], "float_ms": r["before_ms"], "int8_ms": r["after_ms"]} for r in worse]


def _logs(setup: Setup, candidate: Candidate) -> list[float]:
    """Per process, the logarithm of its latency over the original's."""
    kept = setup.workspace.read(f"candidates/{candidate.name}/bench-search.json") or []
    runs = [LegRun.from_json(value) for value in kept]
    base = {r.round: median(r.latency_ns) for r in runs if r.leg == "original"}
    return [math.log(median(r.latency_ns) / base[r.round]) for r in runs if r.leg == candidate.name]


def _apart(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Exponential of the difference of two means with its 95 % interval, by the pooled t; ``other`` empty means 0."""
    if not other:
        low, high = t_bounds(one, 0.025)
        return math.exp(fmean(one)), math.exp(low), math.exp(high)
    difference, df = fmean(one) - fmean(other), len(one) + len(other) - 2
    spread = [stdev(v) ** 2 * (len(v) - 1) for v in (one, other) if len(v) > 1]
    if df < 1:
        return math.exp(difference), 0.0, math.inf
    step = t_quantile(0.975, df) * math.sqrt(sum(spread) / df * (1 / len(one) + 1 / len(other)))
    return math.exp(difference), math.exp(difference - step), math.exp(difference + step)


def _range(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]"
