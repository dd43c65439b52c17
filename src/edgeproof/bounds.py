"""Confidence bounds: pure functions, with NumPy and the standard library alone.

All bounds are one-sided at level 1 − alpha unless the name says interval. A *drop* is positive when the candidate is
worse. Nothing here knows of metrics' names, policies or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .protocols import Metric, Resampled

RESAMPLES = 1000
"""Bootstrap resamples: the 95th percentile is then known to 0.7 of a percentile point (one standard error)."""

NEVER = 1_000_000
"""Search limit of `runs_needed`: beyond it, more samples do not help in practice."""


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution, 0 < p < 1."""
    return NormalDist().inv_cdf(p)


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), for a, b > 0 and 0 ≤ x ≤ 1.

    Source: DLMF 8.17.22 (continued fraction), evaluated with Lentz's method.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges slowly, use the symmetry DLMF 8.17.4
        return 1.0 - beta_cdf(1.0 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    log_front -= math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0), tiny)
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d, tiny)
            c = _away(1.0 + term / c, tiny)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return min(1.0, math.exp(log_front) * fraction)


def t_cdf(t: float, df: float) -> float:
    """Distribution function of Student's t. Source: DLMF 8.17, via I_x(df/2, 1/2) with x = df / (df + t²)."""
    if t * t < df:  # near the centre df / (df + t²) rounds to 1: use the complement
        half = 0.5 * beta_cdf(t * t / (df + t * t), 0.5, df / 2.0)
        return 0.5 + math.copysign(half, t)
    tail = 0.5 * beta_cdf(df / (df + t * t), df / 2.0, 0.5)
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t, 0 < p < 1, df ≥ 1."""
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    high = 1.0
    while t_cdf(high, df) < p:
        high *= 2.0
    return bisect(lambda t: t_cdf(t, df) < p, 0.0, high)


def bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``below`` turns from True (at ``low``) to False (at ``high``), to the last bit or 200 halvings."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if below(middle) else (low, middle)
    return 0.5 * (low + high)


def t_bounds(values: Sequence[float], alpha_low: float, alpha_high: float | None = None) -> tuple[float, float]:
    """Lower and upper one-sided t-bounds for a mean.

    Args:
        values: Independent replicates (one per process), at least two; fewer give (−inf, inf).
        alpha_low: Error probability of the lower bound.
        alpha_high: Of the upper bound; the same when left out.
    """
    alpha_high = alpha_low if alpha_high is None else alpha_high
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    x = np.asarray(values, dtype=np.float64)
    mean, step = float(x.mean()), float(x.std(ddof=1)) / math.sqrt(n)
    return mean - t_quantile(1 - alpha_low, n - 1) * step, mean + t_quantile(1 - alpha_high, n - 1) * step


def run_bounds(values: Sequence[float], alpha_low: float, alpha_high: float) -> tuple[float, float]:
    """Bounds for the typical run: t on logarithms when all values are positive, else t on the values.

    A run's percentile is skewed and its noise is relative, hence the logarithm; exp of a bound for the mean of
    logarithms bounds the geometric mean, which is the median run when logarithms are symmetric.
    """
    if all(v > 0 for v in values):
        low, high = t_bounds([math.log(v) for v in values], alpha_low, alpha_high)
        return _exp(low), _exp(high)
    return t_bounds(values, alpha_low, alpha_high)


def ratio_bounds(
    baseline: Sequence[float], candidate: Sequence[float], alpha_low: float, alpha_high: float
) -> tuple[float, float]:
    """Bounds for candidate / baseline of runs that were interleaved in pairs: t on the log ratio of each pair."""
    logs = [math.log(c / b) for b, c in zip(baseline, candidate, strict=True)]
    low, high = t_bounds(logs, alpha_low, alpha_high)
    return _exp(low), _exp(high)


def speedup(baseline: Sequence[float], candidate: Sequence[float]) -> tuple[float, float, float]:
    """How many times faster the candidate is than the baseline, with its 95 % interval: (value, low, high).

    Args:
        baseline: One latency per run, at least two; runs were interleaved in pairs.
        candidate: Likewise.
    """
    low, high = ratio_bounds(candidate, baseline, 0.025, 0.025)
    ratio = geometric_mean([c / b for c, b in zip(candidate, baseline, strict=True)])
    return 1 / ratio, low, high


def tango_statistic(lost: float, gained: float, n: int, drop: float) -> float:
    """Score statistic for H0: p(lost) − p(gained) = drop, among n pairs.

    Source: Tango 1998, Statistics in Medicine 17:891–908, equations for the restricted maximum likelihood estimate of
    the discordant probability and the test statistic.
    """
    b = -lost - gained + (2 * n - lost + gained) * drop
    c = -gained * drop * (1 - drop)
    q = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
    variance = n * (2 * q + drop * (1 - drop))
    difference = lost - gained - n * drop
    if variance <= 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / math.sqrt(variance)


def tango_bounds(lost: float, gained: float, n: int, alpha_low: float, alpha_high: float) -> tuple[float, float]:
    """Tango's score bounds for the drop of a proportion, paired per example.

    Args:
        lost: Examples that the baseline gets right and the candidate wrong.
        gained: Examples that the candidate gets right and the baseline wrong.
        n: Examples in all, at least 1.
        alpha_low: Error probability of the lower bound.
        alpha_high: Of the upper bound.

    Returns:
        (low, high) of p(lost) − p(gained). Without a discordant pair, high is z² / (n + z²): n equal answers alone
        cannot exclude a smaller drop.
    Source: Tango 1998, Statistics in Medicine 17:891–908.
    """
    z_low, z_high = normal_quantile(1 - alpha_low), normal_quantile(1 - alpha_high)
    point = (lost - gained) / n
    low = -1.0 if point <= -1 else bisect(lambda d: tango_statistic(lost, gained, n, d) > z_low, -1.0, point)
    high = 1.0 if point >= 1 else bisect(lambda d: tango_statistic(lost, gained, n, d) > -z_high, point, 1.0)
    return low, high


def proportion_bounds(successes: int, n: int, alpha_low: float, alpha_high: float) -> tuple[float, float]:
    """Clopper–Pearson bounds for one proportion: never less than the stated confidence.

    Source: Clopper and Pearson 1934, Biometrika 26:404–413, in the beta form.
    """
    k = successes
    low = 0.0 if k == 0 else bisect(lambda p: 1 - _binomial_cdf(k - 1, n, p) < alpha_low, 0.0, 1.0)
    high = 1.0 if k == n else bisect(lambda p: _binomial_cdf(k, n, p) > alpha_high, 0.0, 1.0)
    return low, high


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A statistic of examples and its bootstrap.

    Attributes:
        point: The statistic of all examples.
        draws: The statistic of each resample, sorted, float64 [RESAMPLES].
        n: Examples.
        span: How far one example can move the mean of n examples, times n: the range of scores.
    """

    point: float
    draws: NDArray[np.float64]
    n: int
    span: float

    @property
    def spread(self) -> float:
        """Standard error of the statistic."""
        return float(self.draws.std(ddof=1))


