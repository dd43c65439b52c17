import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproof.bounds import (
    beta_cdf,
    bootstrap,
    bootstrap_bounds,
    interval,
    proportion_bounds,
    ratio_bounds,
    run_bounds,
    runs_needed,
    score_bound,
    span_of,
    speedup,
    t_bounds,
    t_cdf,
    t_quantile,
    tango_bounds,
    tango_statistic,
    value_on,
)


class Pooled:
    """Errors over lengths, as a character error rate."""

    unit: ClassVar[str] = "1"
    better: ClassVar[str] = "lower"
    needs: ClassVar[str] = "labels"
    kind: ClassVar[str] = "pooled"

    def score(self, got: Any, want: Any) -> Any:
        return got

    def value(self, scores: Sequence[Any]) -> float:
        return sum(s[0] for s in scores) / sum(s[1] for s in scores)


class Mean(Pooled):
    kind: ClassVar[str] = "mean"

    def value(self, scores: Sequence[Any]) -> float:
        return sum(scores) / len(scores)


class Proportion(Mean):
    kind: ClassVar[str] = "proportion"


class Run(Mean):
    kind: ClassVar[str] = "run"
    unit: ClassVar[str] = "ms"


class Exact(Mean):
    kind: ClassVar[str] = "exact"


@pytest.mark.parametrize(
    ("p", "df", "table"),
    [  # NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2
        (0.95, 1, 6.314),
        (0.95, 9, 1.833),
        (0.975, 9, 2.262),
        (0.90, 5, 1.476),
        (0.99, 30, 2.457),
        (0.999, 100, 3.174),
    ],
)
def test_t_quantiles_are_those_of_the_printed_table(p: float, df: int, table: float) -> None:
    assert round(t_quantile(p, df), 3) == table


@pytest.mark.parametrize("df", [1, 2, 3, 9, 29, 300, 5000])
@pytest.mark.parametrize("p", [0.0001, 0.025, 0.3, 0.5, 0.77, 0.95, 0.9983])
def test_t_quantiles_agree_with_scipy(p: float, df: int) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9, abs=1e-12)


@given(st.floats(-50, 50), st.integers(1, 2000))
def test_t_distribution_agrees_with_scipy(t: float, df: int) -> None:
    assert t_cdf(t, df) == pytest.approx(scipy.stats.t.cdf(t, df), rel=1e-9, abs=1e-15)


