"""Give what a convolution makes a range per channel, where only float operators read it.

A kernel writes its output with one scale; but its weights have a step per output channel, and its bias an offset. With
step s_c, bias b_c and the output's one scale S and zero point Z,

    q = (s_c / S) Σ + b_c / S + Z    becomes    q = (s_c / t_c) Σ + b_c / t_c + z_c:

the codes of the weights stay as they are, their step becomes ``s_c S / t_c``, the bias is counted anew, and a product
and a sum per channel in float, behind the DequantizeLinear, take it back. So each channel has all 256 codes for its own
range [low_c, high_c], and the kernel is the same. (A DequantizeLinear with t_c and z_c would do it alone; but ONNX
Runtime runs convolutions channels-last and moves its transposition past such nodes, which then take 50 ms where 0.03 ms
are enough: 1.32, PP-OCRv4's recogniser at width 320.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import Feeds
from ..model import Model, attribute
from ..protocols import Progress, Session
from . import numerics
from .calibration import observed
from .layers import constant
from .placement import Plan

if TYPE_CHECKING:
    import onnx_ir as ir

Bounds = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Tensor → lowest and highest value by channel, each [C]."""

LEAST = 1e-6
"""Least width of a channel, as a share of the widest: a silent channel gets no finer step."""

FINE = 1 / 32
"""A bias may be counted in steps of at most so much of a code of the output."""


def candidates(plan: Plan) -> dict[str, ir.Node]:
    """Tensors that a convolution of the plan makes and only float operators read, with those convolutions."""
    found = {}
    for node, layer in plan.layers.items():
        value = node.outputs[0]
        readers = [use.node for use in value.uses()]
        planned = value.name in plan.integer and not value.is_graph_output()
        if (
            node.op_type == "Conv"
            and layer.axis == 0
            and planned
            and readers
            and not any(r in plan.roles for r in readers)
        ):
            found[value.name or ""] = node
    return found


def bounds(
    model: Model,
    names: Iterable[str],
    compile: Callable[[Model], Session],  # noqa: A002  (the name that Context has)
    feeds: Iterable[Feeds],
    progress: Progress = lambda _what, _share: None,
) -> Bounds:
    """What every channel of these tensors [N, C, …] reaches over the samples."""
    wanted = tuple(names)
    session = compile(observed(model, wanted))
    found: Bounds = {}
    try:
        for count, sample in enumerate(feeds, start=1):
            outputs = session.run(sample)
            for name in wanted:
                x = outputs.get(name)
                if x is not None and x.size:
                    flat = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
                    low, high = flat.min(axis=1).astype(np.float64), flat.max(axis=1).astype(np.float64)
                    before = found.get(name, (low, high))
                    found[name] = np.minimum(before[0], low), np.maximum(before[1], high)
            progress(f"ranges by channel, sample {count}", 0.0)
    finally:
        session.close()
    return {n: (low, high) for n, (low, high) in found.items() if np.isfinite(low).all() and np.isfinite(high).all()}


def dead_zone(value: ir.Value) -> tuple[float, float]:
    """Ends beyond which nothing that reads a value can tell numbers apart."""
    lows, highs = [], []
    for use in value.uses():
        node = use.node
        if node.op_type == "HardSwish":
            low, high = -3.0, np.inf
        elif node.op_type == "HardSigmoid":
            low, high = _hard_ends(node)
        elif node.op_type == "Mul" and (gate := _gate(node, value)) is not None:
            low, high = _hard_ends(gate)[0], np.inf
        elif node.op_type == "Relu":
            low, high = 0.0, np.inf
        else:
            return -np.inf, np.inf
        lows.append(low)
        highs.append(high)
    return min(lows, default=-np.inf), max(highs, default=np.inf)


def _hard_ends(node: ir.Node) -> tuple[float, float]:
    alpha, beta = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return -beta / alpha, (1.0 - beta) / alpha


def _gate(product: ir.Node, value: ir.Value) -> ir.Node | None:
    """The hard-sigmoid of a value by which a product multiplies it."""
    for operand in product.inputs:
        node = operand.producer() if operand is not None else None
        if node is not None and node.op_type == "HardSigmoid" and node.inputs[0] is value:
            return node
    return None


def spread(
    graph: ir.Graph, chosen: Mapping[str, tuple[ir.Node, numerics.QParams]], zero_of: Mapping[str, numerics.QParams]
) -> int:
    """Rewrite the Q/DQ of these tensors, in place.

    Args:
        graph: A graph that `qdq.write` has written, with int32 biases.
        chosen: Tensor → the convolution that makes it, and its parameters per channel.
        zero_of: The one scale and zero point of each tensor, as written.

    Returns:
        How many tensors have parameters per channel now.
    """
    return sum(_spread(graph, node, p, zero_of[name]) for name, (node, p) in chosen.items())


