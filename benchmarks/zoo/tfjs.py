"""TensorFlow.js graph models as ONNX graphs with pictures in NCHW; needs NumPy and onnx only.

A graph model is JSON (nodes of TensorFlow, weights by name) beside flat weight files. Here are the operators that
inference graphs of convolutional networks use, not all of TensorFlow; an unknown one is refused by name. A value is
kept in the layout it was computed in and transposed only where the other one is asked for, once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeproof.errors import UnsupportedError

from .graph import Graph

if TYPE_CHECKING:
    import onnx

_WEIGHT_DTYPES = {"float32": "<f4", "float16": "<f2", "int32": "<i4", "uint8": "u1", "uint16": "<u2", "bool": "?"}
_CAST_TO = {"DT_FLOAT": 1, "DT_INT32": 6, "DT_INT64": 7, "DT_BOOL": 9}
_NHWC_TO_NCHW = {0: 0, 1: 2, 2: 3, 3: 1, -1: 1}


@dataclass(slots=True)
class _Value:
    """One tensor: a constant, or names in the layout of TensorFlow (``plain``) and, for pictures, in NCHW."""

    constant: NDArray[Any] | None = None
    plain: str = ""
    nchw: str = ""


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def read_weights(manifest: Sequence[Mapping[str, Any]], files: Mapping[str, bytes]) -> dict[str, NDArray[Any]]:
    """Weights by name; quantised ones are expanded to float32.

    Args:
        manifest: ``weightsManifest`` of the model's JSON.
        files: Content of the files that it names.
    """
    weights = {}
    for group in manifest:
        data, at = b"".join(files[p] for p in group["paths"]), 0
        for entry in group["weights"]:
            coding = entry.get("quantization")
            dtype = np.dtype(_WEIGHT_DTYPES[coding["dtype"] if coding else entry["dtype"]])
            count = int(np.prod(entry["shape"], dtype=np.int64))
            values = np.frombuffer(data, dtype, count, at)
            at += count * dtype.itemsize
            if coding and coding["dtype"] != "float16":
                values = values.astype(np.float32) * np.float32(coding["scale"]) + np.float32(coding["min"])
            if entry["dtype"] == "float32":
                values = values.astype(np.float32)
            weights[entry["name"]] = values.reshape(entry["shape"])
    return weights


def convert(description: bytes, files: Mapping[str, bytes], name: str, outputs: Mapping[str, Any]) -> onnx.ModelProto:
    """The graph that computes ``outputs``.

    Args:
        description: ``model.json``.
        files: Its weight files by name.
        name: Of the ONNX graph.
        outputs: TensorFlow node name → shape, float32. ``a/b`` becomes ``out_a_b``.

    Returns:
        A model whose picture inputs are N×C×H×W; outputs keep TensorFlow's layout. Padding is explicit.

    Raises:
        UnsupportedError: zoo.tfjs, naming the operator.
    """
    parsed = json.loads(description)
    nodes = {n.name: n for n in map(_node, parsed["modelTopology"]["node"])}
    c = _Converter(Graph(name), read_weights(parsed["weightsManifest"], files))
    for node in _in_order(nodes, outputs):
        c.add(node)
    for tensor in outputs:
        c.graph.op("Identity", [c.plain(tensor)], _output_name(tensor))
    model = c.graph.model(c.inputs, [(_output_name(k), np.float32, shape) for k, shape in outputs.items()])
    return _with_explicit_padding(model)


def _output_name(tensor: str) -> str:
    return "out_" + tensor.replace("/", "_")


def _node(raw: Mapping[str, Any]) -> _Node:
    inputs = tuple(i.removesuffix(":0") for i in raw.get("input", ()) if not i.startswith("^"))
    return _Node(raw["name"], raw["op"], inputs, {k: _attribute(v) for k, v in raw.get("attr", {}).items()})


def _attribute(raw: Mapping[str, Any]) -> Any:
    """A plain value of TensorFlow's ``{type: value}``."""
    ((kind, value),) = raw.items()
    if kind == "list":
        return [_attribute({k: v}) for k, values in value.items() for v in values]
    if kind == "i":
        return int(value)
    if kind == "s":
        return base64.b64decode(value).decode()
    if kind == "shape":
        return [int(d["size"]) for d in value.get("dim", ())]
    return value


