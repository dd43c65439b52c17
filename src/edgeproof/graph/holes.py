"""Fill the holes that ONNX's shape inference leaves.

One walk in topological order. A value's numbers are worked out when a shape depends on them, by ONNX's reference
implementation on small tensors; then ONNX's inference of that one operator runs again. Dimensions that stay symbolic
are followed through windows (Conv, pooling, Resize) and broadcasting, which ONNX's inference gives up on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model import attribute
from .constants import Constants, reshaped
from .dims import dims, static
from .symbolic import Dim, ceil_div, product

if TYPE_CHECKING:
    import onnx_ir as ir

_BROADCAST = frozenset(
    """
    Add Sub Mul Div Pow Max Min Sum Mean Where PRelu And Or Equal Less Greater Mod
    """.split()  # noqa: SIM905
)
_SAME_SHAPE = frozenset(
    """
    Gelu FastGelu BiasGelu QuickGelu SkipLayerNormalization SkipSimplifiedLayerNormalization QLinearSigmoid
    QLinearLeakyRelu QLinearSoftmax
    """.split()  # noqa: SIM905
)


def fill(model: ir.Model) -> None:
    """Complete types and shapes in place, subgraphs included."""
    _Filler(model).graph(model.graph)


class _Filler:
    """One walk over one model."""

    def __init__(self, model: ir.Model) -> None:
        import onnx

        self._opsets = [onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()]
        self._versions = model.opset_imports
        self._ir_version = model.ir_version or 10
        self._constants = Constants(model)

    def graph(self, graph: ir.Graph) -> None:
        """Fill one graph and those inside it."""
        import onnx_ir as ir

        for node in graph:
            for attr in node.attributes.values():
                if attr.is_ref():
                    continue
                if attr.type == ir.AttributeType.GRAPH:
                    self.graph(attr.as_graph())
            if any(_open(v) for v in node.outputs):
                self._node(node)

    def _node(self, node: ir.Node) -> None:
        """Infer one operator's outputs again, now that more is known of its inputs."""
        import onnx
        import onnx_ir as ir

        _follow_symbols(node, self._constants)
        if node.op_type == "If":
            _from_branches(node)
            return
        alias = "Conv" if node.domain == "com.microsoft" and node.op_type == "FusedConv" else node.op_type
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml") and alias == node.op_type:
            _contrib(node)
            return
        domain = "ai.onnx.ml" if node.domain == "ai.onnx.ml" else ""
        types: dict[str, Any] = {}
        data: dict[str, Any] = {}
        for v in node.inputs:
            if v is None or not v.name:
                continue
            if v.dtype is None or not isinstance(v.type, ir.TensorType):
                return
            types[v.name] = onnx.helper.make_tensor_type_proto(int(v.dtype), dims(v))
            number = self._constants.number(v)
            if number is not None and number.dtype != object:
                data[v.name] = onnx.numpy_helper.from_array(number)
        try:
            schema = onnx.defs.get_schema(alias, self._versions.get(domain, 1), domain)
            proto = ir.to_proto(node)
            if alias != node.op_type:
                proto.op_type, proto.domain = alias, ""
                foreign = [a for a in proto.attribute if a.name not in schema.attributes]
                for attr in foreign:
                    proto.attribute.remove(attr)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=self._opsets, ir_version=self._ir_version
            )
        except Exception:  # no schema, or an operator that does not fit it: the findings say so
            return
        for v in node.outputs:
            if v.name in inferred and inferred[v.name].HasField("tensor_type"):
                _merge(v, inferred[v.name].tensor_type)
        _follow_symbols(node, self._constants)


def _open(value: ir.Value) -> bool:
    shape = dims(value)
    return value.dtype is None or shape is None or any(not isinstance(d, int) for d in shape)


def _merge(value: ir.Value, tensor_type: Any) -> None:
    """Take over what is more definite than what was known."""
    import onnx_ir as ir

    if value.dtype is None and tensor_type.elem_type:
        value.type = ir.TensorType(ir.DataType(tensor_type.elem_type))
    if not tensor_type.HasField("shape"):
        return
    new: list[Dim | None] = [
        d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor_type.shape.dim
    ]
    old = dims(value)
    if old is None or len(old) != len(new):
        value.shape = ir.Shape(new)
        return
    value.shape = ir.Shape([o if isinstance(o, int) or n is None else n for o, n in zip(old, new, strict=True)])


def _from_branches(node: ir.Node) -> None:
    """An If has the shape that its branches agree on."""
    import onnx_ir as ir

    branches = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    for i, value in enumerate(node.outputs):
        found = [dims(b.outputs[i]) for b in branches if i < len(b.outputs)]
        if value.dtype is None and branches and i < len(branches[0].outputs):
            value.type = branches[0].outputs[i].type
        if found and found[0] is not None and all(f == found[0] for f in found):
            value.shape = ir.Shape(found[0])


