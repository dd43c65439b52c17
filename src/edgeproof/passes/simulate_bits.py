"""Snap weights and activations of layers to grids of 2 to 16 bits, and keep computing in float: a study of precision.

The result shows what a number of bits does to accuracy, on any runtime and at any width, whether or not a kernel for it
exists; it is never faster. Weights are snapped in place. Activations get Div, Round, Clip and Mul, which ONNX defines
to round half to even, as QuantizeLinear does: with 8 bits the outcome is that of a Q/DQ pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ..change import Change
from ..errors import InputError, did_you_mean
from ..graph.opset import raised
from ..graph.rewrite import Editor
from ..model import Model
from ..protocols import Context, Pass
from ..quant import layers, ranges
from ..quant.calibration import calibrate
from ..quant.histogram import Histogram
from ..quant.simulate import grid, weight_grid
from ..target import QuantScheme

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 13
OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_SCHEME = QuantScheme(ops=OPS, per_channel=OPS)


@dataclass(frozen=True, slots=True)
class SimulateBits:
    """Fake quantisation.

    Attributes:
        bits: Of weights, 2 to 16; 0 leaves weights as they are.
        activation_bits: Of the layers' inputs, 2 to 16; 0 leaves them as they are.
        ops: Operators whose layers are changed, comma separated.
        keep: What stays as it is: node names, operators or output names, comma separated; ``*`` and ``?`` match.
        per_channel: One weight step per output channel.
        symmetric: Activations use as many codes below zero as above.
        method: How an activation's range is chosen; as for ``int8``.
        percentile: As for ``int8``.
        samples: Calibrate on the first so many samples; 0 means all.
    """

    bits: int = 8
    activation_bits: int = 8
    ops: str = ",".join(OPS)
    keep: str = ""
    per_channel: bool = True
    symmetric: bool = False
    method: str = "minmax"
    percentile: float = 99.99
    samples: int = 0

    def __call__(self, model: Model, context: Context) -> Change:
        """Snap weights and activations.

        Raises:
            InputError: quant.bits, quant.method, quant.percentile, simulate_bits.ops; calibration.not_finite.
        """
        scope = self._scope()
        graph = raised(model.graph.clone(), OPSET)
        if isinstance(graph, str):
            return Change.none(model, (model.name, f"its opset has no Clip with bounds as inputs, and {graph}"))
        found, declined = self._layers(graph, scope)
        if not found:
            return Change.none(model, *(declined or [(model.name, f"has none of {self.ops} with a constant weight")]))
        applied: list[str] = []
        facts: dict[str, Any] = {"bits": self.bits, "activation_bits": self.activation_bits}
        if self.activation_bits and context.feeds is None:
            declined.append((model.name, "activations stay as they are: there are no samples to take ranges from"))
        elif self.activation_bits:
            facts["tensors"] = self._activations(model, graph, list(found), context)
            applied.append(f"snapped the inputs of {len(found)} layers to {self.activation_bits} bits")
        if self.bits:
            for node, layer in found.items():
                self._weight(graph, node, layer)
                applied.append(f"snapped the weight of {layers.label(node)} ({node.op_type}) to {self.bits} bits")
        if not applied:
            return Change.none(model, *declined)
        result = Model.of(graph, model.name)
        if result.digest == model.digest:  # every weight lay on its grid already
            return Change.none(model, *declined, (model.name, "every weight lies on its grid already"))
        return Change(result, True, tuple(applied), tuple(declined), facts)

    def _scope(self) -> layers.Scope:
        for bits in (self.bits, self.activation_bits):
            if bits:
                grid(-1.0, 1.0, bits, symmetric=True)
        ranges.find_range(Histogram(), self.method, percentile=self.percentile)
        ops, keep = (tuple(p.strip() for p in text.split(",") if p.strip()) for text in (self.ops, self.keep))
        for op in ops:
            if op not in OPS:
                raise InputError("simulate_bits.ops", op, "is no operator with a weight", did_you_mean(op, OPS))
        return layers.Scope(keep, ops, per_channel=self.per_channel)

    def _layers(
        self, graph: ir.Model, scope: layers.Scope
    ) -> tuple[dict[ir.Node, layers.Layer], list[tuple[str, str]]]:
        found: dict[ir.Node, layers.Layer] = {}
        declined: list[tuple[str, str]] = []
        for node in graph.graph:
            if node.op_type not in OPS or node.domain not in ("", "ai.onnx"):
                continue
            layer = layers.layer(node, _SCHEME, scope)
            if isinstance(layer, str):
                declined.append((layers.label(node), layer))
            else:
                found[node] = layer
        return found, declined

    def _weight(self, graph: ir.Model, node: ir.Node, layer: layers.Layer) -> None:
        """Replace a weight by its nearest grid points; a step is the same whether alpha was folded in or not."""
        import onnx_ir as ir

        value = node.inputs[1]
        weight = layers.constant(value)
        assert value is not None
        assert weight is not None
        snapped = weight_grid(weight, self.bits, layer.axis).snap(weight)
        tensor = ir.tensor(snapped, name=value.name)
        if value.is_initializer():
            value.const_value = tensor
            return
        new = ir.val(f"{value.name}.snapped", const_value=tensor, type=value.type, shape=value.shape)
        tensor.name = new.name
        if new.name not in graph.graph.initializers:
            graph.graph.register_initializer(new)
        node.replace_input_with(1, graph.graph.initializers[new.name or ""])

    def _activations(self, model: Model, graph: ir.Model, nodes: list[ir.Node], context: Context) -> dict[str, Any]:
        """Insert a grid before the layers; facts about the ranges."""
        assert context.feeds is not None
        values = {v.name or "": v for n in nodes if (v := n.inputs[0]) is not None}
        seen = calibrate(
            Model(model.name, model.digest, model.inputs, model.outputs, graph),
            list(values),
            context.compile,
            islice(context.feeds(), self.samples or None),
            total=min(self.samples or context.samples, context.samples),
            progress=context.progress,
        )
        editor = Editor(graph)
        facts: dict[str, Any] = {}
        for name, value in values.items():
            histogram = seen.get(name, Histogram())
            low, high = ranges.find_range(
                histogram, self.method, percentile=self.percentile, levels=min(2**self.activation_bits, 2048)
            )
            facts[name] = dict(ranges.describe(histogram, (low, high)))
            readers = [node for node in nodes if node.inputs[0] is value]
            snapped = self._snap(editor, readers[0], value, (low, high))
            for node in readers:
                node.replace_input_with(0, snapped)
        return facts

    def _snap(self, editor: Editor, before: ir.Node, value: ir.Value, chosen: ranges.Range) -> ir.Value:
        g = grid(*chosen, self.activation_bits, symmetric=self.symmetric)
        graph = editor.model.graph

        def constant(suffix: str, number: np.ndarray[Any, Any]) -> ir.Value:
            return editor.constant(graph, f"{value.name}.{suffix}", np.asarray(number, np.float32))

        step = constant("step", g.step)
        codes = editor.insert(before, "Div", [value, step], value)
        codes = editor.insert(before, "Round", [codes], value)
        codes = editor.insert(
            before, "Clip", [codes, constant("lowest", g.lowest), constant("highest", g.highest)], value
        )
        return editor.insert(before, "Mul", [codes, step], value)


IMPL: type[Pass] = SimulateBits
