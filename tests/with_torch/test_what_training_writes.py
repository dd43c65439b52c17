"""What was trained stands in the file wherever the file keeps it, and is judged by samples that nothing learns from."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from edgeproof.model import Model
from edgeproof.train.child import train
from edgeproof.train.fit import Training
from edgeproof.train.losses import Term
from edgeproof.train.torch import IMPL as TORCH
from small_nets import net, node, number, ran, samples, weight

BODY = [
    node("Conv", ["x", "w1"], ["c"], name="conv", pads=[1] * 4),
    node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="norm"),
    node("Relu", ["n"], ["r"], name="relu"),
    node("GlobalAveragePool", ["r"], ["p"], name="pool"),
    node("Flatten", ["p"], ["f"], name="flat"),
    node("MatMul", ["f", "w2"], ["y"], name="scores"),
]
SHAPE = ("N", 3, 6, 6)


def tensors(seed: int) -> list:
    scores = numpy_helper.to_array(weight("w2", 4, 2, seed=seed))
    scores = scores[:, :1] + 0.01 * scores  # both scores of a sample are nearly alike
    return [
        weight("w1", 4, 3, 3, 3, seed=seed),
        number("g", [1.0, 0.9, 1.1, 1.0]),
        number("b", [0.1, 0.2, 0.0, -0.1]),
        number("m", np.zeros(4)),
        number("v", np.ones(4)),
        number("w2", scores),
    ]


def stored(seed: int) -> Model:
    return net(BODY, tensors(seed), SHAPE)


def in_nodes(seed: int) -> Model:
    """The same with every tensor in a Constant node, as Paddle's exporter writes them."""
    constants = [node("Constant", [], [t.name], name=f"k_{t.name}", value=t) for t in tensors(seed)]
    return net([*constants, *BODY], [], SHAPE)


def feeds(model: Model, count: int) -> list:
    return [{"x": f["x"][:1]} for f in samples(model, count, seed=4)]


@pytest.mark.parametrize("norms", ["frozen", "trained"])
def test_tensors_in_constant_nodes_are_written_back_too(norms):
    settings = Training(terms=(Term("mse", "y"),), rate=3e-2, epochs=6, norms=norms, threads=1)
    found = {}
    for made in (stored, in_nodes):
        teacher, student = made(1), made(2)
        taught, epochs = train(student, teacher, feeds(student, 48), settings, engine_name="torch")
        assert epochs[-1].held_out < epochs[0].held_out
        assert [n.op_type for n in taught.graph.graph] == [n.op_type for n in student.graph.graph]
        found[made] = ran(taught, feeds(student, 1)[0])
        assert not np.allclose(found[made], ran(student, feeds(student, 1)[0]))
    np.testing.assert_allclose(found[in_nodes], found[stored], rtol=1e-5)


@pytest.mark.parametrize("bounds", [["low", "high"], ["", "high"], ["low", ""]])
def test_nothing_flows_back_where_clip_clips(bounds):
    low, high = -0.5 if bounds[0] else -np.inf, 0.75 if bounds[1] else np.inf
    ends = [number("low", -0.5), number("high", 0.75)]
    model = net(
        [node("Mul", ["x", "w"], ["s"]), node("Clip", ["s", *bounds], ["y"])],
        [number("w", [1.0, 2.0, 0.5, -1.0]), *ends],
        (8, 4),
    )
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    w, wanted = np.array([1.0, 2.0, 0.5, -1.0]), np.zeros((8, 4), np.float32)
    learner = TORCH().learner(model, None, Training(terms=(Term("mse", "y", variance=1.0),), threads=1))
    loss, found = learner.gradients({"x": x}, {"y": wanted})
    y = np.clip(x * w, low, high)
    inside = (x * w > low) & (x * w < high)
    assert loss == pytest.approx(np.mean(y**2), rel=1e-5)
    np.testing.assert_allclose(found["w"], (2 * y * inside * x).sum(0) / y.size, rtol=1e-4, atol=1e-6)


def test_held_out_loss_is_of_the_same_size_as_that_of_the_steps():
    settings = Training(terms=(Term("mse", "y"),), rate=1e-6, epochs=1, threads=1)
    _, (epoch,) = train(stored(2), stored(1), feeds(stored(2), 64), settings, engine_name="torch")
    # Over the variance of one sample's two scores it would be thousands of times as much.
    assert epoch.loss / 3 < epoch.held_out < 3 * epoch.loss
