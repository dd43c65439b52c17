"""Rules for what works element by element, and for what sums up along axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import attribute
from .layers import broadcast
from .slices import constant_axes, opset
from .trace import Axes, Trace

if TYPE_CHECKING:
    import onnx_ir as ir


def same(t: Trace, node: ir.Node) -> None:
    """One input, one output, element by element."""
    t.put(node.outputs[0], t.read(node, 0))


def combined(t: Trace, node: ir.Node) -> None:
    """Several inputs, broadcast."""
    inputs = [t.read(node, i, "vector") for i in range(len(node.inputs))]
    t.put(node.outputs[0], broadcast(t, inputs, [t.dims(v) for v in node.inputs]))


def pooled(t: Trace, node: ir.Node) -> None:
    """Pooling: channels stay channels."""
    x = t.read(node, 0)
    for labels in x[2:]:
        t.stay(labels, "it is pooled over")
    t.put(node.outputs[0], [*x[:2], *[None] * (len(x) - 2)])


def softmax(t: Trace, node: ir.Node) -> None:
    """Softmax and its kin: what they normalise over stays."""
    x = t.read(node, 0)
    old = opset(node) < 13
    axis = int(attribute(node, "axis", 1 if old else -1)) % len(x)
    t.put(node.outputs[0], _without(t, x, range(axis, len(x)) if old else [axis], "it is normalised to a sum of one"))


def scanned(t: Trace, node: ir.Node) -> None:
    """CumSum, Hardmax, LpNormalization along an axis: that one stays."""
    x = t.read(node, 0)
    axes = range(len(x)) if node.op_type == "CumSum" else [int(attribute(node, "axis", -1)) % len(x)]
    t.put(node.outputs[0], _without(t, x, axes, f"{node.op_type} runs along it"))


def _without(t: Trace, axes: Axes, gone: range | list[int], why: str) -> Axes:
    for i in gone:
        t.stay(axes[i], why)
    return [None if i in gone else a for i, a in enumerate(axes)]


def reduced(t: Trace, node: ir.Node) -> None:
    """Reduce: sums stay exact when zeros go, means do not, extremes may not even be zero."""
    x = t.read(node, 0)
    given = constant_axes(node, 1, len(x))
    axes = list(range(len(x))) if given is None else given
    for i in axes:
        labels = x[i]
        if labels is None:
            continue
        if node.op_type == "ReduceMean":
            t.atoms.loosen(labels, "a mean over channels changes with their number")
        elif node.op_type not in ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"):
            t.stay(labels, f"{node.op_type} looks at all of it")
    kept: Axes = [None if i in axes else a for i, a in enumerate(x)]
    if not attribute(node, "keepdims", 1):
        kept = [a for i, a in enumerate(x) if i not in axes]
    t.put(node.outputs[0], kept)


def chosen(t: Trace, node: ir.Node) -> None:
    """ArgMax, TopK: the axis along which is searched stays."""
    x = t.read(node, 0)
    axis = int(attribute(node, "axis", -1 if node.op_type == "TopK" else 0)) % len(x)
    rest = _without(t, x, [axis], f"{node.op_type} searches along it")
    if node.op_type != "TopK" and not attribute(node, "keepdims", 1):
        rest = [a for i, a in enumerate(rest) if i != axis]
    for out in node.outputs:
        t.put(out, rest)


def triangle(t: Trace, node: ir.Node) -> None:
    """Trilu: rows and columns stay."""
    x = t.read(node, 0)
    t.put(node.outputs[0], _without(t, x, [len(x) - 2, len(x) - 1], "it is cut to a triangle"))
