"""Pools: maximum, mean, Lp norm; over windows and over everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import composed
from .call import Call, Handler
from .values import Value
from .windows import Windows, pad, windows


def max_pool(n: Call) -> Value | Sequence[Value]:
    """MaxPool, with indices where they are read."""
    w, ceil = _pooled(n)
    axes, x = len(w.kernel), n[0]
    if n.wants(1):
        return n.calls(composed.max_pool_with_indices, 2, x, w.how(ceil), bool(n.attr("storage_order", 0)))
    dtype = n.dtype()
    small = dtype in (n.torch.int8, n.torch.uint8)
    if small:  # torch pools no bytes; every byte is a float32
        x = n.call("to", x, n.torch.float32)
    padding = w.begin
    if not w.narrow:
        x, padding = pad(n, x, w.begin, w.end, -float("inf")), [0] * axes
    function = getattr(n.functional, f"max_pool{axes}d")
    made = n.call(function, x, w.kernel, w.stride, padding, w.dilation, ceil)
    return n.call("to", made, dtype) if small else made


def average_pool(n: Call) -> Value:
    """AveragePool; padding counts only when count_include_pad says so."""
    w, ceil = _pooled(n)
    axes, count = len(w.kernel), bool(n.attr("count_include_pad", 0))
    plain = all(d == 1 for d in w.dilation)
    function = getattr(n.functional, f"avg_pool{axes}d")
    if plain and w.narrow:
        return n.call(function, n[0], w.kernel, w.stride, w.begin, ceil, count)
    if plain and count and not ceil:
        return n.call(function, pad(n, n[0], w.begin, w.end), w.kernel, w.stride, [0] * axes, ceil, True)
    return n.call(composed.average_pool, n[0], w.how(ceil), count)


def lp_pool(n: Call) -> Value:
    """LpPool."""
    w, ceil = _pooled(n)
    return n.call(composed.lp_pool, n[0], float(n.attr("p", 2)), w.how(ceil))


def _pooled(n: Call) -> tuple[Windows, bool]:
    """The windows, and whether a last one that is not full counts; of one to three axes."""
    w = windows(n, n.attr("kernel_shape"))
    if len(w.kernel) > 3:
        raise n.refused(f"pools over {len(w.kernel)} axes, expected one to three", "split the pool")
    return w, bool(n.attr("ceil_mode", 0))


def global_pool(name: str) -> Handler:
    """Mean or maximum over all spatial axes."""

    def handler(n: Call) -> Value:
        axes: list[Any] = list(range(2, n.rank()))
        if name == "mean" and len(axes) in (1, 2, 3):
            return n.call(getattr(n.functional, f"adaptive_avg_pool{len(axes)}d"), n[0], 1)
        return n.call(getattr(n.torch, name), n[0], axes, True)

    return handler


def global_lp_pool(n: Call) -> Value:
    """GlobalLpPool."""
    return n.call(n.torch.linalg.vector_norm, n[0], float(n.attr("p", 2)), list(range(2, n.rank())), True)


def max_unpool(n: Call) -> Value:
    """MaxUnpool: values back to where they came from."""
    kernel = n.attr("kernel_shape")
    axes = len(kernel)
    stride, pads = n.attr("strides", [1] * axes), n.attr("pads", [0] * (2 * axes))
    sizes = n.sizes(2) or n[2] if n.has(2) else None
    return n.call(composed.max_unpool, n[0], n[1], sizes, kernel, stride, pads)


OPERATORS: dict[str, Handler] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalAveragePool": global_pool("mean"),
    "GlobalMaxPool": global_pool("amax"),
    "GlobalLpPool": global_lp_pool,
    "MaxUnpool": max_unpool,
}
