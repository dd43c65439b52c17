"""Pools, norms, products and reductions that torch has no single function for.

Plain functions on tensors, so that a graph can call them, an export can look into them, and gradients flow.
"""

from __future__ import annotations

from typing import Any


def cropped(x: Any, begin: list[int], end: list[int]) -> Any:
    """Cut the spatial axes; a negative number pads."""
    import torch

    flat = [-p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair]
    return torch.nn.functional.pad(x, flat)


How = tuple[list[int], list[int], list[int], list[int], list[int], bool]
"""Windows of a pool: their size, step, padding before and behind, distance of taps, each per axis; and whether a last
window that is not full counts. One that would begin in the padding behind does not."""


def taps(x: Any, how: How, fill: float) -> tuple[Any, Any]:
    """The elements under each window.

    Args:
        x: [N, C, d1, …].
        how: The windows.
        fill: Value of padding.

    Returns:
        Elements [N, C, o1, …, k1, …]; whether each lies in the padded input (a 1 or 0), [1, 1, o1, …, k1, …].
    """
    import torch

    kernel, stride, begin, end, dilation, ceil = how
    axes = len(kernel)
    sizes = list(x.shape[2:])
    valid = torch.ones(1)
    for i in range(axes):
        reach = (kernel[i] - 1) * dilation[i] + 1
        free = sizes[i] + begin[i] + end[i] - reach
        count = (-(-free // stride[i]) if ceil else free // stride[i]) + 1
        if ceil and (count - 1) * stride[i] >= sizes[i] + begin[i]:
            count -= 1
        at = torch.arange(count)[:, None] * stride[i] + torch.arange(kernel[i])[None, :] * dilation[i] - begin[i]
        picked = x.index_select(2 + i, at.reshape(-1).clamp(0, sizes[i] - 1))
        inside = ((at >= 0) & (at < sizes[i])).reshape([-1] + [1] * (x.dim() - 3 - i))
        padded = torch.where(inside, picked, torch.tensor(fill, dtype=x.dtype))
        x = padded.unflatten(2 + i, (count, kernel[i])).movedim(3 + i, -1)
        here = ((at >= -begin[i]) & (at < sizes[i] + end[i])).to(torch.float32)
        shape = [1] * (2 * axes)
        shape[i], shape[axes + i] = count, kernel[i]
        valid = valid * here.reshape(shape)
    return x, valid[None, None]


def average_pool(x: Any, how: How, count: bool) -> Any:
    """AveragePool; ``count`` says whether padding counts."""
    import torch

    axes = tuple(range(2 - x.dim(), 0))
    parts, valid = taps(x, how, 0.0)
    if not count:
        valid, _ = taps(torch.ones_like(x[:1, :1]), how, 0.0)
    return parts.sum(axes) / valid.sum(axes).to(x.dtype)


def lp_pool(x: Any, p: float, how: How) -> Any:
    """LpPool."""
    parts, _ = taps(x, how, 0.0)
    return (parts.abs() ** p).sum(tuple(range(2 - x.dim(), 0))) ** (1 / p)


def max_pool_with_indices(x: Any, how: How, columns: bool) -> tuple[Any, Any]:
    """MaxPool and where in the whole tensor each maximum lies; ``columns``: counted column by column."""
    import torch

    axes = x.dim() - 2
    low = -float("inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    parts, _ = taps(x, how, low)
    count = x[0, 0].numel()
    shape = tuple(x.shape[2:])
    within = (
        torch.arange(count).reshape(shape[::-1]).permute(*reversed(range(axes)))
        if columns
        else torch.arange(count).reshape(shape)
    )
    whole = within + torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * axes) * count
    places, _ = taps(whole, how, -1)
    flat = parts.flatten(-axes)
    best = flat.argmax(-1, keepdim=True)
    return flat.gather(-1, best).squeeze(-1), places.flatten(-axes).gather(-1, best).squeeze(-1)


def max_unpool(x: Any, index: Any, sizes: Any, kernel: list[int], stride: list[int], pads: list[int]) -> Any:
    """MaxUnpool: values at the places that a MaxPool found, zero elsewhere."""
    import torch

    axes = len(kernel)
    natural = [(x.shape[2 + i] - 1) * stride[i] + kernel[i] - pads[i] - pads[axes + i] for i in range(axes)]
    shape = [*x.shape[:2], *natural]
    count = 1
    for size in shape:
        count *= size
    flat = torch.zeros(count, dtype=x.dtype).scatter(0, index.reshape(-1), x.reshape(-1)).reshape(shape)
    if sizes is None:
        return flat
    wanted = sizes.tolist() if isinstance(sizes, torch.Tensor) else list(sizes)
    return torch.nn.functional.pad(
        flat, [p for w, h in zip(wanted[::-1], shape[::-1], strict=True) for p in (0, w - h)]
    )


def batch_norm_training(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float, momentum: float
) -> tuple[Any, Any, Any]:
    """BatchNormalization-15 with training_mode: by the batch's own statistics; also the new running ones."""
    axes = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    now = x.mean(axes)
    spread = x.var(axes, unbiased=False)
    y = (x - now.reshape(shape)) / (spread.reshape(shape) + epsilon).sqrt() * scale.reshape(shape) + bias.reshape(shape)
    return y, mean * momentum + now * (1 - momentum), variance * momentum + spread * (1 - momentum)


def layer_norm(x: Any, scale: Any, bias: Any, axis: int, epsilon: float, dtype: Any) -> tuple[Any, Any, Any]:
    """LayerNormalization-17, with mean and inverse deviation."""
    axes = list(range(axis % x.dim(), x.dim()))
    wide = x.to(dtype)
    mean = wide.mean(axes, keepdim=True)
    inverse = ((wide - mean).square().mean(axes, keepdim=True) + epsilon).rsqrt()
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


def rms_norm(x: Any, scale: Any, axis: int, epsilon: float, dtype: Any) -> Any:
    """RMSNormalization-23."""
    axes = list(range(axis % x.dim(), x.dim()))
    wide = x.to(dtype)
    return (wide * (wide.square().mean(axes, keepdim=True) + epsilon).rsqrt()).to(x.dtype) * scale


def mean_variance(x: Any, axes: list[int]) -> Any:
    """MeanVarianceNormalization-13."""
    mean = x.mean(axes, keepdim=True)
    spread = (x.square().mean(axes, keepdim=True) - mean.square()).sqrt()
    return (x - mean) / (spread + 1e-9)


def lp_normalized(x: Any, p: int, axis: int) -> Any:
    """LpNormalization-22: zero where the norm is zero."""
    import torch

    norm = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm))


