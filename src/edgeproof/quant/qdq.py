"""Write a placement into a graph as QuantizeLinear and DequantizeLinear nodes.

A quantised tensor has one pair; its codes are shared by all readers. Weights become integers, or keep a pair of their
own, as the target wants it; biases become int32 counts of the accumulator, or stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..target import QuantScheme
from . import numerics
from .layers import Layer, constant
from .numerics import QParams
from .placement import Plan

if TYPE_CHECKING:
    import onnx_ir as ir


def write(graph: ir.Graph, plan: Plan, scheme: QuantScheme, activations: Mapping[str, QParams], reduce: bool) -> None:
    """Insert Q/DQ in place.

    Args:
        graph: The graph for which the plan was made; it is changed.
        plan: The placement.
        scheme: The target's scheme.
        activations: Parameters of every tensor of ``plan.tensors``.
        reduce: Weights use 7 bits.
    """
    writer = _Writer(graph, plan, scheme, reduce)
    for node, layer in plan.layers.items():
        source = node.inputs[0]
        assert source is not None
        writer.layer(node, layer, float(activations[source.name or ""].scale))
    for node, role in plan.roles.items():
        if role == "follow":
            for index, value in enumerate(node.inputs):
                if value is not None and constant(value) is not None:
                    writer.constant(node, index, value)
    for name, value in plan.tensors.items():
        writer.tensor(value, activations[name])
    _sweep(graph)


class _Writer:
    """Knows which names, constants and codes exist already."""

    def __init__(self, graph: ir.Graph, plan: Plan, scheme: QuantScheme, reduce: bool) -> None:
        self.graph = graph
        self.plan = plan
        self.scheme = scheme
        self.reduce = reduce
        self.names = {v.name for n in graph.all_nodes() for v in (*n.inputs, *n.outputs) if v is not None}
        self.names |= {n.name for n in graph.all_nodes()} | set(graph.initializers)
        self.stored: dict[tuple[str, int | None, bytes], ir.Value] = {}
        self.codes: dict[str, ir.Value] = {}

    def layer(self, node: ir.Node, layer: Layer, activation_scale: float) -> None:
        """Quantise a layer's weight and bias."""
        import onnx_ir as ir

        p = layer.params or numerics.weight_params(layer.weight, layer.axis, reduce_range=self.reduce)
        counted = layer.bias is not None and self.scheme.bias == "int32"
        if counted and layer.bias is not None and layer.params is None:
            p = numerics.fit_bias(p, layer.bias, activation_scale)
        weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        assert weight is not None
        node.replace_input_with(1, self._stored(weight, layer.weight, p))
        for name in ("alpha", "beta"):
            if name in node.attributes:
                node.attributes[name] = ir.AttrFloat32(name, 1.0)
        if node.op_type == "MatMul" and self.scheme.bias == "int32":
            self._added(node, p, activation_scale, layer.weight.shape[-1])
        if layer.bias is None or bias is None:
            return
        if not counted:
            if not _same(bias, layer.bias):
                node.replace_input_with(2, self._initializer(f"{bias.name}.float", layer.bias))
            return
        self._count(node, 2, bias, layer.bias, activation_scale, p)

    def _added(self, node: ir.Node, p: QParams, activation_scale: float, channels: int) -> None:
        """Count the bias that is added behind a product.

        ONNX Runtime (1.32) makes one Gemm of the product and the addition before it looks for Q/DQ; with a float bias
        it then runs in float and dequantises the weight at every inference.
        """
        output = node.outputs[0]
        uses = list(output.uses())
        if len(uses) != 1 or uses[0].node.op_type != "Add" or output.is_graph_output():
            return
        adder, index = uses[0].node, 1 - uses[0].idx
        value = adder.inputs[index]
        bias = constant(value)
        taken = adder in self.plan.roles or output.name in self.plan.tensors
        if taken or value is None or bias is None or bias.dtype != np.float32 or bias.ndim != 1:
            return
        step = np.float64(activation_scale) * p.scale
        if bias.size == channels and np.isfinite(bias).all() and (np.abs(bias) < step * 2.0**30).all():
            self._count(adder, index, value, bias, activation_scale, p)

    def _count(
        self, node: ir.Node, index: int, value: ir.Value, bias: NDArray[np.float32], activation_scale: float, p: QParams
    ) -> None:
        """Store a bias as int32 counts of the accumulator."""
        step = np.float32(activation_scale) * p.scale
        step = np.maximum(step, np.finfo(np.float32).tiny).astype(np.float32)
        codes = numerics.bias_codes(bias, step)
        held = self._initializer(f"{value.name}.int32", codes)
        scale = self._initializer(f"{value.name}.scale", step)
        zero = self._initializer(f"{value.name}.zero_point", np.zeros(step.shape, np.int32))
        axis = 0 if step.ndim else None
        node.replace_input_with(index, self._dequantize(node, value.name or "bias", held, scale, zero, axis))

    def constant(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Quantise a follower's constant operand, one scale for all of it."""
        array = constant(value)
        assert array is not None
        p = numerics.params(
            array.min(), array.max(), self.scheme.activation, symmetric=self.scheme.activation_symmetric
        )
        node.replace_input_with(index, self._stored(value, array, p))

    def tensor(self, value: ir.Value, p: QParams) -> None:
        """Give a tensor its pair, and hand the dequantised value to those who read it."""
        name = value.name or ""
        uses = [(u.node, u.idx) for u in value.uses()]
        maker = value.producer()
        scale = self._initializer(f"{name}.scale", p.scale)
        zero = self._initializer(f"{name}.zero_point", p.zero_point)
        if maker is not None and self.plan.roles.get(maker) == "rescale":
            codes = self.codes[self.plan.shares[name][0]]
        else:
            codes = self._quantize(value, name, scale, zero)
        self.codes[name] = codes
        back = self._dequantize(codes.producer(), name, codes, scale, zero, None, behind=True)
        back.type, back.shape = value.type, value.shape
        integer = name in self.plan.integer
        for node, index in uses:
            role = self.plan.roles.get(node)
            if integer or (role is not None and (role not in ("layer", "share") or index == 0)):
                node.replace_input_with(index, back)
        if integer and value.is_graph_output():
            place = [i for i, v in enumerate(self.graph.outputs) if v is value]
            value.name = self._fresh(f"{name}.float")
            back.name = name
            for i in place:
                self.graph.outputs[i] = back

    def _quantize(self, value: ir.Value, name: str, scale: ir.Value, zero: ir.Value) -> ir.Value:
        import onnx_ir as ir

        node = ir.node("QuantizeLinear", [value, scale, zero], name=self._fresh(f"{name}.quantize"))
        node.outputs[0].name = self._fresh(f"{name}.codes")
        maker = value.producer()
        if maker is not None:
            self.graph.insert_after(maker, node)
        else:
            self.graph.insert_before(self.graph[0], node)
        return node.outputs[0]

    def _dequantize(
        self,
        beside: ir.Node | None,
        name: str,
        codes: ir.Value,
        scale: ir.Value,
        zero: ir.Value,
        axis: int | None,
        behind: bool = False,
    ) -> ir.Value:
        import onnx_ir as ir

        attributes = {} if axis is None else {"axis": axis}
        node = ir.node("DequantizeLinear", [codes, scale, zero], attributes, name=self._fresh(f"{name}.dequantize"))
        node.outputs[0].name = self._fresh(f"{name}.real")
        assert beside is not None
        (self.graph.insert_after if behind else self.graph.insert_before)(beside, node)
        return node.outputs[0]

    def _stored(self, original: ir.Value, array: NDArray[Any], p: QParams) -> ir.Value:
        """A constant as integers and a DequantizeLinear, or as floats and a pair."""
        import onnx_ir as ir

        name = original.name or "constant"
        key = (name, p.axis, p.scale.tobytes() + hashlib.sha256(array.tobytes()).digest())
        if key in self.stored:
            return self.stored[key]
        scale = self._initializer(f"{name}.scale", p.scale)
        zero = self._initializer(f"{name}.zero_point", p.zero_point)
        if self.scheme.weight_qdq:
            held = original if _same(original, array) else self._initializer(f"{name}.float", array)
            attributes = {} if p.axis is None else {"axis": p.axis}
            q = ir.node("QuantizeLinear", [held, scale, zero], attributes, name=self._fresh(f"{name}.quantize"))
            q.outputs[0].name = self._fresh(f"{name}.codes")
            maker = held.producer()
            if maker is None:
                self.graph.insert_before(self.graph[0], q)
            else:
                self.graph.insert_after(maker, q)
            value = self._dequantize(q, name, q.outputs[0], scale, zero, p.axis, behind=True)
        else:
            held = self._initializer(f"{name}.{p.dtype.name}", numerics.quantize(array, p))
            value = self._dequantize(self.graph[0], name, held, scale, zero, p.axis)
        self.stored[key] = value
        return value

    def _initializer(self, name: str, array: NDArray[Any]) -> ir.Value:
        import onnx_ir as ir

        # Not `ir.tensor`, which takes ten times as long to find out what it was given.
        tensor = ir.Tensor(np.ascontiguousarray(array) if array.ndim else np.asarray(array), name=self._fresh(name))
        value = ir.val(tensor.name or "", const_value=tensor, type=ir.TensorType(tensor.dtype), shape=array.shape)
        self.graph.register_initializer(value)
        return value

    def _fresh(self, name: str) -> str:
        fresh, n = name, 2
        while fresh in self.names:
            fresh, n = f"{name}.{n}", n + 1
        self.names.add(fresh)
        return fresh


def _same(value: ir.Value, array: NDArray[Any]) -> bool:
    """Whether a constant is still the array: nothing was folded into it."""
    stored = constant(value)
    return stored is not None and stored.shape == array.shape and bool(np.array_equal(stored, array))


_SWEPT = ("Constant", "Mul", "Div", "QuantizeLinear", "DequantizeLinear")


def _sweep(graph: ir.Graph) -> None:
    """Remove rescalers, their pairs, constants and float weights that nobody reads any more."""
    for node in reversed(list(graph)):
        if node.op_type in _SWEPT and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
    for name in [n for n, v in graph.initializers.items() if not v.uses() and not v.is_graph_output()]:
        del graph.initializers[name]
