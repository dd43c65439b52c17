"""Write down the shape and dtype of every tensor that can be derived.

Source: ONNX's shape inference with data propagation. The interface keeps its declared shapes, symbols included.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.inference import inferred
from ..graph.rewrite import Editor, graphs
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass

if TYPE_CHECKING:
    import onnx_ir as ir

SMALL_BYTES = 1024
"""Weights up to this size may be shapes and axes, which inference reads."""


@dataclass(frozen=True, slots=True)
class InferShapes:
    """Infer shapes."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (_noted,), rounds=1)


def rewrite(editor: Editor) -> None:
    """Fill in what is unknown; what cannot be inferred stays unknown, and so does what the interface leaves open."""
    main = editor.model.graph
    interface = [*main.inputs, *main.outputs]
    declared = [(v.type, v.shape.copy() if v.shape is not None else None) for v in interface]
    infer_with_outputs(editor)
    for value, (kind, shape) in zip(interface, declared, strict=True):
        value.type, value.shape = kind, shape


def infer_with_outputs(editor: Editor) -> None:
    """Infer the shapes of the graph's outputs as well."""
    import onnx_ir as ir

    log = logging.getLogger("onnx_ir")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a value that cannot be typed is no event: it just stays unknown
    try:
        proto = ir.to_proto(without_weights(editor.model))
        typed = ir.from_proto(inferred(proto))
    except Exception:  # the C++ checker raises what it likes on graphs that it does not understand
        return
    finally:
        log.setLevel(level)
    for ours, theirs in zip(graphs(editor.model.graph), graphs(typed.graph), strict=True):
        if ours is not editor.model.graph:
            _type_inputs(ours, theirs)
        found = {v.name: v for n in theirs for v in n.outputs}
        for value in (v for n in ours for v in n.outputs):
            new = found.get(value.name)
            if new is None or new.type is None:
                continue
            if value.type is None or value.dtype != new.dtype:
                value.type = new.type
            if new.shape is not None and isinstance(new.type, ir.TensorType):
                value.shape = new.shape


def _type_inputs(ours: ir.Graph, theirs: ir.Graph) -> None:
    """Give the inputs of a loop's body their dtype; not their shape, which may change from turn to turn."""
    import onnx_ir as ir

    for value, new in zip(ours.inputs, theirs.inputs, strict=True):
        if value.type is None and isinstance(new.type, ir.TensorType):
            value.type = new.type


def without_weights(model: ir.Model) -> ir.Model:
    """A clone whose large weights are inputs of the same type, so that it stays far below protobuf's limit."""
    import onnx_ir as ir

    clone = model.clone()
    graph = clone.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None:
            continue
        value.shape = ir.Shape([d for d in tensor.shape if isinstance(d, int)])
        value.type = ir.TensorType(tensor.dtype)
        if tensor.nbytes > SMALL_BYTES:
            del graph.initializers[name]
            if not value.is_graph_input():
                graph.inputs.append(value)
        elif not value.is_graph_input() and clone.ir_version < 4:
            graph.inputs.append(value)
    return clone


def _noted(editor: Editor) -> None:
    before = _known(editor)
    rewrite(editor)
    for graph in graphs(editor.model.graph):
        for node in graph:
            if any((id(v), v.name) not in before and v.shape is not None for v in node.outputs):
                editor.did("inferred shape", node)


def _known(editor: Editor) -> set[tuple[int, str | None]]:
    return {
        (id(v), v.name)
        for graph in graphs(editor.model.graph)
        for node in graph
        for v in node.outputs
        if v.shape is not None
    }


IMPL: type[Pass] = InferShapes
