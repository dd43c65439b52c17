"""Q/DQ graphs in ncnn's own INT8: integer weights with a scale per channel, and a scale for what the layer reads.

pnnx knows no Q/DQ. So the graph is converted in float, with the very numbers that its codes stand for, and the layers
that can run in integers get their codes and scales back: convolutions, depthwise ones, and inner products. ncnn's
scales are the inverse of ONNX's: codes = round(value · scale), within [-127, 127], zero point 0. Between two such
layers the first one writes codes itself (ncnn calls it requantisation).

Sources: ncnn, *Post Training Quantization Tools*, `ncnn2int8` (which layers, `fuse_requantize`), `load_model` of
Convolution, ConvolutionDepthWise and InnerProduct (order of the scales), *layer feature mask*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..graph.quantised import PAIR, Coded, Computed, coded, computed
from ..graph.rewrite import array
from ..model import Model, attribute
from .convert import Network
from .netfile import Layer, Weight

if TYPE_CHECKING:
    import onnx_ir as ir

NO_WINOGRAD = 64
"""Bit of parameter 31: without it, 3×3 convolutions transform 8-bit weights, and their sums overflow."""

FEATURES = 31
"""Parameter: what a layer must not use."""

SCALES = 8
"""Parameter: 1 when there are scales, 101 when the layer writes codes."""

LIMIT = 127

_TYPES = ("Convolution", "ConvolutionDepthWise", "InnerProduct")
"""Layers that take scales from the file."""


@dataclass(frozen=True, slots=True)
class Integers:
    """What a layer needs to run in integers.

    Attributes:
        codes: Weights, int8, as ncnn orders them: outputs first.
        scales: Of the weights in ONNX's sense (step between codes), one per output.
        input_scale: Of what the layer reads, likewise.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    input_scale: float


def as_float(model: Model) -> tuple[Model, dict[str, Integers], tuple[tuple[str, str], ...]]:
    """A Q/DQ model with the numbers that its codes stand for.

    Returns:
        The float model; node → its integers; (node, why) for quantised nodes that ncnn computes in float.
    """
    wanted, declined = {}, []
    for node in computed(model.graph.graph):
        if node.integer and node.weight is not None:
            found = _integers(node)
            if isinstance(found, str):
                declined.append((node.label, found))
            else:
                wanted[node.label] = found
    return _stripped(model), wanted, tuple(declined)


def with_integers(network: Network, wanted: Mapping[str, Integers]) -> tuple[Network, tuple[tuple[str, str], ...]]:
    """A network whose layers run in integers where `as_float` found that they can.

    Returns:
        The network; (node, why) for nodes that stay in float all the same.
    """
    layers, declined, scale_of = [], [], {}
    left = dict(wanted)
    for layer in network.layers:
        name = network.origins.get(layer.name, "")
        numbers = left.get(name)
        made = None if numbers is None else _integer_layer(layer, numbers)
        if numbers is not None and made is None:
            declined.append((name, f"ncnn computes it as {layer.type}, which takes no scales from a file"))
        if made is not None and numbers is not None:
            scale_of[layer.name] = numbers.input_scale
        left.pop(name, None)
        layers.append(made or layer)
    declined += [(name, "its weights are not in ncnn's file as they are in the graph") for name in left]
    return replace(network, layers=tuple(_chained(layers, scale_of))), tuple(declined)


def in_integers(layer: Layer) -> bool:
    """Whether a layer computes in integers."""
    return layer.type in _TYPES and layer.number(SCALES) != 0


def _integers(node: Computed) -> Integers | str:
    """What a node needs, or why ncnn cannot."""
    op, x, w = node.node.op_type, node.input, node.weight
    if op not in ("Conv", "Gemm", "MatMul") or x is None or w is None or w.codes is None:
        return f"ncnn has no integer {op} for it"
    if x.scale.size != 1 or not _symmetric(x):
        return f"its input has the zero point {x.zero_point.flat[0]} ({x.dtype}); ncnn's integers are symmetric"
    codes = w.codes.astype(np.int64) - _spread(w, w.zero_point)
    if w.dtype not in ("int8", "uint8") or codes.min() < -128 or codes.max() > LIMIT:
        return f"its weights are {w.dtype} with a zero point of their own; ncnn's are symmetric int8"
    axis, turned = _output_axis(node.node)
    if w.block or (w.axis is not None and w.scale.size > 1 and w.axis % codes.ndim != axis):
        return "its weights have scales along another axis than their outputs"
    codes = codes.T if turned else codes
    scales = np.broadcast_to(w.scale.reshape(-1), (codes.shape[0],))
    return Integers(codes.clip(-LIMIT, LIMIT).astype(np.int8), np.array(scales, np.float32), float(x.scale.flat[0]))


def _output_axis(node: ir.Node) -> tuple[int, bool]:
    """(axis of the outputs in a node's weight, whether ncnn keeps it the other way round)."""
    if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute(node, "transB", 0)):
        return 0, False
    return 1, True


