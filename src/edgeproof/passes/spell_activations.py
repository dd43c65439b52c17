"""Write hard activations the way the target computes them within the layer before them.

ONNX Runtime fuses HardSigmoid into a convolution; OpenVINO takes it for a kernel of its own between two changes of
layout, and fuses HardSwish, or what HardSigmoid spells out to. Which form a target wants stands in its scheme; without
one, or where the scheme names none, nothing is done. Exact up to the rounding of one product.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..change import Change
from ..graph.opset import raised
from ..model import Model
from ..protocols import Context, Pass
from ..quant import expand

HARD_SWISH_OPSET = 14


@dataclass(frozen=True, slots=True)
class SpellActivations:
    """It has no settings: the target says what it wants."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        scheme = context.target.scheme if context.target is not None else None
        joins = scheme is not None and "HardSwish" in scheme.fuse
        spelled = scheme.spell if scheme is not None else ()
        if not any(node.op_type == "HardSigmoid" for node in model.graph.graph):
            return Change.none(model, (model.name, "has no HardSigmoid in its main graph"))
        if not joins and not spelled:
            return Change.none(model, (model.name, "the target takes hard activations as they are"))
        graph = raised(model.graph.clone(), HARD_SWISH_OPSET) if joins else model.graph.clone()
        if isinstance(graph, str):
            return Change.none(model, (model.name, f"HardSwish needs opset {HARD_SWISH_OPSET}, and {graph}"))
        joined = expand.join(graph.graph) if joins else 0
        hard = [node for node in graph.graph if node.op_type in spelled]
        applied = [f"spelled out {node.op_type} {node.name or node.outputs[0].name}" for node in hard]
        expand.expand(graph.graph, hard)
        if joined:
            applied.insert(0, f"wrote {joined} products with HardSigmoid as HardSwish")
        if not applied:
            return Change.none(model, (model.name, "has no hard activation that the target wants in another form"))
        return Change(Model.of(graph, model.name), True, tuple(applied))


IMPL: type[Pass] = SpellActivations
