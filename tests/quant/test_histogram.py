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
