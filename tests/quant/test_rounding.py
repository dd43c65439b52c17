"""Rounding against brute force, and the promise that it never does worse than rounding to nearest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgeproof.quant import numerics
from edgeproof.quant.rounding import gptq, output_error, round_weight


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


def test_a_filter_of_few_taps_finds_the_step_at_which_its_codes_add_up() -> None:
    # Taps that add up to nearly nothing, on columns that hold nearly one value: what rounding adds to the sum decides.
    w = np.random.default_rng(5).standard_normal((16, 1, 9))
    w -= w.mean(axis=2, keepdims=True)
    c = np.full((16, 9, 9), 100.0) + 0.1 * np.eye(9)
    p = numerics.weight_params(w.reshape(16, 1, 3, 3).astype(np.float32), 0)
    got, chosen = round_weight(w, c, p, reduce_range=False)
    plain = gptq(w, c, p.scale.reshape(16, 1), -127, 127)
    nearest_error = output_error(w - nearest(w, p.scale.reshape(16, 1)), c).sum()
    assert output_error(w - got, c).sum() <= output_error(w - plain, c).sum()
    assert output_error(w - got, c).sum() < nearest_error / 50
    assert (chosen.scale <= p.scale).all()
    codes = got / chosen.scale.reshape(16, 1, 1)
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-3)
    assert np.abs(np.rint(codes)).max() <= 127


def test_blocks_of_columns_make_what_one_column_after_the_other_makes() -> None:
    # Frantar et al. 2022, section 3.3: lazy updates change the order of the sums, not the algorithm.
    w = np.random.default_rng(6).standard_normal((1, 5, 150))
    c = covariance(150, 1.0)
    scale = np.abs(w).max(axis=2) / 127
    order = np.argsort(-np.diagonal(c[0]), kind="stable")
    inverse = np.linalg.inv(c[0][np.ix_(order, order)] + 1e-4 * np.diagonal(c[0]).mean() * np.eye(150))
    rest, want = w[0][:, order].copy(), np.empty((5, 150))
    for k in range(150):  # optimal brain surgeon, the inverse reduced column by column: no Cholesky factor, no blocks
        want[:, k] = np.clip(np.rint(rest[:, k] / scale[0]), -127, 127) * scale[0]
        rest -= np.outer((rest[:, k] - want[:, k]) / inverse[k, k], inverse[k])
        inverse -= np.outer(inverse[:, k], inverse[k]) / inverse[k, k]
    back = np.empty_like(want)
    back[:, order] = want
    np.testing.assert_allclose(gptq(w, c, scale, -127, 127, fallback=False)[0], back, atol=1e-9)


def test_one_step_for_a_whole_weight_stays() -> None:
    w = np.random.default_rng(7).standard_normal((1, 4, 8))
    p = numerics.weight_params(w[0].astype(np.float32), None)
    _, chosen = round_weight(w, covariance(8, 1.0), p, reduce_range=False)
    assert chosen is p