@given(st.floats(0, 1), st.floats(0.5, 3000), st.floats(0.5, 3000))
def test_incomplete_beta_agrees_with_scipy(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(scipy.special.betainc(a, b, x), rel=1e-8, abs=1e-13)


def test_t_bounds_are_scipys_interval() -> None:
    values = [3.1, 2.9, 3.6, 3.3, 2.7]
    expected = scipy.stats.t.interval(0.9, 4, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert t_bounds(values, 0.05, 0.05) == pytest.approx(expected)


def test_each_side_of_a_t_bound_has_its_own_level() -> None:
    values = [3.1, 2.9, 3.6, 3.3, 2.7]
    assert t_bounds(values, 0.01, 0.05)[0] == t_bounds(values, 0.01)[0]
    assert t_bounds(values, 0.01, 0.05)[1] == t_bounds(values, 0.05)[1]


def test_one_run_bounds_nothing() -> None:
    assert t_bounds([5.0], 0.05) == (-math.inf, math.inf)
    assert run_bounds([5.0], 0.05, 0.05) == (0.0, math.inf)


def test_runs_are_bounded_on_a_logarithmic_scale() -> None:
    values = [80.0, 85.0, 78.0, 120.0]
    logs = np.log(values)
    low, high = scipy.stats.t.interval(0.9, 3, loc=logs.mean(), scale=scipy.stats.sem(logs))
    assert run_bounds(values, 0.05, 0.05) == pytest.approx((math.exp(low), math.exp(high)))


def test_runs_that_are_not_positive_are_bounded_as_they_are() -> None:
    assert run_bounds([-1.0, 0.0, 2.0], 0.05, 0.05) == t_bounds([-1.0, 0.0, 2.0], 0.05)


def test_a_drift_that_hits_both_legs_alike_leaves_the_ratio_alone() -> None:
    baseline = [10.0, 14.0, 9.0, 20.0]
    low, high = ratio_bounds(baseline, [1.02 * b for b in baseline], 0.05, 0.05)
    assert (low, high) == pytest.approx((1.02, 1.02))


@pytest.mark.parametrize(
    ("lost", "gained", "n", "alpha", "published"),
    [
        # Fagerland, Lydersen, Laake: Statistical Analysis of Contingency Tables, chapter 8 (and the contingencytables
        # package's tests): Bentur 2009 and Cavo 2012.
        (1, 7, 21, 0.025, (-0.517, -0.026)),
        (6, 16, 161, 0.025, (-0.1240, -0.0054)),
        # PropCIs 0.3 (R): scoreci.mp(25, 28, 618, conf.level = 0.90), whose estimand is (c - b) / n.
        (28, 25, 618, 0.05, (-0.0148, 0.0247)),
    ],
)
def test_tangos_bounds_are_the_published_ones(
    lost: int, gained: int, n: int, alpha: float, published: tuple[float, float]
) -> None:
    digits = max(len(str(p).split(".")[1]) for p in published)
    low, high = tango_bounds(lost, gained, n, alpha, alpha)
    assert (round(low, digits), round(high, digits)) == published


@pytest.mark.parametrize(("lost", "gained", "n", "drop"), [(5, 3, 100, 0.1), (0, 4, 50, 0.02), (7, 0, 30, -0.05)])
def test_tangos_statistic_uses_the_restricted_maximum_likelihood_estimate(
    lost: int, gained: int, n: int, drop: float
) -> None:
    # Second derivation: maximise the multinomial likelihood under p(lost) = q + drop by brute force.
    def loss(q: float) -> float:
        same = 1 - 2 * q - drop
        if min(q + drop, q, same) <= 0:
            return 1e9
        return -(lost * math.log(q + drop) + gained * math.log(q) + (n - lost - gained) * math.log(same))

    bounds = (max(1e-12, -drop + 1e-12), (1 - drop) / 2 - 1e-12)
    q = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    variance = n * (2 * q + drop - drop * drop)
    assert tango_statistic(lost, gained, n, drop) == pytest.approx((lost - gained - n * drop) / variance**0.5, abs=1e-3)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(80, 4000))
@settings(max_examples=60)
def test_at_tangos_bounds_the_statistic_is_the_normal_quantile(lost: int, gained: int, n: int) -> None:
    low, high = tango_bounds(lost, gained, n, 0.05, 0.01)
    assert tango_statistic(lost, gained, n, low) == pytest.approx(scipy.stats.norm.ppf(0.95), abs=1e-5)
    assert tango_statistic(lost, gained, n, high) == pytest.approx(-scipy.stats.norm.ppf(0.99), abs=1e-5)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(100, 2000))
@settings(max_examples=60)
def test_swapping_baseline_and_candidate_mirrors_tangos_bounds(lost: int, gained: int, n: int) -> None:
    low, high = tango_bounds(lost, gained, n, 0.05, 0.05)
    assert tango_bounds(gained, lost, n, 0.05, 0.05) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize("n", [20, 267, 268, 3000])
def test_without_a_discordant_pair_the_bound_is_what_n_examples_can_show(n: int) -> None:
    z2 = scipy.stats.norm.ppf(0.95) ** 2
    assert tango_bounds(0, 0, n, 0.05, 0.05)[1] == pytest.approx(z2 / (n + z2), abs=1e-8)


def test_fewer_than_268_equal_answers_cannot_exclude_a_drop_of_one_percent() -> None:
    assert tango_bounds(0, 0, 267, 0.05, 0.05)[1] > 0.01
    assert tango_bounds(0, 0, 268, 0.05, 0.05)[1] <= 0.01


def test_a_candidate_that_loses_everything_has_a_bound_of_one() -> None:
    assert tango_bounds(30, 0, 30, 0.05, 0.05)[1] == 1.0
    assert tango_bounds(0, 30, 30, 0.05, 0.05)[0] == -1.0


def test_a_proportions_bounds_are_the_published_clopper_pearson_ones() -> None:
    # contingencytables (R), its own test of the exact interval: estimate 0.8125, 95 % CI 0.5435 to 0.9595.
    assert [round(x, 4) for x in proportion_bounds(13, 16, 0.025, 0.025)] == [0.5435, 0.9595]


@given(st.integers(1, 500), st.data())
@settings(max_examples=50)
def test_proportion_bounds_agree_with_scipy(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = scipy.stats.binomtest(k, n).proportion_ci(0.9, method="exact")
    assert proportion_bounds(k, n, 0.05, 0.05) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.integers(1, 3000), st.data())
