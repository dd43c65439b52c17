"""Scales and offsets move into the weights beside them when that is exact, and stay otherwise."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgeproof.change import Change
from edgeproof.model import Model
from edgeproof.passes.fold_affine import FoldAffine
from edgeproof.protocols import Context

SHAPE = (2, 4, 6, 5)
step = helper.make_node


def never(_model: Model):
    raise AssertionError("the pass needs no session")


def weights(*shape, seed=1, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def build(
    nodes, constants, *, outputs=("y",), shape=SHAPE, opset=13, dtype=np.float32, as_nodes=False, extra_inputs=()
):
    """A model with one input x; shapes of outputs come from ONNX's shape inference."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    stored = [numpy_helper.from_array(np.asarray(v, dtype), k) for k, v in constants.items()]
    for i, node in enumerate(nodes):
        node.name = node.name or f"n{i}"
    made = [step("Constant", [], [c.name], value=c) for c in stored] if as_nodes else []
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    inputs += [helper.make_tensor_value_info(n, kind, s) for n, s in extra_inputs]
    outs = [helper.make_tensor_value_info(o, kind, None) for o in outputs]
    graph = helper.make_graph([*made, *nodes], "g", inputs, outs, [] if as_nodes else stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Model.of(ir.from_proto(onnx.shape_inference.infer_shapes(proto)), "m")


def apply(model: Model, **fields) -> Change:
    before = model.to_bytes()
    change = FoldAffine(**fields)(model, Context(compile=never))
    assert model.to_bytes() == before
    onnx.checker.check_model(onnx.load_from_string(change.model.to_bytes()), full_check=True)
    for old, new in ((model.inputs, change.model.inputs), (model.outputs, change.model.outputs)):
        assert [(v.name, v.dtype, v.shape) for v in old] == [(v.name, v.dtype, v.shape) for v in new]
    assert change.modified == bool(change.applied) == (change.model.digest != model.digest)
    return change


def ops(model: Model) -> dict[str, int]:
    return dict(Counter(n.op_type for n in model.graph.graph if n.op_type != "Constant"))


def feeds(model: Model, dtype=np.float32):
    return {i.name: weights(*i.shape, seed=7, dtype=dtype) for i in model.inputs}


def run(model: Model, given_feeds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ReferenceEvaluator(onnx.load_from_string(model.to_bytes())).run(None, given_feeds)


def run_ort(model: Model, given_feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given_feeds)


def same(model: Model, change: Change, tolerance=2e-5, dtype=np.float32):
    x = feeds(model, dtype)
    grouped = any(n.op_type == "ConvTranspose" and n.attributes.get_int("group", 1) > 1 for n in model.graph.graph)
    for runner in (run_ort,) if grouped else (run, run_ort):  # onnx 1.23's evaluator cannot run the originals of those
        for want, got in zip(runner(model, x), runner(change.model, x), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max()))


def left_alone(model: Model, **fields) -> dict[str, str]:
    change = apply(model, **fields)
    assert not change.modified
    assert change.model is model
    return dict(change.declined)


def conv(source="x", target="h", weight="w", bias="b", **attributes):
    inputs = [source, weight, bias] if bias else [source, weight]
    return step("Conv", inputs, [target], **attributes)


def folds_to(nodes, constants, expected, **fields):
    model = build(nodes, constants, **fields)
    change = apply(model)
    assert ops(change.model) == expected
    same(model, change)
    return change


# after the layer

CHANNELS = (3, 1, 1)
OPERATIONS = [
    ("Mul", ("h", "c")),
    ("Mul", ("c", "h")),
    ("Add", ("h", "c")),
    ("Add", ("c", "h")),
    ("Sub", ("h", "c")),
    ("Sub", ("c", "h")),
    ("Div", ("h", "c")),
]


@pytest.mark.parametrize(("op", "operands"), OPERATIONS)
@pytest.mark.parametrize("shape", [(), (1,), CHANNELS, (1, *CHANNELS), (1, 1, 1, 1)])
@pytest.mark.parametrize("bias", ["b", None])
def test_every_operation_after_a_conv_folds(op, operands, shape, bias):
    constants = {"w": weights(3, 4, 3, 3), "b": weights(3), "c": weights(*shape, seed=3) + 3}
    if bias is None:
        del constants["b"]
    nodes = [conv(bias=bias, pads=[1, 1, 1, 1]), step(op, operands, ["y"])]
    for as_nodes in (False, True):
        change = folds_to(nodes, constants, {"Conv": 1}, as_nodes=as_nodes)
        assert change.applied == (f"folded {op} into the Conv before it: 1 (n1)",)
        assert "c" not in change.model.graph.graph.initializers


@pytest.mark.parametrize("negative", [-2.5, 0.0])
def test_negative_and_zero_scales_fold_where_there_is_no_nonlinearity(negative):
    constants = {"w": weights(3, 4, 3, 3), "b": weights(3), "c": negative}
    folds_to([conv(), step("Mul", ["h", "c"], ["y"])], constants, {"Conv": 1})


@pytest.mark.parametrize("group", [1, 2, 4])
def test_groups_keep_their_channels_apart(group):
    constants = {"w": weights(8, 4 // group, 3, 3), "b": weights(8), "s": weights(8, 1, 1, seed=3)}
    folds_to([conv(group=group), step("Mul", ["h", "s"], ["y"])], constants, {"Conv": 1})


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", ["b", None])
def test_transposed_convolutions_take_their_output_channels_from_the_second_axis(group, bias):
    constants = {"w": weights(4, 3, 3, 3), "s": weights(3 * group, 1, 1, seed=3), "t": weights(3 * group, 1, 1, seed=4)}
    constants |= {"b": weights(3 * group)} if bias else {}
    layer = step(
        "ConvTranspose",
        ["x", "w", *([bias] if bias else [])],
        ["h"],
        group=group,
        strides=[2, 2],
        output_padding=[1, 1],
    )
    nodes = [layer, step("Mul", ["h", "s"], ["i"]), step("Add", ["i", "t"], ["y"])]
    folds_to(nodes, constants, {"ConvTranspose": 1})


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c_shape", [None, (), (5,), (1, 5), (2, 5), (2, 1)])
def test_gemm_keeps_alpha_and_takes_beta_in(trans_b, c_shape):
    constants = {"w": weights(5, 4) if trans_b else weights(4, 5), "s": weights(5, seed=3), "t": weights(1, 5, seed=4)}
    constants |= {} if c_shape is None else {"c": weights(*c_shape, seed=5)}
    gemm = step("Gemm", ["x", "w"] + (["c"] if c_shape is not None else []), ["h"], alpha=0.5, beta=2.0, transB=trans_b)
    nodes = [gemm, step("Mul", ["h", "s"], ["i"]), step("Add", ["t", "i"], ["y"])]
    folds_to(nodes, constants, {"Gemm": 1}, shape=(2, 4))


@pytest.mark.parametrize("x_shape", [(2, 4), (2, 3, 4), (4,)])
def test_a_matmul_takes_the_scale_and_its_add_the_offset(x_shape):
    constants = {"w": weights(4, 5), "b": weights(5), "s": weights(5, seed=3), "t": weights(5, seed=4)}
    nodes = [
        step("MatMul", ["x", "w"], ["h"]),
        step("Add", ["b", "h"], ["i"]),
        step("Mul", ["i", "s"], ["j"]),
        step("Add", ["j", "t"], ["y"]),
    ]
    folds_to(nodes, constants, {"MatMul": 1, "Add": 1}, shape=x_shape)


def test_a_matmul_subtracted_from_a_constant_is_negated():
    nodes = [step("MatMul", ["x", "w"], ["h"]), step("Sub", ["c", "h"], ["y"])]
    folds_to(nodes, {"w": weights(4, 5), "c": weights(5)}, {"MatMul": 1, "Add": 1}, shape=(2, 4))


def test_a_table_added_to_a_matmul_is_scaled_with_it():
    nodes = [step("MatMul", ["x", "w"], ["h"]), step("Add", ["h", "b"], ["i"]), step("Div", ["i", "s"], ["y"])]
    constants = {"w": weights(4, 5), "b": weights(3, 5), "s": 1.7}
    folds_to(nodes, constants, {"MatMul": 1, "Add": 1}, shape=(2, 3, 4))


def test_a_chain_folds_to_nothing_and_is_rounded_once():
    names = [f"c{i}" for i in range(8)]
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3)} | {n: 1.1 + 0.1 * i for i, n in enumerate(names)}
    nodes, at = [conv()], "h"
    for i, n in enumerate(names):
        nodes.append(step("Mul" if i % 2 else "Add", [at, n], ["y" if i == 7 else f"v{i}"]))
        at = f"v{i}"
    change = folds_to(nodes, constants, {"Conv": 1})
    scale = np.prod([np.float64(np.float32(constants[n])) for n in names[1::2]])
    expected = (constants["w"].astype(np.float64) * scale).astype(np.float32)
    np.testing.assert_array_equal(change.model.graph.graph.initializers["w"].const_value.numpy(), expected)


def test_the_output_keeps_its_name_when_the_layer_becomes_the_last_node():
    change = folds_to(
        [conv(), step("Mul", ["h", "c"], ["y"])], {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2}, {"Conv": 1}
    )
    (node,) = change.model.graph.graph
    assert node.outputs[0].name == "y"


def test_a_shared_weight_is_copied_and_the_other_user_keeps_its_own():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2.0}
    nodes = [conv(), step("Mul", ["h", "c"], ["y"]), conv(target="z")]
    change = folds_to(nodes, constants, {"Conv": 2}, outputs=("y", "z"))
    kept = change.model.graph.graph.initializers
    np.testing.assert_array_equal(kept["w"].const_value.numpy(), constants["w"])
    assert len(kept) == 4


