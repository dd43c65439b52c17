"""Measurements and a policy → accept, reject or hold. Pure: no file, no clock, no random number that is not seeded.

Worse being larger, a rule passes when the upper bound at α lies within the limit, fails when the lower bound at α/K
(K rules) lies beyond it, and is undecided in between. α is shared by the looks that the policy declares. All rules
pass: accept. Any fails: reject. Anything else: hold, with the reason. What is unknown never becomes accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from . import registry
from .bounds import (
    bootstrap,
    bootstrap_bounds,
    proportion_bounds,
    ratio_bounds,
    run_bounds,
    runs_needed,
    score_bound,
    span_of,
    t_bounds,
    t_quantile,
    tango_bounds,
    value_on,
)
from .bounds import interval as interval
from .environment import Control
from .errors import State
from .measurement import Measurement
from .policy import Check, CheckState, Policy, Rule, Verdict
from .protocols import Metric

_SIGNED_UNITS = ("°C", "dB", "1")
"""Units in which a run may honestly measure zero or less. A latency, a size or a power of 0 is a broken sensor."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a rule is decided on, in the rule's unit.

    Attributes:
        got: Point value.
        low: Lower bound at the level of the side it is on.
        high: Upper bound likewise.
        at: From a number of samples to (low, high) if estimate and spread stayed as they are; None for exact values.
        replicate: ``run`` or ``example``.
        n: Samples.
    """

    got: Decimal
    low: Decimal
    high: Decimal
    at: Callable[[int], tuple[float, float]] | None
    replicate: str
    n: int


def decide(
    policy: Policy,
    baseline: Mapping[str, Measurement],
    candidate: Mapping[str, Measurement],
    *,
    quality_metric: str,
    control: Control | None = None,
    absent: Mapping[str, str] | None = None,
    metrics: Callable[[str], Metric] | None = None,
    void: str = "",
    spent: int = 0,
) -> Verdict:
    """Decide.

    Args:
        policy: The rules, fixed before the first measurement.
        baseline: Metric → measurement of the original.
        candidate: Metric → measurement of the candidate.
        quality_metric: The metric that ``quality`` stands for.
        control: The environment's A/A check; its problems make all measurements of runs void, and so does its absence.
        absent: Metric → why there is no measurement of it, for the reason.
        metrics: From a metric's name to the metric; the registry's when left out.
        void: Why the quality scores say nothing (the original itself only guesses); rules on quality then hold.
        spent: Confirmations made so far, by the ledger. More than the policy declared looks: no bound holds any more,
            and every rule is open.
    """
    if spent > policy.looks:
        why = f"{spent} confirmations were made, and the policy declared {policy.looks} in advance"
        checks = tuple(_open(rule, "incomparable", f"{rule.metric}: {why}") for rule in policy.rules)
        return Verdict("hold", checks, policy.digest, next((m.model for m in candidate.values()), ""))
    find = metrics or _registered
    checks = tuple(
        _open(rule, "incomparable", f"{quality_metric}: {void}")
        if void and rule.metric == "quality"
        else _check(
            policy,
            rule,
            quality_metric if rule.metric == "quality" else rule.metric,
            baseline,
            candidate,
            control,
            absent or {},
            find,
        )
        for rule in policy.rules
    )
    model = next((m.model for m in candidate.values()), "")
    return Verdict(verdict_state(checks), checks, policy.digest, model)


def only_guesses(metric: str, shape: Sequence[int | str] | None, score: Measurement) -> str:
    """Why quality says nothing: the original itself does no better than guessing. Empty when it does.

    Args:
        metric: The quality metric.
        shape: Of the original's first output, as declared; its last dimension counts the classes.
        score: The original's quality on the confirmation samples.
    """
    classes = shape[-1] if shape and isinstance(shape[-1], int) else 0
    chance = {"top1": 1 / classes, "top5": 5 / classes}.get(metric, 0.0) if classes > 1 else 0.0
    if score.better != "higher" or score.unit != "1" or metric in ("cosine", "evaluator"):
        return ""
    if (score.value if score.low is None or not chance else score.low) > chance:
        return ""
    chance_text = f", and guessing gives {chance:.3g}" if chance else ""
    return (
        f"the original scores {score.value:.4g}{chance_text}; labels, class order or preprocessing do not fit the model"
    )


def verdict_state(checks: tuple[Check, ...]) -> State:
    """Accept when all pass, reject when any fails, else hold; no rule at all holds."""
    if any(c.state == "fail" for c in checks):
        return "reject"
    return "accept" if checks and all(c.state == "pass" for c in checks) else "hold"


def _check(
    policy: Policy,
    rule: Rule,
    name: str,
    baseline: Mapping[str, Measurement],
    candidate: Mapping[str, Measurement],
    control: Control | None,
    absent: Mapping[str, str],
    find: Callable[[str], Metric],
) -> Check:
    base, cand = baseline.get(name), candidate.get(name)
    if cand is None or (rule.relative_to and base is None):
        whose = "the candidate" if cand is None else "the baseline"
        because = f" ({absent[name]})" if name in absent else ""
        return _open(rule, "missing", f"there is no measurement of {name} for {whose}{because}")
    metric = find(name)
    for m, whose in ((cand, "candidate"), (base, "baseline")):
        if m is not None and (why := _unusable(m, metric)):
            return _open(rule, "missing", f"{name} of the {whose} {why}")
    if why := _incomparable(rule, metric, base, cand):
        return _open(rule, "incomparable", f"{name}: {why}")
    if metric.needs == "runs" and (control is None or not control.ok):
        why = control.problems[0] if control else "no A/A control shows that the machine was fit to measure on"
        return _open(rule, "invalid_environment", f"{name}: {why}")
    alpha = float(policy.alpha) / policy.looks
    levels = (alpha / len(policy.rules), alpha) if rule.op == "<=" else (alpha, alpha / len(policy.rules))
    estimate = _estimate(rule, metric, base, cand, *levels)
    return _decided(policy, rule, name, metric, estimate, alpha)


def _open(rule: Rule, state: CheckState, reason: str) -> Check:
    return Check(rule, state, None, None, None, reason)


def _unusable(m: Measurement, metric: Metric) -> str:
    """Why a measurement is none."""
    if not len(m.samples):
        return "has no samples"
    flat = _numbers(m.samples)
    if not all(map(math.isfinite, (*flat, m.value))):
        return "has a sample that is not a finite number"
    if metric.needs == "runs" and m.unit not in _SIGNED_UNITS and min(flat) <= 0:
        return f"has a reading of {min(flat):g} {m.unit}, which no working sensor gives"
    return ""


def _incomparable(rule: Rule, metric: Metric, base: Measurement | None, cand: Measurement) -> str:
    """Why two measurements, or a measurement and a limit, cannot be compared."""
    absolute = not rule.relative_to
    if cand.unit != metric.unit:
        return f"measured in {cand.unit!r}, the metric's unit is {metric.unit!r}"
    if absolute and rule.unit != cand.unit:
        return f"measured in {cand.unit!r}, the limit is in {rule.unit!r}"
    if base is None:
        return ""
    if base.unit != cand.unit or base.better != cand.better:
        return f"the baseline is in {base.unit!r}, the candidate in {cand.unit!r}"
    bindings = [("data set", base.dataset, cand.dataset), ("evaluator", base.evaluator, cand.evaluator)]
    if metric.needs != "file":  # a file has the same size on every machine
        bindings.append(("machine", base.machine, cand.machine))
    for what, ours, theirs in bindings:
        if ours != theirs:
            return f"baseline and candidate have different {what} digests ({_short(ours)} and {_short(theirs)})"
    if len(base.samples) != len(cand.samples):
        return f"the baseline has {len(base.samples)} samples, the candidate {len(cand.samples)}"
    if rule.relative_to and metric.kind == "run" and tuple(base.samples) == tuple(cand.samples):
        return "baseline and candidate are the same measurement"
    return ""


def _estimate(
    rule: Rule, metric: Metric, base: Measurement | None, cand: Measurement, a_low: float, a_high: float
) -> Estimate:
    if metric.kind in ("exact", "max"):
        got = _exact(rule, metric, base, cand)
        return Estimate(got, got, got, None, "run", len(cand.samples))
    if rule.relative_to:
        assert base is not None
        if metric.kind != "run" and base.model == cand.model and list(base.samples) == list(cand.samples):
            # The baseline itself: no sample could tell a difference, so there is nothing to bound.
            same = Decimal(0 if rule.unit == "drop" else 1)
            return Estimate(same, same, same, None, "example", len(cand.samples))
        return (_paired_runs if metric.kind == "run" else _paired_examples)(rule, metric, base, cand, a_low, a_high)
    n = len(cand.samples)
    if metric.kind == "run":
        low, high = run_bounds(cand.samples, a_low, a_high)
        logs = min(cand.samples) > 0
        values = [math.log(x) for x in cand.samples] if logs else list(cand.samples)
        return _of(cand.value, low, high, _t_ahead(values, a_low, a_high, math.exp if logs else float), "run", n)
    if metric.kind == "proportion":
        hits = sum(cand.samples)
        low, high = proportion_bounds(round(hits), n, a_low, a_high)
        return _of(
            cand.value, low, high, lambda m: proportion_bounds(round(hits * m / n), m, a_low, a_high), "example", n
        )
    return _bootstrapped(value_on(metric, cand.samples), n, span_of(metric, cand.samples), a_low, a_high)


def _exact(rule: Rule, metric: Metric, base: Measurement | None, cand: Measurement) -> Decimal:
    """Exact numbers are compared as the decimals they are written as: 0.92 − 0.91 is 0.01."""
    got = _decimal(cand.value)
    if base is None or not rule.relative_to:
        return got
    before = _decimal(base.value)
    if rule.unit == "ratio":
        return got / before if before else Decimal("Infinity")
    return before - got if metric.better == "higher" else got - before


def _paired_runs(
    rule: Rule, metric: Metric, base: Measurement, cand: Measurement, a_low: float, a_high: float
) -> Estimate:
    pairs = list(zip(base.samples, cand.samples, strict=True))
    if rule.unit == "ratio" and all(b > 0 and c > 0 for b, c in pairs):
        logs = [math.log(c / b) for b, c in pairs]
        low, high = ratio_bounds(base.samples, cand.samples, a_low, a_high)
        point = math.exp(math.fsum(logs) / len(logs))
        return _of(point, low, high, _t_ahead(logs, a_low, a_high, math.exp), "run", len(logs))
    sign = -1.0 if metric.better == "higher" else 1.0
    ratio = rule.unit == "ratio"
    drops = [(c / b if b else math.inf) if ratio else sign * (c - b) for b, c in pairs]
    low, high = t_bounds(drops, a_low, a_high)
    return _of(math.fsum(drops) / len(drops), low, high, _t_ahead(drops, a_low, a_high, float), "run", len(drops))


def _paired_examples(
    rule: Rule, metric: Metric, base: Measurement, cand: Measurement, a_low: float, a_high: float
) -> Estimate:
    n = len(cand.samples)
    higher = metric.better == "higher"
    if metric.kind == "proportion" and rule.unit == "drop":
        worse, better = (base, cand) if higher else (cand, base)  # worse: right before and wrong now
        pairs = list(zip(worse.samples, better.samples, strict=True))
        lost, gained = sum(1 for w, b in pairs if w > b), sum(1 for w, b in pairs if b > w)
        low, high = tango_bounds(lost, gained, n, a_low, a_high)
        return _of(
            (lost - gained) / n,
            low,
            high,
            lambda m: tango_bounds(lost * m / n, gained * m / n, m, a_low, a_high),
            "example",
            n,
        )
    of_base, of_cand = value_on(metric, base.samples), value_on(metric, cand.samples)
    span = span_of(metric, base.samples, cand.samples)
    if rule.unit == "ratio":
        span /= abs(base.value) or 1.0
        return _bootstrapped(lambda i: of_cand(i) / (of_base(i) or math.nan), n, span, a_low, a_high)
    sign = -1.0 if higher else 1.0
    return _bootstrapped(lambda i: sign * (of_cand(i) - of_base(i)), n, span, a_low, a_high)


def _bootstrapped(statistic: Callable[[Any], float], n: int, span: float, a_low: float, a_high: float) -> Estimate:
    r = bootstrap(statistic, n, span)
    low, high = bootstrap_bounds(r, a_low, a_high)
    deviation = r.spread * math.sqrt(n)

    def ahead(m: int) -> tuple[float, float]:
        return -score_bound(-r.point, deviation, m, span, a_low), score_bound(r.point, deviation, m, span, a_high)

    return _of(r.point, low, high, ahead, "example", n)


def _t_ahead(
    values: list[float], a_low: float, a_high: float, back: Callable[[float], float]
) -> Callable[[int], tuple[float, float]]:
    x = np.asarray(values, dtype=np.float64)
    mean, deviation = float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else math.nan

    def ahead(m: int) -> tuple[float, float]:
        step = deviation / math.sqrt(m)
        return back(mean - t_quantile(1 - a_low, m - 1) * step), back(mean + t_quantile(1 - a_high, m - 1) * step)

    return ahead


def _of(
    got: float, low: float, high: float, at: Callable[[int], tuple[float, float]] | None, replicate: str, n: int
) -> Estimate:
    return Estimate(_decimal(got), _decimal(low), _decimal(high), at, replicate, n)


def _decided(policy: Policy, rule: Rule, name: str, metric: Metric, e: Estimate, alpha: float) -> Check:
    limit, upward = rule.limit, rule.op == "<="
    # A bootstrap that is not a number (an undefined ratio) compares false with everything: undecided.
    passes = _within(e.high, limit) if upward else _within(limit, e.low)
    fails = _within(limit, e.low, strict=True) if upward else _within(e.high, limit, strict=True)
    short = metric.needs == "runs" and e.n < policy.runs
    state: CheckState = "fail" if fails else "pass" if passes and not short else "undecided"
    more = _more(policy, rule, metric, e) if state == "undecided" else None
    reason = _sentence(rule, name, metric, e, alpha, state, policy, more)
    got, low, high = (float(x) if x.is_finite() else None for x in (e.got, e.low, e.high))
    return Check(rule, state, got, low, high, reason, more)


def _more(policy: Policy, rule: Rule, metric: Metric, e: Estimate) -> int | None:
    """Further samples expected to decide; at least as many as the policy asks for."""
    floor = policy.runs - e.n if metric.needs == "runs" else 0
    if e.at is None or e.n < 2:
        return max(floor, 1)
    limit, at = float(rule.limit), e.at

    def decided(m: int) -> bool:
        low, high = at(m)
        return low > limit or high <= limit if rule.op == "<=" else high < limit or low >= limit

    needed = runs_needed(decided, e.n)
    return None if needed is None else max(needed, floor, 1)


def _sentence(
    rule: Rule,
    name: str,
    metric: Metric,
    e: Estimate,
    alpha: float,
    state: CheckState,
    policy: Policy,
    more: int | None,
) -> str:
    unit = "" if rule.unit in ("1", "drop", "ratio") else f" {rule.unit}"
    what = {"drop": f"{name} drop", "ratio": f"{name} / baseline"}.get(rule.unit, name)
    if rule.unit == "drop" and metric.unit != "1":
        unit = f" {metric.unit}"
    exact = e.at is None
    bound = e.high if rule.op == "<=" else e.low
    shown = "" if exact else f" ({100 * (1 - alpha):.3g} % bound {_show(bound)}{unit})"
    text = f"{what} is {_show(e.got)}{unit}{shown}, limit {'' if rule.op == '<=' else 'at least '}{rule.limit}{unit}"
    if state != "undecided":
        return text
    if metric.needs == "runs" and e.n < policy.runs:
        text += f"; {e.n} runs of the {policy.runs} that the policy asks for"
    if more is None:
        return f"{text}; undecided, and more {e.replicate}s would not decide: the estimate sits on the limit"
    return f"{text}; undecided, about {more} more {e.replicate}{'s' if more != 1 else ''} needed"


def _within(a: Decimal, b: Decimal, *, strict: bool = False) -> bool:
    if a.is_nan() or b.is_nan():
        return False
    return a < b if strict else a <= b


def _decimal(x: float) -> Decimal:
    return Decimal(repr(float(x))) if not isinstance(x, int) else Decimal(x)


def _show(x: Decimal) -> str:
    value = float(x) + 0.0  # no minus before a zero
    if not math.isfinite(value):
        return "unknown"
    if abs(value) < 5e-9:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _numbers(samples: Any) -> list[float]:
    flat: list[float] = []
    for s in samples:
        if isinstance(s, int | float):
            flat.append(s)
        elif isinstance(s, list | tuple):
            flat += _numbers(s)
    return flat


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12] or "none"


def _registered(name: str) -> Metric:
    metric: Metric = registry.load("metrics", name)()
    return metric