def local_response(x: Any, size: int, alpha: float, beta: float, bias: float) -> Any:
    """LRN-13; with an even size the window reaches further behind."""
    import torch

    before = (size - 1) // 2
    squares = torch.nn.functional.pad(x.square().unsqueeze(1), [0, 0] * (x.dim() - 2) + [before, size - 1 - before])
    total = squares.unfold(2, size, 1).sum(-1).squeeze(1)
    return x / (bias + alpha / size * total) ** beta


def integer_matmul(a: Any, b: Any, dtype: Any) -> Any:
    """MatMul of integers, exact up to 2^53."""
    import torch

    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64).to(dtype)


def integer_gemm(a: Any, b: Any, c: Any, alpha: float, beta: float, flip_a: bool, flip_b: bool) -> Any:
    """Gemm of integers."""
    import torch

    wide = [None if t is None else t.to(torch.float64) for t in (a, b, c)]
    left, right = wide[0], wide[1]
    assert left is not None
    assert right is not None
    made = alpha * torch.matmul(left.t() if flip_a else left, right.t() if flip_b else right)
    return (made if wide[2] is None else made + beta * wide[2]).to(torch.int64).to(a.dtype)


def integer_einsum(equation: str, *tensors: Any) -> Any:
    """Einsum of integers."""
    import torch

    return torch.einsum(equation, *(t.to(torch.float64) for t in tensors)).to(torch.int64).to(tensors[0].dtype)


def matmul_integer(a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    """MatMulInteger-10: a per row, b per column."""
    import torch

    left, right = a.to(torch.float64), b.to(torch.float64)
    if a_zero is not None:
        left = left - (a_zero[..., None] if a_zero.dim() == 1 and a_zero.numel() > 1 else a_zero).to(torch.float64)
    if b_zero is not None:
        right = right - b_zero.to(torch.float64)
    return torch.matmul(left, right).to(torch.int32)


def reduced_along(name: str, x: Any, axes: Any, keep: bool, nothing: bool) -> Any:
    """Reduce along axes that are a tensor; none of them means all, or ``nothing``."""
    along = axes.tolist()
    if not along and nothing:
        return reduced(name, x, [], keep)
    return reduced(name, x, along or list(range(x.dim())), keep)


def reduced(name: str, x: Any, axes: list[int], keep: bool) -> Any:
    """One of ONNX's reductions; over no axes each element alone."""
    import torch

    dtype = x.dtype
    if name in ("l1", "l2", "log_sum", "sum_square"):
        if not dtype.is_floating_point:
            x = x.to(torch.float64)
        before = {"l1": torch.abs, "l2": torch.square, "sum_square": torch.square}.get(name)
        total = x if before is None else before(x)
        total = torch.sum(total, axes, keep) if axes else total
        after = {"l2": torch.sqrt, "log_sum": torch.log}.get(name)
        return (total if after is None else after(total)).to(dtype)
    if not axes:
        return x
    if name in ("amax", "amin") and 0 in (x.shape[a] for a in axes):
        return _nothing(x, axes, keep, highest=name == "amin")
    if name == "prod":
        for axis in sorted((a % x.dim() for a in axes), reverse=True):
            x = torch.prod(x, axis, keep, dtype=dtype)
        return x
    if name in ("mean", "logsumexp") and not dtype.is_floating_point:
        return getattr(torch, name)(x.to(torch.float64), axes, keep).to(dtype)
    if name in ("amax", "amin") and dtype == torch.bool:
        return getattr(torch, name)(x.to(torch.uint8), axes, keep).to(dtype)
    return torch.sum(x, axes, keep, dtype=dtype) if name == "sum" else getattr(torch, name)(x, axes, keep)


def _nothing(x: Any, axes: list[int], keep: bool, *, highest: bool) -> Any:
    """The extreme of nothing: the other end of the type."""
    import torch

    if x.dtype == torch.bool:
        end: Any = highest
    elif x.dtype.is_floating_point:
        end = float("inf") if highest else -float("inf")
    else:
        end = torch.iinfo(x.dtype).max if highest else torch.iinfo(x.dtype).min
    along = {a % x.dim() for a in axes}
    shape = [1 if i in along else s for i, s in enumerate(x.shape) if keep or i not in along]
    return torch.full(shape, end, dtype=x.dtype)


def last_arg(name: str, x: Any, axis: int, keep: bool) -> Any:
    """Index of the last of equal extremes."""
    import torch

    return x.shape[axis] - 1 - getattr(torch, name)(x.flip(axis), axis, keep)
