"""Float16 where it holds, float32 where it does not: measured, and said."""

from dataclasses import replace

import numpy as np
import onnx
from small_models import CONTEXT, FLOAT, build, floats, node, ops, run

from edgeproof.passes.fp16 import Fp16

MLP = {"w": floats(8, 16) / 4, "b": floats(16), "v": floats(16, 4) / 4}


def mlp():
    nodes = [node("MatMul", "x w", "h"), node("Add", "h b", "a"), node("Relu", "a", "r"), node("MatMul", "r v", "y")]
    return build(nodes, {"x": ("n", 8)}, "y", MLP)


def on(*samples):
    return replace(CONTEXT, feeds=lambda: iter([{"x": s} for s in samples]), samples=len(samples))


def islands(change):
    return dict(change.declined)


def test_weights_take_half_the_bytes_and_the_interface_stays():
    change = Fp16()(mlp(), on(floats(3, 8)))
    assert change.model.inputs == mlp().inputs
    assert change.model.outputs == mlp().outputs
    assert {v.const_value.dtype.name for v in change.model.graph.graph.initializers.values()} == {"FLOAT16"}
    assert ops(change.model)["Cast"] == 2
    x = floats(5, 8)
    want, got = run(mlp(), {"x": x})[0], run(change.model, {"x": x})[0]
    assert np.abs(want - got).max() < 0.01 * np.abs(want).max()
    assert change.facts["half_nodes"] == 4
    assert "on 1 samples" in change.applied[1]


def test_a_model_beyond_the_limit_of_protobuf_is_converted(monkeypatch):
    monkeypatch.setattr("edgeproof.model.PROTO_LIMIT_BYTES", 100)
    monkeypatch.setattr("edgeproof.backends.onnxruntime.PROTO_LIMIT_BYTES", 100)
    assert Fp16()(mlp(), CONTEXT).facts["half_nodes"] == 4


def test_a_model_beyond_the_limit_that_the_backend_cannot_take_is_declined(monkeypatch):
    monkeypatch.setattr("edgeproof.model.PROTO_LIMIT_BYTES", 100)
    reason = "not possible: the original does not load: weights of 832 bytes do not fit one protobuf message"
    assert Fp16()(mlp(), CONTEXT).declined == (("measurement", reason),)


def test_without_samples_it_says_that_inputs_were_random():
    assert "random inputs" in Fp16()(mlp(), CONTEXT).applied[1]


def test_the_interface_is_converted_on_request():
    change = Fp16(keep_io=False)(mlp(), CONTEXT)
    assert [s.dtype for s in (*change.model.inputs, *change.model.outputs)] == ["float16", "float16"]
    assert ops(change.model)["Cast"] == 0
    assert [s.name for s in change.model.inputs] == ["x"]


def test_an_overflowing_node_and_its_readers_stay_float32():
    nodes = [node("Mul", "x big", "h"), node("Mul", "h small", "s"), node("Relu", "s", "y")]
    model = build(nodes, {"x": (4,)}, "y", {"big": np.float32(1e4), "small": np.float32(1e-4)})
    change = Fp16()(model, on(np.float32([20, 1, 2, 3])))
    assert "h reaches 2e+05; float16 ends at 65504" in islands(change)["Mul_h"]
    assert "Mul_s" in islands(change)
    assert "Relu_y" not in islands(change)
    np.testing.assert_allclose(run(change.model, {"x": np.float32([20, 1, 2, 3])})[0], [20, 1, 2, 3], rtol=1e-3)


def test_a_tensor_of_subnormal_numbers_stays_float32():
    nodes = [node("Mul", "x small", "h"), node("Mul", "h big", "s"), node("Relu", "s", "y")]
    model = build(nodes, {"x": (4,)}, "y", {"big": np.float32(1e4), "small": np.float32(1e-6)})
    change = Fp16()(model, on(np.float32([2, 1, 2, 3])))
    assert "loses its digits" in islands(change)["Mul_h"]


def test_an_epsilon_that_would_be_zero_keeps_its_node():
    nodes = [node("Add", "x eps", "d"), node("Relu", "d", "y")]
    change = Fp16()(build(nodes, {"x": (4,)}, "y", {"eps": np.float32(1e-12)}), on(np.float32([1, 0, 2, 3])))
    assert "which is 0 in float16" in islands(change)["Add_d"]


def test_a_weight_beyond_float16_keeps_its_node():
    nodes = [node("Mul", "x big", "h"), node("Mul", "h small", "s"), node("Relu", "s", "y")]
    model = build(nodes, {"x": (4,)}, "y", {"big": np.float32(1e6), "small": np.float32(1e-3)})
    change = Fp16(headroom=1.0)(model, on(np.float32([1e-3, 1e-3, 0, 0])))
    assert "beyond float16's 65504" in islands(change)["Mul_h"]


