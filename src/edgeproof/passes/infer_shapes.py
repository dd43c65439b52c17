"""Write down the shape and dtype of every tensor that can be derived.

Source: ONNX's shape inference with data propagation. The interface keeps its declared shapes, symbols included.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..change import Change
from ..graph.rewrite import Editor, graphs
from ..graph.rules import run_rules
from ..model import Model
from ..protocols import Context, Pass


@dataclass(frozen=True, slots=True)
class InferShapes:
    """Infer shapes."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (_noted,), rounds=1)


def rewrite(editor: Editor) -> None:
    """Fill in what is unknown; what cannot be inferred stays unknown."""
    from onnx_ir.passes.common import ShapeInferencePass

    main = editor.model.graph
    interface = [*main.inputs, *main.outputs]
    declared = [(v.type, v.shape.copy() if v.shape is not None else None) for v in interface]
    log = logging.getLogger("onnx_ir.passes.common.shape_inference")
    level = log.level
    log.setLevel(logging.CRITICAL)  # a model that cannot be inferred is no event: its shapes just stay unknown
    try:
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(editor.model)
    finally:
        log.setLevel(level)
    for value, (kind, shape) in zip(interface, declared, strict=True):
        if kind is not None:
            value.type = kind
        if shape is not None:
            value.shape = shape


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
