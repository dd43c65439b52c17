"""Computations of quantised operators that are more than one call of torch."""

from __future__ import annotations

from typing import Any

from .at_run_time import to_float8


def register() -> None:
    """Load torch's decomposed quantisation operators."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401


def aligned(value: Any, x: Any, axis: int, block: int) -> Any:
    """A scale or zero point in a shape that broadcasts over ``x``."""
    if block:
        return value.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    if value.numel() == 1:
        return value.reshape(())
    return value.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])


def quantize_float8(x: Any, scale: Any, dtype: Any, axis: int, block: int, saturate: bool) -> Any:
    """Quantise to a float of eight bits."""
    return to_float8(x / aligned(scale, x, axis, block), dtype, saturate)


def dynamic_quantize(x: Any) -> tuple[Any, Any, Any]:
    """Codes, scale and zero point by the range of the very tensor (DynamicQuantizeLinear-11)."""
    import torch

    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((0 - low) / scale).clamp(0, 255)
    codes = (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8)
    return codes, scale, zero.to(torch.uint8)


def _centred(codes: Any, zero: Any, axis: int) -> Any:
    import torch

    wide = codes.to(torch.float64)
    return wide if zero is None else wide - aligned(zero, codes, axis, 0).to(torch.float64)


def _requantized(exact: Any, scale: Any, zero: Any, axis: int) -> Any:
    import torch

    ends = torch.iinfo(zero.dtype)
    steps = torch.round((exact * scale).to(torch.float32)).to(torch.float64) + aligned(zero, exact, axis, 0)
    return steps.clamp(ends.min, ends.max).to(zero.dtype)


def qlinear_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    """QLinearMatMul-21: a per row, b per column."""
    import torch

    left, right = _centred(a, a_zero, -2), _centred(b, b_zero, -1)
    exact = torch.matmul(left, right)
    rows = aligned(a_scale, exact, -2, 0).to(torch.float64)
    columns = aligned(b_scale, exact, -1, 0).to(torch.float64)
    return _requantized(exact, rows * columns / aligned(y_scale, exact, -2, 0).to(torch.float64), y_zero, -2)


How = tuple[list[int], list[int], list[int], list[int], int]
"""Step, padding before and behind, distance of taps, each per axis; and groups of a convolution."""


def conv_integer(x: Any, w: Any, x_zero: Any, w_zero: Any, how: How) -> Any:
    """ConvInteger-10: padded with the zero point, so with nothing once that is taken off."""
    import torch

    exact = _convolved(_centred(x, x_zero, 1), _centred(w, w_zero, 0), how)
    return exact.to(torch.int32)


def qlinear_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any, bias: Any,
    how: How,
) -> Any:  # fmt: skip
    """QLinearConv-10."""
    import torch

    exact = _convolved(_centred(x, x_zero, 1), _centred(w, w_zero, 0), how)
    if bias is not None:
        exact = exact + aligned(bias, exact, 1, 0).to(torch.float64)
    scale = x_scale.to(torch.float64) * aligned(w_scale, exact, 1, 0).to(torch.float64) / y_scale.to(torch.float64)
    return _requantized(exact, scale, y_zero, 1)


def _convolved(x: Any, w: Any, how: How) -> Any:
    import torch

    stride, begin, end, dilation, group = how
    flat = [p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair]
    function = getattr(torch.nn.functional, f"conv{len(stride)}d")
    return function(torch.nn.functional.pad(x, flat), w, None, stride, 0, dilation, group)