def test_the_minus_infinity_of_an_attention_mask_is_cut_and_reported():
    nodes = [node("Where", "m x low", "h"), node("Softmax", "h", "y")]
    weights = {"m": np.array([True, False, True, True]), "low": np.float32(-3.4e38)}
    model = build(nodes, {"x": (4,)}, "y", weights)
    x = np.float32([0.5, 1, 2, 3])
    change = Fp16(headroom=0.0)(model, on(x))
    assert any("cut to ±65504" in line for line in change.applied)
    np.testing.assert_allclose(run(change.model, {"x": x})[0], run(model, {"x": x})[0], atol=2e-3)


def test_scales_of_resize_stay_float32():
    nodes = [node("Relu", "x", "r"), node("Resize", "r _ scales", "y")]
    model = build(nodes, {"x": (1, 1, 4, 4)}, "y", {"scales": np.float32([1, 1, 2, 2])})
    change = Fp16()(model, CONTEXT)
    assert change.facts["half_nodes"] == 2
    assert change.model.graph.graph.initializers["scales"].const_value.dtype.name == "FLOAT"


def test_operators_whose_result_hangs_on_exact_values_stay_float32():
    nodes = [node("Relu", "x", "r"), node("CumSum", "r zero", "c"), node("Exp", "c", "y")]
    change = Fp16()(build(nodes, {"x": (4,)}, "y", {"zero": np.int64(0)}), on(np.float32([0.1, 0.2, 0.3, 0.4])))
    assert "CumSum stays float32" in islands(change)["CumSum_c"]
    assert change.facts["half_nodes"] == 2


def test_the_node_that_loses_accuracy_becomes_an_island():
    """(x + 1000) - 1000 keeps three digits less in float16; everything else is exact in it."""
    nodes = [node("Relu", "x", "r"), node("Add", "r k", "a"), node("Sub", "a k", "s"), node("Neg", "s", "y")]
    x = np.float32([0.123, 0.456, 0.789, 1.0])
    change = Fp16()(build(nodes, {"x": (4,)}, "y", {"k": np.float32(1000)}), on(x))
    assert change.modified
    assert "adds" in islands(change)["Add_a"] or "adds" in islands(change)["Sub_s"]
    assert "Neg_y" not in islands(change)
    assert change.facts["error"] <= 0.02


def test_a_model_that_float16_cannot_carry_is_declined():
    nodes = [node("Mul", "x k", "a"), node("Sin", "a", "y")]
    change = Fp16(rounds=0)(build(nodes, {"x": (64,)}, "y", {"k": np.float32(9000)}), on(floats(64)))
    assert not change.modified
    assert "float16 was thrown away" in change.declined[0][1]


def test_a_subgraph_stays_float32_and_reads_what_it_needs():
    def branch(op, name):
        out = onnx.helper.make_tensor_value_info(name, FLOAT, [4])
        return onnx.helper.make_graph([node(op, "r", name)], name, [], [out])

    nodes = [
        node("Exp", "x", "r"),
        node("If", "c", "i", then_branch=branch("Neg", "p"), else_branch=branch("Abs", "q")),
        node("Mul", "i r", "y"),
    ]
    model = build(nodes, {"c": (), "x": (4,)}, "y", dtypes={"c": onnx.TensorProto.BOOL})
    feeds = {"c": np.asarray(True), "x": floats(4)}
    change = Fp16()(model, replace(CONTEXT, feeds=lambda: iter([feeds]), samples=1))
    assert "subgraph" in islands(change)["If_i"]
    want = run(model, feeds)[0]
    np.testing.assert_allclose(run(change.model, feeds)[0], want, atol=0.01 * np.abs(want).max())


def test_changed_integer_outputs_are_declined():
    nodes = [node("Mul", "x k", "h"), node("ArgMax", "h", "y", axis=0, keepdims=0)]
    model = build(nodes, {"x": (2,)}, "y", {"k": np.float32(1)}, dtypes={"y": onnx.TensorProto.INT64})
    change = Fp16(rounds=0)(model, on(np.float32([1.0, 1.0001])))
    assert not change.modified
    assert "output y differs" in change.declined[0][1]


def test_a_model_without_floats_is_declined():
    model = build([node("Neg", "x", "y")], {"x": (2,)}, "y", dtypes={"x": 6, "y": 6})
    change = Fp16()(model, CONTEXT)
    assert not change.modified
    assert change.declined == (("model", "no node can compute in float16"),)


def test_a_constant_output_keeps_its_dtype():
    constant = onnx.helper.make_node("Constant", [], ["k"], value_floats=[0.5, 0.25])
    model = build([constant, node("Exp", "x", "e"), node("Mul", "e k", "y")], {"x": (2,)}, "k y")
    for keep_io in (True, False):
        change = Fp16(keep_io=keep_io)(model, CONTEXT)
        assert change.modified
        assert change.model.outputs[0] == model.outputs[0]
        assert run(change.model, {"x": floats(2).astype(change.model.inputs[0].dtype)})[0].tolist() == [0.5, 0.25]