def _symmetric(tensor: Coded) -> bool:
    return int(tensor.zero_point.flat[0]) == {"int8": 0, "uint8": 128}.get(tensor.dtype, -1)


def _spread(tensor: Coded, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    if tensor.codes is None or tensor.axis is None or numbers.size == 1:
        return numbers.reshape(-1)[:1]
    return numbers.reshape([-1 if i == tensor.axis % tensor.codes.ndim else 1 for i in range(tensor.codes.ndim)])


def _stripped(model: Model) -> Model:
    """The model without Q/DQ: constants become the floats that are read back, activations are passed on."""
    import onnx_ir as ir

    graph = model.graph.clone()
    main = graph.graph
    held = coded(main)
    for node in list(main):
        name = node.outputs[0].name or "" if node.outputs else ""
        if node.op_type != "DequantizeLinear" or name not in held:
            continue
        real = held[name].real()
        before = node.inputs[0].producer() if node.inputs[0] is not None else None
        if real is not None:
            value = ir.Value(name=f"{name}.float", const_value=ir.tensor(real, name=f"{name}.float"))
            main.register_initializer(value)
        else:
            assert before is not None
            source = before.inputs[0]
            assert source is not None
            value = _read_by(before, node, source, held[name])
        _pass_on(main, node, value)
    _sweep(main)
    return Model.of(graph, model.name)


def _read_by(writer: ir.Node, reader: ir.Node, value: ir.Value, code: Coded) -> ir.Value:
    """A value as it comes back: times a factor where its codes are read by another scale than they were written by."""
    import onnx_ir as ir

    scale = array(writer.inputs[1])
    factor = 1.0 if scale is None else float(code.scale.flat[0]) / float(scale.flat[0])
    graph = reader.graph
    if factor == 1.0 or graph is None:
        return value
    name = f"{reader.outputs[0].name}.factor"
    by = ir.Value(name=name, const_value=ir.tensor(np.array(factor, np.float32), name=name))
    graph.register_initializer(by)
    product = ir.node("Mul", [value, by])
    product.outputs[0].name = f"{reader.outputs[0].name}.float"
    product.outputs[0].dtype = ir.DataType.FLOAT
    graph.insert_before(reader, product)
    return product.outputs[0]


def _pass_on(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    import onnx_ir as ir

    old = node.outputs[0]
    if old.is_graph_output():
        keep = ir.Node("", "Identity", [value], outputs=[old])
        graph.insert_before(node, keep)
        return
    ir.convenience.replace_all_uses_with(old, value)


def _sweep(graph: ir.Graph) -> None:
    """Take out pairs and constants that nothing reads any more."""
    for node in reversed(list(graph)):
        if node.op_type in PAIR and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def _integer_layer(layer: Layer, numbers: Integers) -> Layer | None:
    """A layer with codes for weights, or None when its type has none."""
    if layer.type not in _TYPES or not layer.weights:
        return None
    groups = layer.number(7, 1) if layer.type == "ConvolutionDepthWise" else 0
    outputs = numbers.scales.size
    if groups and groups != outputs:
        return None  # one scale a group, while the graph has one an output
    bias = layer.weights[1:2] if len(layer.weights) > 1 else ()
    scales = (Weight(1 / numbers.scales, False), Weight(np.array([1 / numbers.input_scale], np.float32), False))
    params = {SCALES: "1"}
    if layer.type == "Convolution" and _winograd(layer):
        params[FEATURES] = str(layer.number(FEATURES) | NO_WINOGRAD)
    codes = Weight(np.ascontiguousarray(numbers.codes).reshape(-1), True)
    return replace(layer.with_params(params), weights=(codes, *bias, *scales))


def _winograd(layer: Layer) -> bool:
    width = layer.number(1)
    return (
        (width, layer.number(11, width)) == (3, 3)
        and layer.number(3, 1) == layer.number(13, layer.number(3, 1)) == 1
        and layer.number(2, 1) == layer.number(12, layer.number(2, 1)) == 1
    )


def _chained(layers: Sequence[Layer], scale_of: Mapping[str, float]) -> list[Layer]:
    """Convolutions that only feed integer layers with one scale write codes with that scale themselves."""
    readers: dict[str, list[Layer]] = defaultdict(list)
    for layer in layers:
        for blob in layer.inputs:
            readers[blob].append(layer)

    def ends(blob: str) -> list[Layer]:
        return [
            e for r in readers[blob] for e in ([x for b in r.outputs for x in ends(b)] if r.type == "Split" else [r])
        ]

    made = []
    for layer in layers:
        chained = layer.name in scale_of and layer.type.startswith("Convolution")
        goals = ends(layer.outputs[0]) if chained else []
        scales = {scale_of.get(g.name) if g.type.startswith("Convolution") else None for g in goals}
        scale = next(iter(scales)) if len(scales) == 1 else None
        if scale is None:
            made.append(layer)
            continue
        top = Weight(np.array([1 / scale], np.float32), False)
        made.append(replace(layer.with_params({SCALES: "101"}), weights=(*layer.weights, top)))
    return made
