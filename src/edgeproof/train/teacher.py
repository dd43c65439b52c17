"""Where a model can be taught without labels: tensors that it and its teacher share.

What a detector puts out (boxes behind a top-k, indices) has no useful gradient. Its last layers have: the outputs of
convolutions and products behind which no other follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..model import Model

if TYPE_CHECKING:
    import onnx_ir as ir

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that count as layers when their second input is stored."""


def heads(student: Model, teacher: Model) -> tuple[str, ...]:
    """Outputs of the last layers, where both models have them; else the outputs that both have.

    Args:
        student: Float, or with Q/DQ.
        teacher: Float.
    """
    known = {v.name for n in student.graph.graph for v in n.outputs}
    found = tuple(name for name in _last(teacher) if name in known)
    if found:
        return found
    own = {o.name for o in student.outputs}
    return tuple(o.name for o in teacher.outputs if o.name in own and o.dtype.startswith("float"))


def features(student: Model, teacher: Model, count: int) -> tuple[str, ...]:
    """Outputs of layers in between, evenly spread over the graph.

    Args:
        student: Float, or with Q/DQ.
        teacher: Float.
        count: How many, at most.
    """
    known = {v.name for n in student.graph.graph for v in n.outputs}
    last = set(_last(teacher))
    inner = [n.outputs[0].name or "" for n in teacher.graph.graph if _layer(n)]
    inner = [name for name in inner if name in known and name not in last]
    step = (len(inner) + 1) / (count + 1)
    picked: Sequence[str] = (
        [inner[min(round(step * (i + 1)) - 1, len(inner) - 1)] for i in range(count)] if inner else []
    )
    return tuple(dict.fromkeys(picked))


def _last(model: Model) -> list[str]:
    """Outputs of layers from which no other layer is reached."""
    reached: set[ir.Node] = set()
    found = []
    for node in reversed(list(model.graph.graph)):
        later = [use.node for v in node.outputs for use in v.uses()]
        ahead = any(n in reached or _layer(n) for n in later)
        if ahead:
            reached.add(node)
        elif _layer(node):
            found.append(node.outputs[0].name or "")
    return found[::-1]


def _layer(node: ir.Node) -> bool:
    if node.op_type not in LAYERS or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    weight = node.inputs[1]
    maker = weight.producer()
    return weight.const_value is not None or (maker is not None and maker.op_type in ("Constant", "DequantizeLinear"))
