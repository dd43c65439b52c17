"""Activations: LiteRT's own operators where it has them, else what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from . import layout
from .elementwise import common_order, formula, operand, unary
from .held import FUSED, refuse
from .lowering import Lowering
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir


def clip(low: Lowering, node: ir.Node) -> None:
    """Clip and Relu: an activation where there is one, else MAXIMUM and MINIMUM."""
    bounds = limits(low, node)
    if bounds is None:
        raise refuse(node, "computes its bounds as it runs", "run pass simplify first")
    perm = low.order(node.inputs[0])
    x = low.read(node.inputs[0], perm)
    t = low.file.tensors[x]
    code = ACTIVATIONS.get(bounds)
    if low.at.integer:
        low.give(x, perm)  # codes are cut behind it
        return
    if code is not None and t.dtype == "float32":
        low.give(low.emit(code, [x], t.shape), perm)
        return
    y = x
    for op, bound in (("MAXIMUM", bounds[0]), ("MINIMUM", bounds[1])):
        if np.isfinite(bound):
            y = low.emit(op, [y, low.scalar(bound, t.dtype)], t.shape)
    low.give(low.copied(y) if y == x else y, perm)


ACTIVATIONS: Mapping[tuple[float, float], str] = {
    (0.0, float("inf")): "RELU",
    (0.0, 6.0): "RELU6",
    (-1.0, 1.0): "RELU_N1_TO_1",
    (0.0, 1.0): "RELU_0_TO_1",
}
"""Bounds → the operator that cuts to them."""


def limits(low: Lowering, node: ir.Node) -> tuple[float, float] | None:
    """Bounds of a Relu or a Clip; None when they are computed."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    found = []
    for index, name, default in ((1, "min", -np.inf), (2, "max", np.inf)):
        given = attribute(node, name, None)
        value = node.inputs[index] if index < len(node.inputs) else None
        if given is None and value is not None:
            number = low.number(value)
            if number is None:
                return None
            given = number.reshape(-1)[0]
        found.append(float(default if given is None else given))
    return found[0], found[1]


def hard_sigmoid(low: Lowering, node: ir.Node) -> None:
    """HardSigmoid: a sum cut to 0 … 6 and a product where it fits, as the usual one does."""
    alpha, beta = float(attribute(node, "alpha", 0.2)), float(attribute(node, "beta", 0.5))
    perm = low.order(node.inputs[0])
    x = low.read(node.inputs[0], perm)
    shape = low.file.tensors[x].shape
    if alpha > 0 and abs(6 * alpha - 1) < 1e-6:
        y = low.emit("ADD", [x, low.scalar(beta / alpha)], shape, {"fusedActivationFunction": FUSED["RELU6"]})
        low.give(low.emit("MUL", [y, low.scalar(alpha)], shape), perm)
        return
    y = low.emit("MUL", [x, low.scalar(alpha)], shape)
    y = low.emit("ADD", [y, low.scalar(beta)], shape)
    low.give(low.emit("RELU_0_TO_1", [y], shape), perm)


def fixed(low: Lowering, node: ir.Node, code: str) -> None:
    """LOGISTIC and TANH, whose codes mean what the kernel says; others are turned into what is wanted."""
    perm = low.order(node.inputs[0])
    x = low.read(node.inputs[0], perm)
    own = Quant((1 / 256,), (-128,)) if code == "LOGISTIC" else Quant((1 / 128,), (0,))
    y = low.emit(code, [x], low.file.tensors[x].shape, quant=own if low.at.integer else None)
    low.give(y, perm)


def prelu(low: Lowering, node: ir.Node) -> None:
    """PRelu: the slope without its batch axis where it is a constant."""
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs[:1], len(result))
    x, slope = low.read(node.inputs[0], perm), operand(low, node.inputs[1], perm)
    t = low.file.tensors[slope]
    if t.data is not None and len(t.shape) == len(result) > 1 and t.shape[0] == 1 and result[0] == 1:
        slope = low.store(t.data[0], t.quant, t.name)
    low.give(low.emit("PRELU", [x, slope], layout.stored(result, perm), quant=low.at.quant), perm)


def softplus(low: Lowering, node: ir.Node) -> None:
    """Softplus: max(x, 0) + log(1 + exp(-|x|)), which overflows nowhere."""
    x, perm, shape = formula(low, node)
    y = low.emit("NEG", [low.emit("ABS", [x], shape)], shape)
    y = low.emit("ADD", [low.emit("EXP", [y], shape), low.scalar(1.0)], shape)
    y = low.emit("LOG", [y], shape)
    low.give(low.emit("ADD", [low.emit("RELU", [x], shape), y], shape), perm)


def softsign(low: Lowering, node: ir.Node) -> None:
    """Softsign: x / (1 + |x|)."""
    x, perm, shape = formula(low, node)
    y = low.emit("ADD", [low.emit("ABS", [x], shape), low.scalar(1.0)], shape)
    low.give(low.emit("DIV", [x, y], shape), perm)


