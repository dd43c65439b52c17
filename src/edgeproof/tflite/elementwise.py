"""Sums, products, comparisons and functions of one value: whatever order their operands are stored in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from . import layout
from .held import REMEDY, Held, is_read, off, refuse
from .layout import Perm
from .lowering import Lowering
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

SMALL_SHARE = 16
"""An operand is small when the other is so many times as large."""
FUSING = ("ADD", "SUB", "MUL", "DIV")


def common_order(low: Lowering, values: Sequence[ir.Value | None], rank: int) -> Perm:
    """The order for operands of one operator: that of the largest computed one, channels last before others."""
    best, size = layout.identity(rank), -1
    for value in values:
        if value is not None and low.number(value) is None and low.rank(value) == rank:
            numbers = int(np.prod(low.shape(value)))
            if numbers > size:
                best, size = low.order(value), numbers
    return best


def operand(low: Lowering, value: ir.Value | None, perm: Perm) -> int:
    """A value as an operand of a result that is stored with ``perm``; missing axes in front are put in."""
    number = low.number(value)
    if number is not None and number.size == 1:  # some kernels are slow on any shape but this
        t = low.file.tensors[low.read(value)]
        return low.store(t.data.reshape(()), t.quant, t.name) if t.data is not None else low.read(value)
    rank, missing = low.rank(value), len(perm) - low.rank(value)
    if not missing:
        return low.read(value, perm)
    if perm == layout.identity(len(perm)) or rank == 0:
        return low.read(value)
    x = low.reshape(low.read(value), (1,) * missing + low.shape(value))
    t = low.file.tensors[x]
    if t.data is not None:
        return low.store(t.data.transpose(perm), t.quant, t.name)
    return low.reorder(x, perm)


def binary(low: Lowering, node: ir.Node, code: str, dtype: str | None = None) -> None:
    """An operator on two values that broadcast."""
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs, len(result))
    inputs = [operand(low, v, perm) for v in node.inputs]
    options = {"fusedActivationFunction": low.at.activation} if code in FUSING else {}
    inputs, factor = _made_up(low, node, code, inputs) if low.at.scaled else (inputs, 1.0)
    quant = off(low.at.quant, factor)
    y = low.emit(code, inputs, layout.stored(result, perm), options, dtype=dtype, quant=quant)
    low.give(y, perm, factor=factor)


def _made_up(low: Lowering, node: ir.Node, code: str, inputs: list[int]) -> tuple[list[int], float]:
    """Operands of an integer step whose scales are off, and by what that puts off the scale of the result.

    A product multiplies factors. A sum hands on one that all its operands have; constants are stored so that they do.
    """
    sizes = [int(np.prod(low.shape(v))) for v in node.inputs]
    for place, value in enumerate(node.inputs):
        if sizes[place] * SMALL_SHARE <= max(sizes):  # a gate per channel: cheap to put right here
            inputs[place] = low.plain(Held(inputs[place], (), low.quant_of(value)))
    factors = [low.factor(i, v) for i, v in zip(inputs, node.inputs, strict=True)]
    if code == "MUL":
        return inputs, float(np.prod(factors))
    computed = {f for i, f in zip(inputs, factors, strict=True) if low.file.tensors[i].data is None}
    if len(computed) != 1:
        held = [Held(i, (), low.quant_of(v)) for i, v in zip(inputs, node.inputs, strict=True)]
        return [low.plain(h) for h in held], 1.0
    factor = computed.pop()
    out = off(low.at.quant, factor)
    assert out is not None
    made = []
    for index in inputs:
        t = low.file.tensors[index]
        made.append(index if t.data is None else low.store(*_addend(t.data, off(t.quant, factor), out), t.name))
    return made, factor


def _addend(codes: NDArray[Any], quant: Quant | None, out: Quant) -> tuple[NDArray[Any], Quant | None]:
    """A constant addend with a scale that XNNPACK takes: it leaves sums below 1/1024 of the result's to others."""
    if quant is None or codes.size != 1 or quant.scale[0] >= out.scale[0] / 1000:
        return codes, quant
    real = (int(codes.reshape(-1)[0]) - quant.zero[0]) * quant.scale[0]
    count = min(max(int(abs(real) * 1000 / out.scale[0]), 1), 127)
    scale = max(abs(real) / count, out.scale[0] / 1000)
    return np.full(codes.shape, round(real / scale), np.int8), Quant((scale,), (0,))


