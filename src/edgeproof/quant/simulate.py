"""Quantise to any number of bits without a dtype that has them: real values are snapped to a grid and stay real."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .numerics import Array, spread

BITS = range(2, 17)
_TINY, _HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of a step that values are snapped to.

    Attributes:
        step: Between neighbours, float32 [] or [C], > 0.
        lowest: Lowest multiple, float32, shaped like step.
        highest: Highest multiple, float32, shaped like step.
        axis: Axis of the C channels; None for one step.
    """

    step: NDArray[np.float32]
    lowest: NDArray[np.float32]
    highest: NDArray[np.float32]
    axis: int | None = None

    def snap(self, x: Array) -> NDArray[np.float32]:
        """The nearest grid point of every value, halves to the even multiple, float32, shaped like x."""
        step, lowest, highest = (spread(v, x.ndim, self.axis) for v in (self.step, self.lowest, self.highest))
        snapped: NDArray[np.float32] = np.clip(np.rint(x / step), lowest, highest).astype(np.float32) * step
        return snapped


def grid(low: Array | float, high: Array | float, bits: int, *, symmetric: bool, axis: int | None = None) -> Grid:
    """The grid that covers a range with 2^bits points, or 2^bits - 1 when symmetric; zero is one of them.

    Args:
        low: Lowest real value, [] or [C]; the range is widened to hold zero.
        high: Highest real value, [] or [C].
        bits: 2 to 16.
        symmetric: As many points above zero as below it.
        axis: Recorded in the result when low and high are per channel.

    Raises:
        InputError: quant.bits.

    With 8 and with 16 bits this is `numerics.params` in another form.
    """
    if bits not in BITS:
        raise InputError("quant.bits", "bits", f"is {bits}; expected {BITS.start} to {BITS.stop - 1}", "try 8")
    lo, hi = np.minimum(np.asarray(low, np.float64), 0.0), np.maximum(np.asarray(high, np.float64), 0.0)
    if symmetric:
        top = 2 ** (bits - 1) - 1
        real = np.maximum(-lo, hi) / top
    else:
        top = 2**bits - 1
        real = (hi - lo) / top
    real = np.where(real == 0.0, 1.0, np.clip(real, _TINY, _HUGE))
    below = np.full(real.shape, top) if symmetric else np.clip(np.rint(-lo / real), 0, top)
    above = np.full(real.shape, top) if symmetric else top - below
    return Grid(real.astype(np.float32), (-below).astype(np.float32), above.astype(np.float32), axis)


def weight_grid(w: Array, bits: int, axis: int | None) -> Grid:
    """Symmetric grid of a weight from its largest magnitude, one step per output channel along ``axis``."""
    dims = tuple(i for i in range(w.ndim) if axis is None or i != axis)
    top = np.abs(w).max(axis=dims, initial=0.0)
    return grid(-top, top, bits, symmetric=True, axis=axis)