def mish(low: Lowering, node: ir.Node) -> None:
    """Mish: x · n / (n + 2) with n = e · (e + 2), e = exp(min(x, 20)): tanh(softplus(x)) without its cancellation."""
    x, perm, shape = formula(low, node)
    e = low.emit("EXP", [low.emit("MINIMUM", [x, low.scalar(20.0)], shape)], shape)
    n = low.emit("ADD", [e, low.scalar(2.0)], shape)
    n = low.emit("MUL", [e, n], shape)
    d = low.emit("ADD", [n, low.scalar(2.0)], shape)
    y = low.emit("DIV", [n, d], shape)
    low.give(low.emit("MUL", [x, y], shape), perm)


def swish(low: Lowering, node: ir.Node) -> None:
    """Swish: x · sigmoid(alpha · x)."""
    x, perm, shape = formula(low, node)
    alpha = float(attribute(node, "alpha", 1.0))
    y = x if alpha == 1.0 else low.emit("MUL", [x, low.scalar(alpha)], shape)
    low.give(low.emit("MUL", [x, low.emit("LOGISTIC", [y], shape)], shape), perm)


def scaled_elu(low: Lowering, node: ir.Node) -> None:
    """Elu, Selu and Celu: gamma · (max(x, 0) + alpha · (exp(min(x / c, 0)) - 1)), by ELU."""
    defaults = {"Elu": 1.0, "Celu": 1.0, "Selu": 1.67326319217681884765625}
    alpha = float(attribute(node, "alpha", defaults[node.op_type]))
    gamma = float(attribute(node, "gamma", 1.05070102214813232421875)) if node.op_type == "Selu" else 1.0
    x, perm, shape = formula(low, node)
    if alpha == gamma == 1.0:
        low.give(low.emit("ELU", [x], shape), perm)
        return
    scaled = low.emit("MUL", [x, low.scalar(1 / alpha)], shape)
    below = low.emit(
        "ELU", [low.emit("MINIMUM", [scaled if node.op_type == "Celu" else x, low.scalar(0.0)], shape)], shape
    )
    below = low.emit("MUL", [below, low.scalar(alpha)], shape)
    y = low.emit("ADD", [low.emit("RELU", [x], shape), below], shape)
    if gamma != 1.0:
        y = low.emit("MUL", [y, low.scalar(gamma)], shape)
    low.give(y, perm)


def thresholded(low: Lowering, node: ir.Node) -> None:
    """ThresholdedRelu."""
    x, perm, shape = formula(low, node)
    above = low.emit("GREATER", [x, low.scalar(float(attribute(node, "alpha", 1.0)))], shape, dtype="bool")
    low.give(low.emit("SELECT_V2", [above, x, low.scalar(0.0)], shape, dtype="float32"), perm)


def shrink(low: Lowering, node: ir.Node) -> None:
    """Shrink: what is nearer to zero than lambd is zero, all else comes nearer by bias."""
    x, perm, shape = formula(low, node)
    bias, bound = float(attribute(node, "bias", 0.0)), float(attribute(node, "lambd", 0.5))
    zero = low.scalar(0.0)
    parts = []
    for code, limit, shift in (("GREATER", bound, -bias), ("LESS", -bound, bias)):
        inside = low.emit(code, [x, low.scalar(limit)], shape, dtype="bool")
        moved = low.emit("ADD", [x, low.scalar(shift)], shape)
        parts.append(low.emit("SELECT_V2", [inside, moved, zero], shape, dtype="float32"))
    low.give(low.emit("ADD", parts, shape), perm)


_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def erf(low: Lowering, node: ir.Node) -> None:
    """Erf, to 1.5e-7: LiteRT has none but within GELU.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    x, perm, shape = formula(low, node)

    def op(code: str, a: int, b: int) -> int:
        return low.emit(code, [a, b], shape)

    size = low.emit("ABS", [x], shape)
    t = op("DIV", low.scalar(1.0), op("ADD", op("MUL", size, low.scalar(0.3275911)), low.scalar(1.0)))
    series = op("MUL", t, low.scalar(_ERF[-1]))
    for term in reversed(_ERF[:-1]):
        series = op("MUL", op("ADD", series, low.scalar(term)), t)
    decay = low.emit("EXP", [low.emit("NEG", [op("MUL", x, x)], shape)], shape)
    y = op("SUB", low.scalar(1.0), op("MUL", series, decay))
    low.give(op("MUL", low.emit("SIGN", [x], shape), y), perm)


def gelu(low: Lowering, node: ir.Node) -> None:
    """Gelu."""
    unary(low, node, "GELU", approximate=attribute(node, "approximate", "none") == "tanh")


def leaky(low: Lowering, node: ir.Node) -> None:
    """LeakyRelu."""
    unary(low, node, "LEAKY_RELU", alpha=float(attribute(node, "alpha", 0.01)))


OPS: Mapping[str, Any] = {
    "Clip": clip,
    "Relu": clip,
    "HardSigmoid": hard_sigmoid,
    "Sigmoid": partial(fixed, code="LOGISTIC"),
    "Tanh": partial(fixed, code="TANH"),
    "PRelu": prelu,
    "LeakyRelu": leaky,
    "Elu": scaled_elu,
    "Selu": scaled_elu,
    "Celu": scaled_elu,
    "Gelu": gelu,
    "Erf": erf,
    "Mish": mish,
    "Swish": swish,
    "Softplus": softplus,
    "Softsign": softsign,
    "ThresholdedRelu": thresholded,
    "Shrink": shrink,
    "HardSwish": partial(unary, code="HARD_SWISH"),
}