def bootstrap(
    statistic: Callable[[NDArray[np.intp]], float], n: int, span: float, *, resamples: int = RESAMPLES, seed: int = 0
) -> Bootstrap:
    """Resample examples with replacement; baseline and candidate of one example always stay together.

    Args:
        statistic: From example indices (with repetitions) to the number, e.g. the drop of a pooled metric.
        n: Examples; each is one cluster, whatever it holds (a picture with many boxes, a line with many characters).
        span: Range of the scores, see `Bootstrap`.
        resamples: How many.
        seed: The same seed gives the same bounds, so that anyone can recompute them.
    """
    rng = np.random.default_rng(seed)
    draws = np.array([statistic(rng.integers(0, n, n)) for _ in range(resamples)], dtype=np.float64)
    return Bootstrap(statistic(np.arange(n)), np.sort(draws), n, span)


def bootstrap_bounds(r: Bootstrap, alpha_low: float, alpha_high: float) -> tuple[float, float]:
    """Bounds from a bootstrap, never narrower than what n examples can show.

    The percentile (expanded for small n as by Hesterberg 2015, The American Statistician 69:371–386, section 5.1.1)
    follows skew, but knows nothing of examples that it has not seen: with no difference among n examples it is zero.
    The floor is Wilson's score bound with the bootstrap's variance in place of the binomial one; for scores of 0 or 1
    it is Wilson's, at no difference z² / (n + z²) of the range, as Tango's. The wider of the two holds. Measured false
    acceptance at the boundary: benchmarks/gate_simulations.
    """
    return -_upper(-r.point, np.sort(-r.draws), r, alpha_low), _upper(r.point, r.draws, r, alpha_high)


