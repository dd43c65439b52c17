"""Find activations that are spelled out where LiteRT has one operator: GELU, which alone has Erf in it, HARD_SWISH."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.rewrite import array, sole_user
from ..model import attribute

if TYPE_CHECKING:
    import onnx_ir as ir


def join(graph: ir.Graph) -> int:
    """Write what is spelled out as one node, in place; outputs keep their names.

    x · (1 + erf(x / √2)) / 2, in any order of its products, becomes Gelu(x); x · HardSigmoid(x, 1/6, 1/2) HardSwish(x).

    Returns:
        How many there were.
    """
    count = 0
    for node in list(graph):
        if node.op_type == "Erf" and node.domain in ("", "ai.onnx"):
            count += _gelu(graph, node)
        elif node.op_type == "HardSigmoid":
            count += _hard_swish(graph, node)
    return count


def _hard_swish(graph: ir.Graph, gate: ir.Node) -> bool:
    x, product = gate.inputs[0], sole_user(gate.outputs[0])
    sixth = abs(attribute(gate, "alpha", 0.2) * 6 - 1) < 1e-6 and attribute(gate, "beta", 0.5) == 0.5
    if not sixth or x is None or product is None or product.op_type != "Mul" or x not in product.inputs:
        return False
    return _replaced(graph, product, "HardSwish", x)


def _gelu(graph: ir.Graph, erf: ir.Node) -> bool:
    scaled = erf.inputs[0].producer() if erf.inputs[0] is not None else None
    x = _times(scaled, 1 / np.sqrt(2))
    added = sole_user(erf.outputs[0])
    if x is None or added is None or added.op_type != "Add" or _other(added, erf.outputs[0], 1.0) is None:
        return False
    product = sole_user(added.outputs[0])
    if product is None or product.op_type != "Mul":
        return False
    other = product.inputs[1 - list(product.inputs).index(added.outputs[0])]
    end = product
    if other is x:  # x · (1 + erf) first, half of it then
        half = sole_user(product.outputs[0])
        if half is None or _times(half, 0.5) is not product.outputs[0]:
            return False
        end = half
    elif other is not None and _times(other.producer(), 0.5) is x:
        pass
    elif other is not None and _number(other) == 0.5:  # (1 + erf) / 2 first, x then
        last = sole_user(product.outputs[0])
        if last is None or last.op_type != "Mul" or x not in last.inputs:
            return False
        end = last
    else:
        return False
    return _replaced(graph, end, "Gelu", x)


def _replaced(graph: ir.Graph, end: ir.Node, op: str, x: ir.Value) -> bool:
    """Put one node in the place of those that end in ``end``."""
    import onnx_ir as ir

    old = end.outputs[0]
    new = ir.node(op, [x], name=end.name)
    new.outputs[0].type, new.outputs[0].shape = old.type, old.shape
    graph.insert_before(end, new)
    name = old.name
    old.replace_all_uses_with(new.outputs[0], replace_graph_outputs=True)
    graph.remove(end, safe=True)
    new.outputs[0].name = name
    return True


def _times(node: ir.Node | None, factor: float) -> ir.Value | None:
    """What a node multiplies by a constant."""
    if node is None or node.op_type not in ("Mul", "Div"):
        return None
    for index in (0, 1) if node.op_type == "Mul" else (1,):
        number = _number(node.inputs[index])
        if number is not None and abs((number if node.op_type == "Mul" else 1 / (number or 1)) / factor - 1) < 1e-5:
            return node.inputs[1 - index]
    return None


def _other(node: ir.Node, value: ir.Value, number: float) -> ir.Value | None:
    index = 1 - list(node.inputs).index(value)
    return node.inputs[index] if _number(node.inputs[index]) == number else None


def _number(value: ir.Value | None) -> float | None:
    known = array(value) if value is not None else None
    return float(known.reshape(-1)[0]) if known is not None and known.size == 1 else None
