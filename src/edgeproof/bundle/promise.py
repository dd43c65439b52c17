"""What a bundle promises on the device, from the limits that its evidence was decided by."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from ..manifest import Objective, Rollback, Sla
from ..policy import Policy

WATCHED: Mapping[str, tuple[str, str]] = {
    "latency_p50": ("latency", "p50"),
    "latency_p90": ("latency", "p90"),
    "latency_p95": ("latency", "p95"),
    "latency_p99": ("latency", "p99"),
    "throughput": ("throughput", "mean"),
    "power": ("power", "mean"),
    "temperature": ("temperature", "max"),
    "peak_memory": ("memory", "max"),
}
"""Metric of a policy → what a device watches: metric and statistic. The units are the same."""


def promise(policy: Policy) -> Sla:
    """An objective for every absolute limit that a device can watch; no NaN output and no crash in any case.

    Limits relative to the baseline have no meaning on a device that does not run the baseline, and quality cannot be
    seen without labels.
    """
    found: dict[tuple[str, str, str], Objective] = {}
    for rule in policy.rules:
        if rule.relative_to or rule.metric not in WATCHED:
            continue
        metric, statistic = WATCHED[rule.metric]
        key = (metric, statistic, rule.op)
        before = found.get(key)
        tighter = before is None or (rule.limit < before.limit) == (rule.op == "<=")
        if tighter:
            found[key] = Objective(metric, statistic, rule.op, rule.limit)
    return Sla(tuple(found.values()), Sla().hard)


def check_promise(sla: Sla, rollback: Rollback, subject: str) -> None:
    """A promise that can be kept or broken within the trial.

    Raises:
        InputError: manifest.value, when the trial ends before any objective could be judged.
    """
    for objective in sla.objectives:
        needed = objective.window * objective.n
        if rollback.samples < needed:
            problem = f"commits after {rollback.samples} samples; {objective.metric} is judged over {needed}"
            raise InputError("manifest.value", subject, problem, "raise --samples, or give --sla a smaller window or n")


def describe(sla: Sla, rollback: Rollback) -> list[str]:
    """The promise in words."""
    lines = [
        f"{o.metric} {o.statistic} {o.op} {o.limit:f}, broken when {o.k} of {o.n} windows of {o.window} are outside"
        for o in sla.objectives
    ]
    lines += [f"{h.metric} {h.op} {h.limit:f} at all times" for h in sla.hard]
    seconds, samples = rollback.trial_seconds, rollback.samples
    return [*lines, f"kept after {samples} samples within {seconds} s and {rollback.boots} starts"]
