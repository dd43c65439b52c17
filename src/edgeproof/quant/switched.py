"""One graph that simulates an INT8 model with any of its layers in float, behind switches.

Every activation that the INT8 model quantises becomes ``x + s · (Q/DQ(x) - x)`` for each of its readers, with a switch
``s`` of 0 or 1, and every weight becomes an input that is fed as floats or as integers times scale. A single
compilation then serves every layer on its own, and any subset of them: which switches a subset sets is asked of
`placement.plan`, the very function that decides where the pass writes its Q/DQ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from glob import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..model import Model, TensorSpec, attribute
from ..target import QuantScheme
from . import numerics, placement
from .guard import unguard
from .layers import Scope, constant

if TYPE_CHECKING:
    import onnx_ir as ir

SWITCHES = "edgeproof.switches"
"""Name of the input that holds all switches, float32 [K]."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A quantised tensor as one node reads it.

    Attributes:
        tensors: The tensor's name and, where scales were folded into it, those of the tensors it was made from.
        reader: First output of the reading node; empty for an output of the model.
        index: Which input of the reader it is.
    """

    tensors: tuple[str, ...]
    reader: str
    index: int


@dataclass(frozen=True, slots=True)
class Switched:
    """The simulation.

    Attributes:
        model: The graph with switches; its inputs are those of the INT8 model, `SWITCHES` and the weights.
        layers: Names of the layers (first outputs of their nodes, unique in the graph) in graph order.
        edges: What each switch quantises.
        weights: Input name → (layer, float array, the same after a trip through its codes).
        plain: The float graph that was quantised.
        scheme: The target's scheme.
    """

    model: Model
    layers: tuple[str, ...]
    edges: tuple[Edge, ...]
    weights: Mapping[str, tuple[str, NDArray[np.float32], NDArray[np.float32]]]
    plain: Model
    scheme: QuantScheme

    def feeds(self, quantised: Collection[str]) -> Feeds:
        """What to feed beside a sample so that exactly these layers run in INT8.

        Args:
            quantised: Names of `layers`.
        """
        on = np.zeros(len(self.edges), np.float32)
        if quantised:
            plan = subset_plan(self.plain, self.scheme, self.layers, quantised)
            roles = {key(node): role for node, role in plan.roles.items()}
            for i, edge in enumerate(self.edges):
                on[i] = any(_quantised(plan, roles, tensor, edge) for tensor in edge.tensors)
        arrays = {
            name: (after if layer in quantised else before) for name, (layer, before, after) in self.weights.items()
        }
        return {SWITCHES: on, **arrays}


def subset_plan(
    plain: Model, scheme: QuantScheme, layers: Collection[str], quantised: Collection[str]
) -> placement.Plan:
    """The placement when only some layers are quantised."""
    graph = plain.graph.clone()
    return placement.plan(graph.graph, scheme, Scope(keep=keep_patterns(layers, quantised)))


def keep_patterns(layers: Collection[str], quantised: Collection[str]) -> tuple[str, ...]:
    """Patterns for the setting ``keep`` of the pass ``int8`` that leave all other layers in float."""
    return tuple(escape(name).replace(",", "?") for name in layers if name not in quantised)


def key(node: ir.Node) -> str:
    """What a node is called here: its first output, which is unique in a graph."""
    return node.outputs[0].name or "" if node.outputs else node.name or ""


def switched(plain: Model, int8: Model, scheme: QuantScheme) -> Switched:
    """Put every Q/DQ pair of an INT8 model behind a switch.

    Args:
        plain: The float model.
        int8: What the pass ``int8`` made of it.
        scheme: The scheme for which that was.
    """
    builder = _Builder(plain, int8, scheme)
    for node in list(builder.graph.graph):
        if node.op_type == "DequantizeLinear" and node.graph is builder.graph.graph:
            builder.pair(node)
    builder.sums()
    return builder.finish()


class _Builder:
    def __init__(self, plain: Model, int8: Model, scheme: QuantScheme) -> None:
        import onnx_ir as ir

        self.plain, self.int8, self.scheme = plain, int8, scheme
        self.graph = int8.graph.clone()
        unguard(self.graph.graph)  # a guard ends at the codes, the float tensor need not
        self.switches = ir.val(SWITCHES, type=ir.TensorType(ir.DataType.FLOAT), shape=None)
        plan = placement.plan(plain.graph.clone().graph, scheme, Scope())
        self.shares = plan.shares
        self.rescaled = {key(n) for n, role in plan.roles.items() if role == "rescale"}
        self.known = set(plan.tensors)
        self.before = {key(n): n for n in plain.graph.graph}
        planned = {key(n) for n in plan.layers}
        self.outputs = {v.name for v in self.graph.graph.outputs}
        self.layers = tuple(k for n in self.graph.graph if (k := self.key(n)) in planned and _in_integers(n))
        self.edges: list[Edge] = []
        self.weights: dict[str, tuple[str, NDArray[np.float32], NDArray[np.float32]]] = {}
        self.made = 0

    def key(self, node: ir.Node) -> str:
        """A node's name in the float graph: the pass renames what it dequantises into an output of the model."""
        name = key(node)
        short = name.removesuffix(".float")
        return short if short in self.outputs else name

    def pair(self, dequantize: ir.Node) -> None:
        """Switch one pair, or turn a stored weight into an input."""
        codes = dequantize.inputs[0]
        quantize = codes.producer() if codes is not None else None
        source = quantize.inputs[0] if quantize is not None and quantize.op_type == "QuantizeLinear" else codes
        if constant(source) is not None:
            self._constants(dequantize)
        elif quantize is not None and quantize.op_type == "QuantizeLinear" and source is not None:
            self._activation(dequantize, quantize, source)

    def _constants(self, dequantize: ir.Node) -> None:
        for use in list(dequantize.outputs[0].uses()):
            name = self.key(use.node)
            original = self.before.get(name)
            if name not in self.layers or original is None or use.idx not in (1, 2):
                continue
            after = _value(dequantize)
            before = constant(original.inputs[use.idx]) if use.idx < len(original.inputs) else None
            factor = attribute(original, "alpha" if use.idx == 1 else "beta", 1.0)
            before = np.zeros_like(after) if before is None else before * np.float32(factor)
            self._feed(use.node, use.idx, name, np.broadcast_to(before, after.shape).astype(np.float32), after)
        self._drop(dequantize)

    def sums(self) -> None:
        """Turn the biases behind products, rounded and perhaps corrected, into inputs, each of its product."""
        for node in list(self.graph.graph):
            if node.op_type != "MatMul" or self.key(node) not in self.layers:
                continue
            for use in list(node.outputs[0].uses()):
                original, index = self.before.get(self.key(use.node)), 1 - use.idx
                if use.node.op_type != "Add" or original is None:
                    continue
                held = use.node.inputs[index]
                before, after = constant(original.inputs[index]), _stored(held)
                if held is not None and before is not None and after is not None and before.shape == after.shape:
                    self._feed(use.node, index, self.key(node), before, after)
                    if (maker := held.producer()) is not None:
                        self._drop(maker)

    def _feed(
        self, node: ir.Node, index: int, layer: str, before: NDArray[np.float32], after: NDArray[np.float32]
    ) -> None:
        """Make an input of a constant of a layer."""
        import onnx_ir as ir

        fed = ir.val(f"edgeproof.{len(self.weights)}", type=ir.TensorType(ir.DataType.FLOAT), shape=list(after.shape))
        self.weights[fed.name or ""] = (layer, before, after)
        self.graph.graph.inputs.append(fed)
        node.replace_input_with(index, fed)

    def _drop(self, dequantize: ir.Node) -> None:
        """Remove what gave a weight before: ONNX Runtime executes nodes that nobody reads."""
        quantize = dequantize.inputs[0].producer() if dequantize.inputs[0] is not None else None
        for node in (dequantize, quantize):
            if node is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
                self.graph.graph.remove(node, safe=True)

    def _activation(self, dequantize: ir.Node, quantize: ir.Node, source: ir.Value) -> None:
        scales = [constant(n.inputs[1]) for n in (dequantize, quantize)]
        assert scales[0] is not None
        assert scales[1] is not None
        factor = scales[0].reshape(-1)[0] / scales[1].reshape(-1)[0]
        real = dequantize.outputs[0]
        uses = [(u.node, u.idx) for u in real.uses()]
        tensors = self._tensors(dequantize, source)
        after = dequantize
        exact = source
        if factor != 1.0:
            after, exact = self._call(after, "Mul", [source, self._number(factor)])
        after, difference = self._call(after, "Sub", [real, exact])
        readers: list[tuple[ir.Node | None, int]] = [*uses]
        if real.is_graph_output():
            readers.append((None, 0))
        for reader, index in readers:
            switch = self._number(len(self.edges), np.int64)
            self.edges.append(Edge(tensors, self.key(reader) if reader is not None else "", index))
            at, chosen = self._call(after, "Gather", [self.switches, switch])
            at, part = self._call(at, "Mul", [difference, chosen])
            at, blended = self._call(at, "Add", [exact, part])
            blended.type, blended.shape = real.type, real.shape
            if reader is not None:
                reader.replace_input_with(index, blended)
                continue
            name, real.name = real.name, f"{real.name}.real"
            blended.name = name
            for place, value in enumerate(self.graph.graph.outputs):
                if value is real:
                    self.graph.graph.outputs[place] = blended

    def _tensors(self, dequantize: ir.Node, source: ir.Value) -> tuple[str, ...]:
        """The tensor that a pair quantises, then those whose scales were folded into it."""
        name = (dequantize.name or "").rpartition(".dequantize")[0]
        if name not in self.known:
            name = (source.name or "").removesuffix(".float")
        chain = [name]
        while chain[-1] in self.rescaled:
            chain.append(self.shares[chain[-1]][0])
        return tuple(chain)

    def _call(self, behind: ir.Node, op: str, inputs: list[ir.Value]) -> tuple[ir.Node, ir.Value]:
        import onnx_ir as ir

        self.made += 1
        node = ir.node(op, inputs, name=f"edgeproof.switch.{self.made}")
        node.outputs[0].name = f"edgeproof.switched.{self.made}"
        self.graph.graph.insert_after(behind, node)
        return node, node.outputs[0]

    def _number(self, value: float, dtype: Any = np.float32) -> ir.Value:
        import onnx_ir as ir

        self.made += 1
        tensor = ir.tensor(np.array(value, dtype), name=f"edgeproof.number.{self.made}")
        number = ir.val(tensor.name or "", const_value=tensor, type=ir.TensorType(tensor.dtype), shape=[])
        self.graph.graph.register_initializer(number)
        return number

    def finish(self) -> Switched:
        """The simulation, once every pair is switched."""
        import onnx_ir as ir

        self.switches.shape = ir.Shape([len(self.edges)])
        self.graph.graph.inputs.append(self.switches)
        extra = [TensorSpec(name, "float32", after.shape) for name, (_, _, after) in self.weights.items()]
        inputs = (*self.int8.inputs, TensorSpec(SWITCHES, "float32", (len(self.edges),)), *extra)
        model = Model(f"{self.int8.name}-switched", self.int8.digest, inputs, self.int8.outputs, self.graph)
        return Switched(model, self.layers, tuple(self.edges), self.weights, self.plain, self.scheme)


