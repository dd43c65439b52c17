"""Turn multiplications by a constant per channel next to Q/DQ into scales per channel.

``Q(x · c; S)`` makes the codes that ``Q(x; S / c)`` makes, and ``DQ(q; S) · c`` reads what ``DQ(q; S c)`` reads, with c
and so the scale a vector. Kernels of layers want one scale; but the pair that a layer's input passes need not have the
same scale at both ends, nor need the pair behind its output: the layer's weights hold the difference. So tensors
between a layer and operators in float have a scale per channel, at no cost. ONNX Runtime (1.32) still fuses such a
convolution into QLinearConv.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .layers import constant

if TYPE_CHECKING:
    import onnx_ir as ir

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def fold(graph: ir.Graph) -> int:
    """Fold all such multiplications of a graph with Q/DQ, in place.

    Args:
        graph: A main graph; names that it makes are those of scales with a suffix.

    Returns:
        How many nodes went.
    """
    count = 0
    for node in list(graph):
        if node.graph is None:
            continue
        if node.op_type == "QuantizeLinear":
            count += _ahead(graph, node)
        elif node.op_type == "Mul":
            count += _behind(graph, node)
    return count


def factor(node: ir.Node) -> tuple[int, NDArray[np.float32], int] | None:
    """Which input a Mul scales by channel, the positive factors [C], and their axis counted from the end."""
    for index in (0, 1):
        held = constant(node.inputs[1 - index])
        if held is None or held.dtype != np.float32 or not np.isfinite(held).all() or (held <= 0).any():
            continue
        large = [axis for axis, n in enumerate(held.shape) if n != 1]
        value = node.inputs[index]
        # A constant of higher rank would add dimensions to the value.
        if len(large) == 1 and value is not None and value.shape is not None and held.ndim <= len(value.shape):
            return index, held.reshape(-1), large[0] - held.ndim
    return None


def _one_scale(node: ir.Node) -> NDArray[np.float32] | None:
    """The scale of a Q or DQ, if it is one number."""
    scale = constant(node.inputs[1])
    return scale.reshape(()) if scale is not None and scale.size == 1 else None


def _ahead(graph: ir.Graph, quantize: ir.Node) -> int:
    """Q behind a Mul."""
    value = quantize.inputs[0]
    maker = value.producer() if value is not None else None
    scale = _one_scale(quantize)
    if maker is None or maker.op_type != "Mul" or scale is None or value is None or value.is_graph_output():
        return 0
    found = factor(maker)
    if found is None or len(list(value.uses())) != 1:
        return 0
    index, channels, axis = found
    source = maker.inputs[index]
    before = source.producer() if source is not None else None
    if before is not None and before.op_type in LAYERS:
        return 0  # a kernel that computes the product itself, or reads its one scale there
    _spread(graph, quantize, scale / channels, axis)
    quantize.replace_input_with(0, maker.inputs[index])
    graph.remove(maker, safe=True)
    return 1


def _behind(graph: ir.Graph, product: ir.Node) -> int:
    """Mul behind a DQ; other readers keep a DQ with the one scale."""
    import onnx_ir as ir

    found = factor(product)
    if found is None or product.outputs[0].is_graph_output():
        return 0
    index, channels, axis = found
    source = product.inputs[index]
    dequantize = source.producer() if source is not None else None
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.graph is not product.graph:
        return 0
    scale = _one_scale(dequantize)
    if scale is None or constant(dequantize.inputs[0]) is not None:
        return 0
    out = product.outputs[0]
    own = ir.node("DequantizeLinear", list(dequantize.inputs), name=f"{product.name}.dequantize")
    own.outputs[0].name = f"{out.name}.real"
    own.outputs[0].type, own.outputs[0].shape = out.type, out.shape
    graph.insert_before(product, own)
    _spread(graph, own, scale * channels, axis)
    out.replace_all_uses_with(own.outputs[0])
    graph.remove(product, safe=True)
    if not dequantize.outputs[0].uses() and not dequantize.outputs[0].is_graph_output():
        graph.remove(dequantize, safe=True)
    return 1


def _spread(graph: ir.Graph, node: ir.Node, scale: NDArray[np.float32], axis: int) -> None:
    """Give a Q or DQ a scale per channel, and as many zero points."""
    import onnx_ir as ir

    zero = constant(node.inputs[2])
    assert zero is not None
    value = node.outputs[0] if node.op_type == "DequantizeLinear" else node.inputs[0]
    rank = len(value.shape) if value is not None and value.shape is not None else 0
    node.attributes["axis"] = ir.AttrInt64("axis", axis + rank)
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    arrays = {1: scale.astype(np.float32), 2: np.full(scale.shape, zero.reshape(()), zero.dtype)}
    for index, array in arrays.items():
        node.replace_input_with(
            index, _initializer(graph, f"{node.name}.{('scales', 'zero_points')[index - 1]}", array)
        )


def _initializer(graph: ir.Graph, hint: str, array: NDArray[np.generic]) -> ir.Value:
    import onnx_ir as ir

    name, count = hint, 2
    while name in graph.initializers:
        name, count = f"{hint}.{count}", count + 1
    tensor = ir.tensor(array, name=name)
    value = ir.val(name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=array.shape)
    graph.register_initializer(value)
    return value
