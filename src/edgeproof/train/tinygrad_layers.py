"""Layers of tinygrad that are one node in ONNX, and the normalisation that they share."""

from __future__ import annotations

from typing import Any

import numpy as np

from .onnx_writer import Emitter, Site


def _own(s: Site, name: str, default: float, count: int) -> Any:
    """A tensor of the layer, or as many equal numbers."""
    tensor = getattr(s.call.args["self"], name, None)
    if tensor is None:
        return s.writer.number(np.full(count, default), np.float32)
    return s.writer.weight(tensor)


def _batch_norm(s: Site) -> Any:
    layer, count = s.call.args["self"], s.shape("x")[1][0]
    values = (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0))
    tensors = [_own(s, name, default, count) for name, default in values]
    return s.node("BatchNormalization", s.value("x"), *tensors, epsilon=float(layer.eps))


def _layer_norm(s: Site) -> Any:
    layer = s.call.args["self"]
    both = layer.weight is not None and layer.bias is not None
    shape = layer.normalized_shape
    scale = _own(s, "weight", 1.0, 1) if both else s.writer.number(np.ones(shape), np.float32)
    bias = [_own(s, "bias", 0.0, 1)] if both else []
    return s.node("LayerNormalization", s.value("x"), scale, *bias, axis=-len(shape), epsilon=float(layer.eps))


def _group_norm(s: Site) -> Any:
    layer = s.call.args["self"]
    groups = layer.num_groups
    ones = s.writer.number(np.ones(groups), np.float32)
    zeros = s.writer.number(np.zeros(groups), np.float32)
    flat = s.node("Reshape", s.value("x"), s.ints([0, groups, -1]))
    made = s.node("InstanceNormalization", flat, ones, zeros, epsilon=float(layer.eps))
    made = s.reshaped(made, s.shape())
    if layer.weight is None or layer.bias is None:
        return made
    shape = s.ints([1, -1, *[1] * (s.tensor("x").ndim - 2)])
    weight, bias = (s.node("Reshape", _own(s, n, 0.0, 1), shape) for n in ("weight", "bias"))
    return s.node("Add", s.node("Mul", made, weight), bias)


def _instance_norm(s: Site) -> Any:
    layer, count = s.call.args["self"], s.shape("x")[1][0]
    both = layer.weight is not None and layer.bias is not None
    weight = _own(s, "weight", 1.0, count) if both else s.writer.number(np.ones(count), np.float32)
    bias = _own(s, "bias", 0.0, count) if both else s.writer.number(np.zeros(count), np.float32)
    return s.node("InstanceNormalization", s.value("x"), weight, bias, epsilon=float(layer.eps))


def _embedding(s: Site) -> Any:
    return s.node("Gather", _own(s, "weight", 0.0, 1), s.value("idx"), axis=0)


def layer_norm(s: Site) -> Any:
    """`Tensor.layernorm`: over the last axes one node, over others what it is made of."""
    given, shape = s.number("axis"), s.shape()
    axes = sorted(a % len(shape) for a in ([given] if isinstance(given, int) else given))
    epsilon = float(s.number("eps"))
    sizes = [shape[a] for a in axes]
    if axes == list(range(len(shape) - len(axes), len(shape))) and all(a == b for a, b in sizes):
        ones = s.writer.number(np.ones([a for a, _ in sizes]), np.float32)
        return s.node("LayerNormalization", s.value(), ones, axis=axes[0] - len(shape), epsilon=epsilon)
    x = s.value()
    apart = s.node("Sub", x, s.node("ReduceMean", x, axes=axes))
    spread = s.node("ReduceMean", s.node("Mul", apart, apart), axes=axes)
    return s.node("Div", apart, s.node("Sqrt", s.node("Add", spread, s.writer.number(epsilon, np.float32))))


LAYERS: dict[str, Emitter] = {
    "BatchNorm": _batch_norm,
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "Embedding": _embedding,
}
"""Layer → what writes it."""
