"""Walk over a graph, node by node, and tie together what can only be removed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..graph.cost import read_values
from ..graph.rewrite import label
from . import layers, pointwise, slices, views
from .trace import Trace, UnfollowedError

if TYPE_CHECKING:
    import onnx_ir as ir

Rule = Callable[[Trace, "ir.Node"], None]

_SAME = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitwiseNot",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
)
_COMBINED = (
    "Add",
    "And",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
)
_POOLED = (
    "AveragePool",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "LpPool",
    "MaxPool",
)
_REDUCED = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)

RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME, pointwise.same),
    **dict.fromkeys(_COMBINED, pointwise.combined),
    **dict.fromkeys(_POOLED, pointwise.pooled),
    **dict.fromkeys(_REDUCED, pointwise.reduced),
    **dict.fromkeys(("Softmax", "LogSoftmax"), pointwise.softmax),
    **dict.fromkeys(("CumSum", "Hardmax", "LpNormalization"), pointwise.scanned),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), pointwise.chosen),
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), views.flatten),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), layers.layer_norm),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), layers.recurrent),
    **dict.fromkeys(("Resize", "Upsample"), slices.resize),
    **dict.fromkeys(("Shape", "Size"), slices.shape),
    "BatchNormalization": layers.batch_norm,
    "Concat": views.concat,
    "Conv": layers.conv,
    "ConvTranspose": layers.conv_transpose,
    "DepthToSpace": views.depth_to_space,
    "Einsum": layers.einsum,
    "Expand": views.expand,
    "Gather": slices.gather,
    "GatherND": slices.gather_nd,
    "Gemm": layers.gemm,
    "GroupNormalization": layers.group_norm,
    "InstanceNormalization": layers.instance_norm,
    "LRN": layers.lrn,
    "MatMul": layers.matmul,
    "Pad": slices.pad,
    "Reshape": views.reshape,
    "Slice": slices.slice_,
    "SpaceToDepth": views.space_to_depth,
    "Split": slices.split,
    "Tile": views.tile,
    "Transpose": views.transpose,
    "Trilu": pointwise.triangle,
}
"""Operator of ONNX → how channels go through it. Any other operator keeps what it reads."""


def follow(graph: ir.Graph, t: Trace) -> None:
    """Walk a graph in order; its outputs keep their shape.

    Args:
        graph: A main graph whose weights are no inputs.
        t: What is known of shapes; filled here.
    """
    for node in graph:
        if not node.inputs or _counts(node):
            continue
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        try:
            if rule is None:
                raise UnfollowedError("nobody knows how channels go through it")
            if node.op_type != "Shape":
                rule(t, node)
        except UnfollowedError as e:
            _hold(t, node, f"{label(node)} ({node.op_type}): {e}")
        except (IndexError, ValueError, TypeError) as e:
            _hold(t, node, f"{label(node)} ({node.op_type}) does not fit its inputs: {e}")
    for value in graph.outputs:
        for labels in t.axes_of(value):
            t.stay(labels, f"the output {value.name!r} keeps its shape")


def _counts(node: ir.Node) -> bool:
    """Whether a node makes shapes or indices, which are no channels."""
    import onnx_ir as ir

    kinds = (ir.DataType.INT64, ir.DataType.INT32)
    out = node.outputs[0]
    return node.op_type != "Gather" and out.dtype in kinds and out.shape is not None and len(out.shape) <= 1


def _hold(t: Trace, node: ir.Node, reason: str) -> None:
    """Pin all that a node reads, subgraphs included; nothing of what it makes can go."""
    for value in read_values(node):
        for labels in t.axes_of(value):
            t.stay(labels, reason)
    for index in range(len(node.inputs)):
        weight = t.weight(node, index) if node.inputs[index] is not None and t.knows(node.inputs[index]) else None
        for labels in weight.labels.values() if weight is not None else ():
            t.stay(labels, reason)
    for out in node.outputs:
        t.forget(out)
