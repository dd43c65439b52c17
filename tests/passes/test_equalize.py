"""Cross-layer equalisation: the float model stays, the ranges of channels meet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from edgeproof.errors import InputError
from edgeproof.model import Model
from edgeproof.passes.equalize import Equalize
from edgeproof.passes.int8 import Int8
from edgeproof.quant.numerics import sqnr_db
from small_nets import context, net, node, number, ran, samples, weight


def uneven(name: str, *shape: int) -> onnx.TensorProto:
    """Weights whose output channels span three orders of magnitude."""
    array = numpy_helper.to_array(weight(name, *shape)).copy()
    array *= np.logspace(-1.5, 1.5, shape[0]).astype(np.float32).reshape(-1, *[1] * (len(shape) - 1))
    return numpy_helper.from_array(array, name)


def two(between: list[onnx.NodeProto], *more: onnx.TensorProto, **second: Any) -> Model:
    """Convolution a → ``between`` from a to m → convolution y."""
    return net(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1] * 4),
            *between,
            node("Conv", ["m", "w2"], ["y"], name="second", **second),
        ],
        [
            uneven("w1", 8, 3, 3, 3),
            weight("b1", 8),
            weight("w2", 8 if second else 5, 8 // second.get("group", 1), 1, 1),
            *more,
        ],
    )


def without_samples(model: Model) -> Any:
    return replace(context(model), feeds=None, samples=0)


BETWEEN: dict[str, tuple[list[onnx.NodeProto], list[onnx.TensorProto]]] = {
    "relu": ([node("Relu", ["a"], ["m"], name="r")], []),
    "leaky relu": ([node("LeakyRelu", ["a"], ["m"], name="r", alpha=0.2)], []),
    "prelu": ([node("PRelu", ["a", "slope"], ["m"], name="r")], [weight("slope", 8, 1, 1)]),
    "relu and pooling": (
        [node("Relu", ["a"], ["r"], name="r"), node("MaxPool", ["r"], ["m"], name="p", kernel_shape=[2, 2])],
        [],
    ),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN.keys())
@pytest.mark.parametrize("group", [1, 2, 8])
@pytest.mark.parametrize("blind", [False, True])
def test_the_float_model_keeps_its_results(
    between: tuple[list[onnx.NodeProto], list[onnx.TensorProto]], group: int, blind: bool
) -> None:
    model = two(between[0], *between[1], **({"group": group} if group > 1 else {}))
    change = Equalize()(model, without_samples(model) if blind else context(model))
    assert change.modified
    sample = samples(model, 1, seed=4)[0]
    np.testing.assert_allclose(ran(change.model, sample), ran(model, sample), rtol=1e-6, atol=1e-6)


def test_without_samples_weight_ranges_meet_as_in_the_paper() -> None:
    model = two([node("Relu", ["a"], ["m"], name="r")])
    made = Equalize()(model, without_samples(model)).model
    held = {n: v.const_value.numpy() for n, v in made.graph.graph.initializers.items() if v.const_value is not None}
    first = np.abs(next(a for n, a in held.items() if n.startswith("w1"))).max(axis=(1, 2, 3))
    second = np.abs(next(a for n, a in held.items() if n.startswith("w2"))).max(axis=(0, 2, 3))
    # Eq. 10: the optimum is r1 = r2 for every channel, up to one factor for all; powers of two stay within sqrt(2).
    ratio = np.log2(first / second)
    assert np.ptp(ratio) <= 2.0 + 1e-6


def test_int8_is_closer_to_the_float_model_afterwards() -> None:
    # Every channel matters as much to the result, however small it is in between.
    model = two([node("Relu", ["a"], ["m"], name="r")])
    tensor = model.graph.graph.initializers["w2"].const_value
    assert tensor is not None
    evened = tensor.numpy() / np.logspace(-1.5, 1.5, 8).astype(np.float32).reshape(1, 8, 1, 1)
    model.graph.graph.initializers["w2"].const_value = ir.tensor(evened, name="w2")
    model = Model.of(model.graph, "even")
    equal = Equalize()(model, context(model, 16)).model
    plain, better = (Int8("minmax")(m, context(m, 16)).model for m in (model, equal))
    held_out = samples(model, 8, seed=8)
    before, after = (np.mean([sqnr_db(ran(model, s), ran(m, s)) for s in held_out]) for m in (plain, better))
    assert after > before + 4.0


def clipped(end: float) -> Model:
    return two([node("Clip", ["a", "zero", "end"], ["m"], name="clip")], number("zero", 0.0), number("end", end))


def test_a_clip_that_samples_reach_is_left_with_how_many_channels_do() -> None:
    model = clipped(6.0)
    change = Equalize()(model, context(model))
    assert not change.modified
    reasons = dict(change.declined)
    assert reasons["clip"].startswith("clips at 6, which ")
    assert reasons["clip"].endswith(" of 8 channels reach")


def test_a_clip_that_no_sample_reaches_is_made_a_relu_when_that_is_allowed() -> None:
    model = clipped(1e4)
    change = Equalize()(model, context(model))
    assert [n.op_type for n in change.model.graph.graph] == ["Conv", "Relu", "Conv"]
    sample = samples(model, 1)[0]
    np.testing.assert_allclose(ran(change.model, sample), ran(model, sample), rtol=1e-6, atol=1e-6)
    assert "relu6=false" in dict(Equalize(relu6=False)(model, context(model)).declined)["clip"]
    assert "no samples" in dict(Equalize()(model, without_samples(model)).declined)["clip"]


def test_hard_swish_is_left_with_the_reason() -> None:
    model = two([node("HardSwish", ["a"], ["m"], name="swish")])
    change = Equalize()(model, context(model))
    assert not change.modified
    assert dict(change.declined)["first"] == "swish (HardSwish) follows, which is not homogeneous"


def test_an_output_that_is_read_twice_is_left() -> None:
    model = two([node("Relu", ["a"], ["m"], name="r"), node("Sigmoid", ["a"], ["z"], name="s")])
    assert dict(Equalize()(model, context(model)).declined)["first"] == "its output is read more than once"


def test_no_rounds_are_refused() -> None:
    model = clipped(6.0)
    with pytest.raises(InputError, match="rounds"):
        Equalize(rounds=0)(model, context(model))
