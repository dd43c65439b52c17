"""Make one of two: chains of Transpose, of Cast, of Reshape, Squeeze, Unsqueeze and Flatten, of nested Concat.

A Transpose that only moves dimensions of size one is a Reshape, and joins a chain of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..change import Change
from ..graph.dims import dims
from ..graph.rewrite import Editor, sole_user
from ..graph.rules import run_rules
from ..model import Model, attribute
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})


@dataclass(frozen=True, slots=True)
class MergeViews:
    """Merge views."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (infer_shapes, rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """One sweep."""
    for node in editor.nodes("Transpose", "Cast", "Concat", *sorted(_VIEWS)):
        source = node.inputs[0] if node.inputs else None
        before = None if source is None else source.producer()
        if source is None:
            continue
        if node.op_type == "Concat":
            _concat(editor, node)
            continue
        if before is None or before.domain not in ("", "ai.onnx") or not before.inputs or before.inputs[0] is None:
            continue
        if node.op_type == "Transpose" and before.op_type == "Transpose":
            _transposes(editor, node, before)
        elif node.op_type == "Cast" and before.op_type == "Cast":
            _casts(editor, node, before)
        elif _is_view(node) and _is_view(before) and sole_user(source) is node:
            _views(editor, node, before)


def _is_view(node: ir.Node) -> bool:
    """Whether the node keeps the order of elements in memory."""
    if node.op_type in _VIEWS:
        return True
    if node.op_type != "Transpose":
        return False
    shape, perm = dims(node.inputs[0]), attribute(node, "perm", None)
    if shape is None or perm is None:
        return False
    moved = [p for p in perm if shape[p] != 1]
    return moved == sorted(moved)


def _transposes(editor: Editor, node: ir.Node, before: ir.Node) -> None:
    import onnx_ir as ir

    outer, inner = attribute(node, "perm", None), attribute(before, "perm", None)
    if outer is None or inner is None:
        return
    node.attributes["perm"] = ir.AttrInt64s("perm", [inner[p] for p in outer])
    node.replace_input_with(0, before.inputs[0])
    editor.did("merged transposes", node)


def _casts(editor: Editor, node: ir.Node, before: ir.Node) -> None:
    """Only where the first cast loses nothing that the second keeps."""
    import onnx_ir as ir

    source = before.inputs[0]
    if source is None or source.dtype is None:
        return
    widening = {
        ir.DataType.FLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
        ir.DataType.BFLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
        ir.DataType.FLOAT: (ir.DataType.DOUBLE,),
        ir.DataType.INT8: (ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        ir.DataType.INT16: (ir.DataType.INT32, ir.DataType.INT64),
        ir.DataType.INT32: (ir.DataType.INT64,),
        ir.DataType.UINT8: (ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        ir.DataType.BOOL: (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT),
    }
    to_text = attribute(node, "to", 0) == ir.DataType.STRING
    if to_text or attribute(before, "to", 0) not in widening.get(source.dtype, ()) or "saturate" in node.attributes:
        editor.decline(node, "the cast before it may round or cut")
        return
    node.replace_input_with(0, source)
    editor.did("merged casts", node)


def _views(editor: Editor, node: ir.Node, before: ir.Node) -> None:
    """Two views become one Reshape to the final shape, if at most one of its dimensions is open."""
    shape = dims(node.outputs[0])
    if shape is None or editor.opset < 5:
        return
    is_open = [not isinstance(d, int) for d in shape]
    source_shape = dims(before.inputs[0])
    target = [d if isinstance(d, int) else -1 for d in shape]
    if sum(is_open) > 1 and source_shape is not None:
        target = [
            0 if isinstance(d, str) and i < len(source_shape) and source_shape[i] == d else t
            for i, (d, t) in enumerate(zip(shape, target, strict=True))
        ]
    if target.count(-1) > 1 or 0 in shape or (source_shape is not None and 0 in source_shape):
        editor.decline(node, "more than one dimension of the result is open")
        return
    if not shape:
        return
    assert node.graph is not None
    constant = editor.constant(node.graph, f"{node.outputs[0].name}_shape", np.asarray(target, np.int64))
    new = editor.insert(node, "Reshape", [before.inputs[0], constant], node.outputs[0])
    if editor.replace(node.outputs[0], new):
        editor.did(f"merged {before.op_type} and {node.op_type}", node)
        editor.remove(node)


def _concat(editor: Editor, node: ir.Node) -> None:
    """Concat(Concat(a, b), c) on one axis."""
    axis = attribute(node, "axis", 1)
    for i, value in enumerate(node.inputs):
        inner = None if value is None else value.producer()
        if value is None or inner is None or inner.op_type != "Concat" or inner.domain not in ("", "ai.onnx"):
            continue
        if sole_user(value) is not node or attribute(inner, "axis", 1) != axis:
            continue
        inputs = [*node.inputs[:i], *inner.inputs, *node.inputs[i + 1 :]]
        node.resize_inputs(len(inputs))
        for j, v in enumerate(inputs):
            node.replace_input_with(j, v)
        editor.did("merged nested Concat", inner)
        return


IMPL: type[Pass] = MergeViews
