"""Products of matrices: FULLY_CONNECTED where one is a constant, BATCH_MATMUL where both are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..model import attribute
from . import layout
from .convolution import bias, scaled_weight, weight_form
from .lowering import Lowering

if TYPE_CHECKING:
    import onnx_ir as ir


def matmul(low: Lowering, node: ir.Node) -> None:
    """MatMul. A constant matrix on the right leaves the order of all axes but the last to the input."""
    a, b = node.inputs
    if low.number(b) is not None and low.rank(b) == 2 and low.rank(a) >= 2:
        perm = _ending(low, a)
        weight = weight_form(low, node, (1, 0))
        shape = layout.stored(low.shape(node.outputs[0]), perm)
        low.give(_connected(low, node, low.read(a, perm), weight, shape), perm)
        return
    _batched(low, node, a, b)


def _ending(low: Lowering, value: ir.Value | None) -> layout.Perm:
    """An order in which a value is held, if its last axis is last in it; else ONNX's order."""
    rank = low.rank(value)
    return next((p for p in low.orders(value) if p[-1] == rank - 1), layout.identity(rank))


def _connected(low: Lowering, node: ir.Node, x: int, weight: int, shape: layout.Shape) -> int:
    weight = scaled_weight(low, node, x, weight)
    channels = low.file.tensors[weight].shape[0]
    inputs = [x, weight]
    has_bias = low.at.bias is not None or len(node.inputs) > 2
    if has_bias or low.at.integer:
        inputs.append(bias(low, node, weight, channels, x))
    return low.emit(
        "FULLY_CONNECTED",
        inputs,
        shape,
        {
            "fusedActivationFunction": low.at.activation,
            "weightsFormat": 0,
            "keepNumDims": True,
            "asymmetricQuantizeInputs": low.file.tensors[weight].dtype == "int8" and (not low.at.integer),
        },
        quant=low.at.quant,
    )


def _batched(low: Lowering, node: ir.Node, a: ir.Value | None, b: ir.Value | None) -> None:
    left, turned_left = _operand(low, a, first=True)
    right, turned_right = _operand(low, b, first=False)
    result = low.shape(node.outputs[0])
    shape = list(result)
    if low.rank(a) == 1:
        shape.insert(len(shape) - (low.rank(b) > 1), 1)
    if low.rank(b) == 1:
        shape.append(1)
    y = low.emit(
        "BATCH_MATMUL",
        [left, right],
        shape,
        {"adjX": turned_left, "adjY": turned_right, "asymmetricQuantizeInputs": False},
        quant=low.at.quant,
    )
    low.give(low.reshape(y, result))


def _operand(low: Lowering, value: ir.Value | None, first: bool) -> tuple[int, bool]:
    """A matrix, and whether it is stored with its last two axes swapped, which the operator undoes."""
    rank = low.rank(value)
    if rank == 1:
        size = low.shape(value)[0]
        return low.reshape(low.read(value), (1, size) if first else (size, 1)), False
    plain = layout.identity(rank)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    held = low.orders(value)
    if plain not in held:
        for order in held:
            t = layout.stored(low.shape(value), order)
            if layout.moves(layout.change(order, plain), t) and not layout.moves(layout.change(order, swapped), t):
                return low.read(value, swapped), True
    return low.read(value, plain), False


def gemm(low: Lowering, node: ir.Node) -> None:
    """Gemm. Factors go into constants where there are any."""
    a, b = node.inputs[:2]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    turned_a, turned_b = bool(attribute(node, "transA", 0)), bool(attribute(node, "transB", 0))
    result = low.shape(node.outputs[0])
    x = low.read(a, (1, 0) if turned_a else (0, 1))
    known = low.number(c)
    small = c is None or (known is not None and known.size in (1, result[1]) and _row(low, c))
    if low.number(b) is not None and small and alpha == beta == 1.0:
        weight = weight_form(low, node, (0, 1) if turned_b else (1, 0))
        low.give(_connected(low, node, x, weight, result))
        return
    y = low.emit("BATCH_MATMUL", [x, low.read(b)], result, {"adjX": False, "adjY": turned_b})
    if alpha != 1.0:
        y = low.emit("MUL", [y, low.scalar(alpha)], result)
    if c is not None:
        added = low.read(c)
        if beta != 1.0:
            shape = low.file.tensors[added].shape
            added = low.emit("MUL", [added, low.scalar(beta)], shape)
        y = low.emit("ADD", [y, added], result, {"fusedActivationFunction": low.at.activation})
    low.give(y)


def _row(low: Lowering, value: ir.Value) -> bool:
    """Whether a bias is one number per column."""
    shape = low.shape(value)
    return len(shape) < 2 or shape[0] == 1


OPS: Mapping[str, Any] = {"MatMul": matmul, "Gemm": gemm}
