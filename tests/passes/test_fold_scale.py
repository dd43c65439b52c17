"""Scales and shifts by constants are absorbed by the operator beside them, or stay with a reason."""

import numpy as np
import pytest
from small_models import apply, build, floats, node, ops, reasons

from edgeproof.passes.fold_scale import FoldScale

CONV = {"w": floats(6, 4, 3, 3)}
X = (1, 4, 5, 5)


def folded(nodes, weights, shape=X):
    return apply(FoldScale(), build(nodes, {"x": shape}, "y", weights), x=floats(*shape))


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("shape", [(), (1,), (6, 1, 1), (1, 6, 1, 1)])
def test_a_constant_per_channel_after_conv_is_folded(op, shape):
    change = folded([node("Conv", "x w", "h"), node(op, "h c", "y")], {**CONV, "c": floats(*shape) + 3})
    assert ops(change.model) == {"Conv": 1}


@pytest.mark.parametrize("op", ["Mul", "Add", "Sub"])
def test_the_constant_may_stand_first(op):
    change = folded([node("Conv", "x w", "h"), node(op, "c h", "y")], {**CONV, "c": floats(6, 1, 1)})
    assert ops(change.model) == {"Conv": 1}


def test_normalisation_before_an_unpadded_conv_is_folded():
    nodes = [node("Sub", "x mean", "s"), node("Div", "s std", "n"), node("Conv", "n w", "y")]
    weights = {**CONV, "mean": floats(1, 4, 1, 1), "std": np.abs(floats(1, 4, 1, 1)) + 1}
    assert ops(folded(nodes, weights).model) == {"Conv": 1}


def test_a_scale_before_a_padded_conv_is_folded():
    nodes = [node("Mul", "x c", "n"), node("Conv", "n w", "y", pads=[1, 1, 1, 1])]
    assert ops(folded(nodes, {**CONV, "c": floats(4, 1, 1)}).model) == {"Conv": 1}


def test_a_factor_on_a_matrix_product_is_folded():
    nodes = [node("MatMul", "x w", "h"), node("Mul", "h c", "y")]
    change = folded(nodes, {"w": floats(4, 6), "c": floats(6)}, (3, 2, 4))
    assert ops(change.model) == {"MatMul": 1}


def test_a_shift_before_a_padded_conv_stays():
    nodes = [node("Add", "x c", "n"), node("Conv", "n w", "y", pads=[1, 1, 1, 1])]
    change = folded(nodes, {**CONV, "c": floats(4, 1, 1)})
    assert "pads with zeros" in reasons(change)
    assert not change.modified


def test_a_constant_that_varies_over_the_picture_stays():
    change = folded([node("Conv", "x w", "h"), node("Mul", "h c", "y")], {**CONV, "c": floats(1, 1, 3, 3)})
    assert "not one number per channel" in reasons(change)


def test_a_constant_that_adds_a_dimension_stays():
    change = folded([node("Conv", "x w", "h"), node("Mul", "h c", "y")], {**CONV, "c": floats(2, 1, 1, 1, 1)})
    assert not change.modified


def test_a_constant_divided_by_the_result_stays():
    change = folded([node("Conv", "x w", "h"), node("Div", "c h", "y")], {**CONV, "c": floats(1) + 5})
    assert "divides a constant" in reasons(change)


def test_a_division_by_zero_stays():
    model = build([node("Conv", "x w", "h"), node("Div", "h c", "y")], {"x": X}, "y", {**CONV, "c": np.zeros(1, "f4")})
    with np.errstate(all="ignore"):
        assert "divides by zero" in reasons(apply(FoldScale(), model, x=floats(*X)))


def test_a_scale_beyond_the_dtype_stays():
    nodes = [node("Conv", "x w", "h"), node("Mul", "h c", "y")]
    model = build(nodes, {"x": X}, "y", {"w": np.full((6, 4, 3, 3), 1e30, "f4"), "c": np.full(1, 1e30, "f4")})
    with np.errstate(all="ignore"):
        assert "does not fit float32" in reasons(apply(FoldScale(), model, x=np.zeros(X, "f4")))


def test_the_division_by_six_of_a_hard_swish_stays_for_the_runtime_to_recognise():
    nodes = [
        node("Conv", "x w", "h"),
        node("Add", "h three", "a"),
        node("Clip", "a zero six", "c"),
        node("Mul", "h c", "m"),
        node("Div", "m six", "d"),
        node("Conv", "d w2", "y"),
    ]
    numbers = {"zero": np.float32(0), "three": np.float32(3), "six": np.float32(6)}
    change = folded(nodes, {**CONV, "w2": floats(2, 6, 1, 1), **numbers})
    assert not change.modified
    assert "hard-swish" in reasons(change)
