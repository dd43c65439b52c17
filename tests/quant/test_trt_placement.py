"""What TensorRT's kernels compute beside the product: sums, squeeze-and-excitation, attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeproof.model import Model
from edgeproof.passes.infer_shapes import InferShapes
from edgeproof.passes.int8 import Int8
from edgeproof.quant.layers import Scope
from edgeproof.quant.placement import Plan, plan
from edgeproof.quant.schemes import TENSORRT
from edgeproof.target import Target
from small_nets import context, net, node, number, ran, samples, small_cnn, weight


def placed(model: Model, **changes: object) -> Plan:
    return plan(model.graph.clone().graph, replace(TENSORRT, **changes), Scope())


def roles(found: Plan) -> dict[str, str]:
    return {n.name or n.op_type: role for n, role in found.roles.items()}


def attention() -> Model:
    """One head: q, k and v are products with weights; scores are scaled and masked."""
    return net(
        [
            node("MatMul", ["x", "wq"], ["q"], name="q"),
            node("MatMul", ["x", "wk"], ["k"], name="k"),
            node("MatMul", ["x", "wv"], ["v"], name="v"),
            node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
            node("MatMul", ["q", "kt"], ["s"], name="scores"),
            node("Div", ["s", "root"], ["d"]),
            node("Add", ["d", "mask"], ["m"]),
            node("Softmax", ["m"], ["p"], axis=-1),
            node("MatMul", ["p", "v"], ["c"], name="mixed"),
            node("MatMul", ["c", "wo"], ["y"], name="out"),
        ],
        [
            *(weight(n, 16, 16) for n in ("wq", "wk", "wv", "wo")),
            number("root", 4.0),
            number("mask", np.zeros((1, 1, 6), np.float32)),
        ],
        (1, 6, 16),
    )


def excited() -> Model:
    """A map times a factor per channel that is computed from it."""
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Relu", ["a"], ["b"]),
            node("ReduceMean", ["b"], ["m"], axes=[2, 3]),
            node("Conv", ["m", "w2"], ["e"], name="c2"),
            node("HardSigmoid", ["e"], ["g"]),
            node("Mul", ["b", "g"], ["z"], name="times"),
            node("Conv", ["z", "w3"], ["y"], name="c3"),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 8, 1, 1), weight("w3", 4, 8, 1, 1)],
    )
    return InferShapes()(model, context(model)).model


def test_a_sum_reads_the_convolution_that_adds_it_up_in_float_and_the_residual_in_integers():
    found = placed(small_cnn())
    assert roles(found)["add"] == "follow"
    assert "c" not in found.tensors
    assert "r" in found.tensors
    assert "c" in placed(small_cnn(), residual=()).tensors


def test_of_two_convolutions_the_later_one_adds_up():
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["x", "w2"], ["b"], name="c2"),
            node("Add", ["b", "a"], ["s"], name="add"),
            node("Conv", ["s", "w3"], ["y"], name="c3"),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 3, 3, 3), weight("w3", 4, 8, 1, 1)],
    )
    found = placed(model)
    assert "a" in found.tensors
    assert "b" not in found.tensors


def test_a_convolution_that_others_read_too_is_in_integers_for_all():
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Relu", ["a"], ["r"]),
            node("Conv", ["r", "w2"], ["b"], name="c2"),
            node("Add", ["b", "r"], ["s"], name="add"),
            node("Conv", ["s", "w2"], ["d"], name="c3"),
            node("Conv", ["b", "w2"], ["e"], name="c4"),
            node("Add", ["d", "e"], ["y"]),
        ],
        [weight("w1", 8, 3, 1, 1), weight("w2", 8, 8, 1, 1)],
    )
    assert "b" in placed(model).tensors


def test_both_products_of_an_attention_read_integers():
    found = placed(attention())
    assert {name: role for name, role in roles(found).items() if role == "attention"} == {
        "scores": "attention",
        "mixed": "attention",
    }
    assert {"q", "kt", "p", "v", "c", "x"} <= set(found.tensors)
    assert not {"s", "d", "m"} & set(found.tensors)


@pytest.mark.parametrize("keep", ["scores", "mixed", "MatMul"])
def test_an_attention_stays_whole_where_a_part_of_it_is_kept(keep):
    found = plan(attention().graph.clone().graph, TENSORRT, Scope(keep=(keep,)))
    assert "attention" not in roles(found).values()


def test_a_softmax_at_the_end_is_no_attention():
    model = net([node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"])], [weight("w", 16, 4)], (2, 16))
    assert "attention" not in roles(placed(model)).values()


def test_a_map_that_is_multiplied_per_channel_is_read_in_integers_by_all():
    found = placed(excited())
    assert roles(found)["times"] == "follow"
    assert {"b", "g", "z"} <= set(found.tensors)
    assert "b" in found.integer
    assert "times" not in roles(placed(excited(), excite=False))


def test_a_factor_is_left_to_the_kernel():
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Mul", ["a", "half"], ["h"], name="scaled"),
            node("Conv", ["h", "w2"], ["y"], name="c2"),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 4, 8, 1, 1), number("half", 0.5)],
    )
    assert "scaled" not in roles(placed(model))
    assert roles(placed(model, excite=False, fuse_constants=()))["scaled"] == "rescale"


def test_a_product_of_two_maps_stays_in_float():
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["x", "w2"], ["b"], name="c2"),
            node("Mul", ["a", "b"], ["s"], name="times"),
            node("Conv", ["s", "w3"], ["y"], name="c3"),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 3, 3, 3), weight("w3", 4, 8, 1, 1)],
    )
    assert "times" not in roles(placed(model))


@pytest.mark.parametrize("model", [small_cnn(), attention(), excited()], ids=["residual", "attention", "excite"])
def test_it_stays_close_to_the_float_model(model):
    target = Target("t:gpu", "t", "gpu", TENSORRT)
    made = Int8()(model, replace(context(model), target=target)).model
    feeds = samples(model, 1)[0]
    want = ran(model, feeds)
    assert np.abs(ran(made, feeds) - want).max() < 0.1 * np.abs(want).max()
