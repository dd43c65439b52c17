"""Decide whether a layer can be quantised, and how its weight and bias are to be stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph.rewrite import answers
from ..model import attribute
from ..target import QuantScheme
from .numerics import QParams

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Layer:
    """How one layer's weight is stored.

    Attributes:
        axis: Output-channel axis of the weight; None for one scale per tensor.
        weight: The float weight, with Gemm's alpha folded in.
        bias: The float bias [C], with Gemm's beta folded in; None without one.
        params: Of the weight's codes, where they are settled already; None leaves them to the writer.
    """

    axis: int | None
    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None
    params: QParams | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What the user allows.

    Attributes:
        keep: Left in float: node names, operators, output names, or patterns with ``*`` and ``?``.
        ops: When not empty, only these operators are quantised.
        depthwise: Quantise depthwise convolutions.
        first_last: Quantise layers without a layer before them, or after them.
        per_channel: One scale per output channel where the scheme has it.
    """

    keep: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    depthwise: bool = True
    first_last: bool = True
    per_channel: bool = True


def layer(node: ir.Node, scheme: QuantScheme, scope: Scope) -> Layer | str:
    """The layer that a node is, or why it stays in float."""
    reason = kept(node, scope)
    if reason:
        return reason
    if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
        return "has no weight"
    weight = constant(node.inputs[1])
    if weight is None:
        return "its weight is not a constant"
    if constant(node.inputs[0]) is not None:
        return "its input is a constant; fold constants first"
    if weight.dtype != np.float32:
        return f"its weight is {weight.dtype.name}; only float32 is quantised"
    if not weight.size:
        return "its weight is empty"
    if not np.isfinite(weight).all():
        return f"its weight holds {int((~np.isfinite(weight)).sum())} values that are NaN or infinite"
    for use in node.inputs[1].uses():
        if use.node.op_type not in scheme.ops or use.idx != 1:
            return f"its weight is also read by {label(use.node)}, which stays in float"
    build = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul}.get(node.op_type)
    if build is None:
        return f"placement knows no rule for {node.op_type}"
    made = build(node, weight, scope)
    if isinstance(made, Layer) and (node.op_type not in scheme.per_channel or not scope.per_channel):
        return Layer(None, made.weight, made.bias)
    return made


def _conv(node: ir.Node, weight: NDArray[np.float32], scope: Scope) -> Layer | str:
    if not 3 <= weight.ndim <= 5:
        return f"its weight has rank {weight.ndim}; expected 3 to 5"
    if not scope.depthwise and attribute(node, "group", 1) > 1 and weight.shape[1] == 1:
        return "depthwise convolution, kept in float by the setting depthwise=false"
    bias = _bias(node, weight.shape[0])
    return bias if isinstance(bias, str) else Layer(0, weight, bias)


def _conv_transpose(node: ir.Node, weight: NDArray[np.float32], scope: Scope) -> Layer | str:
    group = attribute(node, "group", 1)
    bias = _bias(node, weight.shape[1] * group)
    if isinstance(bias, str):
        return bias
    return Layer(1 if group == 1 else None, weight, bias)


def _gemm(node: ir.Node, weight: NDArray[np.float32], scope: Scope) -> Layer | str:
    if weight.ndim != 2:
        return f"its weight has rank {weight.ndim}; expected 2"
    if attribute(node, "transA", 0):
        return "its input is transposed (transA)"
    axis = 0 if attribute(node, "transB", 0) else 1
    bias = _bias(node, weight.shape[axis])
    if isinstance(bias, str):
        return bias
    alpha, beta = np.float32(attribute(node, "alpha", 1.0)), np.float32(attribute(node, "beta", 1.0))
    return Layer(axis, weight * alpha, None if bias is None else bias * beta)


def _matmul(node: ir.Node, weight: NDArray[np.float32], scope: Scope) -> Layer | str:
    if weight.ndim < 2:
        return f"its weight has rank {weight.ndim}; expected 2 or more"
    return Layer(1 if weight.ndim == 2 else None, weight)


def _bias(node: ir.Node, channels: int) -> NDArray[np.float32] | str | None:
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return None
    bias = constant(node.inputs[2])
    if bias is None:
        return "its bias is not a constant"
    if bias.dtype != np.float32 or not np.isfinite(bias).all():
        return "its bias is not finite float32"
    if bias.size == 1 and node.op_type == "Gemm":
        return np.full(channels, bias.reshape(-1)[0], np.float32)
    if bias.size != channels or bias.shape[-1:] != (channels,):
        return f"its bias has shape {list(bias.shape)}; expected [{channels}]"
    return bias.reshape(channels)


def kept(node: ir.Node, scope: Scope) -> str | None:
    """The reason why the user's settings leave a node in float, if they do."""
    for pattern in scope.keep:
        if answers(node, pattern):
            return f"kept in float by the setting keep={pattern}"
    if scope.ops and node.op_type not in scope.ops:
        return f"not among the operators of the setting ops={','.join(scope.ops)}"
    return None


def label(node: ir.Node) -> str:
    """A node's name, or its operator and first output when it has none."""
    return node.name or f"{node.op_type}:{node.outputs[0].name if node.outputs else ''}"


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The array behind an initializer or a Constant node; None for anything else."""
    import onnx_ir as ir

    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy()
