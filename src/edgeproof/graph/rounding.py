"""Emulate float16 with float32 arithmetic, to measure what float16 costs wherever the model runs.

A CPU runtime computes float16 operators in float32 and drops the roundings between them (ONNX Runtime 1.32 gave
exactly the float32 result for ``(x + 1000) - 1000``, measured), so running the float16 model there says little about a
device. Here every value that float16 would hold is rounded to its 11 significant bits by ``c = (2^13 + 1)·x;
c - (c - x)``, which no runtime folds away; sums inside an operator stay float32, as tensor cores keep them. Range is
not emulated.

Source: Dekker, A floating-point technique for extending the available precision, 1971, section 5.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from .half import full_inputs, is_float, key, to_half
from .rewrite import Editor, array, constant_tensor

if TYPE_CHECKING:
    import onnx_ir as ir

SPLITTER = np.float32(2**13 + 1)


def emulate_half(model: ir.Model, halved: Collection[str]) -> ir.Model:
    """A clone in which the named nodes read and write values rounded to float16's precision.

    Args:
        model: Float32, with all dtypes known.
        halved: `key` of every node that is to compute in float16.

    Returns:
        A float32 model; every value keeps its name, and that name is the rounded value.
    """
    editor = Editor(model.clone())
    graph = editor.model.graph
    splitter = editor.constant(graph, "float16_splitter", np.asarray(SPLITTER))
    rounded: dict[int, ir.Value] = {}
    native: set[int] = set()
    nodes = list(graph)
    for node in nodes:
        if key(node) not in halved:
            continue
        full = full_inputs(node, editor.opset)
        for i, value in enumerate(node.inputs):
            if value is None or not is_float(value) or i in full or id(value) in native:
                continue
            if id(value) not in rounded:
                constant = array(value) if constant_tensor(value) is not None else None
                if constant is not None:
                    numbers = to_half(constant).astype(np.float32)
                    rounded[id(value)] = editor.constant(graph, f"{value.name}_rounded", numbers)
                else:
                    rounded[id(value)] = _round(editor, value, splitter)
            node.replace_input_with(i, rounded[id(value)])
        for value in node.outputs:
            if is_float(value) and (value.uses() or value.is_graph_output()):
                native.add(id(_take_over(editor, value, splitter)))
    graph.sort()
    return editor.model


def _round(editor: Editor, value: ir.Value, splitter: ir.Value) -> ir.Value:
    """Three nodes at the end of the graph; sorted into place later."""
    import onnx_ir as ir

    def add(op: str, a: ir.Value, b: ir.Value) -> ir.Value:
        shape = value.shape.copy() if value.shape is not None else None
        out = ir.Value(name=editor.fresh(f"{value.name}_{op.lower()}"), type=value.type, shape=shape)
        editor.model.graph.append(ir.node(op, [a, b], outputs=[out], name=editor.fresh(f"round_{out.name}")))
        return out

    c = add("Mul", value, splitter)
    return add("Sub", c, add("Sub", c, value))


def _take_over(editor: Editor, value: ir.Value, splitter: ir.Value) -> ir.Value:
    """Let the rounded value have the name and the users of a node's output."""
    users, graph = list(value.uses()), editor.model.graph
    new = _round(editor, value, splitter)
    for user, index in users:
        user.replace_input_with(index, new)
    name = value.name
    value.name = editor.fresh(f"{name}_exact")
    new.name = name
    for i, output in enumerate(list(graph.outputs)):
        if output is value:
            graph.outputs[i] = new
    return new
