"""Normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from . import composed
from .call import Call, Handler
from .dtypes import torch_dtype
from .values import Constant, Value


def batch_norm(n: Call) -> Value | Sequence[Value | None]:
    """BatchNormalization: by stored statistics, or as a layer that keeps learning them."""
    if n.opset < 9 and not n.attr("spatial", 1):
        raise n.refused("keeps statistics per element (spatial=0)", "raise the model's opset to 9")
    if n.opset >= 14 and n.attr("training_mode", 0):
        return n.calls(
            composed.batch_norm_training, 3, *(n[i] for i in range(5)), n.attr("epsilon", 1e-5), n.attr("momentum", 0.9)
        )
    stored = [n.inputs[i] for i in range(5)]
    if n.options.train and all(isinstance(v, Constant) and v.name for v in stored[1:]):
        return _layer(n)
    mean, variance = (n.build.buffer(v.tensor, v.name) if isinstance(v, Constant) and v.name else v for v in stored[3:])
    epsilon = n.attr("epsilon", 1e-5)
    return n.call(n.functional.batch_norm, n[0], mean, variance, n[1], n[2], False, 0.0, epsilon)


def _layer(n: Call) -> Value:
    """A layer of torch that shares names with the file: its momentum is one minus ONNX's."""
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = [n.known(i) for i in range(1, 5)]
    kind = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}[n.rank()]
    layer = getattr(n.torch.nn, kind)(
        len(tensors[0]), eps=n.attr("epsilon", 1e-5), momentum=1 - n.attr("momentum", 0.9), dtype=tensors[0].dtype
    )
    with n.torch.no_grad():
        for name, tensor in zip(names, tensors, strict=True):
            getattr(layer, name).copy_(tensor)
    made = n.build.module(layer, n.build.onnx_node, n[0])
    for name, value in zip(names, n.inputs[1:5], strict=True):
        if isinstance(value, Constant):
            n.build.sources[f"{made.node.target}.{name}"] = value.name
    return made


def instance_norm(n: Call) -> Value:
    """InstanceNormalization."""
    return n.call(n.functional.instance_norm, n[0], None, None, n[1], n[2], True, 0.0, n.attr("epsilon", 1e-5))


def layer_norm(n: Call) -> Value | Sequence[Value | None]:
    """LayerNormalization over the axes from `axis` on, with mean and inverse deviation where they are read."""
    axis, epsilon = n.axis("axis", -1), n.attr("epsilon", 1e-5)
    bias = n[2] if n.has(2) else None
    shape = n.shape(1)
    tail = n.rank() - axis
    if n.wants(1) or n.wants(2) or shape is None or len(shape) != tail or None in shape:
        dtype = torch_dtype(n.torch, n.attr("stash_type", 1), n.build.onnx_node)
        return n.calls(composed.layer_norm, 3, n[0], n[1], bias, axis, epsilon, dtype)
    return n.call(n.functional.layer_norm, n[0], list(shape), n[1], bias, epsilon)


def rms_norm(n: Call) -> Value:
    """RMSNormalization."""
    dtype = torch_dtype(n.torch, n.attr("stash_type", 1), n.build.onnx_node)
    return n.call(composed.rms_norm, n[0], n[1], n.axis("axis", -1), n.attr("epsilon", 1e-5), dtype)


def group_norm(n: Call) -> Value:
    """GroupNormalization: scale and bias per group up to opset 20, per channel since."""
    groups, scale, bias = n.attr("num_groups"), n[1], n[2]
    if n.opset < 21:
        shape = n.shape(0)
        if shape is None or shape[1] is None:
            raise n.refused("scales groups of an unknown number of channels", "fix the shapes")
        scale = n.call(n.torch.repeat_interleave, scale, shape[1] // groups)
        bias = n.call(n.torch.repeat_interleave, bias, shape[1] // groups)
    return n.call(n.functional.group_norm, n[0], groups, scale, bias, n.attr("epsilon", 1e-5))


def mean_variance(n: Call) -> Value:
    """MeanVarianceNormalization."""
    return n.call(composed.mean_variance, n[0], n.attr("axes", [0, 2, 3]))


def lp_normalization(n: Call) -> Value:
    """LpNormalization."""
    return n.call(composed.lp_normalized, n[0], n.attr("p", 2), n.axis("axis", -1))


def lrn(n: Call) -> Value:
    """LRN across channels."""
    return n.call(
        composed.local_response, n[0], n.attr("size"), n.attr("alpha", 1e-4), n.attr("beta", 0.75), n.attr("bias", 1.0)
    )


OPERATORS: dict[str, Handler] = {
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "GroupNormalization": group_norm,
    "MeanVarianceNormalization": mean_variance,
    "LpNormalization": lp_normalization,
    "LRN": lrn,
}