def _quantised(plan: placement.Plan, roles: Mapping[str, str], tensor: str, edge: Edge) -> bool:
    """Whether a reader would get a tensor from integers under a plan; see ``qdq.write``."""
    if tensor not in plan.tensors:
        return False
    role = roles.get(edge.reader if tensor == edge.tensors[0] else edge.tensors[0])
    return tensor in plan.integer or (role is not None and (role not in ("layer", "share") or edge.index == 0))


def _in_integers(node: ir.Node) -> bool:
    value = node.inputs[1] if len(node.inputs) > 1 else None
    maker = value.producer() if value is not None else None
    return maker is not None and maker.op_type == "DequantizeLinear"


def _stored(value: ir.Value | None) -> NDArray[np.float32] | None:
    """A constant, of floats or of codes; None where a value is computed."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "DequantizeLinear" and constant(node.inputs[0]) is not None:
        return _value(node)
    return constant(value)


def _value(dequantize: ir.Node) -> NDArray[np.float32]:
    """What a DequantizeLinear of constants gives."""
    codes = dequantize.inputs[0]
    scale, zero = (constant(v) for v in dequantize.inputs[1:3])
    assert codes is not None
    assert scale is not None
    assert zero is not None
    axis = attribute(dequantize, "axis", 1) if scale.ndim else None
    p = numerics.QParams(scale, zero, axis)
    stored = constant(codes)
    if stored is None:
        quantize = codes.producer()
        held = constant(quantize.inputs[0]) if quantize is not None else None
        assert held is not None
        stored = numerics.quantize(held, p)
    return numerics.dequantize(stored, p)
