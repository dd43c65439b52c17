"""Every pass leaves the model that it is given as it is, and returns that very model when it changes nothing."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from edgeproof import registry
from edgeproof.backends.onnxruntime import SCHEMES, OnnxRuntime
from edgeproof.model import Model, graph_digest
from edgeproof.protocols import Context
from edgeproof.target import Target

TARGET = Target("onnxruntime:cpu", "onnxruntime", "cpu", SCHEMES["cpu"], settings={"threads": 1})
NAMES = tuple(n for n in registry.names("passes") if n != "distil")
"""All but the one that trains, which needs an engine and a teacher; with_torch holds it to the same."""

SETTINGS = {"fix_shapes": {"shapes": "x=2,3,8,8"}}


def network() -> Model:
    """Something for every pass to do."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    def number(name: str, *values: float, dtype: type = np.float32) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(values, dtype).reshape(() if len(values) == 1 else (-1,)), name)

    nodes = [
        helper.make_node("Identity", ["x"], ["i"], name="identity"),
        helper.make_node("Pad", ["i", "pads"], ["p"], name="pad"),
        helper.make_node("Conv", ["p", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("Add", ["n", "three"], ["a"], name="plus"),
        helper.make_node("Clip", ["a", "zero", "six"], ["k"], name="clip"),
        helper.make_node("Mul", ["n", "k"], ["h"], name="times"),
        helper.make_node("Div", ["h", "six"], ["s"], name="over"),
        helper.make_node("Conv", ["s", "w2"], ["d"], name="conv2"),
        helper.make_node("Mul", ["d", "three"], ["e"], name="scale"),
        helper.make_node("Transpose", ["e"], ["t"], perm=[0, 2, 3, 1], name="to_nhwc"),
        helper.make_node("Transpose", ["t"], ["u"], perm=[0, 3, 1, 2], name="to_nchw"),
        helper.make_node("Relu", ["u"], ["y"], name="relu"),
        helper.make_node("Exp", ["u"], ["dead"], name="dead"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "pure",
        [value("x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 5, "p", "q"])],
        [
            weight("w", 4, 3, 3, 3),
            weight("w2", 5, 4, 1, 1),
            *(weight(n, 4) for n in "gbm"),
            numpy_helper.from_array(np.full(4, 0.5, np.float32), "v"),
            number("zero", 0),
            number("three", 3),
            number("six", 6),
            number("pads", 0, 0, 1, 1, 0, 0, 1, 1, dtype=np.int64),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Model.of(ir.from_proto(proto), "pure")


def context() -> Context:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    return Context(lambda m: OnnxRuntime().compile(m, TARGET), lambda: iter(feeds), len(feeds), TARGET)


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_leaves_its_input_alone(name):
    model = network()
    change = registry.load("passes", name)(**SETTINGS.get(name, {}))(model, context())
    assert graph_digest(model.graph) == model.digest
    if name != "infer_shapes":  # shapes of inner values are notes, which a digest leaves out
        assert change.modified == (change.model.digest != model.digest)
    assert change.modified or change.model is model
    assert change.modified or change.declined or not change.applied


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_gives_the_same_result_twice(name):
    implementation = registry.load("passes", name)(**SETTINGS.get(name, {}))
    assert implementation(network(), context()).model.digest == implementation(network(), context()).model.digest


@pytest.mark.parametrize("name", NAMES)
def test_what_a_pass_returns_is_what_its_digest_says(name):
    change = registry.load("passes", name)(**SETTINGS.get(name, {}))(network(), context())
    assert graph_digest(change.model.graph) == change.model.digest
    assert OnnxRuntime().compile(change.model, TARGET).run({"x": np.ones((2, 3, 8, 8), np.float32)})
