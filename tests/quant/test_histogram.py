"""The streaming histogram against NumPy's, which sees all data at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgeproof.quant.histogram import Histogram

PARTS = st.lists(arrays(np.float32, st.integers(0, 50), elements=st.floats(-6e4, 6e4, width=16)), max_size=6)


def filled(parts: list[np.ndarray], bins: int = 64) -> Histogram:
    histogram = Histogram(bins, thin=False)
    for part in parts:
        assert histogram.update(part)
    return histogram


@given(PARTS)
def test_counts_equal_those_of_numpy_over_all_data_at_the_final_width(parts: list[np.ndarray]) -> None:
    everything = np.concatenate([np.zeros(0, np.float32), *parts]).astype(np.float64)
    counts, edges = filled(parts).counts()
    below = np.floor(everything / (edges[1] - edges[0])) - np.floor(edges[0] / (edges[1] - edges[0]))
    np.testing.assert_array_equal(counts, np.bincount(below.astype(int), minlength=len(counts)))


@given(PARTS, st.randoms())
def test_order_and_partition_of_the_data_do_not_matter(parts: list[np.ndarray], random: object) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    together = [np.concatenate([np.zeros(0, np.float32), *parts])]
    for other in (filled(shuffled), filled(together)):
        np.testing.assert_array_equal(filled(parts).counts()[0], other.counts()[0])
        assert filled(parts).width == other.width


@given(PARTS)
def test_minimum_and_maximum_are_exact(parts: list[np.ndarray]) -> None:
    everything = np.concatenate([np.zeros(1, np.float32), *parts])
    assert filled(parts).bounds() == (everything.min(), everything.max())


@settings(max_examples=30)
@given(st.floats(-1e3, 1e3, width=32), st.floats(0.125, 1e3, width=32))
def test_at_least_half_of_the_bins_lie_inside_the_range(low: float, span: float) -> None:
    histogram = filled([np.array([low, low + span], np.float32)])
    reach = histogram.bounds()[1] - histogram.bounds()[0]
    assert reach / histogram.width >= 64 / 2 - 1


def test_nothing_grows_with_the_number_of_samples() -> None:
    histogram = Histogram()
    rng = np.random.default_rng(0)
    for scale in np.geomspace(1e-6, 1e6, 100):
        histogram.update((rng.standard_normal(1000) * scale).astype(np.float32))
    assert histogram.seen == histogram.counted == 100_000
    assert histogram._counts.shape == (histogram.bins,)
    assert histogram._counts.sum() == 100_000


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_and_not_counted(bad: float) -> None:
    histogram = Histogram()
    assert histogram.update(np.array([1.0], np.float32))
    assert not histogram.update(np.array([2.0, bad], np.float32))
    assert (histogram.seen, histogram.high) == (1, 1.0)


def test_large_arrays_are_thinned_but_their_extremes_are_not() -> None:
    x = np.random.default_rng(0).standard_normal(3_000_000, np.float32)
    x[2_123_457], x[7] = 50.0, -40.0
    histogram = Histogram()
    for part in np.split(x, 10):
        histogram.update(part)
    assert histogram.bounds() == (-40.0, 50.0)
    assert histogram.seen == 3_000_000
    assert histogram.counted == pytest.approx(3_000_000, rel=0.02)  # the weights make up for what was left out
    full = filled([x], histogram.bins)
    counts, edges = histogram.counts()
    mine = np.cumsum(counts) / histogram.counted
    assert np.abs(mine - np.cumsum(full.counts()[0]) / full.counted).max() < 5e-3
    assert len(edges) == len(counts) + 1


def test_an_empty_histogram_and_one_of_zeros_have_the_empty_range() -> None:
    assert Histogram().bounds() == (0.0, 0.0)
    assert filled([np.zeros(5, np.float32)]).bounds() == (0.0, 0.0)
    assert filled([np.zeros((2, 0), np.float32)]).seen == 0


def test_other_float_types_are_counted() -> None:
    histogram = Histogram()
    histogram.update(np.array([1.0, 2.0], np.float16))
    histogram.update(np.array([3.0], np.float64))
    assert (histogram.high, histogram.seen) == (3.0, 3)


@pytest.mark.parametrize("samples", [8, 64, 512])
def test_about_as_many_values_are_counted_whatever_the_number_of_samples(samples: int) -> None:
    histogram = Histogram(expected=samples)
    rng = np.random.default_rng(samples)
    for _ in range(samples):
        histogram.update(rng.standard_normal(60_000, np.float32))
    kept = histogram.counted / histogram._weight
    assert 2**17 <= kept <= 2**18
    assert histogram.counted == pytest.approx(histogram.seen, rel=0.02)


def test_samples_weigh_alike_where_their_number_is_not_known_beforehand() -> None:
    histogram = Histogram()
    for value in range(40):  # one value per sample: its share of the counts is the sample's weight
        histogram.update(np.full(50_000, value + 0.5, np.float32))
    counts, edges = histogram.counts()
    weights = [counts[(edges[:-1] <= v + 0.5) & (v + 0.5 < edges[1:])].sum() for v in range(40)]
    np.testing.assert_allclose(weights, 50_000, rtol=0.1)


def test_thinning_locks_onto_no_place_of_equal_samples() -> None:
    histogram = Histogram(expected=512)
    row = np.tile(np.linspace(-1, 1, 4096, dtype=np.float32), 8)  # as long as channels of 64 x 64 are
    for _ in range(512):
        histogram.update(row)
    counts, edges = histogram.counts()
    shares = np.interp(np.linspace(-1, 1, 21), edges[1:], np.cumsum(counts) / histogram.counted)
    np.testing.assert_allclose(shares, np.linspace(0, 1, 21), atol=5e-3)


def test_an_array_of_several_samples_counts_as_so_many() -> None:
    together, apart = Histogram(expected=64), Histogram(expected=64)
    rng = np.random.default_rng(1)
    for _ in range(16):
        block = rng.standard_normal((4, 30_000), np.float32)
        together.update(block, 4)
        for row in block:
            apart.update(row)
    assert (together.samples, together.seen, together.bounds()) == (apart.samples, apart.seen, apart.bounds())
    assert together._weight == apart._weight
