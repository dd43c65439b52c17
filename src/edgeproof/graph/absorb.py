"""Absorb a per-channel scale and shift into the weights and bias of the Conv, ConvTranspose or Gemm beside it.

After the operator, ``s·(W·x + b) + t`` is ``(sW)·x + (sb + t)`` with s and t per output channel. Before it,
``W·(s·x + t) + b`` is ``(Ws)·x + (W·t + b)`` with s and t per input channel, where t must be zero if the operator pads
(padding adds zeros, not t). Arithmetic is in float64, rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .rewrite import Editor, array, attribute, cast_like, dims, sole_user

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

OPS = ("Conv", "ConvTranspose", "Gemm")


def per_channel(constant: NDArray[Any], rank: int, axis: int) -> NDArray[np.float64] | None:
    """A broadcast operand as one number per channel.

    Args:
        constant: What is multiplied or added, any shape that broadcasts to ``rank`` dimensions.
        rank: Rank of the other operand.
        axis: Its channel axis.

    Returns:
        float64 [1] or [C]; None when it varies along another axis.
    """
    if constant.ndim > rank or constant.dtype.kind == "c":
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis):
        return None
    return constant.astype(np.float64).reshape(-1)


def absorb_after(editor: Editor, node: ir.Node, scale: NDArray[np.float64], shift: NDArray[np.float64]) -> str | None:
    """Change W and b so that the operator's output becomes ``scale · output + shift``.

    Args:
        editor: The model.
        node: A Conv, ConvTranspose or Gemm.
        scale: float64 [1] or [C_out].
        shift: float64 [1] or [C_out].

    Returns:
        None when done, else the reason why not; then nothing has changed.
    """
    parts = _parts(node)
    if isinstance(parts, str):
        return parts
    weight, bias, out = parts
    if scale.size not in (1, out) or shift.size not in (1, out):
        return f"{max(scale.size, shift.size)} channels do not fit the operator's {out}"
    s = np.broadcast_to(scale, (out,))
    if node.op_type == "Conv":
        w = weight * s.reshape((out,) + (1,) * (weight.ndim - 1))
    elif node.op_type == "ConvTranspose":
        group = attribute(node, "group", 1)
        grouped = weight.reshape((group, weight.shape[0] // group, *weight.shape[1:]))
        w = (grouped * s.reshape((group, 1, out // group) + (1,) * (weight.ndim - 2))).reshape(weight.shape)
    else:
        w = weight * (s[:, None] if attribute(node, "transB", 0) else s[None, :])
    return _store(editor, node, w, bias * s + shift)


def absorb_before(editor: Editor, node: ir.Node, scale: NDArray[np.float64], shift: NDArray[np.float64]) -> str | None:
    """Change W and b so that the operator computes on ``scale · x + shift``.

    Args:
        editor: The model.
        node: A Conv or Gemm.
        scale: float64 [1] or [C_in].
        shift: float64 [1] or [C_in].

    Returns:
        None when done, else the reason why not; then nothing has changed.
    """
    parts = _parts(node)
    if isinstance(parts, str):
        return parts
    if node.op_type == "ConvTranspose" or (node.op_type == "Gemm" and attribute(node, "transA", 0)):
        return f"a scale before {node.op_type} is not absorbed"
    weight, bias, out = parts
    auto = attribute(node, "auto_pad", "NOTSET")
    pads = any(attribute(node, "pads", ())) or auto not in ("NOTSET", "VALID")
    if node.op_type == "Conv" and shift.any() and pads:
        return "the convolution pads with zeros, so a shift before it cannot move into its bias"
    transposed = node.op_type == "Gemm" and not attribute(node, "transB", 0)
    by_output = weight.T if transposed else weight
    group = attribute(node, "group", 1) if node.op_type == "Conv" else 1
    channels = by_output.shape[1] * group
    if scale.size not in (1, channels) or shift.size not in (1, channels):
        return f"{max(scale.size, shift.size)} channels do not fit the operator's {channels}"
    grouped = by_output.reshape((group, out // group, *by_output.shape[1:]))
    per_input = (group, 1, channels // group, *(1,) * (weight.ndim - 2))
    s = np.broadcast_to(scale, (channels,)).reshape(per_input)
    t = np.broadcast_to(shift, (channels,)).reshape(per_input)
    w = (grouped * s).reshape(by_output.shape)
    factor = attribute(node, "alpha", 1.0) if node.op_type == "Gemm" else 1.0
    b = bias + factor * (grouped * t).reshape(out, -1).sum(axis=1)
    return _store(editor, node, w.T if transposed else w, b)


def feeder(value: ir.Value | None) -> ir.Node | str:
    """The operator that alone feeds ``value`` and whose output nobody else reads, or the reason why there is none."""
    producer = None if value is None else value.producer()
    if value is None or producer is None or producer.op_type not in OPS or producer.domain not in ("", "ai.onnx"):
        return "no Conv, ConvTranspose or Gemm is directly before it"
    if sole_user(value) is None:
        n = len(list(value.uses()))
        return f"its input has {n} consumers" if n > 1 else "its input is also an output of the graph"
    return producer


def rank(value: ir.Value | None) -> int | None:
    """Number of dimensions, when known."""
    shape = dims(value)
    return None if shape is None else len(shape)


def output_rank(node: ir.Node) -> int | None:
    """Rank of the operator's output, from its weights where they are constant."""
    weight = array(node.inputs[1])
    return rank(node.outputs[0]) if weight is None else weight.ndim


def _parts(node: ir.Node) -> tuple[NDArray[np.float64], NDArray[np.float64], int] | str:
    """Weights and effective bias in float64, and the number of output channels; or why there are none."""
    held = node.inputs[1] if len(node.inputs) > 1 else None
    weight = array(held)
    if held is None or weight is None or weight.dtype.kind not in "fV":
        return "its weights are not constant"
    users = len(list(held.uses()))
    if users > 1:
        return f"its weights are shared by {users} nodes"
    if node.op_type == "ConvTranspose":
        out = weight.shape[1] * attribute(node, "group", 1)
    elif node.op_type == "Gemm":
        out = weight.shape[0 if attribute(node, "transB", 0) else 1]
    else:
        out = weight.shape[0]
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = np.zeros(out)
    if given is not None:
        b = array(given)
        if b is None:
            return "its bias is not constant"
        if any(d != 1 for d in b.shape[:-1]):
            return "its bias differs from row to row"
        factor = attribute(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
        bias = np.broadcast_to(b.astype(np.float64).reshape(-1) * factor, (out,))
    # Gemm scales its product by alpha, so that only s·b + t, and never s itself, needs to know about it.
    return weight.astype(np.float64), bias, out


def _store(editor: Editor, node: ir.Node, weight: NDArray[np.float64], bias: NDArray[np.float64]) -> str | None:
    import onnx_ir as ir

    old = node.inputs[1]
    stored = array(old)
    assert old is not None
    assert stored is not None
    w, b = cast_like(weight, stored), cast_like(bias, stored)
    if w is None or b is None:
        return f"the result does not fit {stored.dtype}"
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    node.replace_input_with(1, editor.constant(graph, f"{old.name}_folded", w))
    if has_bias or b.any():
        if len(node.inputs) < 3:
            node.resize_inputs(3)
        node.replace_input_with(2, editor.constant(graph, f"{node.outputs[0].name}_bias", b))
        if node.op_type == "Gemm":
            node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    return None