def test_a_large_shared_weight_is_not_copied():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2.0}
    nodes = [conv(), step("Mul", ["h", "c"], ["y"]), conv(target="z")]
    reasons = left_alone(build(nodes, constants, outputs=("y", "z")), copy_limit_bytes=47)
    assert reasons == {"n1": "w (48 bytes) is shared by 2 nodes and would be copied"}


def test_float16_is_folded_within_its_precision():
    constants = {"w": weights(3, 4, 3, 3) / 6, "b": weights(3), "c": 1.7, "t": 0.3}
    nodes = [conv(), step("Mul", ["h", "c"], ["i"]), step("Add", ["i", "t"], ["y"])]
    model = build(nodes, constants, dtype=np.float16)
    change = apply(model)
    assert ops(change.model) == {"Conv": 1}
    assert {v.const_value.dtype for v in change.model.graph.graph.initializers.values()} == {ir.DataType.FLOAT16}
    same(model, change, tolerance=6e-3, dtype=np.float16)


def test_a_second_run_changes_nothing():
    first = apply(build([conv(), step("Mul", ["h", "c"], ["y"])], {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2}))
    second = apply(first.model)
    assert not second.modified


# before the convolution


@pytest.mark.parametrize(("op", "operands"), [(o, tuple("x" if v == "h" else v for v in p)) for o, p in OPERATIONS])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1)])
@pytest.mark.parametrize("group", [1, 2])
def test_every_operation_before_an_unpadded_conv_folds(op, operands, shape, group):
    constants = {"w": weights(6, 4 // group, 3, 2), "b": weights(6), "c": weights(*shape, seed=3) + 3}
    nodes = [step(op, operands, ["h"]), conv("h", "y", group=group, auto_pad="VALID")]
    change = folds_to(nodes, constants, {"Conv": 1})
    assert change.applied == (f"folded {op} into the Conv after it: 1 (n0)",)
    assert not apply(build(nodes, constants), before=False).modified


@pytest.mark.parametrize("group", [1, 2])
def test_a_scale_before_a_padded_or_transposed_convolution_folds(group):
    scale = step("Mul", ["x", "s"], ["h"])
    constants = {"w": weights(4, 4 // group, 3, 3), "b": weights(4), "s": weights(4, 1, 1, seed=3)}
    folds_to([scale, conv("h", "y", group=group, pads=[1, 0, 2, 1])], constants, {"Conv": 1})
    constants |= {"w": weights(4, 3, 3, 3), "b": weights(3 * group)}
    layer = step("ConvTranspose", ["h", "w", "b"], ["y"], group=group, pads=[1, 1, 1, 1])
    folds_to([scale, layer], constants, {"ConvTranspose": 1})


def test_same_padding_of_a_pointwise_conv_pads_nothing():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": weights(4, 1, 1)}
    folds_to([step("Add", ["x", "c"], ["h"]), conv("h", "y", auto_pad="SAME_UPPER")], constants, {"Conv": 1})


def test_all_convolutions_that_read_the_result_take_it_in():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "v": weights(2, 4, 3, 3), "c": 2.5}
    nodes = [step("Mul", ["x", "c"], ["h"]), conv("h", "y"), conv("h", "z", "v", None, pads=[1, 1, 1, 1])]
    folds_to(nodes, constants, {"Conv": 2}, outputs=("y", "z"))


def test_two_convolutions_that_share_a_weight_both_take_it_in_once():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2.5, "t": 0.5}
    nodes = [step("Mul", ["x", "c"], ["g"]), step("Add", ["g", "t"], ["h"]), conv("h", "y"), conv("h", "z")]
    folds_to(nodes, constants, {"Conv": 2}, outputs=("y", "z"))


@pytest.mark.parametrize("shape", [(), (4, 1, 1)])
def test_a_scale_passes_an_offset_that_padding_holds_back(shape):
    constants = {
        "w": weights(3, 4, 3, 3),
        "b": weights(3),
        "s": weights(*shape, seed=3) + 3,
        "t": weights(4, 1, 1, seed=4),
    }
    nodes = [step("Mul", ["s", "x"], ["g"]), step("Add", ["g", "t"], ["h"]), conv("h", "y", pads=[1, 1, 1, 1])]
    change = folds_to(nodes, constants, {"Add": 1, "Conv": 1})
    assert [n for n, _ in change.declined] == ["n1"]


def test_the_affine_stays_between_two_activations_but_leaves_the_first_conv():
    constants = {"w": weights(4, 4, 1, 1), "b": weights(4), "c": -2.0, "t": 1.0}
    nodes = [
        conv(),
        step("Mul", ["h", "c"], ["i"]),
        step("Relu", ["i"], ["j"]),
        step("Add", ["j", "t"], ["k"]),
        step("Relu", ["k"], ["y"]),
    ]
    folds_to(nodes, constants, {"Conv": 1, "Relu": 2, "Add": 1})


def test_a_branch_is_folded_inside():
    kind = TensorProto.FLOAT
    shape = (2, 3, 4, 3)
    stored = {"w": weights(3, 4, 3, 3), "b": weights(3), "c": np.float32(2.0), "zero": np.float32(0)}
    nodes = [conv(), step("Mul", ["h", "c"], ["z"], name="inside")]
    nodes[0].name = "layer"
    inner = helper.make_graph(nodes, "then", [], [helper.make_tensor_value_info("z", kind, shape)])
    other = helper.make_graph([conv(target="q")], "else", [], [helper.make_tensor_value_info("q", kind, shape)])
    graph = helper.make_graph(
        [
            step("ReduceSum", ["x"], ["sum"], keepdims=0),
            step("Greater", ["sum", "zero"], ["yes"]),
            step("If", ["yes"], ["y"], then_branch=inner, else_branch=other),
        ],
        "g",
        [helper.make_tensor_value_info("x", kind, SHAPE)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(v, k) for k, v in stored.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model = Model.of(ir.from_proto(proto), "m")
    change = apply(model)
    assert change.applied == ("folded Mul into the Conv before it: 1 (inside)",)
    x = np.abs(weights(*SHAPE))
    for sign in (1, -1):
        np.testing.assert_allclose(
            run_ort(change.model, {"x": sign * x})[0], run_ort(model, {"x": sign * x})[0], atol=1e-4
        )


# left alone


def test_nothing_crosses_an_activation():
    for c in (2.0, 0.0, -1.0):
        nodes = [conv(), step("Relu", ["h"], ["i"]), step("Mul", ["i", "c"], ["y"])]
        assert left_alone(build(nodes, {"w": weights(3, 4, 1, 1), "b": weights(3), "c": c})) == {}


def test_a_result_with_several_readers_is_left_alone():
    nodes = [conv(), step("Mul", ["h", "c"], ["y"]), step("Exp", ["h"], ["z"])]
    reasons = left_alone(build(nodes, {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2}, outputs=("y", "z")))
    assert reasons == {"n1": "h, the result of n0, has 2 users"}


def test_a_graph_output_in_the_middle_is_left_alone():
    constants = {"w": weights(4, 4, 1, 1), "b": weights(4), "c": 2}
    after = build([conv(), step("Mul", ["h", "c"], ["y"])], constants, outputs=("y", "h"))
    assert left_alone(after) == {"n1": "h, the result of n0, is an output of the graph"}
    before = build([step("Mul", ["x", "c"], ["h"]), conv("h", "y")], constants, outputs=("y", "h"))
    assert left_alone(before) == {"n0": "h is an output of the graph"}


def test_a_matmul_bias_that_is_an_output_is_left_alone():
    nodes = [step("MatMul", ["x", "w"], ["h"]), step("Add", ["h", "b"], ["i"]), step("Mul", ["i", "s"], ["y"])]
    constants = {"w": weights(4, 5), "b": weights(5), "s": 2}
    assert "is an output" in left_alone(build(nodes, constants, shape=(2, 4), outputs=("y", "i")))["n2"]
    assert "is an output" in left_alone(build(nodes, constants, shape=(2, 4), outputs=("y", "h")))["n2"]


def test_another_reader_before_a_conv_is_named():
    nodes = [step("Mul", ["x", "c"], ["h"]), conv("h", "y"), step("Exp", ["h"], ["z"])]
    reasons = left_alone(build(nodes, {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2}, outputs=("y", "z")))
    assert reasons == {"n0": "h is also read by n2, which cannot take the constant in"}


@pytest.mark.parametrize("padding", [{"pads": [0, 0, 0, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}])
def test_an_offset_before_a_padded_conv_is_declined(padding):
    nodes = [step("Add", ["x", "c"], ["h"]), conv("h", "y", **padding)]
    reasons = left_alone(build(nodes, {"w": weights(3, 4, 3, 3), "b": weights(3), "c": 2}))
    assert reasons == {"n0": "n1 pads its input with zeros, which would not get the offset"}


def test_an_offset_before_a_transposed_convolution_is_declined():
    nodes = [step("Add", ["x", "c"], ["h"]), step("ConvTranspose", ["h", "w"], ["y"])]
    assert list(left_alone(build(nodes, {"w": weights(4, 3, 3, 3), "c": 2}))) == ["n0"]


def test_a_zero_scale_does_not_pass_an_offset():
    nodes = [step("Mul", ["x", "s"], ["g"]), step("Add", ["g", "t"], ["h"]), conv("h", "y", pads=[1, 1, 1, 1])]
    constants = {"w": weights(3, 4, 3, 3), "b": weights(3), "s": np.float32([1, 0, 2, 3]).reshape(4, 1, 1), "t": 1.0}
    assert list(left_alone(build(nodes, constants))) == ["n1"]


@pytest.mark.parametrize("shape", [(5,), (1, 6, 1), (2, 1, 1, 1), (1, 1, 1, 1, 1), (4, 6, 5)])
def test_a_constant_that_varies_elsewhere_or_raises_the_rank_is_declined(shape):
    constants = {"w": weights(4, 4, 1, 1), "b": weights(4), "c": weights(*shape)}
    reasons = left_alone(build([conv(), step("Mul", ["h", "c"], ["y"])], constants))
    assert "more than one number per channel (4)" in reasons["n1"]


def test_a_single_channel_that_broadcasts_to_many_is_declined():
    constants = {"w": weights(1, 4, 1, 1), "b": weights(1), "c": weights(6, 1, 1)}
    assert list(left_alone(build([conv(), step("Mul", ["h", "c"], ["y"])], constants))) == ["n1"]
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": weights(4, 1, 1)}
    reasons = left_alone(build([step("Mul", ["x", "c"], ["h"]), conv("h", "y")], constants, shape=(2, 1, 6, 5)))
    assert reasons == {"n0": "the shape of x is unknown or grows by broadcasting"}


def test_a_row_per_token_after_a_matmul_is_declined():
    nodes = [step("MatMul", ["x", "w"], ["h"]), step("Mul", ["h", "c"], ["y"])]
    assert list(left_alone(build(nodes, {"w": weights(4, 5), "c": weights(3, 1)}, shape=(2, 3, 4)))) == ["n1"]


def test_the_bias_of_a_matmul_is_left_alone():
    nodes = [step("MatMul", ["x", "w"], ["h"]), step("Add", ["h", "b"], ["y"])]
    assert left_alone(build(nodes, {"w": weights(4, 5), "b": weights(5)}, shape=(2, 4))) == {}


def test_a_scale_before_a_matmul_is_left_to_layer_normalization():
    nodes = [step("Mul", ["x", "c"], ["h"]), step("MatMul", ["h", "w"], ["y"])]
    assert left_alone(build(nodes, {"w": weights(4, 5), "c": weights(4)}, shape=(2, 4))) == {}


def test_a_division_by_the_result_is_left_alone():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2}
    assert left_alone(build([conv(), step("Div", ["c", "h"], ["y"])], constants)) == {}


def test_weights_that_are_fed_are_left_alone():
    nodes = [conv(bias=None), step("Mul", ["h", "c"], ["y"])]
    model = build(nodes, {"c": 2.0}, extra_inputs=[("w", (3, 4, 1, 1))])
    assert left_alone(model) == {"n1": "n0 has no constant weights"}
    overridable = build(nodes, {"c": 2.0, "w": weights(3, 4, 1, 1)}, extra_inputs=[("w", (3, 4, 1, 1))])
    assert left_alone(overridable) == {"n1": "n0 has no constant weights"}


def test_a_bias_that_is_fed_is_left_alone():
    nodes = [conv(), step("Mul", ["h", "c"], ["y"])]
    model = build(nodes, {"c": 2.0, "w": weights(3, 4, 1, 1)}, extra_inputs=[("b", (3,))])
    assert left_alone(model) == {"n1": "the bias of n0 is not constant"}


@pytest.mark.parametrize(("op", "c"), [("Mul", 3e38), ("Div", 0.0), ("Mul", np.inf), ("Add", np.nan)])
def test_results_that_are_not_finite_are_declined(op, c):
    constants = {"w": 10 + weights(3, 4, 1, 1), "b": weights(3), "c": c}
    reasons = left_alone(build([conv(), step(op, ["h", "c"], ["y"])], constants))
    assert "float32 cannot hold" in reasons["n1"]


def test_float16_weights_that_would_vanish_are_declined():
    constants = {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 1e-6}
    reasons = left_alone(build([conv(), step("Mul", ["h", "c"], ["y"])], constants, dtype=np.float16))
    assert reasons["n1"] == "float16 cannot hold the weights of n0 times the constant"


def test_a_result_read_only_in_a_branch_is_declined():
    kind, shape = TensorProto.FLOAT, (2, 3, 6, 5)
    graphs = [
        helper.make_graph(
            [step(op, ["h", "c"], [out], name=out)], out, [], [helper.make_tensor_value_info(out, kind, shape)]
        )
        for op, out in (("Mul", "p"), ("Pow", "q"))
    ]
    graph = helper.make_graph(
        [conv(), step("If", ["yes"], ["y"], then_branch=graphs[0], else_branch=graphs[1])],
        "g",
        [helper.make_tensor_value_info("x", kind, SHAPE), helper.make_tensor_value_info("yes", TensorProto.BOOL, ())],
        [helper.make_tensor_value_info("y", kind, shape)],
        [
            numpy_helper.from_array(np.asarray(v, np.float32), k)
            for k, v in {"w": weights(3, 4, 1, 1), "b": weights(3), "c": 2}.items()
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert "another graph" in left_alone(Model.of(ir.from_proto(proto), "m"))["p"]


@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_normalisation_of_features_before_a_gemm_is_folded_forwards(trans_b):
    constants = {"w": weights(5, 4) if trans_b else weights(4, 5), "c": weights(5)}
    constants |= {"mean": weights(4, seed=3), "std": np.abs(weights(4, seed=4)) + 1}
    gemm = step("Gemm", ["g", "w", "c"], ["y"], alpha=0.5, beta=2.0, transB=trans_b)
    nodes = [step("Sub", ["x", "mean"], ["h"]), step("Div", ["h", "std"], ["g"]), gemm]
    folds_to(nodes, constants, {"Gemm": 1}, shape=(2, 4))


def test_what_may_be_a_layer_normalization_before_a_gemm_is_left_alone():
    nodes = [
        step("ReduceMean", ["x"], ["m"], axes=[-1]),
        step("Div", ["x", "m"], ["n"]),
        step("Mul", ["n", "s"], ["h"]),
        step("Add", ["h", "t"], ["g"]),
        step("Gemm", ["g", "w"], ["y"]),
    ]
    constants = {"w": weights(4, 5), "s": weights(4), "t": weights(4)}
    assert left_alone(build(nodes, constants, shape=(2, 4))) == {}


def test_a_transposed_input_of_a_gemm_is_declined():
    nodes = [step("Mul", ["x", "s"], ["h"]), step("Gemm", ["h", "w"], ["y"], transA=1)]
    reasons = left_alone(build(nodes, {"w": weights(4, 5), "s": weights(2)}, shape=(4, 2)))
    assert reasons == {"n0": "n1 transposes its input"}


def test_an_old_opset_is_declined_as_a_whole():
    model = build(
        [conv(), step("Mul", ["h", "c"], ["y"])], {"w": weights(3, 4, 1, 1), "b": weights(3), "c": [2.0]}, opset=6
    )
    change = FoldAffine()(model, Context(compile=never))
    assert not change.modified
    assert change.declined == (("model", "opset 6 is below 7; convert it first"),)


# any small graph


@st.composite
def small_graphs(draw):
    """A chain of convolutions, constants and activations, with an output tapped in the middle now and then."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes, constants, at, tapped = [], {}, "x", []
    for i in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["Conv", "ConvTranspose", "Add", "Mul", "Sub", "Div", "Add", "Mul", "Relu"]))
        out = f"v{i}"
        if kind in ("Conv", "ConvTranspose"):
            group, size, pad = (
                draw(st.sampled_from([1, 2, 4])),
                draw(st.sampled_from([1, 3])),
                draw(st.sampled_from([0, 1])),
            )
            pad = pad if size == 3 else 0
            constants[f"w{i}"] = rng.normal(size=(4, 4 // group, size, size)) / 3
            inputs = [at, f"w{i}"]
            if draw(st.booleans()):
                constants[f"b{i}"] = rng.normal(size=4)
                inputs.append(f"b{i}")
            nodes.append(step(kind, inputs, [out], group=group, pads=[pad] * 4))
        elif kind == "Relu":
            nodes.append(step("Relu", [at], [out]))
        else:
            shape = draw(st.sampled_from([(), (1,), (4, 1, 1), (1, 4, 1, 1), (1, 1, 1)]))
            constants[f"c{i}"] = rng.uniform(0.5, 2, size=shape) * draw(st.sampled_from([1, -1]))
            swapped = draw(st.booleans()) and kind != "Div"
            nodes.append(step(kind, [f"c{i}", at] if swapped else [at, f"c{i}"], [out]))
        at = out
        if draw(st.integers(0, 5)) == 0:
            tapped.append(out)
    return build(
        nodes,
        constants,
        outputs=tuple(dict.fromkeys([*tapped, at])),
        shape=(1, 4, 12, 12),
        as_nodes=draw(st.booleans()),
    )


def valid(model: Model) -> bool:
    """Unpadded convolutions must leave something over."""
    return all(isinstance(d, int) and d > 0 for o in model.outputs for d in o.shape or (0,))


@settings(max_examples=120, deadline=None)
@given(small_graphs())
def test_whatever_folds_the_values_stay(model):
    if not valid(model):
        return
    change = apply(model)
    x = feeds(model)
    for want, got in zip(run_ort(model, x), run_ort(change.model, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * max(1, np.abs(want).max()))
