"""Which nodes run in integers, and why the others do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

from edgeproof.backends.onnxruntime import SCHEMES
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.quant.layers import Scope, label
from edgeproof.quant.placement import Plan, plan
from edgeproof.target import QuantScheme
from small_nets import CPU, context, executed, net, node, number, ran, samples, small_cnn, weight

SCHEME = SCHEMES["cpu"]


EVERYTHING = Scope()


def placed(model: Model, scope: Scope = EVERYTHING, scheme: QuantScheme = SCHEME) -> Plan:
    return plan(model.graph.clone().graph, scheme, scope)


def names(result: Plan) -> set[str]:
    return {label(n) for n in result.roles}


def test_a_residual_network_runs_in_integers_but_for_its_absorbed_activations() -> None:
    result = placed(small_cnn())
    assert names(result) == {"c1", "c2", "c3", "add", "gap", "flat", "fc"}
    assert set(result.tensors) == {"x", "r", "c", "t", "v", "p", "f"}
    assert result.declined == []


def test_an_activation_is_quantised_in_place_of_the_layer_before_it() -> None:
    result = placed(small_cnn())
    assert "a" not in result.tensors  # Conv → Relu: only Relu's output
    assert "s" not in result.tensors  # Add → Relu likewise


def test_tensors_that_share_a_range_are_observed_once() -> None:
    result = placed(small_cnn())
    assert result.shares == {"f": ("p", 1.0)}
    assert result.observe == ("x", "r", "c", "t", "v", "p")


def test_the_last_layer_gives_floats_when_nothing_integer_reads_it() -> None:
    assert "y" not in placed(small_cnn()).tensors


def test_a_layer_whose_activation_has_a_second_reader_is_quantised_before_it() -> None:
    model = net(
        [
            node("Conv", ["x", "w"], ["a"], name="c"),
            node("Relu", ["a"], ["r"]),
            node("Neg", ["a"], ["n"]),
            node("Add", ["r", "n"], ["y"]),
        ],
        [weight("w", 4, 3, 3, 3)],
    )
    assert set(placed(model).tensors) == {"x", "a"}


def test_nodes_between_floats_stay_in_float() -> None:
    model = net([node("Add", ["x", "x"], ["a"]), node("Mul", ["a", "x"], ["y"])])
    assert placed(model).roles == {}


def test_a_chain_that_no_integer_node_reads_stays_in_float() -> None:
    model = net(
        [
            node("Conv", ["x", "w"], ["a"], name="c"),
            node("Add", ["a", "a"], ["b"], name="add"),
            node("MaxPool", ["b"], ["m"], name="pool", kernel_shape=[2, 2]),
            node("Exp", ["m"], ["y"], name="exp"),
        ],
        [weight("w", 4, 3, 3, 3)],
    )
    assert names(placed(model)) == {"c"}


def test_a_factor_after_an_integer_node_becomes_a_scale() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Div", ["a", "six"], ["d"], name="div"),
            node("Mul", ["two", "d"], ["e"], name="mul"),
            node("Conv", ["e", "w2"], ["y"], name="c2"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3), number("six", 6.0), number("two", 2.0)],
    )
    result = placed(model)
    assert names(result) == {"c1", "div", "mul", "c2"}
    assert result.source("e") == ("a", pytest.approx(2 / 6))


def test_a_factor_per_channel_stays_in_float() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Mul", ["a", "each"], ["m"], name="mul"),
            node("Conv", ["m", "w2"], ["y"], name="c2"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3), number("each", np.ones((4, 1, 1)))],
    )
    assert names(placed(model)) == {"c1", "c2"}


def test_a_hard_swish_between_layers_is_spelled_out_and_one_before_the_end_is_not() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("HardSwish", ["a"], ["h"], name="h1"),
            node("Conv", ["h", "w2"], ["b"], name="c2"),
            node("HardSwish", ["b"], ["y"], name="h2"),
        ],
        [weight("w1", 4, 3, 3, 3), weight("w2", 4, 4, 3, 3)],
    )
    assert names(placed(model)) == {"c1", "c2", "h1.shifted", "h1.gated", "h1.result"}


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        (Scope(keep=("c2",)), "c2"),
        (Scope(keep=("c?",)), "c1 c2 c3"),
        (Scope(keep=("Gemm",)), "fc"),
        (Scope(keep=("u",)), "c3"),
        (Scope(ops=("Conv",)), "fc"),
        (Scope(first_last=False), "c1 fc"),
    ],
)
def test_settings_leave_layers_in_float_and_say_so(scope: Scope, left: str) -> None:
    result = placed(small_cnn(), scope)
    assert {name for name, _ in result.declined} == set(left.split())
    assert not names(result) & set(left.split())
    assert all("setting" in reason for _, reason in result.declined)


def test_depthwise_convolutions_can_be_left_in_float() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], name="dw", group=3), node("Conv", ["a", "v"], ["y"], name="pw")]
    model = net(nodes, [weight("w", 3, 1, 3, 3), weight("v", 4, 3, 1, 1)])
    assert names(placed(model)) == {"dw", "pw"}
    assert names(placed(model, Scope(depthwise=False))) == {"pw"}


@pytest.mark.parametrize(
    ("nodes", "weights", "reason"),
    [
        ([node("MatMul", ["x", "x"], ["y"], name="n")], [], "its weight is not a constant"),
        ([node("MatMul", ["w", "x"], ["y"], name="n")], [weight("w", 16, 16)], "its weight is not a constant"),
        ([node("MatMul", ["x", "w"], ["y"], name="n")], [weight("w", 16)], "its weight has rank 1; expected 2 or more"),
        (
            [node("Conv", ["x", "w"], ["y"], name="n")],
            [number("w", np.full((4, 3, 1, 1), np.nan))],
            "its weight holds 12 values that are NaN or infinite",
        ),
        (
            [node("Conv", ["x", "w"], ["a"], name="n"), node("Mul", ["a", "w"], ["y"], name="m")],
            [weight("w", 1, 3, 1, 1)],
            "its weight is also read by m, which stays in float",
        ),
        (
            [node("Conv", ["x", "w", "b"], ["y"], name="n")],
            [weight("w", 4, 3, 1, 1), number("b", [np.inf] * 4)],
            "its bias is not finite float32",
        ),
        (
            [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w"], ["y"], name="n", transA=1)],
            [weight("w", 1, 4)],
            "its input is transposed (transA)",
        ),
    ],
)
def test_a_layer_that_cannot_be_quantised_is_declined_with_its_reason(nodes, weights, reason) -> None:
    result = placed(net(nodes, weights))
    assert ("n", reason) in result.declined
    assert result.layers == {}


def test_layers_inside_a_branch_are_declined() -> None:
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    branch = [
        helper.make_graph([node("Conv", ["x", "w"], [n], name=f"c_{n}")], n, [], [info(n, TensorProto.FLOAT, None)])
        for n in ("p", "q")
    ]
    model = net(
        [node("If", ["cond"], ["y"], then_branch=branch[0], else_branch=branch[1])],
        [weight("w", 4, 3, 3, 3), number("cond", True, np.bool_)],
    )
    reason = "inside the body of a control-flow operator"
    assert sorted(placed(model).declined) == [("c_p", reason), ("c_q", reason)]


def test_max_pooling_ahead_of_a_dense_layer_stays_in_float() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="c"),
        node("MaxPool", ["a"], ["m"], name="pool", kernel_shape=[14, 14]),
        node("Flatten", ["m"], ["f"], name="flat"),
        node("Gemm", ["f", "v"], ["y"], name="fc"),
    ]
    assert names(placed(net(nodes, [weight("w", 4, 3, 3, 3), weight("v", 4, 2)]))) == {"c", "fc"}


def test_only_the_scheme_decides() -> None:
    bare = replace(SCHEME, follow=(), share=(), absorb=(), fused_output=(), expand=())
    result = placed(small_cnn(), scheme=bare)
    assert names(result) == {"c1", "c2", "c3", "fc"}
    assert set(result.tensors) == {"x", "r", "t", "f"}
    assert CPU.scheme is SCHEME


@pytest.mark.parametrize("rank", [2, 3])
def test_a_bias_added_behind_a_product_is_counted_so_that_the_runtime_keeps_it_in_integers(rank: int) -> None:
    model = net(
        [
            node("MatMul", ["x", "w"], ["m"], name="product"),
            node("Add", ["m", "b"], ["s"]),
            node("Tanh", ["s"], ["y"]),
        ],
        [weight("w", 16, 8), weight("b", 8)],
        [2, 5, 16][3 - rank :],
    )
    made = Int8()(model, context(model)).model
    ops = executed(made)
    assert "QGemm" in ops.values() or "MatMulIntegerToFloat" in ops.values()
    assert "Gemm" not in ops.values()
    feeds = samples(model, 1)[0]
    np.testing.assert_allclose(ran(made, feeds), ran(model, feeds), atol=0.05)


def test_a_bias_that_no_count_can_hold_stays_float() -> None:
    tiny = numpy_helper.from_array(np.full((16, 8), 1e-20, np.float32), "w")
    model = net([node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])], [tiny, weight("b", 8)], [2, 16])
    made = Int8()(model, context(model)).model
    assert [n.inputs[1].name for n in made.graph.graph if n.op_type == "Add"] == ["b"]
