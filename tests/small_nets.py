"""Small seeded networks for the tests of quantisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.dataset import Feeds
from edgeproof.model import Model
from edgeproof.protocols import Context, Session
from edgeproof.target import Target

CPU = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
TENSORRT = Target("onnxruntime:tensorrt", "onnxruntime", "tensorrt", SCHEMES["tensorrt"])

node = helper.make_node


def weight(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    fan_in = max(1, int(np.prod(shape[1:])))
    array = np.random.default_rng([seed, len(name), *name.encode()]).standard_normal(shape, np.float32)
    return numpy_helper.from_array(np.asarray(array * np.float32((2 / fan_in) ** 0.5), np.float32), name)


def number(name: str, value: object, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def net(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto] = (),
    shape: Sequence[int | str] = (1, 3, 16, 16),
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> Model:
    """A model from ``x`` to ``y``."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        list(weights),
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model.of(ir.from_proto(proto), "net")


def small_cnn(opset: int = 17) -> Model:
    """Conv-Relu, Conv, residual Add, Relu, pooling, Gemm."""
    return net(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], name="c1", pads=[1] * 4),
            node("Relu", ["a"], ["r"], name="r1"),
            node("Conv", ["r", "w2", "b2"], ["c"], name="c2", pads=[1] * 4),
            node("Add", ["c", "r"], ["s"], name="add"),
            node("Relu", ["s"], ["t"], name="r2"),
            node("Conv", ["t", "w3"], ["u"], name="c3", pads=[1] * 4, strides=[2, 2]),
            node("Relu", ["u"], ["v"], name="r3"),
            node("GlobalAveragePool", ["v"], ["p"], name="gap"),
            node("Flatten", ["p"], ["f"], name="flat"),
            node("Gemm", ["f", "w4", "b4"], ["y"], name="fc", transB=1),
        ],
        [
            weight("w1", 8, 3, 3, 3),
            weight("b1", 8),
            weight("w2", 8, 8, 3, 3),
            weight("b2", 8),
            weight("w3", 16, 8, 3, 3),
            weight("w4", 10, 16),
            weight("b4", 10),
        ],
        opset=opset,
    )


def samples(model: Model, count: int, seed: int = 0) -> list[Feeds]:
    rng = np.random.default_rng(seed)
    return [
        {
            spec.name: rng.standard_normal([d if isinstance(d, int) else 2 for d in spec.shape or ()], np.float32)
            for spec in model.inputs
        }
        for _ in range(count)
    ]


def compiled(model: Model) -> Session:
    return OnnxRuntime().compile(model, CPU)


def context(
    model: Model, count: int = 8, target: Target | None = CPU, cache: dict[str, object] | None = None
) -> Context:
    def feeds() -> Iterator[Feeds]:
        return iter(samples(model, count))

    return Context(compiled, feeds, count, target, calibration=cache)


def ran(model: Model, feeds: Feeds) -> np.ndarray:
    """The first output."""
    session = compiled(model)
    try:
        return session.run(feeds)[model.outputs[0].name]
    finally:
        session.close()


def executed(model: Model) -> dict[str, str]:
    """Node → operator, as ONNX Runtime really ran them."""
    target = CPU.with_settings({"profile": True, "graph_optimization": "extended"})
    session = OnnxRuntime().compile(model, target)
    session.run(samples(model, 1)[0])
    layers = session.layers()
    session.close()
    return {layer.name: layer.op for layer in layers}
