"""Take the mean of a layer's error out of its outputs, through its bias.

Quantised weights Ŵ and inputs x̂ shift a layer's outputs by ``E[Ŵ x̂] - E[W x]`` per channel. What calibration sees of
the columns of x gives both means, so the shift is known without running the integer model, and all layers are corrected
at once: each against its own error, so that nothing is corrected twice.

Source: Nagel et al. 2019, data-free quantization, section 4.2 (eq. 16 to 18), with measured instead of assumed means;
the shift of the inputs' rounding and clipping is counted in as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .moments import Moments

Matrix = NDArray[Any]


def shift(weight: Matrix, rounded: Matrix, moments: Moments) -> NDArray[np.float64]:
    """What to add to a layer's bias so that the mean of its outputs is that of the float layer.

    Args:
        weight: Float weight, [G, O, K].
        rounded: What the codes make of it, [G, O, K].
        moments: Of the layer's columns.

    Returns:
        ``W E[x] - Ŵ E[x̂]``, [G · O], in the unit of the outputs; zeros when nothing was seen.
    """
    if not moments.count:
        return np.zeros(weight.shape[0] * weight.shape[1])
    real = np.einsum("gok,gk->go", weight.astype(np.float64), moments.real / moments.count)
    seen = np.einsum("gok,gk->go", rounded.astype(np.float64), moments.seen / moments.count)
    return np.asarray(real - seen).reshape(-1)
