"""Scales and offsets move into the weights beside them where that is exact."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from affine_models import (
    SHAPE,
    apply,
    build,
    conv,
    feeds,
    folds_to,
    left_alone,
    ops,
    run_ort,
    same,
    step,
    weights,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgeproof.model import Model

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
