"""Quantisation arithmetic against ONNX's reference operators and formulas of other derivation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edgeproof.errors import InputError
from edgeproof.quant import numerics
from edgeproof.quant.numerics import QParams

FLOATS = st.floats(-1e4, 1e4, width=32)


def onnx_codes(x: np.ndarray, p: QParams) -> np.ndarray:
    return run("QuantizeLinear", x, p)


def onnx_real(codes: np.ndarray, p: QParams) -> np.ndarray:
    return run("DequantizeLinear", codes, p)


def run(op: str, x: np.ndarray, p: QParams) -> np.ndarray:
    attributes = {} if p.axis is None else {"axis": p.axis}
    info = helper.make_tensor_value_info
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "s", "z"], ["y"], **attributes)],
        "g",
        [info("x", kind(x.dtype), None), info("s", TensorProto.FLOAT, None), info("z", kind(p.dtype), None)],
        [info("y", TensorProto.UNDEFINED, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return ReferenceEvaluator(model).run(None, {"x": x, "s": p.scale, "z": p.zero_point})[0]


@given(arrays(np.float32, st.integers(1, 40), elements=FLOATS), st.sampled_from(["uint8", "int8"]), st.booleans())
def test_codes_and_their_real_values_equal_those_of_onnx(x: np.ndarray, dtype: str, symmetric: bool) -> None:
    p = numerics.params(x.min(), x.max(), dtype, symmetric=symmetric)
    codes = numerics.quantize(x, p)
    np.testing.assert_array_equal(codes, onnx_codes(x, p))
    np.testing.assert_array_equal(numerics.dequantize(codes, p), onnx_real(codes, p))


def test_halves_round_to_even_and_values_outside_saturate() -> None:
    p = QParams(np.float32(1.0).reshape(()), np.array(10, np.uint8))
    x = np.array([0.5, 1.5, 2.5, -0.5, 1000.0, -1000.0], np.float32)
    assert numerics.quantize(x, p).tolist() == [10, 12, 12, 10, 255, 0]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_one_scale_per_channel_equals_onnx_along_every_axis(axis: int) -> None:
    w = np.random.default_rng(0).standard_normal((3, 4, 5), np.float32)
    p = numerics.weight_params(w, axis % 3)
    np.testing.assert_array_equal(numerics.quantize(w, p), onnx_codes(w, p))
    top = np.abs(np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)).max(1)
    np.testing.assert_allclose(p.scale, top / 127, rtol=1e-6)


@given(FLOATS, FLOATS, st.sampled_from(["uint8", "int8"]), st.booleans(), st.booleans())
def test_zero_is_exact_and_every_value_inside_is_at_most_a_step_away(
    a: float, b: float, dtype: str, symmetric: bool, reduce: bool
) -> None:
    low, high = min(a, b), max(a, b)
    p = numerics.params(low, high, dtype, symmetric=symmetric, reduce_range=reduce)
    assert p.scale > 0
    assert np.isfinite(p.scale)
    assert numerics.fake_quantize(np.zeros(1, np.float32), p)[0] == 0.0
    x = np.linspace(min(low, 0), max(high, 0), 50).astype(np.float32)
    assert np.abs(numerics.fake_quantize(x, p) - x).max() <= p.scale * 1.001


def test_asymmetric_parameters_follow_the_white_paper() -> None:
    p = numerics.params(-1.0, 3.0, "uint8", symmetric=False)  # s = 4/255, z = round(1/s) = round(63.75)
    assert p.scale == np.float32(4 / 255)
    assert p.zero_point == 64


def test_a_range_above_zero_is_widened_to_zero() -> None:
    p = numerics.params(2.0, 5.1, "uint8", symmetric=False)
    assert (p.scale, p.zero_point) == (np.float32(5.1 / 255), 0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (-1e-45, 1e-45), (-3.4e38, 3.4e38), (0.0, 1e-40)])
def test_extreme_ranges_get_a_positive_finite_scale(low: float, high: float) -> None:
    p = numerics.params(low, high, "uint8", symmetric=False)
    assert 0 < p.scale < np.inf
    assert np.isfinite(numerics.fake_quantize(np.array([low, high], np.float32), p)).all()


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1.0), (0.0, np.inf), (2.0, 1.0)])
def test_a_range_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(InputError, match="expected finite bounds"):
        numerics.params(low, high, "int8", symmetric=True)


def test_a_dead_scale_is_named_with_its_channels() -> None:
    p = QParams(np.array([1, 0, np.nan], np.float32), np.zeros(3, np.int8), 0)
    with pytest.raises(InputError, match=r"0\.0 for 2 of 3 channels \(1, 2\)"):
        numerics.quantize(np.zeros((3, 1), np.float32), p)


def test_reduced_range_keeps_products_inside_sixteen_bits() -> None:
    w = np.array([[-2.0, 1.0, 2.0]], np.float32)
    codes = numerics.quantize(w, numerics.weight_params(w, 0, reduce_range=True))
    assert np.abs(codes).max() == 64
    # The sum of two neighbouring products is what saturates at 16 bits.
    assert np.iinfo(np.int16).max >= 2 * 255 * int(np.abs(codes).max())


@pytest.mark.parametrize("weights", [[1e-30, 1.0], [0.0, 1.0], [0.0, 0.0]])
@pytest.mark.parametrize("axis", [0, None])
def test_bias_of_a_dead_channel_survives(weights: list[float], axis: int | None) -> None:
    bias = np.array([3.0, -0.25], np.float32)
    w = np.array(weights, np.float32).reshape(2, 1)
    p = numerics.fit_bias(numerics.weight_params(w, axis), bias, 0.1)
    step = np.float32(0.1) * p.scale
    back = numerics.bias_codes(bias, step) * step.astype(np.float64)
    np.testing.assert_allclose(back, bias, rtol=1e-6, atol=0.1 / 127 / 2)


def test_bias_counts_saturate_instead_of_wrapping() -> None:
    codes = numerics.bias_codes(np.array([1.0, -1.0], np.float32), np.array(1e-12, np.float32))
    assert codes.tolist() == [2**31 - 1, -(2**31)]


def test_sqnr_of_a_uniform_signal_follows_the_six_db_rule() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 100_000).astype(np.float32)
    p = numerics.params(-1.0, 1.0, "int8", symmetric=True)
    # Noise of a step s is s²/12, signal 1/3, s = 1/127.
    expected = 10 * np.log10((1 / 3) / ((1 / 127) ** 2 / 12))
    assert numerics.sqnr_db(x, numerics.fake_quantize(x, p)) == pytest.approx(expected, abs=0.1)


def test_sqnr_at_its_ends() -> None:
    one = np.ones(3)
    assert numerics.sqnr_db(one, one) == np.inf
    assert numerics.sqnr_db(0 * one, one) == -np.inf
    assert np.isnan(numerics.sqnr_db(one, one * np.nan))
