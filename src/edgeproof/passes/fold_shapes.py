"""Compute shapes ahead of time, as far as they are known, in graphs whose inputs are open.

Exporters write ``Reshape(x, Concat(Shape(x)[0:1], [8, -1]))`` where ``[0, 8, -1]`` would do. This pass follows each
element of such a shape tensor on its own: an element is an int or "that dimension of that value". A tensor whose
elements are all ints becomes a constant; a Reshape whose target has elements left open copies them (``0``) where they
equal the input's own dimension, and infers at most one (``-1``).

An inferred ``-1`` assumes that no other dimension of the tensor is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..change import Change
from ..graph.dims import dims, static
from ..graph.rewrite import Editor, array, constant_tensor, integers
from ..graph.rules import run_rules
from ..model import Model, attribute
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .freeze_weights import rewrite as freeze_weights
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir

Element = int | str | tuple[int, int] | None
"""A number, a symbol, (id of a value, axis), or nothing known."""

_LARGEST = 64
"""Shape tensors are short; anything longer is data."""


@dataclass(frozen=True, slots=True)
class FoldShapes:
    """Fold shape arithmetic."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (freeze_weights, infer_shapes, rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """One sweep over each graph."""
    # A known Size lets ONNX Runtime 1.32 see wrong ranks in a branch of If that is never taken, and refuse the model
    # (test_affine_grid_2d_expanded), so branches keep theirs open.
    branches = any(True for _ in editor.nodes("If"))
    for graph in list(editor.graphs()):
        known: dict[int, list[Element]] = {}
        for node in list(graph):
            if node.domain not in ("", "ai.onnx") or node.graph is None:
                continue
            if node.op_type == "Reshape":
                _reshape(editor, node, known)
            follow = None if branches and node.op_type == "Size" else _FOLLOW.get(node.op_type)
            elements = follow(node, known) if follow is not None else None
            if elements is None or len(elements) > _LARGEST or len(node.outputs) != 1:
                continue
            out = node.outputs[0]
            known[id(out)] = elements
            whole = [e for e in elements if isinstance(e, int)]
            if len(whole) == len(elements) and out.uses() and not out.is_graph_output() and out.dtype is not None:
                rank = dims(out)
                if rank is None or len(rank) > 1 or (len(rank) == 0 and len(whole) != 1):
                    continue
                value = np.asarray(whole, out.dtype.numpy()).reshape(() if len(rank) == 0 else (-1,))
                new = editor.constant(graph, f"{out.name}_constant", value)
                known[id(new)] = elements
                editor.replace(out, new)
                editor.did(f"computed {node.op_type} of a known shape", node)


def _reshape(editor: Editor, node: ir.Node, known: dict[int, list[Element]]) -> None:
    """Replace a partly known target by a constant with 0 and -1."""
    data, target = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if data is None or target is None or constant_tensor(target) is not None or attribute(node, "allowzero", 0):
        return
    elements = known.get(id(target))
    if elements is None:
        return
    shape = dims(data)
    out: list[int] = []
    for i, e in enumerate(elements):
        if isinstance(e, int):
            out.append(e)
        elif (e == (id(data), i)) or (isinstance(e, str) and shape is not None and i < len(shape) and e == shape[i]):
            out.append(0)
        else:
            out.append(-1)
    if out.count(-1) > 1:
        editor.decline(node, f"{out.count(-1)} dimensions of its target depend on the input")
        return
    if -1 in out and any(e == 0 and (shape is None or shape[i : i + 1] in ((), (0,))) for i, e in enumerate(elements)):
        return  # a 0 copies, whoever wrote it; but next to a dimension that is empty, -1 cannot be inferred
    assert node.graph is not None
    node.replace_input_with(1, editor.constant(node.graph, f"{target.name}_target", np.asarray(out, np.int64)))
    editor.did("computed the target of a Reshape", node)


def _elements(value: ir.Value | None, known: dict[int, list[Element]]) -> list[Element] | None:
    if value is None:
        return None
    if id(value) in known:
        return known[id(value)]
    tensor = constant_tensor(value)
    if tensor is None or len(tensor.shape) > 1 or tensor.size > _LARGEST:
        return None
    numbers = integers(value)
    return None if numbers is None else list(numbers)


def _shape(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    source = node.inputs[0]
    shape = dims(source)
    if source is None or shape is None:
        return None
    all_dims: list[Element] = [(id(source), i) if d is None else d for i, d in enumerate(shape)]
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    return all_dims[start:end]


def _size(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    shape = static(node.inputs[0])
    return None if shape is None else [math.prod(shape)]


def _gather(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    data, index = _elements(node.inputs[0], known), integers(node.inputs[1])
    which = array(node.inputs[1])
    if data is None or index is None or which is None or which.ndim > 1:
        return None
    return [data[i] for i in index] if all(-len(data) <= i < len(data) for i in index) else None


def _slice(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    data = _elements(node.inputs[0], known)
    if data is None or len(node.inputs) < 3:
        return None
    start, end = integers(node.inputs[1]), integers(node.inputs[2])
    step = integers(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else [1]
    if start is None or end is None or step is None or len(start) != 1 or len(step) != 1:
        return None
    if step[0] < 0:
        return None
    return data[slice(start[0], end[0], step[0])]


def _concat(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    out: list[Element] = []
    for value in node.inputs:
        part = _elements(value, known)
        if part is None:
            shape = dims(value)
            if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > _LARGEST:
                return None
            part = [None] * shape[0]
        out += part
    return out


def _same(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    return _elements(node.inputs[0], known)


def _cast(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    import onnx_ir as ir

    source = node.inputs[0]
    integer = (ir.DataType.INT64, ir.DataType.INT32)
    if source is None or source.dtype not in integer or attribute(node, "to", 0) not in integer:
        return None
    return _elements(source, known)


def _view(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    shape = dims(node.outputs[0])
    return _elements(node.inputs[0], known) if shape is not None and len(shape) <= 1 else None


def _arithmetic(node: ir.Node, known: dict[int, list[Element]]) -> list[Element] | None:
    a, b = _elements(node.inputs[0], known), _elements(node.inputs[1], known)
    if a is None or b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return None
    n = max(len(a), len(b))
    a, b = a * (n if len(a) == 1 else 1), b * (n if len(b) == 1 else 1)
    return [_combine(node.op_type, x, y) for x, y in zip(a, b, strict=True)]


def _combine(op: str, x: Element, y: Element) -> Element:
    if isinstance(x, int) and isinstance(y, int):
        if op == "Div":
            return None if y == 0 else int(np.trunc(x / y)) if abs(x) < 2**52 else None
        return {"Add": x + y, "Sub": x - y, "Mul": x * y}[op]
    neutral = 0 if op in ("Add", "Sub") else 1
    if y == neutral:
        return x
    if x == neutral and op in ("Add", "Mul"):
        return y
    return None


_FOLLOW: Mapping[str, Callable[[ir.Node, dict[int, list[Element]]], list[Element] | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Identity": _same,
    "Cast": _cast,
    "Squeeze": _view,
    "Unsqueeze": _view,
    "Reshape": _view,
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Mul": _arithmetic,
    "Div": _arithmetic,
}

IMPL: type[Pass] = FoldShapes
