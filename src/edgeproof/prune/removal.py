"""The graph without some units: weights cut, sizes and bounds that name channels counted anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph.rewrite import Editor
from ..model import Model
from .atoms import Labels
from .channels import Channels
from .selection import Gone
from .trace import Edits, Keep, Weight

if TYPE_CHECKING:
    import onnx_ir as ir

ZEROED = frozenset(
    {
        "Add",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "Gather",
        "Gemm",
        "InstanceNormalization",
        "LayerNormalization",
        "MatMul",
        "Mul",
        "Sub",
    }
)
"""Whose constants per channel may be zero; a divisor may not."""
VIEWS = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def remove(channels: Channels, gone: Gone) -> Model:
    """The model without some units, physically smaller; its inputs and outputs are as they were.

    Args:
        channels: What can be removed.
        gone: bool [units], from `edgeproof.prune.selection.choose`.
    """
    editor = Editor(channels.graph.clone())
    nodes = dict(zip(channels.graph.graph, editor.model.graph, strict=True))
    lost = np.append(gone, False)

    def keep(labels: Labels) -> NDArray[np.bool_]:
        return ~lost[channels.of(labels)]

    _forget_shapes(channels, nodes, keep)
    for weight, stays in _cut(channels, keep):
        _put(editor, nodes, weight, stays)
    edits = Edits(
        lambda hint, value: editor.constant(editor.model.graph, hint, value),
        lambda before, op, inputs, attributes: _insert(editor, before, op, inputs, attributes),
    )
    for edit in channels.trace.edits:
        if not all(keep(labels).all() for labels in edit.labels):
            edit.apply(nodes[edit.node], edits, keep)
    for name in [n for n, v in editor.model.graph.initializers.items() if not v.uses() and not v.is_graph_output()]:
        del editor.model.graph.initializers[name]
    return Model.of(editor.model, channels.model.name)


def kept(channels: Channels, gone: Gone) -> dict[str, dict[int, NDArray[np.int64]]]:
    """Which indices of which weights stay: to cut an optimiser's state like the weights, or to fill a model up again.

    Args:
        channels: What can be removed.
        gone: bool [units], what is.

    Returns:
        Name of the weight in the whole model → axis → the indices that `remove` keeps, ascending. Weights that stay
        whole are left out; so are vectors that several layers share and cut in different ways.
    """
    lost = np.append(gone, False)
    found: dict[str, dict[int, NDArray[np.int64]]] = {}
    unlike: set[str] = set()
    for weight, stays in _cut(channels, lambda labels: ~lost[channels.of(labels)]):
        name = weight.value.name or ""
        indices = {axis: np.flatnonzero(mask) for axis, mask in stays.items()}
        other = found.setdefault(name, indices)
        if other.keys() != indices.keys() or any(not np.array_equal(other[a], indices[a]) for a in indices):
            unlike.add(name)
    return {name: indices for name, indices in found.items() if name not in unlike}


def masked(channels: Channels, gone: Gone) -> Model:
    """The model with the weights that make some units set to zero, at its old size.

    What a layer makes becomes zero, and so do biases and batch norms behind it. Where nothing between adds an offset
    (a sigmoid makes 0.5 of 0), this computes what `remove` computes.
    """
    editor = Editor(channels.graph.clone())
    nodes = dict(zip(channels.graph.graph, editor.model.graph, strict=True))
    lost = np.append(gone, False)
    for weight in channels.trace.weights.values():
        uses = [(n, i) for n, i in weight.uses if _readers(n) <= ZEROED]
        hit = {
            axis: lost[channels.of(labels)]
            for axis, labels in weight.labels.items()
            if weight.roles[axis] != "in" and lost[channels.of(labels)].any()
        }
        if not uses or not hit:
            continue
        array = np.array(weight.array())
        for axis, which in hit.items():
            np.moveaxis(array, axis, 0)[which] = 0
        value = editor.constant(editor.model.graph, f"{weight.value.name}_masked", array)
        for node, index in uses:
            nodes[node].replace_input_with(index, value)
    return Model.of(editor.model, channels.model.name)


def _readers(node: ir.Node) -> set[str]:
    """The operators that a weight ends in, through views of it."""
    if node.op_type not in VIEWS:
        return {node.op_type}
    return {op for use in node.outputs[0].uses() for op in _readers(use.node)}


def _cut(channels: Channels, keep: Keep) -> list[tuple[Weight, dict[int, NDArray[np.bool_]]]]:
    """Weights that get smaller, with what stays along each axis that does."""
    found = []
    for weight in channels.trace.weights.values():
        stays = {axis: mask for axis, labels in weight.labels.items() if not (mask := keep(labels)).all()}
        if stays:
            found.append((weight, stays))
    return found


def _put(editor: Editor, nodes: dict[ir.Node, ir.Node], weight: Weight, stays: dict[int, NDArray[np.bool_]]) -> None:
    """Give the readers of a weight its smaller version, under its old name where nobody else reads the old one."""
    import onnx_ir as ir

    shape = [int(stays[i].sum()) if i in stays else d for i, d in enumerate(weight.shape)]
    readers = [(nodes[n], i) for n, i in weight.uses]
    old = readers[0][0].inputs[readers[0][1]]
    assert old is not None
    producer = old.producer()
    if producer is not None and producer.op_type == "ConstantOfShape":
        target = editor.constant(editor.model.graph, f"{old.name}_shape", np.asarray(shape, np.int64))
        made = ir.Value(name=editor.fresh(f"{old.name}_kept"), type=ir.TensorType(weight.dtype), shape=ir.Shape(shape))
        node = ir.Node("", "ConstantOfShape", [target], attributes=list(producer.attributes.values()), outputs=[made])
        node.name = made.name
        assert producer.graph is not None
        producer.graph.insert_before(producer, node)
        _give(readers, made)
        if not old.uses():
            producer.graph.remove(producer, safe=True)
        return
    array = weight.array()
    for axis, mask in stays.items():
        array = np.compress(mask, array, axis=axis)
    if producer is None and {(u.node, u.idx) for u in old.uses()} == {(n, i) for n, i in readers}:
        name = old.name or ""
        old.const_value = _like(weight, array, name)
        old.shape = ir.Shape(array.shape)
        old.type = ir.TensorType(weight.dtype)
        return
    _give(readers, editor.constant(editor.model.graph, f"{old.name}_kept", _like(weight, array, "")))
    if producer is not None and not old.uses() and producer.graph is not None:
        producer.graph.remove(producer, safe=True)


def _like(weight: Weight, array: NDArray[Any], name: str) -> ir.TensorProtocol:
    """A tensor of a weight's own dtype, which NumPy may not know (bfloat16)."""
    import onnx_ir as ir

    return ir.Tensor(np.ascontiguousarray(array), dtype=weight.dtype, name=name or None)


def _give(readers: Sequence[tuple[ir.Node, int]], value: ir.Value) -> None:
    for node, index in readers:
        node.replace_input_with(index, value)


def _insert(
    editor: Editor, before: ir.Node, op: str, inputs: Sequence[ir.Value], attributes: dict[str, int]
) -> ir.Value:
    import onnx_ir as ir

    made = ir.Value(name=editor.fresh(f"{before.outputs[0].name}_{op.lower()}"), type=ir.TensorType(ir.DataType.INT64))
    node = ir.node(op, inputs=list(inputs), attributes=dict(attributes), outputs=[made], name=made.name)
    assert before.graph is not None
    before.graph.insert_before(before, node)
    return made


def _forget_shapes(channels: Channels, nodes: dict[ir.Node, ir.Node], keep: Keep) -> None:
    """Drop the declared shapes that are no longer true."""
    for old, new in nodes.items():
        for before, after in zip(old.outputs, new.outputs, strict=True):
            if any(a is not None and not keep(a).all() for a in channels.trace.axes_of(before)):
                after.shape = None
