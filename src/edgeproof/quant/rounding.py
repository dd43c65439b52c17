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

DAMPING = 1e-4
"""Share of the mean of the diagonal that is added to it. Taps of one window see nearly the same values, so that what
a filter answers to lies in directions a thousandth as strong as the diagonal; damping must not drown these."""

SHARES = (1.0, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.81, 0.78, 0.74, 0.7)
"""Steps that `round_weight` tries for every output, as shares of the one that covers its largest weight."""

BLOCK = 32
"""Columns that are rounded before the rest is told."""

NARROW = 32
"""Columns of this many taps or fewer are cheap enough for many more steps."""

MANY_SHARES = tuple(float(s) for s in np.linspace(1.0, 0.7, 61))

Matrix = NDArray[Any]


def gptq(
    weight: Matrix, covariance: Matrix, scale: Matrix, low: int, high: int, *, fallback: bool = True
) -> NDArray[np.float64]:
    """Weights on the grid of their codes, rounded column by column.

    Args:
        weight: [G, O, K].
        covariance: Of the columns, [G, K, K], symmetric and positive semidefinite.
        scale: Step between codes, [G, O] > 0.
        low: Lowest code.
        high: Highest code.
        fallback: Return the weights rounded to nearest where they err less.

    Returns:
        [G, O, K]: codes times scale. Its output error ``tr(D C Dᵀ)`` is, summed per group, no larger than that of
        rounding to nearest, which is returned for a group where it is the better of the two.
    """
    w = weight.astype(np.float64)
    step = np.asarray(scale, np.float64)[..., None]
    nearest = np.clip(np.rint(w / step), low, high) * step
    order, factor = _factor(covariance.astype(np.float64))
    # Single precision is enough for what is passed on to other columns, and takes half the time.
    work = np.take_along_axis(w, order[:, None, :], axis=2).astype(np.float32)
    upper, short = factor.astype(np.float32), step[..., 0].astype(np.float32)
    width = work.shape[2]
    for first in range(0, width, BLOCK):
        last = min(first + BLOCK, width)
        errors = np.empty((*work.shape[:2], last - first), np.float32)
        for k in range(first, last):
            column = work[:, :, k]
            codes = np.clip(np.rint(column / short), low, high) * short
            error = (column - codes) / upper[:, k, k, None]
            work[:, :, k + 1 : last] -= error[:, :, None] * upper[:, None, k, k + 1 : last]
            work[:, :, k] = codes
            errors[:, :, k - first] = error
        # The rest takes up the errors of a block at once: one product instead of many passes over the weights.
        work[:, :, last:] -= errors @ upper[:, first:last, last:]
    made = np.empty_like(w)
    np.put_along_axis(made, order[:, None, :], work, axis=2)
    made = np.rint(made / step) * step
    if not fallback:
        return made
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


def round_weight(
    weight: Matrix, covariance: Matrix, p: numerics.QParams, *, reduce_range: bool
) -> tuple[Matrix, numerics.QParams]:
    """Round a weight with `gptq`, at the step for every output with which its output errs least.

    A shorter step clips the largest weight a little and puts all others on another grid. For a filter of few taps,
    whose codes must add up to almost nothing, that choice decides.

    Args:
        weight: [G, O, K].
        covariance: Of the columns, [G, K, K].
        p: Parameters that cover the weight; those per channel are in the order of the outputs.
        reduce_range: Codes of 7 bits.

    Returns:
        The rounded weight, [G, O, K], and its parameters. One step for all of a weight is left as it is.
    """
    low, high = numerics.LEVELS["int8", True, reduce_range]
    groups, outputs, width = weight.shape
    scale = np.broadcast_to(p.scale.reshape(-1), (groups * outputs,)).reshape(groups, outputs)
    if p.axis is None:
        return gptq(weight, covariance, scale, low, high), p
    shares = np.array(MANY_SHARES if width <= NARROW else SHARES, np.float32)
    steps = (scale[:, None, :] * shares[None, :, None]).astype(np.float32)  # [G, tries, O]
    tried = gptq(
        np.tile(weight, (1, len(shares), 1)), covariance, steps.reshape(groups, -1), low, high, fallback=False
    ).reshape(groups, len(shares), outputs, width)
    nearest = np.clip(np.rint(weight / scale[..., None]), low, high) * scale[..., None].astype(np.float64)
    tried = np.concatenate([tried, nearest[:, None]], axis=1)
    difference = (weight[:, None] - tried).astype(np.float32)
    errors = np.einsum("gtok,gtok->gto", difference @ covariance[:, None].astype(np.float32), difference)
    best = errors.argmin(axis=1)  # [G, O]
    made = np.take_along_axis(tried, best[:, None, :, None], axis=1)[:, 0]
    chosen = scale * np.append(shares, np.float32(1.0))[best]
    return made, numerics.QParams(chosen.reshape(p.scale.shape).astype(np.float32), p.zero_point, p.axis)


def _factor(covariance: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Order of the columns, largest second moment first, and the upper Cholesky factor of the inverse in that order."""
    width = covariance.shape[-1]
    diagonal = np.diagonal(covariance, axis1=1, axis2=2)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    sorted_ = np.take_along_axis(np.take_along_axis(covariance, order[:, :, None], 1), order[:, None, :], 2)
    mean = diagonal.mean(axis=1)
    damp = np.where(mean > 0, DAMPING * mean, 1.0)
    while True:
        inverse = np.linalg.inv(sorted_ + damp[:, None, None] * np.eye(width))
        try:
            lower = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2)
        except np.linalg.LinAlgError:  # sums in float32 are positive semidefinite up to rounding only
            damp = damp * 10.0
            continue
        upper: NDArray[np.float64] = np.asarray(lower.transpose(0, 2, 1), np.float64)
        return order, upper
