"""Convolutions."""

from __future__ import annotations

from .call import Call, Handler
from .composed import cropped
from .values import Value
from .windows import pad, windows


def conv(n: Call) -> Value:
    """Conv in one to three dimensions."""
    return convolved(n, n[0], n[1], n[2] if n.has(2) else None)


def convolved(n: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    """The convolution that a node asks for, of these operands."""
    shape = n.build.shape(weight)
    if shape is None or None in shape or not 3 <= len(shape) <= 5:
        raise n.refused(f"has a kernel of shape {shape}, expected one to three known spatial sizes", "fix the shapes")
    kernel = [int(s or 0) for s in shape[2:]]
    w = windows(n, kernel)
    if not w.symmetric:
        x = pad(n, x, w.begin, w.end)
    padding = w.begin if w.symmetric else [0] * len(kernel)
    function = getattr(n.functional, f"conv{len(kernel)}d")
    return n.call(function, x, weight, bias, w.stride, padding, w.dilation, n.attr("group", 1))


def conv_transpose(n: Call) -> Value:
    """ConvTranspose; what torch cannot pad is cut off its result."""
    shape = n.shape(1)
    if shape is None or None in shape or not 3 <= len(shape) <= 5:
        raise n.refused(f"has a kernel of shape {shape}, expected one to three known spatial sizes", "fix the shapes")
    axes = len(shape) - 2
    kernel = [int(s or 0) for s in shape[2:]]
    stride, dilation = n.attr("strides", [1] * axes), n.attr("dilations", [1] * axes)
    extra, group = n.attr("output_padding", [0] * axes), n.attr("group", 1)
    begin, end = _cut(n, kernel, stride, dilation, extra)
    bias = n[2] if n.has(2) else None
    function = getattr(n.functional, f"conv_transpose{axes}d")
    if begin == end and all(e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)) and min(begin) >= 0:
        return n.call(function, n[0], n[1], bias, stride, begin, extra, group, dilation)
    whole = n.call(function, n[0], n[1], bias, stride, [0] * axes, [0] * axes, group, dilation)
    return n.call(cropped, whole, begin, [e - x for e, x in zip(end, extra, strict=True)])


def _cut(
    n: Call, kernel: list[int], stride: list[int], dilation: list[int], extra: list[int]
) -> tuple[list[int], list[int]]:
    """How much of the whole result goes, before and behind, per axis."""
    axes, auto = len(kernel), n.attr("auto_pad", "NOTSET")
    wanted = n.attr("output_shape")
    if wanted is None and not auto.startswith("SAME"):
        pads = [0] * (2 * axes) if auto == "VALID" else n.attr("pads", [0] * (2 * axes))
        return pads[:axes], pads[axes:]
    begin, end = [], []
    for i in range(axes):
        reach = (kernel[i] - 1) * dilation[i] + 1
        if wanted is None:  # output = input × stride, for every input
            total = extra[i] + reach - stride[i]
        else:
            size = n.size(0, i + 2)
            if not isinstance(size, int):
                raise n.refused("gives output_shape for an input of open size", "fix the shapes first: fix_shapes")
            total = stride[i] * (size - 1) + extra[i] + reach - wanted[i - axes]
        first = total // 2 if auto == "SAME_UPPER" else total - total // 2
        begin.append(first)
        end.append(total - first)
    return begin, end


OPERATORS: dict[str, Handler] = {"Conv": conv, "ConvTranspose": conv_transpose}