def _spread(graph: ir.Graph, node: ir.Node, p: numerics.QParams, one: numerics.QParams) -> bool:
    import onnx_ir as ir

    uses = list(node.outputs[0].uses())
    weight = node.inputs[1].producer() if node.inputs[1] is not None else None
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if len(uses) != 1 or uses[0].node.op_type != "QuantizeLinear" or weight is None or source is None:
        return False
    reads = [u.node for u in uses[0].node.outputs[0].uses()]
    steps, step = constant(weight.inputs[1]), constant(source.inputs[1])
    if len(reads) != 1 or reads[0].op_type != "DequantizeLinear" or steps is None or step is None or step.size != 1:
        return False
    codes = np.zeros(p.scale.shape, np.float64)
    held = node.inputs[2].producer() if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if held is not None:
        numbers, unit = constant(held.inputs[0]), constant(held.inputs[1])
        assert numbers is not None
        assert unit is not None
        codes = numbers.astype(np.float64) * unit
    elif len(node.inputs) > 2 and node.inputs[2] is not None:
        return False
    # A channel whose bias cannot be counted finely enough for its zero point (its weights are all zero) keeps the one.
    coarse = steps.astype(np.float64) * float(step.reshape(())) > FINE * p.scale.astype(np.float64)
    p = numerics.QParams(
        np.where(coarse, one.scale, p.scale).astype(np.float32),
        np.where(coarse, one.zero_point, p.zero_point).astype(p.zero_point.dtype),
        p.axis,
    )
    share = np.float64(one.scale) / p.scale.astype(np.float64)
    made = (steps.astype(np.float64) * share).astype(np.float32)
    shift = (p.zero_point.astype(np.float64) - float(one.zero_point)) * float(one.scale)
    unit = (made.astype(np.float64) * float(step.reshape(()))).astype(np.float32)
    counts = np.rint((codes * share + shift) / unit)
    if np.abs(counts).max() >= 2.0**31 - 1 or not np.isfinite(made).all() or (unit < np.finfo(np.float32).tiny).any():
        return False
    name = node.outputs[0].name or ""
    fresh = _Fresh(graph, name)
    scaled = ir.node(
        "DequantizeLinear",
        [weight.inputs[0], fresh("weight.scale", made), weight.inputs[2]],
        {"axis": attribute(weight, "axis", 0)},
        name=f"{name}.weight.dequantize",
    )
    bias = ir.node(
        "DequantizeLinear",
        [
            fresh("bias.int32", counts.astype(np.int32)),
            fresh("bias.scale", unit),
            fresh("bias.zero_point", np.zeros(unit.shape, np.int32)),
        ],
        {"axis": 0},
        name=f"{name}.bias.dequantize",
    )
    scaled.outputs[0].name, bias.outputs[0].name = f"{name}.weight.real", f"{name}.bias.real"
    graph.insert_before(node, [scaled, bias])
    node.resize_inputs(3)
    node.replace_input_with(1, scaled.outputs[0])
    node.replace_input_with(2, bias.outputs[0])
    for old in (weight, held):
        if old is not None and not old.outputs[0].uses():
            graph.remove(old, safe=True)
    _behind(graph, reads[0], fresh, share, shift, node)
    return True


def _behind(
    graph: ir.Graph,
    dequantize: ir.Node,
    fresh: _Fresh,
    share: NDArray[np.float64],
    shift: NDArray[np.float64],
    node: ir.Node,
) -> None:
    """Take back in float what the convolution's outputs were scaled by and shifted."""
    import onnx_ir as ir

    weight = constant(node.inputs[1].producer().inputs[0])  # type: ignore[union-attr]
    assert weight is not None
    shape = (-1, *[1] * (weight.ndim - 2))
    steps = [("Mul", "scaled_back", 1.0 / share), ("Add", "shifted_back", -shift / share)]
    behind = dequantize
    for op, suffix, array in steps:
        value, held = behind.outputs[0], fresh(suffix, array.astype(np.float32).reshape(shape))
        made = ir.node(op, [value, held], name=f"{fresh.name}.{op.lower()}")
        made.outputs[0].name = f"{fresh.name}.{op.lower()}"
        made.outputs[0].type, made.outputs[0].shape = value.type, value.shape
        value.replace_all_uses_with(made.outputs[0])
        made.replace_input_with(0, value)
        graph.insert_after(behind, made)
        behind = made


class _Fresh:
    """Makes initializers with names of their own."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self.graph = graph
        self.name = name

    def __call__(self, suffix: str, array: NDArray[Any]) -> ir.Value:
        import onnx_ir as ir

        name, count = f"{self.name}.{suffix}", 2
        while name in self.graph.initializers:
            name, count = f"{self.name}.{suffix}.{count}", count + 1
        tensor = ir.tensor(array, name=name)
        value = ir.val(name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=array.shape)
        self.graph.register_initializer(value)
        return value


def parameters(
    low: NDArray[np.float64], high: NDArray[np.float64], zone: tuple[float, float], scheme_dtype: numerics.Dtype
) -> numerics.QParams:
    """Parameters per channel for what was seen of each, less what nobody can tell apart."""
    low, high = np.minimum(np.maximum(low, zone[0]), 0.0), np.maximum(np.minimum(high, zone[1]), 0.0)
    least = LEAST * max(float((high - low).max()), 1e-30)
    high = np.maximum(high, low + least)
    return numerics.params(low, high, scheme_dtype, symmetric=False, axis=1)
