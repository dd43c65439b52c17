"""Quantise a weight in blocks: a scale, and perhaps a zero point, for every few neighbours along one axis.

Outliers then spoil their own block only, which is what makes 4 bits usable. The step of a block is not simply its range
divided by the codes: a slightly smaller one clips the extreme value and rounds all others better, so a few candidates
are weighed by the squared error that they leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHRINK: tuple[float, ...] = tuple(float(f) for f in np.linspace(1.0, 0.6, 17))
"""Candidates for the step of a block, as shares of the one that clips nothing."""

_ROWS = 2**18
"""Numbers handled at a time."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight in blocks.

    Attributes:
        codes: int16, shaped like the weight; ``low`` to ``high``.
        scale: Step, float32, shaped like the weight but for ``axis``, which counts blocks.
        zero_point: Code of real zero, int16, shaped like scale; all 0 when symmetric.
        axis: Along which blocks lie, from 0.
        size: Numbers to a block; the last one may be shorter.
        bits: 2 to 8.
        symmetric: Codes are signed and zero is code 0; otherwise they count from 0.
    """

    codes: NDArray[np.int16]
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int16]
    axis: int
    size: int
    bits: int
    symmetric: bool

    def dequantized(self) -> NDArray[np.float32]:
        """The weight as a runtime sees it: ``(codes - zero_point) * scale``, float32."""
        length = self.codes.shape[self.axis]

        def wide(values: NDArray[Any]) -> NDArray[Any]:
            return np.repeat(values, self.size, self.axis).take(range(length), self.axis)

        centred = (self.codes - wide(self.zero_point)).astype(np.float32)
        real: NDArray[np.float32] = centred * wide(self.scale)
        return real


def quantize_blocks(
    weight: NDArray[np.float32],
    axis: int,
    size: int,
    bits: int,
    *,
    symmetric: bool,
    shrink: Sequence[float] = SHRINK,
) -> Blocks:
    """Quantise a weight in blocks.

    Args:
        weight: Finite real values, any rank ≥ 1, not empty.
        axis: Along which neighbours share a scale, best the one that the product sums over.
        size: Neighbours to a block; 0 makes one block of all.
        bits: 2 to 8.
        symmetric: Signed codes around zero; otherwise unsigned ones with a zero point, which use one-sided blocks
            fully.
        shrink: Candidates for the step; ``(1.0,)`` takes the one that clips nothing.

    Returns:
        Codes, scales and zero points. A block of zeros has scale 1.
    """
    axis %= weight.ndim
    length = weight.shape[axis]
    size = min(size or length, length)
    count = -(-length // size)
    rows = np.moveaxis(weight, axis, -1)
    lead = rows.shape[:-1]
    flat = np.zeros((int(np.prod(lead)), count * size), np.float32)
    flat[:, :length] = rows.reshape(-1, length)
    flat = flat.reshape(-1, size)
    codes = np.empty(flat.shape, np.int16)
    scale, zero = np.empty(len(flat), np.float32), np.empty(len(flat), np.int16)
    step = max(1, _ROWS // size)
    for at in range(0, len(flat), step):
        part = slice(at, at + step)
        codes[part], scale[part], zero[part] = _best(flat[part], bits, symmetric, shrink)
    back = codes.reshape(*lead, count * size)[..., :length]
    return Blocks(
        np.ascontiguousarray(np.moveaxis(back, -1, axis)),
        np.ascontiguousarray(np.moveaxis(scale.reshape(*lead, count), -1, axis)),
        np.ascontiguousarray(np.moveaxis(zero.reshape(*lead, count), -1, axis)),
        axis,
        size,
        bits,
        symmetric,
    )


def _best(
    blocks: NDArray[np.float32], bits: int, symmetric: bool, shrink: Sequence[float]
) -> tuple[NDArray[np.int16], NDArray[np.float32], NDArray[np.int16]]:
    """Per block [n, size], the candidate with the least squared error."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    bottom, top = np.minimum(blocks.min(1), 0.0), np.maximum(blocks.max(1), 0.0)
    widest = np.maximum(-bottom, top) / high if symmetric else (top - bottom) / high
    tiny = np.finfo(np.float32).tiny
    best_error = np.full(len(blocks), np.inf)
    codes = np.zeros(blocks.shape, np.int16)
    scale, zero = np.ones(len(blocks), np.float32), np.zeros(len(blocks), np.int16)
    for factor in shrink:
        step = np.where(widest > 0, np.maximum(widest * factor, tiny), 1.0).astype(np.float32)
        middle = np.zeros(len(blocks)) if symmetric else np.clip(np.rint(-bottom * factor / step), low, high)
        trial = np.clip(np.rint(blocks / step[:, None]) + middle[:, None], low, high)
        lost = (trial - middle[:, None]) * step[:, None] - blocks
        error = np.asarray(np.einsum("ij,ij->i", lost, lost, dtype=np.float64))
        better = error < best_error
        best_error = np.minimum(best_error, error)
        codes[better], scale[better], zero[better] = trial[better], step[better], middle[better]
    return codes, scale, zero
