"""Activation functions."""

from __future__ import annotations

from typing import Any

from .arithmetic import unary
from .call import Call, Handler
from .values import Shape, Value


def functional(name: str, **attributes: tuple[str, float]) -> Handler:
    """A function of torch.nn.functional: its parameter = (ONNX attribute, ONNX's default)."""

    def handler(n: Call) -> Value:
        settings = {theirs: n.attr(ours, default) for theirs, (ours, default) in attributes.items()}
        return n.call(getattr(n.functional, name), n[0], **settings)

    return handler


def hard_sigmoid(n: Call) -> Value:
    """HardSigmoid: torch has only the slope of 1/6."""
    alpha, beta = n.attr("alpha", 0.2), n.attr("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:
        return n.call(n.functional.hardsigmoid, n[0])
    return n.call(n.torch.clamp, n.call(n.torch.add, n.call(n.torch.mul, n[0], alpha), beta), 0.0, 1.0)


def selu(n: Call) -> Value:
    """Selu with its own constants."""
    alpha, gamma = n.attr("alpha", 1.67326319217681884765625), n.attr("gamma", 1.05070102214813232421875)
    return n.call(n.torch.mul, n.call(n.functional.elu, n[0], alpha), gamma)


def thresholded_relu(n: Call) -> Value:
    """ThresholdedRelu: zero up to alpha."""
    return n.call(n.functional.threshold, n[0], n.attr("alpha", 1.0), 0.0)


def shrink(n: Call) -> Value:
    """Shrink: a gap of lambd around zero."""
    bias, width, x = n.attr("bias", 0.0), n.attr("lambd", 0.5), n[0]
    above = n.call(n.torch.where, n.call(n.torch.gt, x, width), n.call(n.torch.sub, x, bias), 0)
    made = n.call(n.torch.where, n.call(n.torch.lt, x, -width), n.call(n.torch.add, x, bias), above)
    return n.call("to", made, n.dtype()) if n.dtype() is not None else made


def prelu(n: Call) -> Value:
    """PRelu; the slope broadcasts from the right, where torch's own has one number a channel."""
    x, slope = n.shape(0), n.shape(1)
    if x is not None and slope is not None and len(x) >= 2 and n.floating() and _by_channel(x, slope):
        return n.call(n.functional.prelu, n[0], n.call(n.torch.reshape, n[1], [-1]))
    zero = n.call(n.torch.clamp, n[0], None, 0)
    return n.call(n.torch.add, n.call(n.torch.clamp, n[0], 0), n.call(n.torch.mul, n[1], zero))


def _by_channel(x: Shape, slope: Shape) -> bool:
    """Whether a slope has one number, or one a channel; up to opset 6 the latter was a vector."""
    if all(s == 1 for s in slope):
        return True
    if len(slope) == 1 and len(x) > 2 and slope[0] != x[-1]:
        return slope[0] == x[1]
    wide = (1,) * (len(x) - len(slope)) + slope
    return wide[1] == x[1] is not None and all(s == 1 for i, s in enumerate(wide) if i != 1)


def gelu(n: Call) -> Value:
    """Gelu, exact or by tanh."""
    return n.call(n.functional.gelu, n[0], approximate=n.attr("approximate", "none"))


def swish(n: Call) -> Value:
    """Swish: x times the sigmoid of alpha x."""
    alpha = n.attr("alpha", 1.0)
    if alpha == 1.0:
        return n.call(n.functional.silu, n[0])
    return n.call(n.torch.mul, n[0], n.call(n.torch.sigmoid, n.call(n.torch.mul, n[0], alpha)))


def softmax(name: str) -> Handler:
    """Softmax along an axis; up to opset 12 over all axes from it on."""

    def handler(n: Call) -> Value:
        function = getattr(n.torch, name)
        if n.opset >= 13:
            return n.call(function, n[0], n.axis("axis", -1))
        axis = n.axis("axis", 1)
        if axis == n.rank() - 1:
            return n.call(function, n[0], axis)
        flat = n.call(n.torch.flatten, n[0], axis)
        return n.call("view_as", n.call(function, flat, axis), n[0])

    return handler


def hardmax(n: Call) -> Value:
    """Hardmax: one at the first largest element."""
    first, axis = n.opset < 13, n.axis("axis", -1 if n.opset >= 13 else 1)
    x = n.call(n.torch.flatten, n[0], axis) if first else n[0]
    best = n.call(n.torch.argmax, x, axis, keepdim=True)
    ones = n.call(n.torch.ones_like, best, dtype=n.dtype())
    made = n.call(n.torch.scatter, n.call(n.torch.zeros_like, x), axis, best, ones)
    return n.call("view_as", made, n[0]) if first else made


def dropout(n: Call) -> Any:
    """Dropout: does nothing in inference, drops in training."""
    asked = n.opset >= 12 and n.has(2) and bool(n.scalar(2))
    ratio = n.attr("ratio", 0.5) if n.opset < 12 else n.scalar(1, 0.5) if asked or n.options.train else 0.0
    if asked and ratio and not n.options.train:
        raise n.refused("is in training mode and draws random numbers", "export the model in inference mode")
    made: Value = n[0]
    if n.options.train and ratio:
        made = n.build.module(n.torch.nn.Dropout(ratio), n.build.onnx_node, made)
    mask = n.call(n.torch.ones_like, n[0], dtype=n.torch.bool) if n.wants(1) else None
    return made, mask


OPERATORS: dict[str, Handler] = {
    "Relu": unary("relu"),
    "LeakyRelu": functional("leaky_relu", negative_slope=("alpha", 0.01)),
    "Elu": functional("elu", alpha=("alpha", 1.0)),
    "Celu": functional("celu", alpha=("alpha", 1.0)),
    "Selu": selu,
    "Softplus": functional("softplus"),
    "Softsign": functional("softsign"),
    "Mish": functional("mish"),
    "HardSwish": functional("hardswish"),
    "HardSigmoid": hard_sigmoid,
    "ThresholdedRelu": thresholded_relu,
    "Shrink": shrink,
    "PRelu": prelu,
    "Gelu": gelu,
    "Swish": swish,
    "Softmax": softmax("softmax"),
    "LogSoftmax": softmax("log_softmax"),
    "Hardmax": hardmax,
    "Dropout": dropout,
}
