"""Remove nodes that hand on their input: Identity, inference Dropout, operators whose settings make them do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..graph.dims import dims, static
from ..graph.rewrite import Editor, array, integers
from ..graph.rules import run_rules
from ..model import Model, attribute
from ..protocols import Context, Pass
from .drop_dead_code import rewrite as drop_dead_code
from .infer_shapes import rewrite as infer_shapes

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class DropNoOps:
    """Drop no-ops."""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is."""
        return run_rules(model, (infer_shapes, rewrite, drop_dead_code))


def rewrite(editor: Editor) -> None:
    """One sweep."""
    for node in editor.nodes("Concat"):
        _drop_empty_parts(editor, node)
    for node in editor.nodes(*_NO_OPS):
        source = node.inputs[0] if node.inputs else None
        if source is None or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            continue
        if not _NO_OPS[node.op_type](node, editor.opset):
            continue
        other = _other_operand(node)
        if not editor.bypass(f"removed {node.op_type} without effect", node, source if other is None else other):
            editor.decline(node, "it joins an input or a second output of the graph to an output of another name")


def _drop_empty_parts(editor: Editor, node: ir.Node) -> None:
    """Take inputs that are known to hold nothing along the axis out of a Concat; one input stays."""
    shapes = [dims(v) for v in node.inputs]
    axis = attribute(node, "axis", 1)
    full = [
        v for v, s in zip(node.inputs, shapes, strict=True) if not (s and -len(s) <= axis < len(s) and s[axis] == 0)
    ]
    if full and len(full) < len(node.inputs):
        editor.did("took empty inputs out of Concat", node)
        for i, value in enumerate(full):
            node.replace_input_with(i, value)
        node.resize_inputs(len(full))


def _other_operand(node: ir.Node) -> ir.Value | None:
    """The operand that a neutral Add or Mul hands on, when it is the second."""
    if node.op_type not in ("Add", "Mul"):
        return None
    neutral = 0 if node.op_type == "Add" else 1
    first = array(node.inputs[0])
    return node.inputs[1] if first is not None and _all(first, neutral) else None


def _identity(node: ir.Node, opset: int) -> bool:
    return True


def _dropout(node: ir.Node, opset: int) -> bool:
    if opset < 7:
        return bool(attribute(node, "is_test", 0))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        training = array(node.inputs[2])
        return training is not None and not training.any()
    return True


def _cast(node: ir.Node, opset: int) -> bool:
    source = node.inputs[0]
    return source is not None and source.dtype is not None and int(source.dtype) == attribute(node, "to", -1)


def _cast_like(node: ir.Node, opset: int) -> bool:
    source, like = node.inputs[0], _input(node, 1)
    return source is not None and like is not None and source.dtype is not None and source.dtype == like.dtype


def _transpose(node: ir.Node, opset: int) -> bool:
    perm = attribute(node, "perm", None)
    if perm is None:
        shape = dims(node.inputs[0])
        return shape is not None and len(shape) <= 1
    return list(perm) == sorted(perm)


def _same_shape(node: ir.Node, opset: int) -> bool:
    """Static, or one open dimension that then cannot differ; elementwise order is kept by all of these operators."""
    before, after = dims(node.inputs[0]), dims(node.outputs[0])
    if before is None or after is None or len(before) != len(after):
        return False
    if node.op_type == "Expand":
        return static(node.inputs[0]) is not None and before == after
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a is None or a != b]
    one_open = len(differing) == 1 and 0 not in before and not any(isinstance(d, int) for d in differing[0])
    return not differing or one_open


def _pad(node: ir.Node, opset: int) -> bool:
    pads = attribute(node, "pads", attribute(node, "paddings", None)) if opset < 11 else integers(_input(node, 1))
    return pads is not None and len(pads) > 0 and not any(pads)


def _slice(node: ir.Node, opset: int) -> bool:
    if opset < 10:
        return False
    starts, ends, steps = integers(_input(node, 1)), integers(_input(node, 2)), integers(_input(node, 4))
    if starts is None or ends is None or (steps is None and _input(node, 4) is not None):
        return False
    if any(s != 0 for s in starts) or any(s != 1 for s in steps or ()):
        return False
    shape, axes = dims(node.inputs[0]), integers(_input(node, 3))
    if shape is None or (axes is None and _input(node, 3) is not None):
        return all(e >= 2**31 - 1 for e in ends)
    for axis, end in zip(axes if axes is not None else range(len(ends)), ends, strict=True):
        size = shape[axis]
        if not (end >= 2**31 - 1 or (isinstance(size, int) and end >= size)):
            return False
    return True


def _single(node: ir.Node, opset: int) -> bool:
    return len(node.inputs) == 1


def _add(node: ir.Node, opset: int) -> bool:
    return _neutral(node, 0, both=True)


def _sub(node: ir.Node, opset: int) -> bool:
    return _neutral(node, 0, both=False)


def _mul(node: ir.Node, opset: int) -> bool:
    return _neutral(node, 1, both=True)


def _div(node: ir.Node, opset: int) -> bool:
    return _neutral(node, 1, both=False)


def _neutral(node: ir.Node, neutral: int, *, both: bool) -> bool:
    """Whether one operand is all zeros (ones) and does not widen the other's shape."""
    if len(node.inputs) != 2 or "axis" in node.attributes or "broadcast" in node.attributes:
        return False
    for kept, constant in ((0, 1), (1, 0)) if both else ((0, 1),):
        c = array(node.inputs[constant])
        if c is None or not _all(c, neutral):
            continue
        shape = dims(node.inputs[kept])
        if shape is None or c.ndim > len(shape):
            continue
        tail = shape[len(shape) - c.ndim :]
        if all(d == 1 or (isinstance(s, int) and s == d) for d, s in zip(c.shape, tail, strict=True)):
            return array(node.inputs[kept]) is None
    return False


def _all(constant: object, value: int) -> bool:
    import numpy as np

    a = np.asarray(constant)
    return bool(a.size) and a.dtype.kind in "fiu" and bool((a == value).all())


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if len(node.inputs) > index else None


_NO_OPS: Mapping[str, Callable[[ir.Node, int], bool]] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Transpose": _transpose,
    "Reshape": _same_shape,
    "Flatten": _same_shape,
    "Expand": _same_shape,
    "Pad": _pad,
    "Slice": _slice,
    "Concat": _single,
    "Sum": _single,
    "Max": _single,
    "Min": _single,
    "Mean": _single,
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
}

IMPL: type[Pass] = DropNoOps
