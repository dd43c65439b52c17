"""Nodes that some runtimes compute in integers as a whole: attention, and products with a factor per channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..target import QuantScheme
from .layers import Scope, constant, kept

if TYPE_CHECKING:
    import onnx_ir as ir


def attention(nodes: Sequence[ir.Node], scheme: QuantScheme, scope: Scope) -> list[ir.Node]:
    """q·kᵀ and p·v of every attention: what a Softmax reads, past scale and mask, and what reads it."""
    found: list[ir.Node] = []
    for node in nodes if scheme.attention else ():
        if node.op_type != "Softmax" or node.domain not in ("", "ai.onnx"):
            continue
        scores, value = None, node.inputs[0]
        for _ in range(4):  # scale, mask, and a reshape on either side of them
            maker = value.producer() if value is not None else None
            if maker is None or maker.op_type == "MatMul":
                scores = maker
                break
            value = next((v for v in maker.inputs if v is not None and constant(v) is None), None)
        readers = [u.node for u in node.outputs[0].uses() if u.node.op_type == "MatMul" and u.idx == 0]
        pair = [n for n in (scores, *readers) if n is not None]
        plain = all(constant(v) is None for n in pair for v in n.inputs if v is not None)
        if scores is not None and readers and plain and not any(kept(n, scope) for n in pair):
            found += pair
    return found


def excites(node: ir.Node) -> bool:
    """Whether a product has a factor per channel: one operand [N, C, 1, 1], the other a map."""
    if node.op_type != "Mul" or any(v is None or v.shape is None or len(v.shape) != 4 for v in node.inputs):
        return False
    flat = [v is not None and v.shape is not None and tuple(v.shape[2:]) == (1, 1) for v in node.inputs]
    return flat[0] != flat[1] and all(v is not None and constant(v) is None for v in node.inputs)
