"""Small ONNX models and their mistreated twins, made anew for each test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FIXTURES = Path(__file__).parent / "fixtures"


def conv(path: Path, weight: np.ndarray | None = None, *, domain: str = "", stride: int = 1) -> Path:
    """A convolution with a bias and a Relu."""
    w = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3) / 100 if weight is None else weight
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1] * 4, strides=[stride] * 2),
        helper.make_node("Mystery" if domain else "Relu", ["c"], ["y"], name="relu", domain=domain),
    ]
    size = 8 // stride
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, size, size])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.ones(4, np.float32), "b")],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def quantised(path: Path, scale: float) -> Path:
    """A product whose weight is stored as codes with one scale."""
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [
            numpy_helper.from_array(np.array([[1, -2], [3, 4]], np.int8), "q"),
            numpy_helper.from_array(np.float32(scale), "s"),
            numpy_helper.from_array(np.int8(0), "z"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def external(path: Path, location: str) -> Path:
    """A model that keeps its weight in another file, wherever ``location`` says."""
    conv(path)
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    data = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(data)))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    return path
