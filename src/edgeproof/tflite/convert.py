"""A model as a TensorFlow Lite file.

Float models stay float; what the graph holds as codes stays those codes. Values are stored channels last from the first
convolution on and turned only where an operator must have them otherwise (`layout`). Shapes must be fixed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError, did_you_mean
from ..graph.constants import Constants
from ..graph.example_shape import example_shape
from ..graph.opset import opset_of
from ..graph.quantised import BLOCKED_FORM, OPERATOR_FORM, coded
from ..graph.rewrite import label, subgraphs
from ..graph.shapes import infer
from ..model import Model, TensorSpec, attribute, spec
from . import (
    activation,
    convolution,
    elementwise,
    layout,
    movement,
    pooling,
    product,
    reduction,
    resize,
    selection,
    spelled,
    transposed,
)
from .held import Held, Step, activation_quant, is_read, off, refuse
from .lowering import Lowering
from .steps import codes_of, step
from .write import File, Operator, Quant, serialise

if TYPE_CHECKING:
    import onnx_ir as ir

Layout = Literal["nchw", "nhwc"]
Weights = Literal["float", "dynamic"]

OPS: Mapping[str, Any] = {
    **convolution.OPS,
    **transposed.OPS,
    **pooling.OPS,
    **product.OPS,
    **elementwise.OPS,
    **activation.OPS,
    **movement.OPS,
    **reduction.OPS,
    **selection.OPS,
    **resize.OPS,
}
"""ONNX operator → what lowers it."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A file in memory.

    Attributes:
        data: The flatbuffer.
        operators: (ONNX node, LiteRT operator, dtype of its first output) in order of execution.
        inputs: Name → how its axes are stored.
        outputs: Name → how its axes are stored.
    """

    data: bytes
    operators: tuple[tuple[str, str, str], ...]
    inputs: Mapping[str, layout.Perm]
    outputs: Mapping[str, layout.Perm]


def convert(model: Model, *, half: bool = False, order: Layout = "nchw", weights: Weights = "float") -> Converted:
    """Convert a model.

    Args:
        model: Float, or with Q/DQ; all its shapes fixed.
        half: Store float weights as float16; they are computed in float32, or as the device likes.
        order: Axes of four-dimensional inputs and outputs: ``nchw`` as in ONNX, ``nhwc`` as Android has images.
        weights: What 8-bit weights under float activations do: ``float`` turns them back into numbers as the file is
            loaded, ``dynamic`` multiplies in integers, with activations that are quantised as they come.

    Raises:
        UnsupportedError: tflite.operator, tflite.computed, tflite.shape, tflite.dtype, naming the node and the remedy.
    """
    low, graph = _begin(model, half, weights == "dynamic")
    inputs = [_input(low, v, order, model.outputs) for v in graph.inputs if v.name not in graph.initializers]
    done: set[ir.Node] = set()
    for node in graph:
        if node in done:
            continue
        if node.op_type == "QuantizeLinear":
            _quantise(low, node)
        elif node.op_type == "DequantizeLinear":
            _dequantise(low, node)
        elif not _constant(low, node):
            made = _lower(low, node)
            done.update(made.covered)
    low.step = None
    outputs = [_output(low, v, order) for v in graph.outputs]
    _prune(low.file)
    names = [name for name, _ in inputs], [name for name, _ in outputs]
    data = serialise(low.file, names, f"{model.name}, converted from ONNX by edgeproof")
    tensors = low.file.tensors
    operators = tuple((o.node, o.code, tensors[o.outputs[0]].dtype) for o in low.file.operators)
    return Converted(data, operators, dict(inputs), dict(outputs))


def _begin(model: Model, half: bool, dynamic: bool) -> tuple[Lowering, ir.Graph]:
    clone = model.graph.clone()
    if clone.functions:
        import onnx_ir.passes.common as common

        common.InlinePass()(clone)
    own = Model.of(clone, model.name)
    shapes: dict[str, layout.Shape] = {}
    dtypes: dict[str, str] = {}
    for value, (dtype, shape) in infer(own).items():
        dtypes[value] = "float32" if dtype == "float16" else dtype
        if shape is not None and all(isinstance(d, int) for d in shape):
            shapes[value] = tuple(int(d) for d in shape)
    spelled.join(clone.graph)  # shapes come first: ONNX knows Gelu from opset 20 on only
    _shape_all(clone.graph, shapes)
    opset = opset_of(clone)
    low = Lowering(shapes, dtypes, coded(clone.graph), _finder(clone), half, dynamic, opset)
    low.names.update(v.name or "" for v in clone.graph.inputs)
    for node in clone.graph:
        if next(subgraphs(node), None) is not None:
            raise refuse(
                node, "holds graphs of its own", "run pass fold_branches, or leave this model to another runtime"
            )
    return low, clone.graph


def _shape_all(graph: ir.Graph, shapes: Mapping[str, layout.Shape]) -> None:
    import onnx_ir as ir

    for node in graph:
        for value in node.outputs:
            if value.name in shapes:
                value.shape = ir.Shape(shapes[value.name or ""])


def _finder(clone: ir.Model) -> Callable[[ir.Value], NDArray[Any] | None]:
    """Finds the constant behind a value: stored of any size, or worked out from what is known."""
    constants = Constants(clone)

    def find(value: ir.Value) -> NDArray[Any] | None:
        if value.const_value is not None:
            return value.const_value.numpy()
        node = value.producer()
        if node is not None and node.op_type == "Constant" and "value" in node.attributes:
            found: NDArray[Any] = attribute(node, "value", None).numpy()
            return found
        if node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
            return find(node.inputs[0])
        if node is not None and node.op_type == "ConstantOfShape":
            size = constants.number(node.inputs[0])
            fill = attribute(node, "value", None)
            number = np.zeros(1, np.float32) if fill is None else fill.numpy()
            return None if size is None else np.full(tuple(int(n) for n in size), number[0], number.dtype)
        return constants.number(value)

    return find


def _input(low: Lowering, value: ir.Value, order: Layout, outputs: Sequence[TensorSpec]) -> tuple[str, layout.Perm]:
    name = value.name or ""
    if name not in low.shapes:
        raise UnsupportedError(
            "tflite.shape",
            name,
            f"has open dimensions, {value.shape}; LiteRT files have fixed ones here",
            f"close them: --shape {shlex.quote(name)}={example_shape(spec(value), outputs)}, or pass fix_shapes",
        )
    shape, real = low.shapes[name], value.dtype.numpy().name if value.dtype is not None else low.dtypes[name]
    perm = _outer(order, len(shape))
    _check_dtype(name, real)
    low.names.discard(name)
    tensor = low.tensor(layout.stored(shape, perm), real, name=name)
    low.file.inputs.append(tensor)
    if real == "float16":
        tensor = elementwise.cast(low, tensor, "float32")
    low.hold(value, Held(tensor, perm))
    return name, perm


def _outer(order: Layout, rank: int) -> layout.Perm:
    """How inputs and outputs of the file are stored."""
    return layout.channels_last(4) if order == "nhwc" and rank == 4 else layout.identity(rank)


def _check_dtype(subject: str, dtype: str) -> None:
    if dtype not in ("float32", "float16", "int64", "int32", "bool", "int8", "uint8", "int16"):
        raise UnsupportedError(
            "tflite.dtype",
            subject,
            f"is {dtype}, which LiteRT's kernels do not compute",
            "cast it to float32 or int32 in the graph",
        )


def _constant(low: Lowering, node: ir.Node) -> bool:
    """Whether a node's outputs are known already; they are stored when something reads them."""
    return all(low.number(v) is not None for v in node.outputs if v.name)


