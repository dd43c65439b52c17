"""Scales and offsets stay where moving them into weights would change a value, and say why."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from affine_models import (
    SHAPE,
    build,
    conv,
    folds_to,
    left_alone,
    never,
    step,
    weights,
)
from onnx import TensorProto, helper, numpy_helper

from edgeproof.model import Model
from edgeproof.passes.fold_affine import FoldAffine
from edgeproof.protocols import Context


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
