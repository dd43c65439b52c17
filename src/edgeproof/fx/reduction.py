"""Reductions along axes."""

from __future__ import annotations

import functools
import operator

from . import composed
from .call import Call, Handler, as_sizes, from_sizes
from .values import Sizes, Value


def axes_of(n: Call, since: int) -> list[int] | None:
    """The axes to reduce; None for "leave as it is"."""
    axes = n.listed(1, "axes", since)
    if axes:
        return axes
    return None if n.attr("noop_with_empty_axes", 0) else list(range(n.rank()))


def reduction(name: str, since: int = 18) -> Handler:
    """A function of `composed` or torch over axes."""

    def handler(n: Call) -> Value:
        sizes = as_sizes(n[0])
        if isinstance(n[0], Sizes) and sizes and name in ("prod", "sum"):
            step = operator.mul if name == "prod" else operator.add
            total = functools.reduce(lambda a, b: n.build.number(step, a, b), sizes.items)
            return from_sizes(n.build, [total], scalar=not n.attr("keepdims", 1))
        if n.has(1) and n.opset >= since and n.constant(1) is None:
            return n.call(
                composed.reduced_along,
                name,
                n[0],
                n[1],
                bool(n.attr("keepdims", 1)),
                bool(n.attr("noop_with_empty_axes", 0)),
            )
        axes = axes_of(n, since)
        keep = bool(n.attr("keepdims", 1))
        if axes is None:
            return n.call(composed.reduced, name, n[0], [], keep) if name in AT_EACH else n[0]
        if axes and name in ("amax", "amin", "mean", "logsumexp") and n.floating() and 0 not in (n.shape(0) or ()):
            return n.call(getattr(n.torch, name), n[0], axes, keep)
        if axes and name == "sum":
            return n.call(n.torch.sum, n[0], axes, keep, dtype=n.dtype())
        if axes and name == "l2" and n.floating():
            return n.call(n.torch.linalg.vector_norm, n[0], 2, axes, keep)
        if axes and name in ("l1", "sum_square") and n.floating():
            each = n.call(n.torch.abs if name == "l1" else n.torch.square, n[0])
            return n.call(n.torch.sum, each, axes, keep)
        return n.call(composed.reduced, name, n[0], axes, keep)

    return handler


AT_EACH = ("l1", "l2", "log_sum", "logsumexp", "sum_square")
"""These change even an element that is reduced with nothing."""


def arg(name: str) -> Handler:
    """Index of the largest or smallest element."""

    def handler(n: Call) -> Value:
        axis, keep = n.axis("axis", 0), bool(n.attr("keepdims", 1))
        if n.attr("select_last_index", 0):
            return n.call(composed.last_arg, name, n[0], axis, keep)
        return n.call(getattr(n.torch, name), n[0], axis, keep)

    return handler


OPERATORS: dict[str, Handler] = {
    "ReduceMax": reduction("amax"),
    "ReduceMin": reduction("amin"),
    "ReduceMean": reduction("mean"),
    "ReduceSum": reduction("sum", 13),
    "ReduceProd": reduction("prod"),
    "ReduceL1": reduction("l1"),
    "ReduceL2": reduction("l2"),
    "ReduceLogSum": reduction("log_sum"),
    "ReduceLogSumExp": reduction("logsumexp"),
    "ReduceSumSquare": reduction("sum_square"),
    "ArgMax": arg("argmax"),
    "ArgMin": arg("argmin"),
}
