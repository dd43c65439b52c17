"""Blocks of a weight: as ONNX's blocked DequantizeLinear reads them, and better than one scale for all."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edgeproof.quant.blocks import SHRINK, quantize_blocks
from edgeproof.quant.numerics import sqnr_db


def gauss(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def onnx_real(blocks) -> np.ndarray:
    """What the ONNX reference gives for the codes as int8 or uint8."""
    dtype = np.int8 if blocks.symmetric else np.uint8
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    made = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=blocks.axis, block_size=blocks.size)
    graph = helper.make_graph(
        [made],
        "g",
        [info("x", kind, None), info("s", TensorProto.FLOAT, None), info("z", kind, None)],
        [info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    feeds = {"x": blocks.codes.astype(dtype), "s": blocks.scale, "z": blocks.zero_point.astype(dtype)}
    return ReferenceEvaluator(model).run(None, feeds)[0]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_real_values_are_those_of_onnx(axis: int, symmetric: bool, bits: int) -> None:
    blocks = quantize_blocks(gauss(64, 96), axis, 32, bits, symmetric=symmetric)
    np.testing.assert_array_equal(blocks.dequantized(), onnx_real(blocks))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    assert low <= blocks.codes.min() < blocks.codes.max() <= high


def test_a_last_block_may_be_short() -> None:
    w = gauss(5, 70)
    blocks = quantize_blocks(w, 1, 32, 8, symmetric=True)
    assert blocks.scale.shape == (5, 3)
    alone = quantize_blocks(w[:, 64:], 1, 0, 8, symmetric=True)
    np.testing.assert_array_equal(blocks.codes[:, 64:], alone.codes)


def test_without_shrinking_no_value_is_off_by_more_than_half_a_step() -> None:
    w = gauss(16, 64)
    for symmetric in (True, False):
        blocks = quantize_blocks(w, 1, 16, 4, symmetric=symmetric, shrink=(1.0,))
        steps = np.repeat(blocks.scale, 16, 1)
        # A zero point is rounded to a code, which can move the ends of a range by half a step more.
        assert np.all(np.abs(blocks.dequantized() - w) <= steps * (0.5 if symmetric else 1.0) * (1 + 1e-5))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weighing_steps_never_loses_and_small_blocks_gain(symmetric: bool) -> None:
    w = gauss(64, 256)
    w[0, 7] = 40.0

    def quality(size: int, shrink: tuple[float, ...]) -> float:
        return sqnr_db(w, quantize_blocks(w, 1, size, 4, symmetric=symmetric, shrink=shrink).dequantized())

    assert quality(32, SHRINK) > quality(32, (1.0,))
    assert quality(16, SHRINK) > quality(64, SHRINK) > quality(0, SHRINK)


def test_a_block_of_zeros_and_tiny_numbers_are_kept() -> None:
    w = np.zeros((2, 32), np.float32)
    w[1] = 1e-38
    for symmetric in (True, False):
        blocks = quantize_blocks(w, 1, 32, 4, symmetric=symmetric)
        assert np.isfinite(blocks.dequantized()).all()
        assert not blocks.dequantized()[0].any()
