"""Levelling: the float model stays, every channel gets its codes, and convolutions still run in integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.passes.level import Level
from edgeproof.quant.numerics import sqnr_db
from small_nets import context, executed, net, node, number, ran, samples, weight


def uneven(name: str, *shape: int, span: float = 1.5) -> onnx.TensorProto:
    """Weights whose output channels span orders of magnitude."""
    array = numpy_helper.to_array(weight(name, *shape)).copy()
    array *= np.logspace(-span, span, shape[0]).astype(np.float32).reshape(-1, *[1] * (len(shape) - 1))
    return numpy_helper.from_array(array, name)


def swished(*, gate: bool = False) -> Model:
    """Convolution, hard-swish (or x times its own hard-sigmoid), depthwise and pointwise convolution, residual sum."""
    between = [node("HardSwish", ["a"], ["h"], name="swish")]
    if gate:
        between = [
            node("HardSigmoid", ["a"], ["g"], name="gate", alpha=1 / 6, beta=0.5),
            node("Mul", ["a", "g"], ["h"], name="product"),
        ]
    return net(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1] * 4),
            *between,
            node("Conv", ["h", "w2"], ["d"], name="deep", pads=[1] * 4, group=8),
            node("Relu", ["d"], ["r"], name="relu"),
            node("Conv", ["r", "w3"], ["p"], name="point"),
            node("Add", ["p", "h"], ["y"], name="sum"),
        ],
        [uneven("w1", 8, 3, 3, 3), weight("b1", 8), uneven("w2", 8, 1, 3, 3), weight("w3", 8, 8, 1, 1)],
    )


@pytest.mark.parametrize("gate", [False, True])
def test_the_float_model_keeps_its_results_on_samples_that_were_not_seen_as_well(gate: bool) -> None:
    model = swished(gate=gate)
    change = Level()(model, context(model))
    assert change.modified
    sample = {"x": samples(model, 1, seed=4)[0]["x"] * np.float32(5)}  # beyond all that was seen
    want = ran(model, sample)
    np.testing.assert_allclose(ran(change.model, sample), want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))


def every_channel_matters() -> Model:
    """Pointwise convolutions around a hard-swish, the second with large weights for small channels."""
    inverse = numpy_helper.to_array(weight("w2", 6, 8, 1, 1)) / np.logspace(-2, 1, 8, dtype=np.float32).reshape(8, 1, 1)
    rows = numpy_helper.to_array(weight("w1", 8, 3, 3, 3)) * np.logspace(-2, 1, 8, dtype=np.float32).reshape(8, 1, 1, 1)
    return net(
        [
            node("Conv", ["x", "w1"], ["a"], name="first", pads=[1] * 4),
            node("HardSwish", ["a"], ["h"], name="swish"),
            node("Conv", ["h", "w2"], ["y"], name="second"),
        ],
        [numpy_helper.from_array(rows, "w1"), numpy_helper.from_array(inverse.astype(np.float32), "w2")],
    )


def test_int8_is_far_closer_to_the_float_model_afterwards() -> None:
    model = every_channel_matters()
    sample = samples(model, 1, seed=9)[0]
    want = ran(model, sample)
    quantise = Int8(followers=False, channel_outputs=True)
    before = sqnr_db(want, ran(quantise(model, context(model)).model, sample))
    level = Level()(model, context(model)).model
    assert sqnr_db(want, ran(quantise(level, context(level)).model, sample)) > before + 10


def test_all_convolutions_run_in_integers_behind_it() -> None:
    model = swished()
    level = Level()(model, context(model)).model
    ops = list(executed(Int8(followers=False)(level, context(level)).model).values())
    assert ops.count("QLinearConv") == 3
    assert "Conv" not in ops


def test_a_clip_of_its_own_keeps_a_tensor_as_it_is() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="first", pads=[1] * 4),
            node("Clip", ["a", "low", "high"], ["h"], name="relu6"),
            node("Conv", ["h", "w2"], ["y"], name="second"),
        ],
        [uneven("w1", 8, 3, 3, 3), weight("w2", 8, 8, 1, 1), number("low", 0.0), number("high", 6.0)],
    )
    sample = samples(model, 1, seed=3)[0]
    np.testing.assert_allclose(ran(Level()(model, context(model)).model, sample), ran(model, sample), atol=1e-4)


def test_a_net_without_convolutions_is_declined() -> None:
    model = net([node("Relu", ["x"], ["y"], name="r")])
    change = Level()(model, context(model))
    assert not change.modified
    assert "no convolutions" in change.declined[0][1]


def test_without_samples_it_says_so() -> None:
    model = swished()
    with pytest.raises(InputError, match=r"level\.samples"):
        Level()(model, replace(context(model), feeds=None, samples=0))
