"""Smoothing: nothing changes in float, much changes in INT8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.passes.smooth import Smooth
from edgeproof.quant.numerics import sqnr_db
from small_nets import context, net, node, ran, samples, weight


def gain(channels: int = 8) -> onnx.TensorProto:
    """A normalisation's factors with two channels far out, as trained transformers have them."""
    factors = np.ones(channels, np.float32)
    factors[2], factors[5] = 60.0, 25.0
    return numpy_helper.from_array(factors, "g")


def block() -> Model:
    """Normalisation → two products; the normalisation is added to the result again."""
    return net(
        [
            node("LayerNormalization", ["x", "g", "b"], ["n"], name="norm"),
            node("MatMul", ["n", "w1"], ["q"], name="query"),
            node("MatMul", ["n", "w2"], ["k"], name="key"),
            node("Add", ["q", "k"], ["s"], name="sum"),
            node("Add", ["s", "n"], ["y"], name="around"),
        ],
        [gain(), weight("b", 8), weight("w1", 8, 8), weight("w2", 8, 8)],
        [1, 6, 8],
    )


def test_the_float_model_keeps_its_results_because_factors_are_powers_of_two() -> None:
    model = block()
    change = Smooth()(model, context(model))
    assert change.modified
    for sample in samples(model, 4, seed=5):
        np.testing.assert_allclose(ran(change.model, sample), ran(model, sample), rtol=2e-6, atol=1e-5)
    factors = [v.const_value.numpy() for n, v in change.model.graph.graph.initializers.items() if "whole" in n]
    mantissas, _ = np.frexp(np.concatenate(factors))
    assert set(mantissas) == {0.5}


def test_factors_are_those_of_the_paper_to_the_nearest_power_of_two() -> None:
    model = block()
    tops = np.zeros(8)
    for sample in samples(model, 8):
        x = sample["x"].astype(np.float64)
        n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        by_name = constants(model)
        n = n * by_name["g"] + by_name["b"]
        tops = np.maximum(tops, np.abs(n).max(axis=(0, 1)))
    held = constants(model)
    rows = np.maximum(np.abs(held["w1"]).max(1), np.abs(held["w2"]).max(1))
    want = tops**0.7 / rows**0.3  # eq. 4, alpha = 0.7
    made = next(v for n, v in constants(Smooth(alpha=0.7)(model, context(model)).model).items() if "whole" in n)
    assert np.all(np.abs(np.log2(made / want)) <= 0.5 + 1e-6)


def constants(model: Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.graph.initializers.items() if v.const_value is not None}


def test_int8_is_closer_to_the_float_model_after_smoothing() -> None:
    model = block()
    smoothed = Smooth()(model, context(model, 16)).model
    plain, better = (Int8()(m, context(m, 16)).model for m in (model, smoothed))
    held_out = samples(model, 16, seed=8)
    before, after = (np.mean([sqnr_db(ran(model, s), ran(m, s)) for s in held_out]) for m in (plain, better))
    assert after > before + 3.0


def test_who_else_reads_the_normalisation_still_gets_it_whole() -> None:
    model = block()
    made = Smooth()(model, context(model)).model.graph.graph
    around = next(n for n in made if n.name == "around")
    restored = around.inputs[1]
    assert restored is not None
    maker = restored.producer()
    assert maker is not None
    assert maker.op_type == "Mul"
    products = [n for n in made if n.op_type == "MatMul"]
    assert {n.inputs[0].producer().op_type for n in products if n.inputs[0]} == {"LayerNormalization"}  # type: ignore[union-attr]


def test_a_sum_of_a_product_and_a_constant_takes_the_division_in_both() -> None:
    model = net(
        [
            node("MatMul", ["x", "w1"], ["a"], name="first"),
            node("Add", ["a", "g"], ["s"], name="plus"),
            node("MatMul", ["s", "w2"], ["y"], name="second"),
        ],
        [weight("w1", 6, 8), gain(), weight("w2", 8, 4)],
        [1, 5, 6],
    )
    change = Smooth()(model, context(model))
    assert len(list(change.model.graph.graph)) == 3
    sample = samples(model, 1, seed=3)[0]
    np.testing.assert_allclose(ran(change.model, sample), ran(model, sample), rtol=2e-6, atol=1e-4)


def test_a_multiplication_is_added_only_where_the_channels_differ_enough() -> None:
    def activated(top: float) -> Model:
        column = np.ones((6, 8), np.float32)
        column[:, 3] = top
        return net(
            [
                node("MatMul", ["x", "w1"], ["a"], name="first"),
                node("Sigmoid", ["a"], ["r"], name="gate"),
                node("Mul", ["a", "r"], ["s"], name="swish"),
                node("MatMul", ["s", "w2"], ["y"], name="second"),
            ],
            [numpy_helper.from_array(column, "w1"), weight("w2", 8, 4)],
            [1, 5, 6],
        )

    even, uneven = activated(1.0), activated(40.0)
    declined = dict(Smooth()(even, context(even)).declined)
    assert declined["second"].startswith("Mul makes its input")
    assert Smooth()(uneven, context(uneven)).modified
    assert not Smooth(insert_above=0)(uneven, context(uneven)).modified


def test_a_model_without_products_is_left_alone() -> None:
    model = net([node("Relu", ["x"], ["y"], name="r")])
    change = Smooth()(model, context(model))
    assert not change.modified
    assert change.declined


def test_without_samples_it_says_what_it_needs() -> None:
    model = block()
    with pytest.raises(InputError, match="--data"):
        Smooth()(model, replace(context(model), feeds=None))


def test_an_alpha_outside_0_to_1_is_refused() -> None:
    model = block()
    with pytest.raises(InputError, match="alpha"):
        Smooth(alpha=1.5)(model, context(model))
