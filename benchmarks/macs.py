"""Multiply-accumulates of known networks against the figures that their authors published.

Run: python benchmarks/macs.py

MobileNetV2 and EfficientNet-Lite0 are built here from the tables of their papers; the others are the light models that
come with the onnx package (real architectures, weights made by ConstantOfShape). Parameters here include the running
statistics of batch norms, which the published counts of ResNet and DenseNet leave out.

EfficientNet-Lite0's own README gives 407 M, which is more than its convolutions and its classifier do: that sum is
385 M, as independent ports of it say too. MobileNetV2's paper counts as we do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from edgeproof.graph.cost import Cost, cost
from edgeproof.model import Model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@dataclass(frozen=True)
class Row:
    name: str
    cost: Cost
    published_macs: float | None
    published_parameters: float | None
    source: str


class Builder:
    """A chain of convolutions, each with its batch norm folded in, weights zero."""

    def __init__(self, size: int = 224) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.at, self.channels, self.size = "x", 3, size

    def conv(self, out: int, kernel: int, stride: int = 1, *, depthwise: bool = False, relu: bool = True) -> None:
        i = len(self.nodes)
        group = self.channels if depthwise else 1
        self.weights += [
            numpy_helper.from_array(np.zeros((out, self.channels // group, kernel, kernel), np.float32), f"w{i}"),
            numpy_helper.from_array(np.zeros(out, np.float32), f"b{i}"),
        ]
        self.nodes.append(
            helper.make_node(
                "Conv",
                [self.at, f"w{i}", f"b{i}"],
                [f"c{i}"],
                name=f"conv{i}",
                group=group,
                strides=[stride] * 2,
                auto_pad="SAME_UPPER",
            )
        )
        self.at, self.channels = f"c{i}", out
        if relu:
            self.nodes.append(helper.make_node("Clip", [self.at, "zero", "six"], [f"r{i}"], name=f"relu{i}"))
            self.at = f"r{i}"

    def inverted_residual(self, expand: int, out: int, kernel: int, stride: int) -> None:
        start, before = self.at, self.channels
        if expand != 1:
            self.conv(before * expand, 1)
        self.conv(before * expand, kernel, stride, depthwise=True)
        self.conv(out, 1, relu=False)
        if stride == 1 and before == out:
            name = f"add{len(self.nodes)}"
            self.nodes.append(helper.make_node("Add", [self.at, start], [name], name=name))
            self.at = name

    def classifier(self, classes: int, name: str) -> Model:
        self.weights += [
            numpy_helper.from_array(np.zeros((self.channels, classes), np.float32), "fc"),
            numpy_helper.from_array(np.zeros(classes, np.float32), "fc_bias"),
            numpy_helper.from_array(np.float32(0), "zero"),
            numpy_helper.from_array(np.float32(6), "six"),
        ]
        self.nodes += [
            helper.make_node("GlobalAveragePool", [self.at], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("Gemm", ["flat", "fc", "fc_bias"], ["y"], name="fc"),
        ]
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, self.size, self.size])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", classes])],
            self.weights,
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return Model.of(ir.from_proto(proto), name)


MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Sandler et al. 2018, arXiv:1801.04381, table 2: expansion, channels, repeats, stride."""


def mobilenet_v2() -> Model:
    """Sandler et al. 2018, arXiv:1801.04381, table 2."""
    net = Builder()
    net.conv(32, 3, 2)
    for t, c, n, s in MOBILENET_V2:
        for i in range(n):
            net.inverted_residual(t, c, 3, s if i == 0 else 1)
    net.conv(1280, 1)
    return net.classifier(1000, "mobilenet_v2")


def efficientnet_lite0() -> Model:
    """Tan & Le 2019, arXiv:1905.11946, table 1; the Lite variant drops squeeze-and-excite and takes ReLU6."""
    net = Builder()
    net.conv(32, 3, 2)
    for t, k, c, n, s in (
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    ):
        for i in range(n):
            net.inverted_residual(t, c, k, s if i == 0 else 1)
    net.conv(1280, 1)
    return net.classifier(1000, "efficientnet_lite0")


def light(name: str, size: int | None = None) -> Model:
    """One of onnx's light models, at another input size when given."""
    proto = onnx.load(LIGHT / f"light_{name}.onnx")
    if size is not None:
        for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
            dim.dim_value = size
    return Model.of(ir.from_proto(proto), name)


TORCHVISION = "torchvision, `_ops` of {}_Weights"
SZE = "Sze et al. 2017, arXiv:1703.09039, table II"


def rows() -> Iterator[Row]:
    """Every network with its published figures; MACs are per image."""
    one = {"x": (1, 3, 224, 224)}
    yield Row(
        "MobileNetV2 1.0",
        cost(mobilenet_v2(), one),
        300e6,
        3.4e6,
        "Sandler et al. 2018, arXiv:1801.04381, table 4",
    )
    yield Row(
        "EfficientNet-Lite0",
        cost(efficientnet_lite0(), one),
        407e6,
        4.7e6,
        "README of EfficientNet-Lite in tensorflow/tpu",
    )
    yield Row(
        "EfficientNet-Lite0",
        cost(efficientnet_lite0(), one),
        385e6,
        4.652e6,
        "README of d-li14/efficientnet-lite.pytorch",
    )
    yield Row("ResNet-50 v1.5", cost(light("resnet50")), 4.089e9, 25.557e6, TORCHVISION.format("ResNet50"))
    yield Row("SqueezeNet 1.1", cost(light("squeezenet")), 0.349e9, 1.235e6, TORCHVISION.format("SqueezeNet1_1"))
    yield Row("DenseNet-121", cost(light("densenet121")), 2.834e9, 7.979e6, TORCHVISION.format("DenseNet121"))
    yield Row("VGG-19", cost(light("vgg19")), 19.632e9, 143.667e6, TORCHVISION.format("VGG19"))
    yield Row("GoogLeNet (Inception v1)", cost(light("inception_v1")), 1.43e9, 7.0e6, SZE)
    yield Row("AlexNet (Caffe), 227×227", cost(light("bvlc_alexnet", 227)), 724e6, 61e6, SZE)
    yield Row("ShuffleNet (Caffe2)", cost(light("shufflenet")), None, None, "-")
    yield Row("Inception v2 (BN)", cost(light("inception_v2")), None, None, "-")
    yield Row("ZFNet-512", cost(light("zfnet512")), None, None, "-")


def main() -> None:
    print(f"{'network':<26}{'MACs':>15}{'published':>10}{'ratio':>7}{'parameters':>13}{'published':>10}  source")
    for row in rows():
        macs = row.cost.macs.value if row.cost.macs is not None else None
        parameters = row.cost.parameters.value if row.cost.parameters is not None else None
        assert macs is not None
        assert parameters is not None
        published = "-" if row.published_macs is None else f"{row.published_macs / 1e6:,.0f} M"
        ratio = "-" if row.published_macs is None else f"{macs / row.published_macs:.3f}"
        theirs = "-" if row.published_parameters is None else f"{row.published_parameters / 1e6:.2f} M"
        print(f"{row.name:<26}{macs:>15,}{published:>10}{ratio:>7}{parameters:>13,}{theirs:>10}  {row.source}")


if __name__ == "__main__":
    main()
