"""What sums over axes: reductions, softmax and the normalisations that are made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from . import layout
from .elementwise import operand
from .held import off
from .layout import Perm
from .lowering import Lowering
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir


def axes_of(low: Lowering, node: ir.Node) -> tuple[int, ...]:
    """The axes that a reduction goes over."""
    rank = low.rank(node.inputs[0])
    given = low.ints(node, "axes", 1)
    if not given:
        return () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(a % rank for a in given)


def reduce(low: Lowering, node: ir.Node, code: str, before: str = "", after: str = "") -> None:
    """A reduction, with a function of each number ahead of it and one of the result behind it."""
    value = node.inputs[0]
    axes, keep = axes_of(low, node), bool(attribute(node, "keepdims", 1))
    if low.dtype(value) == "bool":
        code = {"REDUCE_MAX": "REDUCE_ANY", "REDUCE_MIN": "REDUCE_ALL"}.get(code, code)
    perm = low.order(value)
    x = low.read(value, perm)
    if before:
        x = low.emit(before, [x], low.file.tensors[x].shape)
    result = low.shape(node.outputs[0])
    new = perm if keep else layout.without(perm, axes)
    t = low.file.tensors[x]
    factor = low.factor(x, value) if code == "MEAN" and low.at.integer else 1.0
    quant = off(low.at.quant, factor) if code == "MEAN" else t.quant
    places = low.integers([perm.index(a) for a in axes])
    y = low.emit(code, [x, places], layout.stored(result, new), {"keepDims": keep}, quant=quant)
    if after:
        y = low.emit(after, [y], layout.stored(result, new))
    low.give(y, new, factor=factor)


def log_sum_exp(low: Lowering, node: ir.Node) -> None:
    """ReduceLogSumExp: the largest number is taken out first, so that nothing overflows."""
    value = node.inputs[0]
    axes, keep = axes_of(low, node), bool(attribute(node, "keepdims", 1))
    x, shape = low.read(value), low.shape(value)
    small = tuple(1 if a in axes else n for a, n in enumerate(shape))
    places = low.integers(axes)
    top = low.emit("REDUCE_MAX", [x, places], small, {"keepDims": True})
    y = low.emit("EXP", [low.emit("SUB", [x, top], shape)], shape)
    y = low.emit("LOG", [low.emit("SUM", [y, places], small, {"keepDims": True})], small)
    y = low.emit("ADD", [y, top], small)
    low.give(y if keep else low.reshape(y, low.shape(node.outputs[0])))


def softmax(low: Lowering, node: ir.Node) -> None:
    """Softmax and LogSoftmax, over the last axis of the storage; up to opset 12, over all axes from one on."""
    value = node.inputs[0]
    shape = low.shape(value)
    rank = len(shape)
    axis = int(attribute(node, "axis", -1 if low.opset >= 13 else 1)) % rank
    code = "SOFTMAX" if node.op_type == "Softmax" else "LOG_SOFTMAX"
    if low.opset < 13 and int(np.prod(shape[axis + 1 :])) != 1:
        flat = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
        x = low.reshape(low.read(value), flat)
        low.give(low.reshape(_softmax(low, code, x), shape))
        return
    held = [p for p in low.orders(value) if p[-1] == axis]
    perm = held[0] if held else layout.last(low.order(value), axis)
    low.give(_softmax(low, code, low.read(value, perm)), perm)


def _softmax(low: Lowering, code: str, x: int) -> int:
    own = Quant((1 / 256,), (-128,)) if code == "SOFTMAX" else Quant((16 / 256,), (127,))
    options = {"beta": 1.0} if code == "SOFTMAX" else {}
    return low.emit(code, [x], low.file.tensors[x].shape, options, quant=own if low.at.integer else None)


def _normalised(low: Lowering, x: int, axes: Sequence[int], epsilon: float) -> tuple[int, int, int]:
    """(x - mean) / sqrt(variance + epsilon) over some axes of a stored tensor; the mean; 1 / sqrt(…)."""
    shape = low.file.tensors[x].shape
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    places = low.integers(axes)
    mean = low.emit("MEAN", [x, places], small, {"keepDims": True})
    centred = low.emit("SUB", [x, mean], shape)
    squares = low.emit("MUL", [centred, centred], shape)
    variance = low.emit("MEAN", [squares, places], small, {"keepDims": True})
    variance = low.emit("ADD", [variance, low.scalar(epsilon)], small)
    inverse = low.emit("RSQRT", [variance], small)
    return low.emit("MUL", [centred, inverse], shape), mean, inverse


def layer_norm(low: Lowering, node: ir.Node) -> None:
    """LayerNormalization and RMSNormalization."""
    value = node.inputs[0]
    rank = low.rank(value)
    first = int(attribute(node, "axis", -1)) % rank
    epsilon = float(attribute(node, "epsilon", 1e-5))
    perm = low.order(value)
    x = low.read(value, perm)
    shape = low.file.tensors[x].shape
    places = [perm.index(a) for a in range(first, rank)]
    if node.op_type == "LayerNormalization":
        y, *moments = _normalised(low, x, places, epsilon)
        for index, moment in enumerate(moments[: len(node.outputs) - 1], 1):
            low.give(moment, perm, index)
    else:
        small = tuple(1 if i in places else n for i, n in enumerate(shape))
        squares = low.emit("MUL", [x, x], shape)
        mean = low.emit("MEAN", [squares, low.integers(places)], small, {"keepDims": True})
        mean = low.emit("ADD", [mean, low.scalar(epsilon)], small)
        y = low.emit("MUL", [x, low.emit("RSQRT", [mean], small)], shape)
    for code, index in (("MUL", 1), ("ADD", 2)):
        if index < len(node.inputs) and node.inputs[index] is not None:
            y = low.emit(code, [y, operand(low, node.inputs[index], perm)], shape)
    low.give(y, perm)


def instance_norm(low: Lowering, node: ir.Node) -> None:
    """InstanceNormalization."""
    rank = low.rank(node.inputs[0])
    perm = layout.channels_last(rank)
    x = low.read(node.inputs[0], perm)
    y, _, _ = _normalised(low, x, range(1, rank - 1), float(attribute(node, "epsilon", 1e-5)))
    for code, index in (("MUL", 1), ("ADD", 2)):
        y = low.emit(code, [y, low.read(node.inputs[index])], low.file.tensors[x].shape)
    low.give(y, perm)


def lp_norm(low: Lowering, node: ir.Node) -> None:
    """LpNormalization: x over its norm along one axis."""
    value = node.inputs[0]
    axis, p = int(attribute(node, "axis", -1)) % low.rank(value), int(attribute(node, "p", 2))
    perm: Perm = low.order(value)
    x = low.read(value, perm)
    shape = low.file.tensors[x].shape
    small = tuple(1 if a == axis else n for a, n in zip(perm, shape, strict=True))
    y = low.emit("ABS" if p == 1 else "SQUARE", [x], shape)
    y = low.emit("SUM", [y, low.integers([perm.index(axis)])], small, {"keepDims": True})
    if p != 1:
        y = low.emit("SQRT", [y], small)
    y = low.emit("MAXIMUM", [y, low.scalar(np.finfo(np.float32).tiny)], small)  # nothing over nothing is nothing
    low.give(low.emit("DIV", [x, y], shape), perm)


def cumulative_sum(low: Lowering, node: ir.Node) -> None:
    """CumSum."""
    value = node.inputs[0]
    axis = int(low.wanted(node, 1, "axis").reshape(-1)[0]) % low.rank(value)
    perm = low.order(value)
    x = low.read(value, perm)
    options = {name: bool(attribute(node, name, 0)) for name in ("exclusive", "reverse")}
    inputs = [x, low.scalar(perm.index(axis), "int32")]
    low.give(low.emit("CUMSUM", inputs, low.file.tensors[x].shape, options), perm)


OPS: Mapping[str, Any] = {
    "ReduceMean": partial(reduce, code="MEAN"),
    "ReduceSum": partial(reduce, code="SUM"),
    "ReduceMax": partial(reduce, code="REDUCE_MAX"),
    "ReduceMin": partial(reduce, code="REDUCE_MIN"),
    "ReduceProd": partial(reduce, code="REDUCE_PROD"),
    "ReduceL1": partial(reduce, code="SUM", before="ABS"),
    "ReduceL2": partial(reduce, code="SUM", before="SQUARE", after="SQRT"),
    "ReduceSumSquare": partial(reduce, code="SUM", before="SQUARE"),
    "ReduceLogSum": partial(reduce, code="SUM", after="LOG"),
    "ReduceLogSumExp": log_sum_exp,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "InstanceNormalization": instance_norm,
    "LpNormalization": lp_norm,
    "CumSum": cumulative_sum,
}