@settings(max_examples=50)
def test_the_score_bound_of_zeros_and_ones_is_wilsons(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    p = k / n
    expected = scipy.stats.binomtest(k, n).proportion_ci(0.9, method="wilson").high
    assert score_bound(p, math.sqrt(p * (1 - p)), n, 1.0, 0.05) == pytest.approx(expected, abs=1e-9)


def test_a_bootstrap_without_variance_still_has_the_floor_of_few_examples() -> None:
    r = bootstrap(lambda _chosen: 0.0, 100, 1.0)
    z2 = scipy.stats.norm.ppf(0.95) ** 2
    assert bootstrap_bounds(r, 0.05, 0.05) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)))


def test_the_same_seed_gives_the_same_bounds() -> None:
    values = np.random.default_rng(0).normal(size=50)
    draw: Callable[[Any], float] = lambda i: float(values[i].mean())  # noqa: E731
    assert np.array_equal(bootstrap(draw, 50, 1.0).draws, bootstrap(draw, 50, 1.0).draws)
    assert not np.array_equal(bootstrap(draw, 50, 1.0).draws, bootstrap(draw, 50, 1.0, seed=1).draws)


def test_the_bootstraps_spread_is_the_standard_error_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=400)
    r = bootstrap(lambda i: float(values[i].mean()), 400, 1.0, resamples=4000)
    assert r.spread == pytest.approx(values.std() / 20, rel=0.05)


def test_a_pooled_metric_is_resampled_by_whole_examples() -> None:
    scores = [[1, 10], [0, 2], [3, 5]]
    value = value_on(Pooled(), scores)
    assert value(np.array([0, 0, 2])) == pytest.approx(5 / 25)


def test_a_metric_that_prepares_its_scores_is_asked_to() -> None:
    class Prepared(Pooled):
        def resampled(self, scores: Sequence[Any]) -> Callable[[Any], float]:
            return lambda chosen: 42.0

        def cost(self, scores: Sequence[Any]) -> int:
            return len(scores)

    assert value_on(Prepared(), [[1, 2]])(np.array([0])) == 42.0


@pytest.mark.parametrize("name", ["cer", "char_accuracy"])
def test_character_metrics_give_the_same_value_prepared_and_one_by_one(name: str) -> None:
    from edgeproof import registry

    metric = registry.load("metrics", name)()
    scores = [[1, 10], [0, 2], [3, 5], [7, 7]]
    chosen = np.array([3, 0, 0, 2])
    assert value_on(metric, scores)(chosen) == pytest.approx(metric.value([scores[i] for i in chosen]))


def test_span_is_one_for_shares_two_for_pooled_ones_and_the_range_for_other_numbers() -> None:
    assert span_of(Mean(), [0.2, 0.4]) == 1.0
    assert span_of(Pooled(), [[1, 10]]) == 2.0
    assert span_of(Run(), [10.0, 30.0], [5.0]) == 25.0


def test_intervals_for_display_follow_the_metrics_kind() -> None:
    assert interval(Exact(), [5]) == (None, None)
    assert interval(Proportion(), [1] * 13 + [0] * 3) == pytest.approx((0.5435, 0.9595), abs=1e-4)
    assert interval(Run(), [10.0, 11.0, 12.0]) == pytest.approx(run_bounds([10.0, 11.0, 12.0], 0.025, 0.025))
    assert interval(Run(), [10.0]) == (None, None)
    assert interval(Run(), [10.0, math.inf]) == (None, None)
    low, high = interval(Pooled(), [[0, 10]] * 30)
    assert low == 0.0
    assert high is not None
    assert 0.0 < high < 0.5


def test_runs_needed_is_the_least_number_that_decides() -> None:
    for threshold in (11, 12, 37, 512, 600_000):
        assert runs_needed(lambda m, t=threshold: m >= t, 10) == threshold - 10
    assert runs_needed(lambda _m: True, 10) == 1
    assert runs_needed(lambda _m: False, 10) is None


def test_a_speed_up_is_the_geometric_mean_of_the_pairs_with_its_t_interval():
    # By SciPy, on the logarithms of baseline / candidate.
    baseline, candidate = [10.0, 12.0, 11.0, 10.5], [5.0, 6.5, 5.2, 5.1]
    logs = np.log(np.array(baseline) / np.array(candidate))
    low, high = scipy.stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=scipy.stats.sem(logs))
    assert speedup(baseline, candidate) == pytest.approx((np.exp(logs.mean()), np.exp(low), np.exp(high)), rel=1e-9)