def _in_order(nodes: Mapping[str, _Node], wanted: Iterator[str] | Mapping[str, Any]) -> list[_Node]:
    """What ``wanted`` needs, producers first (depth first, without recursion: graphs are deep)."""
    order: dict[str, _Node] = {}
    stack = [(name, False) for name in reversed(list(wanted))]
    while stack:
        name, ready = stack.pop()
        name = name.split(":")[0]
        if name in order:
            continue
        if ready:
            order[name] = nodes[name]
            continue
        stack.append((name, True))
        stack.extend((i, False) for i in reversed(nodes[name].inputs))
    return list(order.values())


class _Converter:
    """Values so far, and the graph they are in."""

    def __init__(self, graph: Graph, weights: Mapping[str, NDArray[Any]]) -> None:
        self.graph = graph
        self.inputs: list[tuple[str, Any, list[int | str]]] = []
        self._weights = weights
        self._values: dict[str, _Value] = {}

    def add(self, node: _Node) -> None:
        """Translate one node whose inputs are there."""
        if node.op == "Const":
            self._values[node.name] = _Value(constant=self._weights[node.name])
        elif node.op == "Placeholder":
            self._values[node.name] = self._input(node)
        elif node.op in _OPERATORS:
            for i, value in enumerate(_OPERATORS[node.op](self, node)):
                self._values[node.name if i == 0 else f"{node.name}:{i}"] = value
        else:
            raise UnsupportedError("zoo.tfjs", node.name, f"operator {node.op} is not translated", "add it to tfjs.py")

    def _input(self, node: _Node) -> _Value:
        name, shape = node.name.replace("/", "_"), node.attributes["shape"]
        if len(shape) == 4:
            self.inputs.append((name, np.float32, [shape[0], shape[3], shape[1], shape[2]]))
            return _Value(nchw=name)
        self.inputs.append((name, np.float32, shape))
        return _Value(plain=name)

    def value(self, tensor: str) -> _Value:
        return self._values[tensor]

    def constant(self, tensor: str) -> NDArray[Any]:
        """A value that must be known before the graph runs: weights, axes, shapes."""
        value = self._values[tensor].constant
        if value is None:
            raise UnsupportedError("zoo.tfjs", tensor, "is computed where only a constant is translated", "")
        return value

    def plain(self, tensor: str) -> str:
        """Name of the tensor in TensorFlow's layout."""
        value = self._values[tensor]
        if not value.plain:
            if value.constant is not None:
                value.plain = self.graph.constant(value.constant)
            else:
                value.plain = self.graph.op("Transpose", [value.nchw], perm=[0, 2, 3, 1])
        return value.plain

    def nchw(self, tensor: str) -> str:
        """Name of the tensor in NCHW."""
        value = self._values[tensor]
        if not value.nchw:
            if value.constant is not None:
                value.nchw = self.graph.constant(_broadcast_nchw(value.constant))
            else:
                value.nchw = self.graph.op("Transpose", [value.plain], perm=[0, 3, 1, 2])
        return value.nchw

    def is_nchw(self, tensor: str) -> bool:
        value = self._values[tensor]
        return value.constant is None and bool(value.nchw)

    def elementwise(self, op: str, tensors: Sequence[str], extra: Sequence[str] = (), **attributes: Any) -> _Value:
        """An operator that works in either layout, in the one that its inputs have."""
        if any(self.is_nchw(t) for t in tensors):
            return _Value(nchw=self.graph.op(op, [*map(self.nchw, tensors), *extra], **attributes))
        return _Value(plain=self.graph.op(op, [*map(self.plain, tensors), *extra], **attributes))


def _broadcast_nchw(value: NDArray[Any]) -> NDArray[Any]:
    """A constant that broadcasts against NHWC, for NCHW."""
    if value.size == 1 and value.ndim < 2:
        return value
    shape = (1,) * (4 - value.ndim) + value.shape
    return np.ascontiguousarray(value.reshape(shape).transpose(0, 3, 1, 2))


def _ints(c: _Converter, values: Any) -> str:
    return c.graph.constant(np.atleast_1d(np.asarray(values, np.int64)))


