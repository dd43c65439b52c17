"""ONNX's quantisation as torch functions through which gradients pass.

Forward: divide, round half to even, add the zero point, saturate; and back to floats. Backward: the rounding is passed
over, what was clipped has no gradient, and the scale's is that of LSQ. `snapped` does both steps in one, with fewer
passes over memory; `rounded` and `real` are the halves, for codes that are moved about in between.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..fx.quantising import aligned


def snapped(x: Any, scale: Any, zero: Any, low: int, high: int, axis: int, block: int = 0) -> Any:
    """Floats on the grid of a scale: `real` of `rounded`.

    Args:
        x: Floats.
        scale: Scalar, or one per channel along ``axis``.
        zero: Likewise, or None for 0.
        low: Smallest code.
        high: Largest code.
        axis: Of the channels.
        block: Values along ``axis`` that share a scale; 0 for one scale per channel.
    """
    step = aligned(scale, x, axis, block)
    point = None if zero is None else aligned(zero, x, axis, block).to(x.dtype)
    if x.requires_grad or step.requires_grad:
        return _functions()[1].apply(x, step, point, low, high)
    return _snap(x, step, point, low, high)[0]


def _snap(x: Any, step: Any, point: Any, low: int, high: int) -> tuple[Any, Any, Any]:
    """The value, its codes less the zero point, and those before they were clipped."""
    import torch

    whole = torch.div(x, step.to(x.dtype)).round_()
    codes = whole.clamp(low, high) if point is None else whole.add(point).clamp_(low, high).sub_(point)
    return torch.mul(codes.to(torch.float32), step), codes, whole


def rounded(x: Any, scale: Any, zero: Any, low: int, high: int, axis: int, block: int = 0) -> Any:
    """Codes as floats; arguments as for `snapped`."""
    import torch

    codes = torch.div(x, aligned(scale, x, axis, block).to(x.dtype))
    codes = _functions()[0].apply(codes) if codes.requires_grad else codes.round()
    if zero is not None:
        codes = codes + aligned(zero, x, axis, block).to(x.dtype)
    return torch.clamp(codes, low, high)


def real(codes: Any, scale: Any, zero: Any, axis: int, block: int = 0) -> Any:
    """Floats of codes."""
    import torch

    if zero is not None:
        codes = codes - aligned(zero, codes, axis, block).to(codes.dtype)
    return torch.mul(codes.to(torch.float32), aligned(scale, codes, axis, block))


@lru_cache(maxsize=1)
def _functions() -> tuple[Any, Any]:
    """Rounding whose gradient passes unchanged, and `snapped` with its gradients."""
    import torch

    class StraightThrough(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_ctx: Any, x: Any) -> Any:
            return x.round()

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            return gradients[0]

    class Snapped(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, step: Any, point: Any, low: int, high: int) -> Any:
            value, codes, whole = _snap(x, step, point, low, high)
            ctx.kind = x.dtype
            ctx.save_for_backward(codes == whole, *((x, codes, step) if ctx.needs_input_grad[1] else ()))
            return value

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (gradient,) = gradients
            inside, *more = ctx.saved_tensors
            passed = gradient * inside
            grown = None
            if more:
                # Equation 3 of LSQ, round(x / s) − x / s inside and the end of the range outside, summed over what
                # shares a scale: Σ g · codes − Σ g · inside · x / s.
                x, codes, step = more
                grown = _summed(gradient, codes, step) - _summed(passed, x, step) / step
                grown = grown.to(step.dtype)
            return passed.to(ctx.kind), grown, None, None, None

    return StraightThrough, Snapped


def _summed(a: Any, b: Any, like: Any) -> Any:
    """Sum of products over everything that shares a scale."""
    import torch

    kind = torch.promote_types(a.dtype, b.dtype)
    if like.numel() == 1:
        return torch.dot(a.reshape(-1).to(kind), b.reshape(-1).to(kind)).reshape(like.shape)
    return (a * b).sum_to_size(like.shape)
