"""A graph made ready for tinygrad's ONNX runner: every Q/DQ node is an operator of its own, on floats.

tinygrad reads no 4-bit integers and knows an operator only by its name, so each quantiser gets a name, and codes,
scales and zero points become floats ahead of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph.quantised import CODES
from ..model import Model, attribute, graphs
from .quantisers import Points

if TYPE_CHECKING:
    import onnx_ir as ir

SETTINGS = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "OneHot": (1, 2),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}
"""Operator → inputs that are no weights."""

NUMBERS = ("Add", "Div", "Equal", "Greater", "Less", "Max", "Min", "Mod", "Mul", "Pow", "Sub", "Where")
"""Operators in which one stored number is part of a formula, such as the 3 of a hard swish, and no weight."""


@dataclass(frozen=True, slots=True)
class Quantiser:
    """A Q or DQ node as an operator of its own.

    Attributes:
        kind: ``quantize``, ``dequantize``, or ``held``: stored codes, trained as floats.
        low: Smallest code.
        high: Largest code.
        axis: Of the channels.
        block: Values that share a scale; 0 for one scale per channel.
        tied: Whether the scale is a product of two.
        zero: Zero points, one or one per channel; None for 0.
    """

    kind: str
    low: int
    high: int
    axis: int
    block: int
    tied: bool
    zero: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the runner is given.

    Attributes:
        model: The graph.
        inputs: Names of its inputs.
        quantisers: Operator name → what it is.
        weights: Name → initial value of what can be trained, scales included.
        statistics: Running means and variances.
        scales: Which of the weights are quantisation scales.
        factors: Scale → what its gradient is multiplied with in a step (LSQ).
    """

    model: Model
    inputs: tuple[str, ...]
    quantisers: Mapping[str, Quantiser]
    weights: Mapping[str, NDArray[np.float32]]
    statistics: Mapping[str, NDArray[np.float32]]
    scales: frozenset[str]
    factors: Mapping[str, float]


def prepare(model: Model, points: Points, *, learned: bool) -> Prepared:
    """Rewrite a graph for the runner.

    Args:
        model: Float, or with Q/DQ.
        points: What is quantised in it.
        learned: Whether scales are trained.
    """
    from onnx_ir.passes.common import LiftConstantsToInitializersPass, ShapeInferencePass

    graph = model.graph.clone()
    ShapeInferencePass()(graph)
    LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=2)(graph)
    quantisers: dict[str, Quantiser] = {}
    factors: dict[str, float] = {}
    scales: set[str] = set()
    for node in [n for g in graphs(graph) for n in g]:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            made = _quantiser(node, points, factors)
            if made is None:
                continue
            scales.update(_scale_names(node, made))
            node.op_type = f"{made.kind}{len(quantisers)}"
            quantisers[node.op_type] = made
    stored = graph.graph.initializers
    kept = {n for n in scales if n in stored}
    weights = {n: _floats(v) for n, v in stored.items() if n in kept and learned}
    weights |= {n: _floats(v) for n, v in stored.items() if n not in kept and _weight(v)}
    weights |= {n: held.floats for n, held in points.held.items() if n in stored}
    statistics = {
        n: _floats(v)
        for n, v in stored.items()
        if v.uses() and all(u.node.op_type == "BatchNormalization" and u.idx in (3, 4) for u in v.uses())
    }
    prepared = Model(f"{model.name}-training", model.digest, model.inputs, model.outputs, graph)
    names = tuple(s.name for s in model.inputs)
    return Prepared(prepared, names, quantisers, weights, statistics, frozenset(kept), factors)


def _quantiser(node: ir.Node, points: Points, factors: dict[str, float]) -> Quantiser | None:
    """What a Q/DQ node is; its inputs become floats, its zero point leaves the graph. None for what stays."""
    import onnx_ir as ir

    source, scale = node.inputs[0], node.inputs[1]
    assert source is not None
    assert scale is not None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    axis, block = int(attribute(node, "axis", 1)), int(attribute(node, "block_size", 0))
    values = None if zero is None or zero.const_value is None else zero.const_value.numpy().astype(np.float32)
    if zero is not None and values is None:
        return None
    point = values if values is not None and values.any() else None
    held = points.held.get(source.name or "") if node.op_type == "DequantizeLinear" else None
    graph = node.graph
    assert graph is not None
    inputs: list[ir.Value | None] = [source, scale]
    if held is not None:
        floats = ir.Tensor(held.floats, name=source.name)
        # A type of its own: clones share theirs.
        source.const_value, source.type = floats, ir.TensorType(floats.dtype)
        if held.tied:
            known = _values(graph)
            inputs = [source, *(known[n] for n in held.tied)]
        elif scale.const_value is not None:
            factors[held.scale] = _factor(held.floats.size / max(scale.const_value.size, 1), held.high)
        made = Quantiser("held", held.low, held.high, axis, block, held.tied is not None, point)
    elif node.op_type == "QuantizeLinear":
        name = zero.dtype.name if zero is not None and zero.dtype is not None else ""
        if name not in CODES:
            return None
        low, high = CODES[name]
        if scale.const_value is not None:
            count = math.prod(int(d) for d in source.shape or () if isinstance(d, int))
            factors[scale.name or ""] = _factor(count / max(scale.const_value.size, 1), high)
        made = Quantiser("quantize", low, high, axis, block, False, point)
    else:
        made = Quantiser("dequantize", 0, 0, axis, block, False, point)
    node.resize_inputs(len(inputs))
    for i, value in enumerate(inputs):
        node.replace_input_with(i, value)
    return made


def _values(graph: Any) -> dict[str, ir.Value]:
    found = dict(graph.initializers)
    found.update({v.name: v for n in graph for v in n.outputs if v.name})
    return found


def _factor(values: float, high: int) -> float:
    """1 / √(values · largest code): Esser et al. 2020, section 2.2."""
    return float(1 / math.sqrt(max(values, 1) * high))


def _scale_names(node: ir.Node, made: Quantiser) -> list[str]:
    return [v.name or "" for v in node.inputs[1:] if v is not None and v.const_value is not None]


def _weight(value: ir.Value) -> bool:
    """Whether a stored tensor is one that training changes."""
    if value.const_value is None or value.const_value.dtype.name != "FLOAT" or not value.uses():
        return False
    uses = [(u.node.op_type, u.idx) for u in value.uses()]
    if any(i in SETTINGS.get(op, ()) for op, i in uses):
        return False
    return value.const_value.size != 1 or not any(op in NUMBERS for op, _ in uses)


def _floats(value: ir.Value) -> NDArray[np.float32]:
    assert value.const_value is not None
    return value.const_value.numpy().astype(np.float32)
