"""Round weights so that the layer's output errs least, not each weight: closed form, from second moments.

Rounding to nearest minimises the error of every weight alone. The error of the output is ``tr(D C Dᵀ)`` with D the
error of the weights [O, K] and C the covariance of the layer's columns [K, K]; where columns are correlated, errors can
be made to cancel. Weights are rounded one column after another, and the rest takes up the error that was made.

Source: Frantar et al. 2022, GPTQ, algorithm 1 and eq. 2 and 3, after Hassibi and Stork 1993 (optimal brain surgeon).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import numerics

DAMPING = 0.01
"""Share of the mean of the diagonal that is added to it."""

Matrix = NDArray[Any]


def gptq(weight: Matrix, covariance: Matrix, scale: Matrix, low: int, high: int) -> NDArray[np.float64]:
    """Weights on the grid of their codes, rounded column by column.

    Args:
        weight: [G, O, K].
        covariance: Of the columns, [G, K, K], symmetric and positive semidefinite.
        scale: Step between codes, [G, O] > 0.
        low: Lowest code.
        high: Highest code.

    Returns:
        [G, O, K]: codes times scale. Its output error ``tr(D C Dᵀ)`` is, summed per group, no larger than that of
        rounding to nearest, which is returned for a group where it is the better of the two.
    """
    w = weight.astype(np.float64)
    step = np.asarray(scale, np.float64)[..., None]
    nearest = np.clip(np.rint(w / step), low, high) * step
    order, upper = _factor(covariance.astype(np.float64))
    work = np.take_along_axis(w, order[:, None, :], axis=2)
    for k in range(work.shape[2]):
        column = work[:, :, k]
        codes = np.clip(np.rint(column / step[..., 0]), low, high) * step[..., 0]
        error = (column - codes) / upper[:, k, k, None]
        work[:, :, k + 1 :] -= error[:, :, None] * upper[:, None, k, k + 1 :]
        work[:, :, k] = codes
    made = np.empty_like(work)
    np.put_along_axis(made, order[:, None, :], work, axis=2)
    worse = output_error(w - made, covariance) > output_error(w - nearest, covariance)
    return np.where(worse[:, None, None], nearest, made)


def output_error(difference: Matrix, covariance: Matrix) -> NDArray[np.float64]:
    """Expected squared error of the outputs, summed over a group's outputs: [G].

    Args:
        difference: Error of the weights, [G, O, K].
        covariance: Of the columns, [G, K, K].
    """
    error: NDArray[np.float64] = np.sum((difference @ covariance) * difference, axis=(1, 2))
    return error


def round_weight(weight: Matrix, covariance: Matrix, p: numerics.QParams, *, reduce_range: bool) -> Matrix:
    """`gptq` for a weight as [G, O, K] and its parameters; those per channel are in the order of the outputs."""
    low, high = numerics.LEVELS["int8", True, reduce_range]
    scale = np.broadcast_to(p.scale.reshape(-1), (weight.shape[0] * weight.shape[1],)).reshape(weight.shape[:2])
    return gptq(weight, covariance, scale, low, high)


def _factor(covariance: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Order of the columns, largest second moment first, and the upper Cholesky factor of the inverse in that order."""
    width = covariance.shape[-1]
    diagonal = np.diagonal(covariance, axis1=1, axis2=2)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    sorted_ = np.take_along_axis(np.take_along_axis(covariance, order[:, :, None], 1), order[:, None, :], 2)
    mean = diagonal.mean(axis=1)
    damp = np.where(mean > 0, DAMPING * mean, 1.0)
    inverse = np.linalg.inv(sorted_ + damp[:, None, None] * np.eye(width))
    lower = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2)
    upper: NDArray[np.float64] = np.asarray(lower.transpose(0, 2, 1), np.float64)
    return order, upper
