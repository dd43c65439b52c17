import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof.graph.cost import cost
from edgeproof.model import Model

F = TensorProto.FLOAT


def info(name: str, shape: list[int | str] | None, dtype: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def build(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> Model:
    initializers = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model.of(ir.from_proto(proto), "m")


def test_peak_memory_is_the_largest_sum_of_live_tensors() -> None:
    """x (400 B) → a (400) → b (100, after pooling) → y (100), with x read again at the end."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("MaxPool", ["a"], ["b"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Neg", ["b"], ["c"], name="neg"),
        helper.make_node("Reshape", ["x", "target"], ["r"], name="reshape"),
        helper.make_node("Concat", ["r", "c"], ["y"], name="concat", axis=1),
    ]
    weights = {"target": np.array([1, 4, 5, 5], np.int64)}
    found = cost(build(nodes, [info("x", [1, 1, 10, 10])], [info("y", None)], weights))
    # x and a; x, a, b; x, b, c; x, r, c; r, c, y
    assert [layer.live_bytes.value for layer in found.layers if layer.live_bytes] == [800, 900, 600, 900, 1000]
    assert found.peak_bytes is not None
    assert (found.peak_bytes.value, found.peak_layer) == (1000, "concat")
    assert [layer.output_bytes.value for layer in found.layers if layer.output_bytes] == [400, 100, 100, 400, 500]


def test_weights_are_no_activations_and_count_once() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="second"),
        helper.make_node("Clip", ["b", "low"], ["y"], name="clip"),
    ]
    weights = {"w": np.zeros((8, 8), np.float32), "low": np.float32(0)}
    found = cost(build(nodes, [info("x", [2, 8])], [info("y", None)], weights))
    assert found.parameters is not None
    assert found.parameters.value == 64
    assert [layer.parameters.value for layer in found.layers if layer.parameters is not None] == [64, 0, 0]
    assert found.peak_bytes is not None
    assert found.peak_bytes.value == 128


def test_a_dequantised_weight_counts_once_and_its_scale_does_not() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights = {"q": np.zeros((8, 4), np.int8), "scale": np.ones(4, np.float32), "zero": np.zeros(4, np.int8)}
    found = cost(build(nodes, [info("x", [2, 8])], [info("y", None)], weights))
    assert found.parameters is not None
    assert found.parameters.value == 32


def test_small_types_take_their_own_bytes() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["y"], to=F),
    ]
    found = cost(build(nodes, [info("x", [10])], [info("y", None)]))
    assert [layer.live_bytes.value for layer in found.layers if layer.live_bytes] == [60, 60]


def test_an_output_that_nobody_reads_takes_no_memory() -> None:
    nodes = [helper.make_node("Dropout", ["x"], ["y", "mask"])]
    found = cost(build(nodes, [info("x", [10])], [info("y", None)], opset=13))
    assert found.peak_bytes is not None
    assert found.peak_bytes.value == 80


def branch(rows: int, name: str) -> onnx.GraphProto:
    """x · W with a weight of its own, [2, 8] · [8, rows], then a sum."""
    weight = numpy_helper.from_array(np.zeros((8, rows), np.float32), f"w_{name}")
    nodes = [
        helper.make_node("MatMul", ["x", f"w_{name}"], [f"m_{name}"]),
        helper.make_node("ReduceSum", [f"m_{name}"], [name], keepdims=0),
    ]
    return helper.make_graph(nodes, name, [], [info(name, [])], [weight])


def test_an_if_counts_its_heavier_branch_and_all_its_weights() -> None:
    node = helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch(4, "a"), else_branch=branch(16, "b"))
    found = cost(build([node], [info("c", [], TensorProto.BOOL), info("x", [2, 8])], [info("y", [])]))
    assert found.macs is not None
    assert found.macs.value == 2 * 8 * 16
    assert found.parameters is not None
    assert found.parameters.value == 8 * 4 + 8 * 16
    assert ("if", "counted with the heavier branch") in found.reasons


def loop(trips: np.ndarray | None) -> Model:
    """v = v · W, as often as the trip count says."""
    body = helper.make_graph(
        [helper.make_node("MatMul", ["v", "w"], ["v2"]), helper.make_node("Identity", ["go"], ["go2"])],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("v", [2, 8])],
        [info("go2", [], TensorProto.BOOL), info("v2", [2, 8])],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)
    weights = {"w": np.zeros((8, 8), np.float32)}
    inputs = [info("x", [2, 8])]
    if trips is None:
        inputs.append(info("trips", [], TensorProto.INT64))
    else:
        weights["trips"] = trips
    return build([node], inputs, [info("y", [2, 8])], weights)


def test_a_loop_multiplies_its_body_by_a_constant_trip_count() -> None:
    found = cost(loop(np.array(5, np.int64)))
    assert found.macs is not None
    assert found.macs.value == 5 * 2 * 8 * 8
    assert found.parameters is not None
    assert found.parameters.value == 64


def test_a_loop_of_unknown_length_is_left_open() -> None:
    found = cost(loop(None))
    assert str(found.macs) == "128*trips[loop]"
    assert any("not constant" in why for _, why in found.reasons)


def test_a_scan_runs_once_per_slice() -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w"], ["o"])], "body", [info("s", [2, 8])], [info("o", [2, 4])]
    )
    node = helper.make_node("Scan", ["x"], ["y"], name="scan", body=body, num_scan_inputs=1)
    weights = {"w": np.zeros((8, 4), np.float32)}
    found = cost(build([node], [info("x", [6, 2, 8])], [info("y", None)], weights))
    assert found.macs is not None
    assert found.macs.value == 6 * 2 * 8 * 4


def test_a_function_counts_what_its_body_does() -> None:
    body = helper.make_function(
        "own",
        "Dense",
        ["a", "b"],
        ["c"],
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [helper.make_node("Dense", ["x", "w"], ["y"], domain="own")]
    weights = [numpy_helper.from_array(np.zeros((8, 4), np.float32), "w")]
    graph = helper.make_graph(nodes, "g", [info("x", [2, 8])], [info("y", None)], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    proto = helper.make_model(graph, opset_imports=imports, functions=[body], ir_version=8)
    found = cost(Model.of(ir.from_proto(proto), "m"))
    assert found.macs is not None
    assert found.macs.value == 2 * 8 * 4
    assert [layer.op for layer in found.layers] == ["MatMul"]


def test_products_of_constants_cost_nothing_and_say_so() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["w"], name="fold"), helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"a": np.zeros((8, 8), np.float32), "b": np.zeros((8, 4), np.float32)}
    found = cost(build(nodes, [info("x", [2, 8])], [info("y", None)], weights))
    assert found.macs is not None
    assert found.macs.value == 2 * 8 * 4
    assert found.layers[0].notes == ("computed from constants only: counted 0, a runtime folds it",)
    assert found.parameters is not None
    assert found.parameters.value == 32


def test_unknown_sizes_make_totals_unknown_but_keep_what_is_known() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="known"),
        helper.make_node("NonZero", ["a"], ["i"], name="nonzero"),
        helper.make_node("Cast", ["i"], ["f"], name="cast", to=F),
        helper.make_node("MatMul", ["two", "f"], ["y"], name="open"),
    ]
    weights = {"w": np.zeros((8, 4), np.float32), "two": np.zeros((3, 2), np.float32)}
    found = cost(build(nodes, [info("x", [2, 8])], [info("y", None)], weights))
    assert found.macs is None
    assert found.known_macs.value == 2 * 8 * 4
    assert found.peak_bytes is None
    assert found.layers[0].live_bytes is not None
    assert found.layers[1].live_bytes is None
    assert ("open", "MACs unknown: dimension 1 of 'f' is unknown") in found.reasons


def test_totals_as_json_are_numbers_or_expressions() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": np.zeros((8, 4), np.float32)}
    m = build(nodes, [info("x", ["N", 8])], [info("y", None)], weights)
    assert cost(m).to_json()["macs"] == "32*N"
    assert cost(m, {"x": (3, 8)}).to_json() == {
        "parameters": 32,
        "macs": 96,
        "known_macs": 96,
        "peak_activation_bytes": 3 * 8 * 4 + 3 * 4 * 4,
        "peak_layer": "MatMul_0",
        "reasons": [],
    }


def pyramid() -> Model:
    """Windows of many kinds, a pooling, an upsampling, a skip: what detectors are made of."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["b"], strides=[2, 1], auto_pad="SAME_UPPER"),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w3"], ["d"]),
        helper.make_node("ConvTranspose", ["b", "w4"], ["e"], strides=[2, 2]),
        helper.make_node("Resize", ["d", "", "scales"], ["f"], mode="nearest"),
        helper.make_node("Conv", ["f", "w5"], ["y"], pads=[1, 1, 1, 1], dilations=[1, 1]),
        helper.make_node("Conv", ["e", "w5"], ["z"], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    weights = {
        "w1": np.zeros((4, 3, 3, 3), np.float32),
        "w2": np.zeros((4, 4, 3, 3), np.float32),
        "w3": np.zeros((4, 4, 3, 3), np.float32),
        "w4": np.zeros((4, 4, 2, 2), np.float32),
        "w5": np.zeros((4, 4, 3, 3), np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    return build(nodes, [info("x", ["N", 3, "h", "w"])], [info("y", None), info("z", None)], weights)


@pytest.mark.parametrize(("n", "h", "w"), [(1, 32, 32), (2, 33, 47), (3, 64, 31), (1, 100, 29)])
def test_expressions_have_the_value_that_numbers_give(n: int, h: int, w: int) -> None:
    m = pyramid()
    numbers, symbols = cost(m, {"x": (n, 3, h, w)}), cost(m)
    assert numbers.macs is not None
    assert symbols.macs is not None
    names = {"N": n, "h": h, "w": w, "ceil": math.ceil, "floor": math.floor}
    assert eval(str(symbols.macs).replace("^", "**"), names) == numbers.macs.value
