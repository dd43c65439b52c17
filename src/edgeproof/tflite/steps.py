"""Decide what each operator takes over from the nodes behind it, and which run in integers.

A node runs in integers when its float inputs are read back from 8-bit codes, its outputs are turned into such codes and
nothing else, and LiteRT has a kernel for that. Activations behind it become part of it, or of its codes' range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..model import attribute
from .activation import ACTIVATIONS, limits
from .held import FUSED, Result, Step, activation_quant, stored_codes
from .lowering import Lowering
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..graph.quantised import Coded

INTEGER = frozenset(
    """
    Conv ConvTranspose Gemm MatMul Add Sub Mul Concat AveragePool GlobalAveragePool MaxPool GlobalMaxPool ReduceMean
    ReduceMax ReduceMin Sigmoid Tanh Softmax Relu Clip LeakyRelu HardSwish PRelu Max Min Resize Pad
    """.split()  # noqa: SIM905
)
"""Operators with an int8 kernel that makes codes of its own."""

MOVING = frozenset(
    """
    MaxPool GlobalMaxPool ReduceMax ReduceMin Reshape Flatten Squeeze Unsqueeze Transpose Slice Split DepthToSpace
    SpaceToDepth Gather Identity Tile
    """.split()  # noqa: SIM905
)
"""Operators that leave codes as they are."""

LAYERS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}
"""Operators with a weight, and the axis of its output channels."""

SCALED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Add", "Sub", "GlobalAveragePool", "ReduceMean")
"""Operators that can make up for a factor on the scale of what they read."""

FUSING = ("Conv", "ConvTranspose", "Gemm", "Add", "Sub", "Mul", "Div", "MaxPool", "AveragePool", "MatMul")
"""Operators that take an activation within them; MatMul where its weight is a constant."""

_FUSED = {bounds: code for bounds, code in ACTIVATIONS.items() if code in FUSED}
_SAME_CODES = ("MaxPool", "AveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMin")


def step(low: Lowering, node: ir.Node) -> Step:
    """The step that lowers a node.

    Args:
        low: The graph so far.
        node: The node.
    """
    return _moved(low, node) or _integer(low, node) or _float(low, node)


def _moved(low: Lowering, node: ir.Node) -> Step | None:
    """An operator that moves codes, or picks the largest: its result is held as codes that mean the same.

    Exact whatever follows, since what it does commutes with reading codes back; and a quarter of the bytes.
    """
    value = node.inputs[0] if node.inputs else None
    code = low.coded.get(value.name or "") if value is not None else None
    if code is None or not _activation_codes(code) or low.number(value) is not None or not _moves_only(low, node):
        return None
    quant = activation_quant(code)
    for out in node.outputs:
        low.coded[out.name or ""] = replace(code, name=out.name or "", kind="activation", codes=None, original=None)
    return Step(node, tuple(Result(v, None, quant) for v in node.outputs), True, scaled=True)


def _activation_codes(code: Coded) -> bool:
    return code.dtype in ("int8", "uint8") and code.scale.size == 1 and not code.block


def _moves_only(low: Lowering, node: ir.Node) -> bool:
    if node.op_type == "Resize":
        return bool(attribute(node, "mode", "nearest") == "nearest")
    if node.op_type == "Pad":
        filler = low.number(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
        zero = attribute(node, "value", 0.0) == 0 and (filler is None or not filler.any())
        return zero or attribute(node, "mode", "constant") != "constant"
    return node.op_type in MOVING


def _float(low: Lowering, node: ir.Node) -> Step:
    value, bias, covered = _with_bias(low, node, node.outputs[0])
    fused = "NONE"
    act = _activation(value) if _fuses(low, node) and low.dtype(value) == "float32" else None
    bounds = limits(low, act) if act is not None else None
    if act is not None and bounds in _FUSED:
        fused, value = _FUSED[bounds], act.outputs[0]
        covered = (*covered, act)
    return Step(node, (Result(value), *map(Result, node.outputs[1:])), False, fused, None, bias, covered)


def _integer(low: Lowering, node: ir.Node) -> Step | None:
    if node.op_type not in INTEGER or not _inputs_coded(low, node):
        return None
    value, bias, covered = _with_bias(low, node, node.outputs[0])
    own = node if node.op_type in ("Relu", "Clip") else None
    act = own or _activation(value)
    bounds = limits(low, act) if act is not None else None
    if act is not None and bounds is None:
        return None
    if act is not None and act is not node:
        value, covered = act.outputs[0], (*covered, act)
    made = _coded_result(low, value)
    if made is None:
        return None
    result, quantisers = made
    assert result.quant is not None
    fused, cut = "NONE", None
    if bounds is not None and _cuts(result.quant, bounds):
        # Kernels that keep the parameters of their input cut before the codes are turned.
        if node.op_type in FUSING and node.op_type not in _SAME_CODES and bounds in _FUSED and _fuses(low, node):
            fused = _FUSED[bounds]
        else:
            cut = bounds
    if cut is not None and low.quant_of(node.inputs[0]) is None:
        return None
    scaled = node.op_type in SCALED and fused in ("NONE", "RELU")
    return Step(node, (result,), True, fused, cut, bias, (*covered, *quantisers), scaled)


def _cuts(quant: Quant, bounds: tuple[float, float]) -> bool:
    """Whether there are codes beyond the bounds."""
    low, high = (np.rint(b / quant.scale[0]) + quant.zero[0] if np.isfinite(b) else b for b in bounds)
    return bool(low > -128 or high < 127)


def _inputs_coded(low: Lowering, node: ir.Node) -> bool:
    """Whether everything real that a node reads is held as codes that its kernel takes."""
    for index, value in enumerate(node.inputs):
        if value is None or (value.name in low.dtypes and low.dtype(value) != "float32"):
            continue
        code = low.coded.get(value.name or "")
        weight = node.op_type in LAYERS and index == 1
        if node.op_type in LAYERS and index == 2:
            if low.number(value) is None:
                return False
        elif node.op_type in ("Clip", "Pad", "Resize") and index > 0:
            continue
        elif code is None or code.dtype not in ("int8", "uint8") or code.block:
            return False
        elif weight and code.codes is not None:
            if not _weight_fits(node, code):
                return False
        elif (
            code.scale.size > 1
            or (code.kind != "activation" and code.codes is None)
            or (weight and node.op_type != "MatMul")
        ):
            return False
    if node.op_type == "Resize" and _interpolates(node):
        return False
    return bool(node.inputs)


def _interpolates(node: ir.Node) -> bool:
    return bool(attribute(node, "mode", "nearest") == "cubic")


def _weight_fits(node: ir.Node, code: Coded) -> bool:
    """Symmetric, with one scale or one per output channel."""
    _, quant = stored_codes(code)
    if any(quant.zero) or code.codes is None:
        return False
    axis = LAYERS[node.op_type]
    if node.op_type == "Gemm":
        if attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0:
            return False
        axis = 0 if attribute(node, "transB", 0) else 1
    if node.op_type == "MatMul" and code.codes.ndim != 2:
        return code.scale.size == 1
    return code.scale.size == 1 or quant.axis == axis % code.codes.ndim


def _with_bias(low: Lowering, node: ir.Node, value: ir.Value) -> tuple[ir.Value, ir.Value | None, tuple[ir.Node, ...]]:
    """A product's result past the constant that is added to it, if one is."""
    uses = list(value.uses())
    if node.op_type != "MatMul" or len(uses) != 1 or uses[0].node.op_type != "Add" or value.is_graph_output():
        return value, None, ()
    weight, other = node.inputs[1], uses[0].node.inputs[1 - uses[0].idx]
    constant, shape = low.number(other), low.shape(value)
    if low.number(weight) is None or low.rank(weight) != 2 or len(shape) < 2 or constant is None or other is value:
        return value, None, ()
    if constant.shape[-1:] != shape[-1:] or constant.size != shape[-1] or constant.ndim > len(shape):
        return value, None, ()
    return uses[0].node.outputs[0], other, (uses[0].node,)