def _convolution(c: _Converter, n: _Node) -> Sequence[_Value]:
    weight, depthwise = c.constant(n.inputs[1]), "epthwise" in n.op
    groups = 1
    if depthwise:
        height, width, groups, multiplier = weight.shape
        weight = weight.transpose(2, 3, 0, 1).reshape(groups * multiplier, 1, height, width)
    else:
        weight = weight.transpose(3, 2, 0, 1)
    fused = n.attributes.get("fused_ops", [])
    name = n.name.replace("/", "_")
    inputs = [c.nchw(n.inputs[0]), c.graph.constant(np.ascontiguousarray(weight), f"{name}_w")]
    if "BiasAdd" in fused:
        inputs.append(c.graph.constant(c.constant(n.inputs[2]).reshape(-1), f"{name}_b"))
    y = c.graph.op(
        "Conv",
        inputs,
        kernel_shape=list(weight.shape[2:]),
        strides=n.attributes["strides"][1:3],
        dilations=n.attributes.get("dilations", [1, 1, 1, 1])[1:3],
        group=groups,
        auto_pad=_auto_pad(n),
    )
    for activation in fused:
        y = y if activation == "BiasAdd" else _activation(c, activation, y)
    return [_Value(nchw=y)]


def _auto_pad(n: _Node) -> str:
    return {"SAME": "SAME_UPPER", "VALID": "VALID"}[n.attributes["padding"]]


def _activation(c: _Converter, kind: str, x: str) -> str:
    if kind == "Relu6":
        return c.graph.op("Clip", [x, c.graph.constant(np.float32(0), "zero"), c.graph.constant(np.float32(6), "six")])
    return c.graph.op({"Relu": "Relu", "Sigmoid": "Sigmoid"}[kind], [x])


def _relu6(c: _Converter, n: _Node) -> Sequence[_Value]:
    limits = [c.graph.constant(np.float32(0), "zero"), c.graph.constant(np.float32(6), "six")]
    return [c.elementwise("Clip", n.inputs, limits)]


def _same_named(op: str) -> _Operator:
    return lambda c, n: [c.elementwise(op, n.inputs)]


def _identity(c: _Converter, n: _Node) -> Sequence[_Value]:
    return [c.value(n.inputs[0])]


def _max_pool(c: _Converter, n: _Node) -> Sequence[_Value]:
    sizes = {"kernel_shape": n.attributes["ksize"][1:3], "strides": n.attributes["strides"][1:3]}
    return [_Value(nchw=c.graph.op("MaxPool", [c.nchw(n.inputs[0])], auto_pad=_auto_pad(n), **sizes))]


def _mean(c: _Converter, n: _Node) -> Sequence[_Value]:
    axes = np.atleast_1d(c.constant(n.inputs[1])).tolist()
    keep = bool(n.attributes.get("keep_dims", False))
    if c.is_nchw(n.inputs[0]) and keep:
        x, axes = c.nchw(n.inputs[0]), [_NHWC_TO_NCHW[a] for a in axes]
        return [_Value(nchw=c.graph.op("ReduceMean", [x], axes=axes, keepdims=1))]
    return [_Value(plain=c.graph.op("ReduceMean", [c.plain(n.inputs[0])], axes=axes, keepdims=int(keep)))]


def _concat(c: _Converter, n: _Node) -> Sequence[_Value]:
    *parts, axis_name = n.inputs
    axis = int(c.constant(axis_name))
    layout_axis = _NHWC_TO_NCHW[axis] if any(map(c.is_nchw, parts)) else axis
    return [c.elementwise("Concat", parts, axis=layout_axis)]


def _resize_bilinear(c: _Converter, n: _Node) -> Sequence[_Value]:
    half, corners = n.attributes.get("half_pixel_centers"), n.attributes.get("align_corners")
    mode = "half_pixel" if half else "align_corners" if corners else "asymmetric"
    x, g = c.nchw(n.inputs[0]), c.graph
    batch_and_channels = g.op("Slice", [g.op("Shape", [x]), _ints(c, 0), _ints(c, 2)])
    sizes = g.op("Concat", [batch_and_channels, _ints(c, c.constant(n.inputs[1]))], axis=0)
    y = g.op("Resize", [x, "", "", sizes], mode="linear", coordinate_transformation_mode=mode)
    return [_Value(nchw=y)]


def _reshape(c: _Converter, n: _Node) -> Sequence[_Value]:
    return [_Value(plain=c.graph.op("Reshape", [c.plain(n.inputs[0]), _ints(c, c.constant(n.inputs[1]))]))]