def many(low: Lowering, node: ir.Node, code: str) -> None:
    """Sum, Min, Max, Mean: as many operators as it takes."""
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs, len(result))
    shape = layout.stored(result, perm)
    inputs = [operand(low, v, perm) for v in node.inputs]
    total = inputs[0]
    for other in inputs[1:]:
        seen = [low.file.tensors[i].shape for i in (total, other)]
        shape = tuple(np.broadcast_shapes(*seen))
        total = low.emit(code, [total, other], shape, quant=low.file.tensors[total].quant)
    if len(inputs) == 1:
        total = low.copied(total)
    if node.op_type == "Mean":
        total = low.emit("MUL", [total, low.scalar(1 / len(inputs))], shape)
    low.give(total, perm)


def unary(low: Lowering, node: ir.Node, code: str, **options: Any) -> None:
    """An operator on one value."""
    x, perm, shape = formula(low, node)
    low.give(low.emit(code, [x], shape, options, quant=low.at.quant), perm)


def formula(low: Lowering, node: ir.Node) -> tuple[int, Perm, tuple[int, ...]]:
    """The tensor, order and stored shape of a value that a formula is written for."""
    perm = low.order(node.inputs[0])
    x = low.read(node.inputs[0], perm)
    return x, perm, low.file.tensors[x].shape


def divide(low: Lowering, node: ir.Node) -> None:
    """Div; whole numbers are divided towards zero, as LiteRT does for int32."""
    if low.dtype(node.inputs[0]) in ("float32", "int32"):
        binary(low, node, "DIV")
        return
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs, len(result))
    inputs = [cast(low, operand(low, v, perm), "int32") for v in node.inputs]
    y = low.emit("DIV", inputs, layout.stored(result, perm))
    low.give(cast(low, y, low.dtype(node.outputs[0])), perm)


def cast(low: Lowering, tensor: int, dtype: str) -> int:
    """Numbers as another dtype."""
    from ai_edge_litert import schema_py_generated as schema

    t = low.file.tensors[tensor]
    if t.dtype == dtype:
        return tensor
    if t.data is not None:
        return low.store(t.data.astype(dtype), None, t.name)
    kinds = {n: getattr(schema.TensorType, n.upper()) for n in (t.dtype, dtype)}
    return low.emit("CAST", [tensor], t.shape, {"inDataType": kinds[t.dtype], "outDataType": kinds[dtype]}, dtype=dtype)


def cast_node(low: Lowering, node: ir.Node) -> None:
    """Cast. To bool, what is not zero is true."""
    value = node.inputs[0]
    perm = low.order(value)
    x = low.read(value, perm)
    goal = low.dtype(node.outputs[0])
    t = low.file.tensors[x]
    if goal == t.dtype:
        low.give(low.copied(x), perm)
    elif goal == "bool":
        low.give(low.emit("NOT_EQUAL", [x, low.scalar(0, t.dtype)], t.shape, dtype="bool"), perm)
    else:
        low.give(cast(low, x, goal), perm)


def modulo(low: Lowering, node: ir.Node) -> None:
    """Mod with the sign of the divisor: FLOOR_MOD."""
    if attribute(node, "fmod", 0):
        raise refuse(node, "takes the sign of the dividend (fmod=1), which FLOOR_MOD does not", REMEDY)
    binary(low, node, "FLOOR_MOD")


def power(low: Lowering, node: ir.Node) -> None:
    """Pow; squares and roots by operators of their own."""
    exponent = low.number(node.inputs[1])
    if exponent is not None and exponent.size == 1 and exponent.ndim <= 1 and low.dtype(node.inputs[0]) == "float32":
        known = {2.0: "SQUARE", 0.5: "SQRT", -0.5: "RSQRT"}.get(float(exponent.reshape(-1)[0]))
        if known is not None:
            unary(low, node, known)
            return
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs, len(result))
    x = operand(low, node.inputs[0], perm)
    if low.file.tensors[x].dtype == "int64":
        raise refuse(node, "computes a power of int64, which LiteRT's POW does not", "cast to int32 in the graph")
    y = cast(low, operand(low, node.inputs[1], perm), low.file.tensors[x].dtype)
    low.give(low.emit("POW", [x, y], layout.stored(result, perm)), perm)