def _follow_symbols(node: ir.Node, constants: Constants) -> None:
    """Give unknown dimensions of the first output an expression in the symbols of the inputs."""
    import onnx_ir as ir

    out = dims(node.outputs[0])
    if node.op_type == "Reshape" and (out is None or None in out) and len(node.inputs) > 1:
        target = constants.extents(node.inputs[1])
        if target is not None and not attribute(node, "allowzero", 0):
            node.outputs[0].shape = ir.Shape(reshaped(dims(node.inputs[0]), target))
        return
    if out is None or all(d is not None for d in out):
        return
    new = list(out)
    for axis, d in enumerate(out):
        if d is None:
            if node.op_type in _BROADCAST:
                new[axis] = _broadcast(node, len(out) - axis)
            elif node.op_type == "Concat":
                if axis != attribute(node, "axis", 0) % len(out):
                    new[axis] = _broadcast(node, len(out) - axis)
            else:
                new[axis] = _window(node, axis, constants)
    node.outputs[0].shape = ir.Shape(new)


def _broadcast(node: ir.Node, from_end: int) -> Dim | None:
    """Two open dimensions that meet must be equal (or one of them 1); the shorter name stands for both."""
    found = []
    for v in node.inputs:
        shape = dims(v)
        if shape is None:
            return None
        if len(shape) >= from_end:
            found.append(shape[-from_end])
    numbers = [d for d in found if isinstance(d, int) and d != 1]
    if numbers:
        return numbers[0]
    names = [d for d in found if isinstance(d, str)]
    return min(names, key=lambda n: (len(n), n)) if names and None not in found else None


def _window(node: ir.Node, axis: int, constants: Constants) -> Dim | None:
    """Output extent of a window operator along an axis, as an expression in the input's symbol."""
    shape = dims(node.inputs[0])
    size = shape[axis] if shape is not None and len(shape) > axis else None
    if not isinstance(size, str):
        return None
    if node.op_type in ("Resize", "Upsample"):
        numbers = [constants.number(v) for v in node.inputs[1:3]]
        scales = next((n for n in reversed(numbers) if n is not None and n.size == len(shape or ())), None)
        factor = float(scales[axis]) if scales is not None else 0.0
        return (
            size if factor == 1 else str(product([int(factor), size])) if factor > 1 and factor.is_integer() else None
        )
    if node.op_type not in ("Conv", "FusedConv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"):
        return None
    if axis < 2:
        return size if axis == 0 else None
    weight = static(node.inputs[1]) if len(node.inputs) > 1 else None
    kernel = attribute(node, "kernel_shape", weight[2:] if weight else ())
    i, n = axis - 2, len(kernel)
    if i >= n:
        return None
    stride = attribute(node, "strides", (1,) * n)[i]
    pads = attribute(node, "pads", (0,) * (2 * n))
    extent = (kernel[i] - 1) * attribute(node, "dilations", (1,) * n)[i] + 1
    same = str(attribute(node, "auto_pad", "NOTSET")).startswith("SAME")
    spare = pads[i] + pads[i + n] - extent
    if node.op_type == "ConvTranspose":
        exact = same or stride == attribute(node, "output_padding", (0,) * n)[i] - spare
        return str(product([stride, size])) if exact else None
    # floor((size + spare) / stride) + 1 is ceil(size / stride) exactly when spare is -1.
    if same or spare == -1:
        return ceil_div(size, stride)
    if attribute(node, "ceil_mode", 0):
        return ceil_div(size, stride) if spare == -stride else None
    if stride == 1:
        return f"({size}{spare + 1:+d})"
    top = f"({size}{spare + stride:+d})" if spare + stride else str(product([size]))
    return f"floor({top}/{stride})"


def _contrib(node: ir.Node) -> None:
    """Shapes of the com.microsoft operators that ONNX has no schema for, as their documentation gives them."""
    import onnx_ir as ir

    first = dims(node.inputs[0]) if node.inputs else None
    if node.domain != "com.microsoft" or first is None or node.inputs[0] is None:
        return
    out = node.outputs[0]
    shape: list[Dim | None] | None = None
    if node.op_type in _SAME_SHAPE:
        shape = list(first)
    elif node.op_type in ("FusedMatMul", "TransposeMatMul", "MatMulNBits") and len(first) >= 2:
        second = dims(node.inputs[1])
        if node.op_type == "MatMulNBits":
            shape = [*first[:-1], attribute(node, "N", 0)]
        elif second is not None and len(second) >= 2:
            a = list(first[:-2]) if len(first) >= len(second) else list(second[:-2])
            rows = first[-1] if attribute(node, "transA", 0) else first[-2]
            shape = [*a, rows, second[-2] if attribute(node, "transB", 0) else second[-1]]
    elif node.op_type in ("Attention", "QAttention") and len(first) == 3:
        sizes = attribute(node, "qkv_hidden_sizes", ())
        weight = dims(node.inputs[1])
        width = sizes[2] if sizes else (weight[1] if weight else None)
        shape = [*first[:2], width if sizes or not isinstance(width, int) else width // 3]
    elif node.op_type == "MultiHeadAttention" and len(first) == 3:
        value = dims(node.inputs[2]) if len(node.inputs) > 2 else None
        if value is not None and len(value) == 3:
            shape = [*first[:2], value[2]]
    if shape is not None:
        out.type = out.type or node.inputs[0].type
        if _open(out):
            out.shape = ir.Shape(shape)
