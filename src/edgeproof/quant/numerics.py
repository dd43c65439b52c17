"""Affine quantisation from first principles: codes, scales, zero points and the error that they cost.

A real value ``x`` is stored as the code ``q = saturate(round_half_even(x / scale) + zero_point)`` and read back as
``(q - zero_point) * scale``. Real zero is always a code, so padding and ReLU cost nothing. Everything here is NumPy;
no model, no runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Dtype = Literal["uint8", "int8", "uint16", "int16"]
Array = NDArray[Any]

LEVELS: dict[tuple[Dtype, bool, bool], tuple[int, int]] = {
    ("uint8", False, False): (0, 255),
    ("uint8", True, False): (1, 255),
    ("int8", False, False): (-128, 127),
    ("int8", True, False): (-127, 127),
    ("uint8", False, True): (0, 127),
    ("uint8", True, True): (1, 127),
    ("int8", False, True): (-64, 63),
    ("int8", True, True): (-64, 64),
    ("uint16", False, False): (0, 65535),
    ("uint16", True, False): (1, 65535),
    ("int16", False, False): (-32768, 32767),
    ("int16", True, False): (-32767, 32767),
}
"""(dtype, symmetric, reduced range) → lowest and highest code in use. Reduced range keeps 7 bits, so that
``u8 * s8`` pairs cannot saturate the 16-bit sums of x86 CPUs without VNNI; it is a matter of 8-bit codes alone."""

_TINY = float(np.finfo(np.float32).tiny)
_HUGE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class QParams:
    """How real values map to codes.

    Attributes:
        scale: Step between codes, float32 [] or [C]; every entry > 0 and finite.
        zero_point: Code of real zero, of the code's dtype, shaped like scale.
        axis: Axis of the C channels in the tensor; None for one scale per tensor.
    """

    scale: NDArray[np.float32]
    zero_point: Array
    axis: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the codes."""
        return self.zero_point.dtype


def params(
    low: Array | float,
    high: Array | float,
    dtype: Dtype,
    *,
    symmetric: bool,
    reduce_range: bool = False,
    axis: int | None = None,
) -> QParams:
    """Scale and zero point that cover a range; the range is first widened to hold zero.

    Args:
        low: Lowest real value, [] or [C].
        high: Highest real value, [] or [C].
        dtype: Dtype of the codes.
        symmetric: Zero point fixed in the middle (0 for int8, 128 for uint8).
        reduce_range: Use 7 of the 8 bits.
        axis: Recorded in the result when low and high are per channel.

    Returns:
        Parameters whose scale is > 0 and finite. The empty range [0, 0] gets scale 1.

    Raises:
        InputError: quant.range, when a bound is NaN or infinite, or low > high.

    Source: Jacob et al. 2018, eq. 1 and 2; Nagel et al. 2021 (white paper), eq. 4 to 8.
    """
    # A range of all of float32 would overflow when its end codes are read back: cut it at 1e38.
    lo = np.clip(np.asarray(low, np.float64), -1e38 if np.isfinite(low).all() else None, 0.0)
    hi = np.clip(np.asarray(high, np.float64), 0.0, 1e38 if np.isfinite(high).all() else None)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all() and (np.asarray(low) <= np.asarray(high)).all()):
        raise InputError(
            "quant.range",
            "range",
            f"is [{low}, {high}]; expected finite bounds, lowest first",
            "check the data for NaN",
        )
    qmin, qmax = LEVELS[dtype, symmetric, reduce_range]
    if symmetric:
        centre = (qmin + qmax) // 2
        real = np.maximum(-lo, hi) / (qmax - centre)
    else:
        real = (hi - lo) / (qmax - qmin)
    real = np.where(real == 0.0, 1.0, np.clip(real, _TINY, _HUGE))
    scale = real.astype(np.float32)
    zero = np.full(scale.shape, centre) if symmetric else np.clip(np.rint(qmin - lo / real), qmin, qmax)
    return QParams(scale, zero.astype(dtype), axis)


def quantize(x: Array, p: QParams) -> Array:
    """Map real values to codes, rounding half to even.

    Args:
        x: Real values, [..., C, ...].
        p: Parameters; per-channel ones need ``axis``.

    Returns:
        Codes shaped like x. Out-of-range values saturate at the ends of the dtype.

    Raises:
        InputError: quant.scale, when a scale is zero, negative or not finite.

    Source: ONNX QuantizeLinear-21.
    """
    _check_scale(p.scale)
    info = np.iinfo(p.dtype)
    codes = np.asarray(x / spread(p.scale, x.ndim, p.axis))
    np.rint(codes, out=codes)
    codes += spread(p.zero_point, x.ndim, p.axis).astype(np.float32)
    np.clip(codes, info.min, info.max, out=codes)
    result: Array = codes.astype(p.dtype)
    return result


