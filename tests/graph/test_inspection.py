import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgeproof.digest import canonical_json
from edgeproof.errors import EdgeproofError
from edgeproof.graph.inspection import inspect_model, operators, summary
from edgeproof.model import Model, load_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"


def small() -> Model:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.ones((8, 4), np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="by hand")
    return Model.of(ir.from_proto(proto), "small")


def test_an_inspection_is_strict_json() -> None:
    result = inspect_model(load_model(LIGHT), LIGHT)
    text = json.dumps(result.to_json(), allow_nan=False)
    assert json.loads(text) == result.to_json()
    assert canonical_json({k: v for k, v in result.to_json().items() if k != "cost"})


def test_it_says_what_the_model_declares_and_what_its_costs_hold_for() -> None:
    result = inspect_model(small(), shapes={"x": (3, 8)})
    value = result.to_json()
    assert value["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 8]}]
    assert value["shapes"] == {"x": [3, 8]}
    assert value["cost"]["macs"] == 3 * 8 * 4
    assert value["opsets"] == {"ai.onnx": 17}
    assert value["producer"] == "by hand"
    assert value["file_bytes"] is None
    assert value["weight_bytes"] == 8 * 4 * 4
    assert [layer["op"] for layer in value["layers"]] == ["MatMul", "Relu"]


def test_the_size_of_a_file_is_its_size() -> None:
    assert inspect_model(load_model(LIGHT), LIGHT).file_bytes == LIGHT.stat().st_size


def test_operators_are_counted_most_frequent_first() -> None:
    proto = onnx.load(LIGHT)
    ops = operators(load_model(LIGHT).graph)
    assert ops["Conv"] == sum(n.op_type == "Conv" for n in proto.graph.node)
    assert sum(ops.values()) == len(proto.graph.node)
    assert list(ops.values()) == sorted(ops.values(), reverse=True)


def test_inspecting_changes_nothing() -> None:
    model = load_model(LIGHT)
    before = model.to_bytes()
    inspect_model(model, LIGHT)
    assert model.to_bytes() == before
    assert load_model(LIGHT).digest == model.digest


def test_a_summary_has_the_numbers_that_a_pass_changes() -> None:
    assert summary(small()) == {
        "nodes": 2,
        "ops": {"MatMul": 1, "Relu": 1},
        "weight_bytes": 128,
        "parameters": 32,
        "macs": "32*N",
        "peak_activation_bytes": "48*N",
    }


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_a_damaged_file_is_refused_or_inspected_but_never_crashes(data: st.DataObject) -> None:
    original = small().to_bytes()
    spoilt = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(spoilt)
        try:
            model = load_model(path)
        except EdgeproofError:
            return
        assert inspect_model(model, path).to_json()
