"""Range methods against exhaustive searches and known distributions."""

from __future__ import annotations

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.quant import numerics
from edgeproof.quant.histogram import Histogram
from edgeproof.quant.ranges import METHODS, clipped_share, find_range


def seen(x: np.ndarray) -> Histogram:
    histogram = Histogram(thin=False)
    histogram.update(x.astype(np.float32))
    return histogram


def laplace(n: int = 200_000) -> np.ndarray:
    return np.random.default_rng(0).laplace(size=n).astype(np.float32)


def heavy(n: int = 200_000) -> np.ndarray:
    return np.random.default_rng(0).standard_t(3, size=n).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sign", ["both", "positive", "negative"])
def test_every_range_holds_zero_and_stays_inside_the_extremes(method: str, sign: str) -> None:
    x = {"both": laplace(), "positive": np.abs(laplace()), "negative": -np.abs(laplace())}[sign]
    low, high = find_range(seen(x), method)
    assert min(x.min(), 0) <= low <= 0 <= high <= max(x.max(), 0)
    assert low < high


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_and_a_constant_tensor_have_a_range(method: str) -> None:
    assert find_range(Histogram(), method) == (0.0, 0.0)
    assert find_range(seen(np.zeros(9)), method) == (0.0, 0.0)
    low, high = find_range(seen(np.full(9, 4.0)), method)
    assert low == 0.0
    assert high == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize("share", [99.0, 99.9, 99.99])
def test_percentile_agrees_with_numpy(share: float) -> None:
    x = heavy()
    low, high = find_range(seen(x), "percentile", percentile=share)
    tail = (100 - share) / 2
    width = seen(x).width
    assert low == pytest.approx(np.percentile(x, tail), abs=2 * width + 0.02 * abs(low))
    assert high == pytest.approx(np.percentile(x, 100 - tail), abs=2 * width + 0.02 * high)


def test_percentile_100_is_minmax() -> None:
    x = heavy()
    assert find_range(seen(x), "percentile", percentile=100.0) == find_range(seen(x), "minmax")


def test_percentile_does_not_reach_into_the_gap_before_an_outlier() -> None:
    x = np.concatenate([np.linspace(0, 1, 100_000), [1000.0]])
    assert find_range(seen(x), "percentile", percentile=99.9)[1] < 1.5


def test_entropy_cuts_heavy_tails_and_is_not_minmax() -> None:
    x = heavy()
    top = np.abs(x).max()
    low, high = find_range(seen(x), "entropy")
    assert high < 0.7 * top
    assert clipped_share(seen(x), (low, high)) < 0.02


def test_entropy_leaves_a_uniform_distribution_whole() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 500_000)
    low, high = find_range(seen(x), "entropy")
    assert low < -0.97
    assert high > 0.97


def test_a_spike_at_zero_does_not_draw_the_entropy_range_towards_it() -> None:
    x = np.abs(laplace())
    sparse = np.concatenate([x, np.zeros(3 * x.size)])
    assert find_range(seen(sparse), "entropy")[1] == pytest.approx(find_range(seen(x), "entropy")[1], rel=0.15)


@pytest.mark.parametrize("sample", [laplace(), heavy(), np.abs(heavy())])
def test_mse_is_within_two_percent_of_the_best_cut_on_the_data_itself(sample: np.ndarray) -> None:
    def error(low: float, high: float) -> float:
        p = numerics.params(low, high, "uint8", symmetric=False)
        return float(np.mean((numerics.fake_quantize(sample, p) - sample) ** 2))

    top = np.abs(sample).max()
    best = min(error(max(-t, min(sample.min(), 0)), min(t, sample.max())) for t in np.linspace(0.02, 1, 99) * top)
    assert error(*find_range(seen(sample), "mse")) <= 1.02 * best


def test_methods_order_as_expected_on_heavy_tails() -> None:
    x = heavy()
    high = {m: find_range(seen(x), m)[1] for m in METHODS}
    assert high["minmax"] > high["mse"] > 0
    assert high["minmax"] > high["percentile"]
    assert len({high[m] for m in METHODS if m != "auto"}) == len(METHODS) - 1


def test_clipped_share_equals_the_count_outside() -> None:
    x = laplace()
    got = clipped_share(seen(x), (-2.0, 3.0))
    assert got == pytest.approx(np.mean((x < -2) | (x > 3)), abs=2e-4)
    assert clipped_share(seen(x), seen(x).bounds()) == pytest.approx(0.0, abs=1e-12)


def test_an_unknown_method_is_named_with_its_neighbour() -> None:
    with pytest.raises(InputError, match="did you mean 'entropy'"):
        find_range(seen(laplace()), "entropie")
    with pytest.raises(InputError, match="expected above 50 and at most 100"):
        find_range(seen(laplace()), "percentile", percentile=0.9999)


def test_auto_takes_for_every_tensor_the_range_of_another_method_with_the_least_error() -> None:
    for x in (laplace(), heavy(), np.abs(laplace()), np.random.default_rng(1).uniform(-1, 1, 100_000)):
        histogram = seen(x)
        ranges = {m: find_range(histogram, m) for m in METHODS}

        def error(ends: tuple[float, float], values: np.ndarray = x) -> float:
            p = numerics.params(*ends, "uint8", symmetric=False)
            got = numerics.fake_quantize(values.astype(np.float32), p)
            return float(np.sum((got.astype(np.float64) - values) ** 4))

        assert ranges["auto"] in [r for m, r in ranges.items() if m != "auto"]
        assert error(ranges["auto"]) <= 1.05 * min(error(r) for r in ranges.values())


def test_auto_does_not_cut_a_few_values_far_out_as_squares_would() -> None:
    x = np.concatenate([np.random.default_rng(0).standard_normal(200_000), [40.0, 41.0]])
    assert find_range(seen(x), "mse")[1] < 36.0
    assert find_range(seen(x), "auto")[1] > 40.0