def dequantize(codes: Array, p: QParams) -> NDArray[np.float32]:
    """Map codes back to real values.

    Args:
        codes: Codes, [..., C, ...].
        p: The parameters that made them.

    Returns:
        ``(codes - zero_point) * scale``, float32, shaped like codes.

    Source: ONNX DequantizeLinear-21.
    """
    centred = codes.astype(np.int32) - spread(p.zero_point, codes.ndim, p.axis).astype(np.int32)
    real: NDArray[np.float32] = centred.astype(np.float32) * spread(p.scale, codes.ndim, p.axis)
    return real


def fake_quantize(x: Array, p: QParams) -> NDArray[np.float32]:
    """Real values after one trip through the codes."""
    return dequantize(quantize(x, p), p)


def weight_params(w: Array, axis: int | None, *, reduce_range: bool = False) -> QParams:
    """Symmetric int8 parameters of a weight from its largest magnitude.

    Args:
        w: Weight, any rank ≥ 1.
        axis: Output-channel axis, or None for one scale.
        reduce_range: Use 7 of the 8 bits.

    Returns:
        Parameters; a channel of zeros takes the least scale of the others, because the bias is counted in it too.

    Raises:
        InputError: quant.range, when the weight holds NaN or an infinity.
    """
    dims = tuple(i for i in range(w.ndim) if axis is None or i != axis)
    top = np.abs(w).max(axis=dims, initial=0.0)
    p = params(-top, top, "int8", symmetric=True, reduce_range=reduce_range, axis=axis)
    live = p.scale[top > 0] if p.scale.ndim else p.scale.reshape(-1)[np.atleast_1d(top) > 0]
    least = live.min() if live.size else np.float32(2.0**-100)
    return QParams(np.where(top > 0, p.scale, least).astype(np.float32), p.zero_point, axis)


def bias_codes(bias: Array, scale: NDArray[np.float32]) -> NDArray[np.int32]:
    """Bias as int32 accumulator counts.

    Args:
        bias: float32 [C].
        scale: Accumulator step: activation scale × weight scale, float32 [] or [C].

    Returns:
        int32 [C], saturated.
    """
    info = np.iinfo(np.int32)
    codes = np.clip(np.rint(bias.astype(np.float64) / scale.astype(np.float64)), info.min, info.max)
    return codes.astype(np.int32)


def fit_bias(p: QParams, bias: Array, activation_scale: float) -> QParams:
    """Widen weight scales that are too small for an int32 bias to be counted in.

    A channel whose weights are nearly zero would otherwise get a step so fine that its bias saturates.

    Args:
        p: Weight parameters, per channel or per tensor.
        bias: float32 [C].
        activation_scale: Step of the layer's input.
    """
    need = np.abs(bias.astype(np.float64)) / (activation_scale * 2.0**30)
    if p.scale.ndim == 0:
        need = np.asarray(need.max(initial=0.0))
    widest = np.maximum(p.scale.astype(np.float64), need)
    return QParams(np.clip(widest, _TINY, _HUGE).astype(np.float32), p.zero_point, p.axis)


def scaled(scale: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """A scale times a positive factor, kept > 0 and finite."""
    return np.clip(scale.astype(np.float64) * factor, _TINY, _HUGE).astype(np.float32)


def sqnr_db(reference: Array, got: Array) -> float:
    """Signal-to-quantisation-noise ratio in dB: ``10 log10(Σ ref² / Σ (ref - got)²)``.

    Returns:
        ``inf`` when both are equal, ``-inf`` when only noise is there, NaN when either holds NaN.
    """
    ref = np.asarray(reference, np.float64)
    noise = float(np.sum((ref - np.asarray(got, np.float64)) ** 2))
    signal = float(np.sum(ref**2))
    if noise == 0.0:
        return float("inf")
    if signal == 0.0:
        return float("-inf")
    return 10.0 * float(np.log10(signal / noise))


def spread(values: Array, rank: int, axis: int | None) -> Array:
    """Per-channel values shaped to broadcast along their axis."""
    if values.ndim == 0 or axis is None:
        return values
    shape: Sequence[int] = [1] * rank
    shape = [-1 if i == axis % rank else 1 for i in range(rank)]
    return values.reshape(shape)


def _check_scale(scale: Array) -> None:
    bad = np.flatnonzero(~(np.isfinite(scale) & (scale > 0)))
    if bad.size:
        first = np.atleast_1d(scale)[bad[0]]
        raise InputError(
            "quant.scale",
            "scale",
            f"is {first} for {bad.size} of {np.size(scale)} channels ({', '.join(map(str, bad[:8]))}); "
            "expected a finite number > 0",
            "derive it with quant.numerics.params",
        )