def _fuses(low: Lowering, node: ir.Node) -> bool:
    if node.op_type == "MatMul":
        return low.number(node.inputs[1]) is not None and low.rank(node.inputs[1]) == 2
    if node.op_type == "Div":
        return low.dtype(node.inputs[0]) == "float32"
    return node.op_type in FUSING


def _activation(value: ir.Value) -> ir.Node | None:
    """The Relu or Clip that alone reads a value."""
    uses = list(value.uses())
    if len(uses) != 1 or uses[0].idx or value.is_graph_output() or uses[0].node.op_type not in ("Relu", "Clip"):
        return None
    return uses[0].node


def _coded_result(low: Lowering, value: ir.Value) -> tuple[Result, tuple[ir.Node, ...]] | None:
    """The codes that a value is turned into, if nothing else reads it."""
    uses = list(value.uses())
    if not uses or value.is_graph_output() or any(u.node.op_type != "QuantizeLinear" or u.idx for u in uses):
        return None
    found = [codes_of(low, u.node) for u in uses]
    if len(found) != 1 or found[0] is None:
        return None
    return Result(value, uses[0].node.outputs[0], found[0]), (uses[0].node,)


def codes_of(low: Lowering, node: ir.Node) -> Quant | None:
    """What the codes of a QuantizeLinear mean, when they are 8 bits wide and only ever read back."""
    readers = [u.node for u in node.outputs[0].uses()]
    if not readers or node.outputs[0].is_graph_output() or any(r.op_type != "DequantizeLinear" for r in readers):
        return None
    codes = [low.coded.get(r.outputs[0].name or "") for r in readers]
    if any(c is None or not _activation_codes(c) for c in codes) or codes[0] is None:
        return None
    scale = low.number(node.inputs[1])
    if scale is None or scale.size != 1:
        return None
    return Quant((float(scale.reshape(-1)[0]),), activation_quant(codes[0]).zero)