def _lower(low: Lowering, node: ir.Node) -> Step:
    if node.domain not in ("", "ai.onnx") or node.op_type not in OPS:
        raise _unknown(node)
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.name and is_read(value):
            if value.name not in low.shapes:
                raise UnsupportedError(
                    "tflite.shape",
                    f"{label(node)} ({node.op_type})",
                    f"has {value.name}, whose shape is not known ahead; LiteRT files have fixed ones here",
                    "run passes fix_shapes and simplify",
                )
            _check_dtype(f"{label(node)} ({node.op_type}): {value.name}", low.dtypes[value.name])
    for value in (*node.inputs[:1], *node.outputs):
        if value is not None and 0 in low.shapes.get(value.name or "", ()) and node.op_type != "Concat":
            raise refuse(node, f"has {value.name}, which is empty", "run pass simplify first")
    made = step(low, node)
    if not made.integer:
        _check_small(low, node)
    low.step = made
    try:
        OPS[node.op_type](low, node)
    finally:
        low.step = None
    return made


_ANY_DTYPE = (*movement.OPS, "Gather", "Cast", "Where", "Identity", "Dropout")
"""Operators whose kernels do not care what the numbers are."""


def _check_small(low: Lowering, node: ir.Node) -> None:
    """Refuse arithmetic with plain 8- and 16-bit integers: LiteRT takes all of those for codes of real numbers."""
    for value in node.inputs:
        if (
            value is not None
            and low.dtypes.get(value.name or "") in ("int8", "uint8", "int16")
            and node.op_type not in _ANY_DTYPE
        ):
            raise refuse(node, f"computes with plain {low.dtype(value)}", "cast to int32 or float32 in the graph")


def _unknown(node: ir.Node) -> UnsupportedError:
    full = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    if node.op_type in (*OPERATOR_FORM, *BLOCKED_FORM) or node.op_type.startswith("QLinear"):
        return refuse(node, "computes with integers by an operator of ONNX's own", "quantise with Q/DQ (pass int8)")
    return UnsupportedError(
        "backend.unknown_operator",
        f"{label(node)} ({full})",
        "has no form in TensorFlow Lite's builtin operators here",
        f"export it with standard ONNX operators ({did_you_mean(node.op_type, OPS)[:80]})",
    )


