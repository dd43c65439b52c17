"""Simulated bits: with 8 exactly what Q/DQ gives, with more nearer to float, with fewer further from it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.passes.simulate_bits import SimulateBits
from edgeproof.protocols import Context
from edgeproof.quant import numerics
from edgeproof.quant.simulate import grid, weight_grid
from small_nets import compiled, context, net, node, number, ran, samples, small_cnn, weight


def quality(model: Model, **settings: int) -> float:
    change = SimulateBits(**settings)(model, context(model))
    sample = samples(model, 1, seed=5)[0]
    return numerics.sqnr_db(ran(model, sample), ran(change.model, sample))


@pytest.mark.parametrize(("dtype", "bits"), [("uint8", 8), ("int8", 8), ("uint16", 16), ("int16", 16)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_grid_is_the_codes_of_the_dtype_read_back(dtype: str, bits: int, symmetric: bool) -> None:
    # Beyond the range the dtype has one code more than a symmetric grid.
    x = np.clip(np.random.default_rng(0).standard_normal(4000, np.float32) * 3, -4 if symmetric else -9, 9)
    p = numerics.params(-2.5, 4.0, dtype, symmetric=symmetric)
    np.testing.assert_array_equal(grid(-2.5, 4.0, bits, symmetric=symmetric).snap(x), numerics.fake_quantize(x, p))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_weights_grid_is_that_of_int8(axis: int | None) -> None:
    w = np.random.default_rng(1).standard_normal((6, 5, 3, 3), np.float32)
    want = numerics.fake_quantize(w, numerics.weight_params(w, axis))
    np.testing.assert_array_equal(weight_grid(w, 8, axis).snap(w), want)


@pytest.mark.parametrize("bits", range(2, 9))
def test_no_more_values_are_left_than_the_bits_have(bits: int) -> None:
    x = np.linspace(-1, 3, 5000, dtype=np.float32)
    assert len(np.unique(grid(-1, 3, bits, symmetric=False).snap(x))) == 2**bits
    assert len(np.unique(grid(-1, 1, bits, symmetric=True).snap(np.linspace(-1, 1, 5000)))) == 2**bits - 1


def test_every_bit_is_worth_about_six_decibels() -> None:
    model = small_cnn()
    curve = [quality(model, bits=b, activation_bits=b) for b in (4, 6, 8, 10, 12)]
    # 20 log10(2) = 6.02 dB to a bit; on so small a net single rounding errors weigh in.
    for first, second in pairwise(curve):
        assert 8 < second - first < 16


def test_weights_and_activations_can_be_studied_alone() -> None:
    model = small_cnn()
    only_weights = SimulateBits(bits=4, activation_bits=0)(model, context(model))
    assert len(only_weights.model.graph.graph) == len(model.graph.graph)
    assert quality(model, bits=4, activation_bits=0) > quality(model, bits=4, activation_bits=4)
    assert quality(model, bits=0, activation_bits=4) > quality(model, bits=4, activation_bits=4)


def test_a_graph_with_simulated_bits_computes_what_numpy_computes() -> None:
    w = np.array([[1.0, -0.3], [0.26, 0.5]], np.float32)
    model = net([node("MatMul", ["x", "w"], ["y"], name="m")], [number("w", w)], [3, 2])
    feeds = {"x": np.array([[0.1, 0.9], [-1.0, 0.4], [0.35, 1.0]], np.float32)}
    ctx = Context(compiled, lambda: iter([feeds]), 1)
    change = SimulateBits(bits=3, activation_bits=2)(model, ctx)
    # By hand: weights per column in steps of 1/3 and 0.5/3; activations in steps of 2/3 from -2·(2/3)... to 2/3·1.
    columns = np.array([[1.0, -2 * 0.5 / 3], [1 / 3, 0.5]], np.float32)
    step = 2 / 3
    x = np.clip(np.rint(feeds["x"] / step), -2, 1) * step
    np.testing.assert_allclose(ran(change.model, feeds), x @ columns, rtol=1e-5)


def test_without_samples_only_weights_are_snapped_and_that_is_said() -> None:
    change = SimulateBits()(small_cnn(), Context(compiled))
    assert change.modified
    assert "no samples to take ranges from" in change.declined[-1][1]


def test_what_is_kept_is_named() -> None:
    change = SimulateBits(keep="c2", ops="Conv")(small_cnn(), context(small_cnn()))
    told = dict(change.declined)
    assert told["c2"] == "kept in float by the setting keep=c2"
    assert "not among the operators" in told["fc"]


def test_a_model_without_layers_is_declined() -> None:
    model = net([node("Relu", ["x"], ["y"])])
    change = SimulateBits()(model, context(model))
    assert not change.modified
    assert change.declined == (("net", "has none of Conv,ConvTranspose,Gemm,MatMul with a constant weight"),)


def test_a_weight_held_by_a_constant_node_is_snapped() -> None:
    made = node("Constant", [], ["w"], value=weight("w", 4, 5))
    model = net([made, node("MatMul", ["x", "w"], ["y"], name="m")], [], [3, 4])
    change = SimulateBits(bits=4, activation_bits=0)(model, context(model))
    sample = samples(model, 1)[0]
    assert np.abs(ran(change.model, sample) - ran(model, sample)).max() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 1}, "is 1; expected 2 to 16"),
        ({"activation_bits": 17}, "is 17; expected 2 to 16"),
        ({"method": "magic"}, "is not a range method"),
        ({"ops": "Relu"}, "is no operator with a weight"),
    ],
)
def test_a_bad_setting_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SimulateBits(**settings)(small_cnn(), context(small_cnn()))
