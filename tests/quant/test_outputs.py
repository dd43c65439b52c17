"""Scales per channel behind convolutions: the kernel stays, every channel has its own range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.quant import outputs
from edgeproof.quant.numerics import params, sqnr_db
from small_nets import TENSORRT, context, executed, net, node, ran, samples, weight


def uneven(channels: int, *shape: int) -> onnx.TensorProto:
    """Output channels that span four orders of magnitude."""
    array = numpy_helper.to_array(weight("w", channels, *shape))
    scale = np.logspace(-3, 1, channels, dtype=np.float32).reshape(-1, *[1] * len(shape))
    return numpy_helper.from_array(array * scale, "w")


def before(op: str, *, bias: bool = True, **attributes: float) -> Model:
    """One convolution and an operator in float that reads it."""
    return net(
        [
            node("Conv", ["x", "w", "b"] if bias else ["x", "w"], ["a"], name="conv", pads=[1] * 4),
            node(op, ["a"], ["y"], name="reader", **attributes),
        ],
        [uneven(8, 3, 3, 3), *([weight("b", 8)] if bias else [])],
    )


def quantised(model: Model, **settings: bool) -> Model:
    return Int8(followers=False, **settings)(model, context(model)).model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("op", ["Tanh", "HardSwish"])
def test_every_channel_keeps_its_accuracy_however_small_it_is(op: str, bias: bool) -> None:
    model = before(op, bias=bias)
    sample = samples(model, 1)[0]
    want = ran(model, sample)
    plain, own = (ran(quantised(model, channel_outputs=on), sample) for on in (False, True))
    ratio = [[sqnr_db(want[:, c], got[:, c]) for c in range(8)] for got in (plain, own)]
    assert min(ratio[1]) > 20.0
    assert min(ratio[1]) > min(ratio[0])


def test_the_codes_of_the_weights_stay_and_the_convolution_runs_in_integers() -> None:
    model = before("Tanh")
    plain, own = (quantised(model, channel_outputs=on) for on in (False, True))
    codes = [
        [v.const_value.numpy() for v in m.graph.graph.initializers.values() if v.const_value is not None]
        for m in (plain, own)
    ]
    weights = [next(a for a in arrays if a.dtype == np.int8 and a.ndim == 4) for arrays in codes]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert "QLinearConv" in executed(own).values()
    assert "Conv" not in executed(own).values()


def test_the_result_is_the_float_result_rounded_to_a_grid_per_channel() -> None:
    # The input and the weights lie on their grids, so that all that rounds is the output.
    rng = np.random.default_rng(1)
    w = rng.integers(-127, 128, (4, 3, 1, 1)).astype(np.float32)
    w[:, 0] = 127.0
    w *= np.array([0.001, 0.01, 0.1, 1.0], np.float32).reshape(4, 1, 1, 1)
    model = net(
        [node("Conv", ["x", "w"], ["a"], name="conv"), node("Neg", ["a"], ["y"], name="reader")],
        [numpy_helper.from_array(w, "w")],
    )
    x = {"x": rng.integers(0, 256, (1, 3, 16, 16)).astype(np.float32)}
    x["x"][0, 0, 0, :2] = 0, 255
    made = Int8(followers=False, channel_outputs=True)(model, replace(context(model), feeds=lambda: iter([x]))).model
    a = np.einsum("oi,nihw->nohw", w[:, :, 0, 0].astype(np.float64), x["x"].astype(np.float64))
    low, high = (f(a, axis=(0, 2, 3)) for f in (np.min, np.max))
    p = params(low, high, "uint8", symmetric=False)
    s, z = p.scale.reshape(1, 4, 1, 1), p.zero_point.reshape(1, 4, 1, 1).astype(np.float64)
    want = (np.clip(np.rint(a / s) + z, 0, 255) - z) * s
    got = -ran(made, x).astype(np.float64)
    # A tie may round the other way where the kernel multiplies in float32.
    np.testing.assert_allclose(got / s, want / s, atol=1.01)
    assert np.mean(np.abs(got / s - want / s) < 1e-3) > 0.98


def test_no_code_is_spent_on_what_a_hard_swish_makes_zero_of() -> None:
    model = before("HardSwish")
    value = model.graph.graph.node("conv").outputs[0]
    zone = outputs.dead_zone(value)
    assert zone == (-3.0, np.inf)
    p = outputs.parameters(np.array([-20.0, -0.5]), np.array([5.0, 1.0]), zone, "uint8")
    np.testing.assert_allclose(p.scale, [8.0 / 255, 1.5 / 255], rtol=1e-6)
    np.testing.assert_array_equal(p.zero_point, [round(3 / 8 * 255), 85])


def test_a_hard_sigmoid_is_flat_at_both_ends() -> None:
    model = before("HardSigmoid", alpha=0.25, beta=0.5)
    assert outputs.dead_zone(model.graph.graph.node("conv").outputs[0]) == (-2.0, 2.0)


def test_what_another_operator_reads_has_no_dead_zone() -> None:
    assert outputs.dead_zone(before("Tanh").graph.graph.node("conv").outputs[0]) == (-np.inf, np.inf)


def test_a_silent_channel_does_no_harm() -> None:
    w = numpy_helper.to_array(weight("w", 8, 3, 3, 3)).copy()
    w[3] = 0.0
    model = net(
        [node("Conv", ["x", "w"], ["a"], name="conv"), node("Tanh", ["a"], ["y"], name="reader")],
        [numpy_helper.from_array(w, "w")],
    )
    sample = samples(model, 1)[0]
    got = ran(quantised(model, channel_outputs=True), sample)
    assert sqnr_db(ran(model, sample), got) > 30
    np.testing.assert_allclose(got[:, 3], 0.0, atol=1e-6)


def test_a_tensor_that_a_convolution_reads_keeps_one_scale() -> None:
    model = net(
        [node("Conv", ["x", "w"], ["a"], name="first"), node("Conv", ["a", "v"], ["y"], name="second")],
        [uneven(8, 3, 3, 3), weight("v", 4, 8, 1, 1)],
    )
    scales = [
        n.inputs[1].const_value
        for n in quantised(model, channel_outputs=True).graph.graph
        if n.op_type == "QuantizeLinear"
    ]
    assert all(s is not None and s.size == 1 for s in scales)


def test_a_target_without_such_scales_gets_none() -> None:
    model = before("Tanh")
    change = Int8(channel_outputs=True)(model, context(model, target=TENSORRT))
    assert change.facts["channel_outputs"] == 0