def _quantise(low: Lowering, node: ir.Node) -> None:
    """QUANTIZE, of real numbers or of other codes."""
    value, out = node.inputs[0], node.outputs[0]
    quant, given, number = codes_of(low, node), low.number(node.inputs[1]), low.number(value)
    if number is not None:
        if quant is None:
            raise refuse(node, "quantises a constant in a form that LiteRT has no kernels for", "run pass simplify")
        codes = np.clip(np.rint(number / np.float32(quant.scale[0])) + quant.zero[0], -128, 127).astype(np.int8)
        stored = low.store(codes, quant, out.name or "")
        low.hold(out, Held(stored, layout.identity(codes.ndim), quant))
        return
    zero = low.number(node.inputs[2]) if len(node.inputs) > 2 else None
    dtype = "int8" if quant is not None else low.dtype(out)
    if quant is None:
        if dtype not in ("int8", "uint8", "int16") or given is None or given.size != 1:
            raise refuse(
                node, f"makes codes of {dtype} that LiteRT has no kernels for", "quantise to 8 bits per tensor"
            )
        quant = Quant((float(given.reshape(-1)[0]),), (0 if zero is None else int(zero.reshape(-1)[0]),))
    held = low.form(value, low.order(value), codes=low.quant_of(value) is not None)
    plain = codes_of(low, node) is None
    if held.quant == quant and not plain:
        low.hold(out, held)
        return
    shape = low.file.tensors[held.tensor].shape
    factor = low.factor(held.tensor, value)
    made = low.emit("QUANTIZE", [held.tensor], shape, dtype=dtype, quant=quant if plain else off(quant, factor))
    low.hold(out, Held(made, held.perm, None if plain else quant))
    low.rename(made, out.name or "")


def _dequantise(low: Lowering, node: ir.Node) -> None:
    """Another name for what holds the codes; a DEQUANTIZE only where real numbers are read."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    if low.number(out) is not None:
        return
    forms = low.held[source.name or ""]
    code = low.coded.get(out.name or "")
    if code is not None and all(h.quant is not None for h in forms):
        quant = activation_quant(code)
        same = all(h.quant == quant for h in forms)
        low.held[out.name or ""] = forms if same else [Held(h.tensor, h.perm, quant) for h in forms]
        return
    first = forms[0]
    t = low.file.tensors[first.tensor]
    if t.quant is None:
        scale, zero = low.number(node.inputs[1]), low.number(node.inputs[2]) if len(node.inputs) > 2 else None
        if scale is None or scale.size != 1 or t.dtype not in ("int8", "uint8", "int16"):
            raise refuse(
                node, f"reads {t.dtype} by scales that LiteRT has no kernels for", "quantise to 8 bits per tensor"
            )
        t.quant = Quant((float(scale.reshape(-1)[0]),), (0 if zero is None else int(zero.reshape(-1)[0]),))
    real = low.emit("DEQUANTIZE", [first.tensor], t.shape, dtype="float32")
    low.hold(out, Held(real, first.perm))


def _output(low: Lowering, value: ir.Value, order: Layout) -> tuple[str, layout.Perm]:
    """An output in the order that is wanted, in a tensor of its own, called as in the model."""
    name = value.name or ""
    if name not in low.shapes:
        raise UnsupportedError(
            "tflite.shape", name, "has open dimensions; LiteRT files have fixed ones", "run pass fix_shapes"
        )
    if value.is_graph_input():
        raise UnsupportedError(
            "tflite.operator",
            name,
            "is an input that is handed out as it is; in a LiteRT file a name is that of one tensor",
            "leave the output out, or put an Identity with another name between them",
        )
    rank = len(low.shapes[name])
    perm = _outer(order, rank)
    plain = all(h.quant is None for h in low.held.get(name, ()))
    held = low.form(value, perm, codes=not plain and low.quant_of(value) is None)
    tensor = held.tensor
    t = low.file.tensors[tensor]
    if value.dtype is not None and value.dtype.numpy().name == "float16" and t.dtype == "float32":
        tensor = elementwise.cast(low, tensor, "float16")
    t = low.file.tensors[tensor]
    if tensor in (*low.file.inputs, *low.file.outputs) or t.data is not None:
        tensor = low.copied(tensor)
    low.file.outputs.append(tensor)
    t = low.file.tensors[tensor]
    for other in low.file.tensors:
        if other is not t and other.name == name:
            other.name = low.fresh(f"{name}/stored")
    low.names.add(name)
    t.name = name
    return name, perm


def _prune(file: File) -> None:
    """Leave out what no output needs."""
    needed = set(file.outputs)
    kept: list[Operator] = []
    for op in reversed(file.operators):
        if needed & set(op.outputs):
            kept.append(op)
            needed |= set(op.inputs)
    file.operators[:] = reversed(kept)
