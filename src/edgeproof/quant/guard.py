"""See that layers left in float stay in float.

ONNX Runtime (1.32, at its basic level already) quantises the weight of a float Conv, ConvTranspose or Gemm by itself
when its input comes from a DequantizeLinear and its output goes into a QuantizeLinear, past Relu or Clip: with one
scale for the whole weight, whatever the placement decided. EfficientNet-Lite0 with its depthwise convolutions in float
had 22 times the output noise for it. A Clip ahead of the layer stops that. It ends at the outermost codes, so it
changes no value, and the runtime does not look through it.

Source: ONNX Runtime, ``WeightBiasQuantization``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .layers import constant

if TYPE_CHECKING:
    import onnx_ir as ir

OPS = ("Conv", "ConvTranspose", "Gemm")
ABSORBED = ("Relu", "Clip")
MARK = ".guard."
"""What names of guards hold."""


def guard(graph: ir.Graph) -> int:
    """Put a Clip ahead of every float layer between integers, in place.

    Args:
        graph: A graph with Q/DQ; it is changed.

    Returns:
        How many were put in.
    """
    found = [node for node in graph if node.op_type in OPS and _is_float(node) and _feeds_codes(node)]
    for count, node in enumerate(found):
        _clip(graph, node, count)
    return len(found)


def unguard(graph: ir.Graph) -> None:
    """Take the guards out again, in place."""
    for node in list(graph):
        value = node.inputs[0] if node.op_type == "Clip" and MARK in (node.name or "") else None
        if value is not None:
            node.outputs[0].replace_all_uses_with(value)
            graph.remove(node, safe=True)


def _is_float(node: ir.Node) -> bool:
    """Whether a layer reads integers, with a weight in float."""
    if node.domain not in ("", "ai.onnx") or len(node.inputs) < 2 or node.inputs[0] is None:
        return False
    maker, weight = node.inputs[0].producer(), constant(node.inputs[1])
    return (
        maker is not None
        and maker.op_type == "DequantizeLinear"
        and weight is not None
        and weight.dtype == np.float32
        and all(constant(v) is not None and constant(v).size == 1 for v in maker.inputs[1:3])  # type: ignore[union-attr]
    )


def _feeds_codes(node: ir.Node) -> bool:
    """Whether a QuantizeLinear alone reads a layer, past activations which vanish into it."""
    value = node.outputs[0]
    while len(uses := list(value.uses())) == 1 and not value.is_graph_output():
        reader = uses[0].node
        if reader.op_type == "QuantizeLinear":
            return True
        if reader.op_type not in ABSORBED:
            return False
        value = reader.outputs[0]
    return False


def _clip(graph: ir.Graph, node: ir.Node, count: int) -> None:
    import onnx_ir as ir

    value = node.inputs[0]
    assert value is not None
    maker = value.producer()
    assert maker is not None
    scale, zero = constant(maker.inputs[1]), constant(maker.inputs[2])
    assert scale is not None
    assert zero is not None
    info, name = np.iinfo(zero.dtype), value.name or ""
    bounds = []
    for end, code in (("low", info.min), ("high", info.max)):
        number = np.float32(code - int(zero.reshape(-1)[0])) * scale.reshape(-1)[0]
        tensor = ir.tensor(np.float32(number), name=f"{name}{MARK}{count}.{end}")
        bound = ir.val(tensor.name or "", const_value=tensor, type=ir.TensorType(ir.DataType.FLOAT), shape=[])
        graph.register_initializer(bound)
        bounds.append(bound)
    clip = ir.node("Clip", [value, *bounds], name=f"{name}{MARK}{count}")
    clip.outputs[0].name = f"{name}.guarded.{count}"
    clip.outputs[0].type, clip.outputs[0].shape = value.type, value.shape
    graph.insert_before(node, clip)
    node.replace_input_with(0, clip.outputs[0])