def where(low: Lowering, node: ir.Node) -> None:
    """Where."""
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs[1:], len(result))
    if low.number(node.inputs[1]) is not None and low.number(node.inputs[2]) is not None:
        perm = common_order(low, node.inputs[:1], len(result))
    inputs = [operand(low, v, perm) for v in node.inputs]
    dtype = low.file.tensors[inputs[1]].dtype
    low.give(low.emit("SELECT_V2", inputs, layout.stored(result, perm), dtype=dtype), perm)


def reciprocal(low: Lowering, node: ir.Node) -> None:
    """Reciprocal."""
    x, perm, shape = formula(low, node)
    low.give(low.emit("DIV", [low.scalar(1.0), x], shape), perm)


def tangent(low: Lowering, node: ir.Node) -> None:
    """Tan: sin / cos."""
    x, perm, shape = formula(low, node)
    inputs = [low.emit(c, [x], shape) for c in ("SIN", "COS")]
    low.give(low.emit("DIV", inputs, shape), perm)


def hyperbolic(low: Lowering, node: ir.Node) -> None:
    """Sinh and Cosh, from exponentials."""
    x, perm, shape = formula(low, node)
    up = low.emit("EXP", [x], shape)
    down = low.emit("EXP", [low.emit("NEG", [x], shape)], shape)
    y = low.emit("SUB" if node.op_type == "Sinh" else "ADD", [up, down], shape)
    low.give(low.emit("MUL", [y, low.scalar(0.5)], shape), perm)


def exclusive(low: Lowering, node: ir.Node) -> None:
    """Xor: what is not equal."""
    binary(low, node, "NOT_EQUAL", "bool")


def batch_norm(low: Lowering, node: ir.Node) -> None:
    """BatchNormalization by its stored mean and variance: a product and a sum per channel."""
    if attribute(node, "training_mode", 0):
        raise refuse(node, "computes its mean and variance as it runs (training_mode=1)", "export it for inference")
    scale, shift, mean, variance = (low.wanted(node, i, "parameters").astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
    perm = common_order(low, node.inputs[:1], low.rank(node.inputs[0]))
    x = low.read(node.inputs[0], perm)
    shape = low.file.tensors[x].shape
    wide = [-1 if axis == 1 else 1 for axis in perm]
    y = low.emit("MUL", [x, low.store(_wide(factor, wide))], shape)
    low.give(low.emit("ADD", [y, low.store(_wide(shift - mean * factor, wide))], shape), perm)


def _wide(array: NDArray[Any], shape: Sequence[int]) -> NDArray[np.float32]:
    return array.astype(np.float32).reshape(shape)


def identity_node(low: Lowering, node: ir.Node) -> None:
    """Identity, and Dropout of a trained model."""
    if any(is_read(v) for v in node.outputs[1:]):
        raise refuse(node, "gives its mask", "export the model for inference")
    value = node.inputs[0]
    low.form(value, low.order(value), codes=low.at.integer)
    for held in low.forms(value):
        low.hold(low.at.results[0].value, held)


_BOOL = {
    "Equal": "EQUAL", "Less": "LESS", "LessOrEqual": "LESS_EQUAL", "Greater": "GREATER",
    "GreaterOrEqual": "GREATER_EQUAL", "And": "LOGICAL_AND", "Or": "LOGICAL_OR",
}  # fmt: skip
_UNARY = {
    "Abs": "ABS", "Neg": "NEG", "Exp": "EXP", "Log": "LOG", "Sqrt": "SQRT", "Sin": "SIN", "Cos": "COS",
    "Floor": "FLOOR", "Ceil": "CEIL", "Round": "ROUND", "Not": "LOGICAL_NOT", "Sign": "SIGN",
}  # fmt: skip

OPS: Mapping[str, Any] = {
    "Add": partial(binary, code="ADD"),
    "Sub": partial(binary, code="SUB"),
    "Mul": partial(binary, code="MUL"),
    "Div": divide,
    "Mod": modulo,
    "Pow": power,
    "Max": partial(many, code="MAXIMUM"),
    "Min": partial(many, code="MINIMUM"),
    "Sum": partial(many, code="ADD"),
    "Mean": partial(many, code="ADD"),
    **{name: partial(binary, code=code, dtype="bool") for name, code in _BOOL.items()},
    **{name: partial(unary, code=code) for name, code in _UNARY.items()},
    "Xor": exclusive,
    "Cast": cast_node,
    "Reciprocal": reciprocal,
    "Tan": tangent,
    "Sinh": hyperbolic,
    "Cosh": hyperbolic,
    "Where": where,
    "BatchNormalization": batch_norm,
    "Identity": identity_node,
    "Dropout": identity_node,
}
