"""Operators in which training differs from tinygrad's ONNX runner: quantisers and batch norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .runner_graph import Prepared, Quantiser

Operator = Callable[..., Any]
Noted = Callable[[Any, Any], None]


def table_of(graph: Prepared, noted: Noted | None) -> dict[str, Operator]:
    """Operator name → function, for the runner's table.

    Args:
        graph: For its quantisers.
        noted: Told about a running statistic and what it is to become; None where batch norms use what is stored.
    """
    makers = {"quantize": _quantize, "dequantize": _dequantize, "held": _held}
    table = {name: makers[q.kind](q) for name, q in graph.quantisers.items()}
    if noted is not None:
        table["BatchNormalization"] = _batch_norm(noted)
    return table


def rounded(x: Any, scale: Any, zero: Any, q: Quantiser) -> Any:
    """Codes as floats, through which gradients pass; nothing passes where a code was clipped."""
    steps = x / scale
    # Both differences are exact, so that this is the rounded number to the last bit.
    codes = steps + (steps.round() - steps).detach()
    if zero is not None:
        codes = codes + zero
    inside = (codes >= q.low) & (codes <= q.high)
    # Kept in memory: without, every use computes it anew inside its kernel (a third more to compile, twice the step).
    return inside.where(codes, codes.detach().clip(q.low, q.high)).contiguous()


def _quantize(q: Quantiser) -> Operator:
    def quantize(x: Any, scale: Any, **_attributes: Any) -> Any:
        return rounded(x, _aligned(scale, x, q), _zero(x, q), q)

    return quantize


def _dequantize(q: Quantiser) -> Operator:
    def dequantize(codes: Any, scale: Any, **_attributes: Any) -> Any:
        codes = codes.cast("float32")
        zero = _zero(codes, q)
        return (codes if zero is None else codes - zero) * _aligned(scale, codes, q)

    return dequantize


def _held(q: Quantiser) -> Operator:
    def held(floats: Any, scale: Any, other: Any = None, **_attributes: Any) -> Any:
        step = _aligned(scale if other is None else scale.reshape(-1) * other.reshape(-1), floats, q)
        zero = _zero(floats, q)
        if q.high > 1 << 24:  # counts of 32 bits need more digits than float32 has
            codes = rounded(floats.cast("float64"), step.cast("float64"), zero, q).cast("float32")
        else:
            codes = rounded(floats, step, zero, q)
        return (codes if zero is None else codes - zero) * step

    return held


def _zero(x: Any, q: Quantiser) -> Any:
    if q.zero is None:
        return None
    from tinygrad import Tensor

    return _aligned(Tensor(q.zero.reshape(q.zero.shape or (1,)), device=x.device), x, q).cast(x.dtype)


def _aligned(values: Any, x: Any, q: Quantiser) -> Any:
    """A scale or zero point in a shape that broadcasts over ``x``."""
    if q.block:
        many = values.repeat_interleave(q.block, q.axis)
        return many.shrink(tuple((0, int(n)) for n in x.shape))
    if values.numel() == 1:
        return values.reshape([1] * x.ndim)
    return values.reshape([-1 if i == q.axis % x.ndim else 1 for i in range(x.ndim)])


def _batch_norm(noted: Noted) -> Operator:
    """By the statistics of the batch; the running ones follow, the variance as an unbiased one."""

    def batch_norm(
        x: Any,
        scale: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        **_rest: Any,
    ) -> Any:
        axes = tuple(i for i in range(x.ndim) if i != 1)
        shape = [1, -1] + [1] * (x.ndim - 2)
        middle = x.mean(axes)
        apart = x - middle.reshape(shape)
        spread = apart.square().mean(axes)
        count = x.numel() // x.shape[1]
        noted(mean, mean * momentum + middle.detach() * (1 - momentum))
        noted(variance, variance * momentum + spread.detach() * ((1 - momentum) * count / max(count - 1, 1)))
        return apart / (spread + epsilon).sqrt().reshape(shape) * scale.reshape(shape) + bias.reshape(shape)

    return batch_norm
