"""y = γ·(x − μ)/√(σ² + ε) + β is absorbed by the operator beside it, or stays with a reason."""

import numpy as np
import pytest
from small_models import apply, build, floats, node, ops, reasons

from edgeproof.passes.fold_batch_norm import FoldBatchNorm


def norm(channels):
    return {
        "g": floats(channels),
        "b": floats(channels),
        "m": floats(channels),
        "v": np.abs(floats(channels)) + 0.1,
    }


BN = "g b m v"


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_after_conv_is_folded(group, bias):
    weights = {"w": floats(6, 4 // group, 3, 3), **norm(6)} | ({"c": floats(6)} if bias else {})
    conv = node("Conv", "x w c" if bias else "x w", "h", group=group, pads=[1, 1, 1, 1])
    model = build([conv, node("BatchNormalization", f"h {BN}", "y")], {"x": (1, 4, 5, 5)}, "y", weights)
    change = apply(FoldBatchNorm(), model, x=floats(1, 4, 5, 5))
    assert ops(change.model) == {"Conv": 1}
    assert change.applied[0] == "folded BatchNormalization into the Conv before it: 1 (BatchNormalization_y)"


@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_after_transposed_conv_is_folded(group):
    weights = {"w": floats(4, 6 // group, 3, 3), **norm(6)}
    nodes = [node("ConvTranspose", "x w", "h", group=group, strides=[2, 2]), node("BatchNormalization", f"h {BN}", "y")]
    change = apply(FoldBatchNorm(), build(nodes, {"x": (1, 4, 5, 5)}, "y", weights), x=floats(1, 4, 5, 5))
    assert ops(change.model) == {"ConvTranspose": 1}


@pytest.mark.parametrize("trans_b", [0, 1])
def test_batch_norm_after_gemm_is_folded_with_alpha_and_beta(trans_b):
    weights = {"w": floats(5, 3) if trans_b else floats(3, 5), "c": floats(5), **norm(5)}
    gemm = node("Gemm", "x w c", "h", transB=trans_b, alpha=0.5, beta=2.0)
    model = build([gemm, node("BatchNormalization", f"h {BN}", "y")], {"x": (2, 3)}, "y", weights)
    assert ops(apply(FoldBatchNorm(), model, x=floats(2, 3)).model) == {"Gemm": 1}


@pytest.mark.parametrize("group", [1, 2])
def test_batch_norm_before_an_unpadded_conv_is_folded_forwards(group):
    weights = {"w": floats(6, 4 // group, 3, 3), "c": floats(6), **norm(4)}
    nodes = [node("BatchNormalization", f"x {BN}", "h"), node("Conv", "h w c", "y", group=group)]
    change = apply(FoldBatchNorm(), build(nodes, {"x": (1, 4, 5, 5)}, "y", weights), x=floats(1, 4, 5, 5))
    assert ops(change.model) == {"Conv": 1}


@pytest.mark.parametrize("trans_b", [0, 1])
def test_batch_norm_before_gemm_is_folded_forwards(trans_b):
    weights = {"w": floats(5, 3) if trans_b else floats(3, 5), "c": floats(5), **norm(3)}
    gemm = node("Gemm", "h w c", "y", transB=trans_b, alpha=0.5, beta=2.0)
    model = build([node("BatchNormalization", f"x {BN}", "h"), gemm], {"x": (2, 3)}, "y", weights)
    assert ops(apply(FoldBatchNorm(), model, x=floats(2, 3)).model) == {"Gemm": 1}


def stays(nodes, outputs, weights, shape=(1, 4, 5, 5), inputs=None):
    model = build(nodes, {"x": shape, **(inputs or {})}, outputs, weights)
    feeds = {n: floats(*s) for n, s in {"x": shape, **(inputs or {})}.items()}
    change = apply(FoldBatchNorm(), model, **feeds)
    assert ops(change.model)["BatchNormalization"] == 1
    return reasons(change)


def test_batch_norm_before_a_padded_conv_stays():
    nodes = [node("BatchNormalization", f"x {BN}", "h"), node("Conv", "h w", "y", pads=[1, 1, 1, 1])]
    assert "pads its input with zeros" in stays(nodes, "y", {"w": floats(6, 4, 3, 3), **norm(4)})


def test_batch_norm_stays_when_the_convs_output_is_read_twice():
    nodes = [node("Conv", "x w", "h"), node("BatchNormalization", f"h {BN}", "n"), node("Add", "n h", "y")]
    assert "BatchNormalization_n: h, the result of Conv_h, has 2 users" in stays(
        nodes, "y", {"w": floats(6, 4, 3, 3), **norm(6)}
    )


def test_batch_norm_stays_when_the_convs_output_leaves_the_graph():
    nodes = [node("Conv", "x w", "h"), node("BatchNormalization", f"h {BN}", "y")]
    assert "h, the result of Conv_h, is an output of the graph" in stays(
        nodes, "h y", {"w": floats(6, 4, 3, 3), **norm(6)}
    )


def test_small_weights_that_others_use_are_copied_and_large_ones_stay():
    nodes = [node("Conv", "x w", "h"), node("BatchNormalization", f"h {BN}", "n"), node("Conv", "n w", "y")]
    model = build(nodes, {"x": (1, 4, 5, 5)}, "y", {"w": floats(4, 4, 1, 1), **norm(4)})
    assert ops(apply(FoldBatchNorm(), model, x=floats(1, 4, 5, 5)).model) == {"Conv": 2}
    stays = apply(FoldBatchNorm(copy_limit_bytes=63), model, x=floats(1, 4, 5, 5))
    assert not stays.modified
    assert "w (64 bytes) is shared by 2 nodes and would be copied" in reasons(stays)


def test_batch_norm_after_a_matrix_product_becomes_its_bias():
    nodes = [node("MatMul", "x w", "h"), node("BatchNormalization", f"h {BN}", "y")]
    model = build(nodes, {"x": (2, 3)}, "y", {"w": floats(3, 5), **norm(5)})
    assert ops(apply(FoldBatchNorm(), model, x=floats(2, 3)).model) == {"MatMul": 1, "Add": 1}


def test_batch_norm_over_the_rows_of_a_matrix_product_stays():
    nodes = [node("MatMul", "x w", "h"), node("BatchNormalization", f"h {BN}", "y")]
    assert "more than one number per channel" in stays(nodes, "y", {"w": floats(3, 5), **norm(4)}, (2, 4, 3))


def test_batch_norm_stays_when_the_weights_are_an_input():
    nodes = [node("Conv", "x w", "h"), node("BatchNormalization", f"h {BN}", "y")]
    assert "Conv_h has no constant weights" in stays(nodes, "y", norm(6), inputs={"w": (6, 4, 3, 3)})


def test_batch_norm_with_infinite_scale_stays():
    weights = {"w": floats(6, 4, 3, 3), **norm(6)}
    weights["v"] = np.zeros(6, np.float32)
    nodes = [node("Conv", "x w", "h"), node("BatchNormalization", f"h {BN}", "y", epsilon=0.0)]
    model = build(nodes, {"x": (1, 4, 5, 5)}, "y", weights)
    with np.errstate(all="ignore"):
        change = apply(FoldBatchNorm(), model, x=floats(1, 4, 5, 5))
    assert "not finite" in reasons(change)


def test_batch_norm_after_an_activation_stays():
    nodes = [node("Conv", "x w", "h"), node("Relu", "h", "r"), node("BatchNormalization", f"r {BN}", "y")]
    assert "no Conv, ConvTranspose, Gemm or MatMul" in stays(nodes, "y", {"w": floats(6, 4, 3, 3), **norm(6)})