def _upper(point: float, draws: NDArray[np.float64], r: Bootstrap, alpha: float) -> float:
    t = t_quantile(1 - alpha, max(r.n - 1, 1)) * math.sqrt(r.n / max(r.n - 1, 1))
    percentile = float(np.quantile(draws, NormalDist().cdf(t)))
    return max(percentile, score_bound(point, r.spread * math.sqrt(r.n), r.n, r.span, alpha))


def score_bound(point: float, deviation: float, n: int, span: float, alpha: float) -> float:
    """Wilson's upper score bound with a given deviation per example.

    Args:
        point: Mean of n numbers.
        deviation: Their standard deviation (divisor n).
        n: How many.
        span: Their range.
        alpha: Error probability.
    Source: Wilson 1927, JASA 22:209–212; for 0/1 numbers deviation² = p(1 − p) and span 1 give exactly his bound.
    """
    z = normal_quantile(1 - alpha)
    centre = n * point + span * z * z / 2
    return (centre + z * math.sqrt(n * deviation**2 + (span * z) ** 2 / 4)) / (n + z * z)


def interval(metric: Metric, samples: Sequence[Any], level: float = 0.95) -> tuple[float | None, float | None]:
    """Two-sided interval of one measurement, for display.

    Args:
        metric: Its ``kind`` says which bound holds.
        samples: Raw scores.
        level: Confidence.

    Returns:
        (low, high); (None, None) for exact values, maxima, and where too few or infinite samples say nothing.
    """
    alpha = (1 - level) / 2
    if metric.kind in ("exact", "max") or len(samples) < 2:
        return None, None
    if metric.kind == "proportion":
        return proportion_bounds(round(sum(samples)), len(samples), alpha, alpha)
    if metric.kind in ("run", "mean") and not all(math.isfinite(v) for v in samples):
        return None, None
    if metric.kind == "run":
        return run_bounds(samples, alpha, alpha)
    r = bootstrap(value_on(metric, samples), len(samples), span_of(metric, samples))
    low, high = bootstrap_bounds(r, alpha, alpha)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None, None
    return (max(low, 0.0), min(high, 1.0)) if metric.unit == "1" and 0.0 <= r.point <= 1.0 else (low, high)


def value_on(metric: Metric, samples: Sequence[Any]) -> Callable[[NDArray[np.intp]], float]:
    """The metric's value on chosen examples, by index."""
    if isinstance(metric, Resampled):
        return metric.resampled(samples)
    if metric.kind in ("mean", "proportion"):
        numbers = np.asarray(samples, dtype=np.float64)
        return lambda chosen: float(numbers[chosen].mean())
    return lambda chosen: metric.value([samples[i] for i in chosen])


def span_of(metric: Metric, *samples: Sequence[Any]) -> float:
    """Range of an example's score, see `Bootstrap`.

    For shares it is 1. In a pooled metric, examples weigh differently (a line of 60 characters among lines of 10), and
    one of them can move the whole by more than 1/n: twice the range, which kept false acceptance below 0.07 for
    log-normal lengths where once did not (measured, benchmarks/gate_simulations).
    """
    weight = 2.0 if metric.kind == "pooled" else 1.0
    if metric.unit == "1":
        return weight
    each = [metric.value([x]) if metric.kind == "pooled" else float(x) for s in samples for x in s]
    finite = [v for v in each if math.isfinite(v)]
    return weight * (max(finite) - min(finite)) if finite else weight


def runs_needed(decided: Callable[[int], bool], n: int) -> int | None:
    """How many more samples until a rule is decided, if estimate and spread stay as they are.

    Args:
        decided: Whether that many samples in all would decide; once True it stays True.
        n: Samples at hand.

    Returns:
        At least 1; None when not even `NEVER` samples would do (the estimate sits on the limit).
    """
    high = max(n, 1)
    while not decided(high):
        high *= 2
        if high > NEVER:
            return None
    low = n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return max(high - n, 1)


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X ≤ k). Source: DLMF 8.17.5."""
    return beta_cdf(1.0 - p, n - k, k + 1.0)


def _away(x: float, tiny: float) -> float:
    return x if abs(x) > tiny else tiny


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
