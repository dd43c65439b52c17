"""Rounding against brute force, and the promise that it never does worse than rounding to nearest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgeproof.quant.rounding import gptq, output_error


def covariance(width: int, correlation: float, seed: int = 0, groups: int = 1) -> np.ndarray:
    """Of columns that share a part of their values."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((groups, width, 400)) + correlation * 3 * rng.standard_normal((groups, 1, 400))
    return x @ x.transpose(0, 2, 1) / 400


def nearest(w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(w / scale[..., None]), -127, 127) * scale[..., None]


@pytest.mark.parametrize("seed", range(5))
def test_correlated_columns_err_less_than_with_rounding_to_nearest_and_near_the_best_of_all_roundings(
    seed: int,
) -> None:
    w = np.random.default_rng(seed).uniform(-3, 3, (1, 1, 8))
    c, scale = covariance(8, 1.0, seed), np.ones((1, 1))
    best = min(output_error(w - (np.floor(w) + np.array(up)), c)[0] for up in itertools.product((0.0, 1.0), repeat=8))
    got = output_error(w - gptq(w, c, scale, -127, 127), c)[0]
    assert best * 0.5 <= got <= output_error(w - nearest(w, scale), c)[0]
    assert got <= 6 * best


def test_the_mean_gain_over_nearest_on_correlated_columns_is_large() -> None:
    w = np.random.default_rng(1).uniform(-3, 3, (20, 4, 32))
    c, scale = covariance(32, 1.0, groups=20), np.full((20, 4), 0.1)
    ratio = output_error(w - nearest(w, scale), c) / output_error(w - gptq(w, c, scale, -127, 127), c)
    assert np.mean(ratio) > 2.0


def test_uncorrelated_columns_are_rounded_to_nearest() -> None:
    w = np.random.default_rng(2).uniform(-3, 3, (3, 4, 9))
    scale = np.full((3, 4), 0.05)
    c = np.broadcast_to(np.eye(9), (3, 9, 9)) * 2.0
    np.testing.assert_array_equal(gptq(w, c, scale, -127, 127), nearest(w, scale))


def test_every_weight_lies_on_the_grid_of_its_channel_and_inside_the_codes() -> None:
    w = np.random.default_rng(3).standard_normal((2, 5, 16))
    scale = np.abs(w).max(axis=2) / 7
    codes = gptq(w, covariance(16, 1.0, groups=2), scale, -7, 7) / scale[..., None]
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-9)
    assert np.abs(np.rint(codes)).max() <= 7


def test_columns_that_never_spoke_do_no_harm() -> None:
    w = np.random.default_rng(4).standard_normal((1, 3, 4))
    c = np.zeros((1, 4, 4))
    scale = np.full((1, 3), 0.01)
    np.testing.assert_array_equal(gptq(w, c, scale, -127, 127), nearest(w, scale))