def _expand_dims(c: _Converter, n: _Node) -> Sequence[_Value]:
    return [_Value(plain=c.graph.op("Unsqueeze", [c.plain(n.inputs[0]), _ints(c, c.constant(n.inputs[1]))]))]


def _cast(c: _Converter, n: _Node) -> Sequence[_Value]:
    return [c.elementwise("Cast", n.inputs, to=_CAST_TO[n.attributes["DstT"]])]


def _top_k(c: _Converter, n: _Node) -> Sequence[_Value]:
    k = _ints(c, c.constant(n.inputs[1]))
    name = n.name.replace("/", "_")
    values, indices = c.graph.ops("TopK", [c.plain(n.inputs[0]), k], (f"{name}_values", f"{name}_indices"), axis=-1)
    return [_Value(plain=values), _Value(plain=c.graph.op("Cast", [indices], to=_CAST_TO["DT_INT32"]))]


def _floor_div(c: _Converter, n: _Node) -> Sequence[_Value]:
    """ONNX's integer Div truncates; the same for the indices, never negative, that it is used on."""
    return [_Value(plain=c.graph.op("Div", [c.plain(i) for i in n.inputs]))]


def _floor_mod(c: _Converter, n: _Node) -> Sequence[_Value]:
    return [_Value(plain=c.graph.op("Mod", [c.plain(i) for i in n.inputs]))]


def _gather(c: _Converter, n: _Node) -> Sequence[_Value]:
    axis = int(c.constant(n.inputs[2]))
    return [_Value(plain=c.graph.op("Gather", [c.plain(i) for i in n.inputs[:2]], axis=axis))]


def _strided_slice(c: _Converter, n: _Node) -> Sequence[_Value]:
    """``x[begin:end:step]`` where bits of a mask open the range; other masks are not translated."""
    begin, end, step = (np.atleast_1d(c.constant(i)).astype(np.int64) for i in n.inputs[1:4])
    open_start, open_end = n.attributes.get("begin_mask", 0), n.attributes.get("end_mask", 0)
    for mask in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask"):
        if n.attributes.get(mask, 0):
            raise UnsupportedError("zoo.tfjs", n.name, f"StridedSlice with {mask} is not translated", "")
    axes = np.arange(len(begin))
    begin = np.where(open_start >> axes & 1, 0, begin)
    end = np.where(open_end >> axes & 1, np.iinfo(np.int32).max, end)
    ranges = [_ints(c, v) for v in (begin, end, axes, step)]
    return [_Value(plain=c.graph.op("Slice", [c.plain(n.inputs[0]), *ranges]))]


_Operator = Callable[[_Converter, _Node], Sequence[_Value]]

_OPERATORS: Mapping[str, _Operator] = {
    **dict.fromkeys(("Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative"), _convolution),
    **{op: _same_named(op) for op in ("Add", "Sub", "Mul", "Relu", "Sigmoid", "Equal")},
    "AddV2": _same_named("Add"),
    "Relu6": _relu6,
    "Identity": _identity,
    "MaxPool": _max_pool,
    "Mean": _mean,
    "ConcatV2": _concat,
    "ResizeBilinear": _resize_bilinear,
    "Reshape": _reshape,
    "ExpandDims": _expand_dims,
    "Cast": _cast,
    "TopKV2": _top_k,
    "FloorDiv": _floor_div,
    "FloorMod": _floor_mod,
    "GatherV2": _gather,
    "StridedSlice": _strided_slice,
}


def _with_explicit_padding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Pads in numbers instead of ``auto_pad``, which some runtimes and converters lack."""
    import onnx
    from onnx import helper

    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    known = [*inferred.graph.value_info, *inferred.graph.input]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in known}
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        auto_pad = attributes.pop("auto_pad", None)
        if auto_pad is None:
            continue
        before, after = [0, 0], [0, 0]
        if auto_pad == b"SAME_UPPER":
            for axis, size in enumerate(shapes[node.input[0]][2:]):
                stride, dilation = attributes["strides"][axis], attributes.get("dilations", [1, 1])[axis]
                reach = (attributes["kernel_shape"][axis] - 1) * dilation + 1
                total = max(0, (-(-size // stride) - 1) * stride + reach - size)
                before[axis], after[axis] = total // 2, total - total // 2
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        node.attribute.append(helper.make_attribute("pads", [*before, *after]))
    onnx.checker.check_model(model, full_check=True)
    return model
