"""What of a Q/DQ graph is to be trained: integers that stand for float weights, and the scales around them.

A stored integer tensor behind a DequantizeLinear is trained as floats that are rounded anew at every step; a bias in
int32 has the product of its layer's two scales as its step, whatever those become.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..graph.quantised import CODES
from ..model import Model, attribute, graphs
from ..quant import numerics

if TYPE_CHECKING:
    import onnx_ir as ir

CLIP = 1.01
"""A float weight belongs to codes when it is within so many steps of them, once it is clipped to their range."""


@dataclass(frozen=True, slots=True)
class Held:
    """A stored integer tensor that is trained as floats.

    Attributes:
        name: Of the stored codes.
        floats: What it starts from, in the shape of the codes.
        scale: Name of its scale.
        low: Smallest code.
        high: Largest code.
        tied: Names of the two scales whose product its scale is (a bias); None for one of its own.
    """

    name: str
    floats: NDArray[np.float32]
    scale: str
    low: int
    high: int
    tied: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Points:
    """All that is quantised.

    Attributes:
        held: Name of stored codes → what is trained in their place.
        activations: Names of the scales of activations.
        weights: Names of the scales of stored tensors, those of biases apart.
    """

    held: Mapping[str, Held]
    activations: tuple[str, ...]
    weights: tuple[str, ...]


def find(model: Model, original: Model | None = None) -> Points:
    """Find them.

    Args:
        model: With Q/DQ.
        original: The float model that it was made from: weights start from its values where they are still the same
            but for the rounding; else from the middle of their steps.
    """
    stored = {} if original is None else dict(_floats(original))
    held: dict[str, Held] = {}
    activations: list[str] = []
    weights: list[str] = []
    for graph in graphs(model.graph):
        for node in graph:
            if node.op_type == "QuantizeLinear" and node.inputs[1] is not None:
                activations.append(node.inputs[1].name or "")
            if node.op_type != "DequantizeLinear" or node.inputs[0] is None or node.inputs[1] is None:
                continue
            codes, scale = node.inputs[0], node.inputs[1]
            if codes.const_value is None or scale.const_value is None or codes.producer() is not None:
                continue
            one = _held(node, codes, scale, stored)
            held[one.name] = one
            if one.tied is None:
                weights.append(one.scale)
    return Points(held, tuple(dict.fromkeys(activations)), tuple(dict.fromkeys(weights)))


def _held(node: ir.Node, codes: ir.Value, scale: ir.Value, stored: Mapping[str, NDArray[np.float32]]) -> Held:
    assert codes.const_value is not None
    assert scale.const_value is not None
    kind = codes.const_value.dtype.name
    array, step = codes.const_value.numpy(), scale.const_value.numpy().astype(np.float32)
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    points = (
        np.zeros((), np.int64)
        if zero is None or zero.const_value is None
        else zero.const_value.numpy().astype(np.int64)
    )
    axis = int(attribute(node, "axis", 1))
    block = int(attribute(node, "block_size", 0))
    step_b, points_b = aligned(step, array, axis, block), aligned(points, array, axis, block)
    real = np.asarray((array.astype(np.float64) - points_b) * step_b, np.float32)  # a single number stays an array
    low, high = _limits(kind, array)
    original = next((stored[n] for n in _origins(codes.name or "") if n in stored), None)
    if original is not None and original.shape == real.shape:
        clipped = np.clip(original, (low - points_b) * step_b, (high - points_b) * step_b)
        if np.all(np.abs(clipped - real) <= CLIP * step_b):
            real = original.astype(np.float32)
    tied = _tied(node) if kind == "INT32" else None
    return Held(codes.name or "", real, scale.name or "", low, high, tied)


def _limits(kind: str, codes: NDArray[Any]) -> tuple[int, int]:
    """The codes that may be used: 7 bits where no more are, and no −128 where there is none."""
    low, high = CODES[kind]
    if kind != "INT8":
        return low, high
    peak = int(np.abs(codes.astype(np.int64)).max(initial=0))
    return (-64, 64) if peak <= 64 else (-127 if codes.min() > low else low, high)


def _origins(name: str) -> Iterator[str]:
    """Names of the float tensor that stored codes may have been made from: theirs, less what was appended."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        yield ".".join(parts[:end])


def _floats(model: Model) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for graph in graphs(model.graph):
        for name, value in graph.initializers.items():
            if value.const_value is not None and value.const_value.dtype.name == "FLOAT":
                yield name, value.const_value.numpy()


def _tied(node: ir.Node) -> tuple[str, str] | None:
    """The scales of the layer whose bias a DequantizeLinear gives: of its input and of its weight."""
    for use in node.outputs[0].uses():
        layer: ir.Node | None = use.node
        if use.node.op_type == "Add":
            other = use.node.inputs[1 - use.idx]
            layer = None if other is None else other.producer()
        if layer is None or len(layer.inputs) < 2:
            continue
        makers = [None if v is None else v.producer() for v in layer.inputs[:2]]
        scales = [m.inputs[1] for m in makers if m is not None and m.op_type == "DequantizeLinear"]
        if len(scales) == 2 and all(s is not None for s in scales):
            return scales[0].name or "", scales[1].name or ""  # type: ignore[union-attr]
    return None


def aligned(values: NDArray[Any], x: NDArray[Any], axis: int, block: int) -> NDArray[Any]:
    """A scale or zero point, one or one per channel or per block, in a shape that broadcasts over ``x``."""
    if values.size == 1:
        return values.reshape(())
    if block:
        return np.repeat(values, block, axis=axis)[tuple(slice(n) for n in x.shape)]
    return numerics.spread(values, x.ndim, axis)
