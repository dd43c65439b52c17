"""Both engines on the same graphs: the same loss, the same gradients, the same steps. Needs tinygrad beside torch."""

import numpy as np
import pytest

from edgeproof.passes.int8 import Int8
from edgeproof.train.fit import Training
from edgeproof.train.losses import Term
from edgeproof.train.tinygrad import IMPL as TINYGRAD
from edgeproof.train.torch import IMPL as TORCH
from small_nets import context, net, node, number, ran, samples, weight

FLOAT, LOOSE = 1e-4, 5e-2
"""Differences as a share of the largest gradient; the second where values are rounded to codes."""


def both(model, original, feeds, wanted, terms, **settings):
    training = Training(terms=terms, threads=1, **settings)
    found = []
    for implementation in (TORCH, TINYGRAD):
        learner = implementation().learner(model, original, training)
        loss, gradients = learner.gradients(feeds, wanted)
        outputs = learner.outputs(feeds)
        losses = [learner.step([(feeds, wanted)], 1e-3) for _ in range(2)] if settings else []
        found.append((loss, gradients, outputs, losses))
        learner.close()
    return found


def check(found, loose=()):
    (loss, gradients, outputs, losses), (other_loss, others, other_outputs, other_losses) = found
    assert other_loss == pytest.approx(loss, rel=1e-4)
    assert set(others) == set(gradients)
    for name in outputs:
        np.testing.assert_allclose(other_outputs[name], outputs[name], rtol=1e-4, atol=1e-5)
    # A scale's gradient is a difference of sums, and may be nothing but what rounding left of them.
    noise = (1e-3 if loose else 1e-6) * max(np.abs(g).max() for g in gradients.values())
    for name, gradient in gradients.items():
        allowed = (LOOSE if name in loose else FLOAT) * np.abs(gradient).max() + noise
        assert np.abs(others[name] - gradient).max() <= allowed, name
    np.testing.assert_allclose(other_losses, losses, rtol=1e-3)


OPERATORS = {
    "Conv": ([node("Conv", ["x", "w"], ["y"], pads=[1, 0, 1, 2], strides=[2, 1])], [weight("w", 3, 2, 3, 3)]),
    "grouped": ([node("Conv", ["x", "w"], ["y"], group=2)], [weight("w", 4, 1, 3, 3)]),
    "ConvTranspose": ([node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])], [weight("w", 2, 3, 2, 2)]),
    "Gemm": (
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["y"], alpha=0.5, transB=1)],
        [weight("w", 3, 50), weight("b", 3)],
    ),
    "MatMul": ([node("MatMul", ["x", "w"], ["y"])], [weight("w", 5, 3)]),
    "Mul": ([node("Mul", ["x", "w"], ["y"])], [weight("w", 2, 1, 1)]),
    "Div": ([node("Div", ["x", "w"], ["y"])], [number("w", [[[2.0]], [[-3.0]]])]),
    "PRelu": ([node("PRelu", ["x", "w"], ["y"])], [weight("w", 2, 1, 1)]),
    "BatchNormalization": (
        [node("BatchNormalization", ["x", "w", "b", "m", "v"], ["y"])],
        [weight("w", 2), weight("b", 2), number("m", [0.1, -0.1]), number("v", [1.0, 0.5])],
    ),
    "LayerNormalization": ([node("LayerNormalization", ["x", "w", "b"], ["y"])], [weight("w", 5), weight("b", 5)]),
    "InstanceNormalization": (
        [node("InstanceNormalization", ["x", "w", "b"], ["y"])],
        [weight("w", 2), weight("b", 2)],
    ),
}
AFTER = ("Relu", "Sigmoid", "Tanh", "Softplus", "Elu", "LeakyRelu", "Exp", "Abs", "Softmax", "HardSwish", "HardSigmoid")
for _name in AFTER:
    OPERATORS[_name] = ([node("Mul", ["x", "w"], ["h"]), node(_name, ["h"], ["y"])], [weight("w", 2, 1, 1)])
POOLS = {
    "MaxPool": {"kernel_shape": [2, 2]},
    "AveragePool": {"kernel_shape": [3, 3], "pads": [1] * 4},
    "GlobalAveragePool": {},
}
for _name, _facts in POOLS.items():
    OPERATORS[_name] = ([node("Mul", ["x", "w"], ["h"]), node(_name, ["h"], ["y"], **_facts)], [weight("w", 2, 1, 1)])


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_the_same_gradients(name):
    nodes, weights = OPERATORS[name]
    model = net(nodes, weights, (2, 2, 5, 5))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 2, 5, 5)).astype(np.float32)}
    wanted = {"y": rng.standard_normal(ran(model, feeds).shape).astype(np.float32)}
    check(both(model, None, feeds, wanted, (Term("mse", "y"),)))


TERMS = {
    "mse": (Term("mse", "y"),),
    "kl": (Term("kl", "y", 2.0, 4.0),),
    "cross_entropy": (Term("cross_entropy", "y"),),
    "relation": (Term("relation", "y"),),
}


@pytest.mark.parametrize("kind", TERMS)
def test_every_loss_is_the_same(kind):
    model = net([node("Gemm", ["x", "w"], ["y"])], [weight("w", 4, 3)], (5, 4))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5, 4)).astype(np.float32)}
    wanted = {"y": rng.standard_normal((5, 3)).astype(np.float32), "labels": np.array([0, 2, 1, 1, 0])}
    check(both(model, None, feeds, wanted, TERMS[kind]))


def normed():
    return net(
        [
            node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
            node("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"]),
            node("Sigmoid", ["n"], ["s"]),
            node("GlobalAveragePool", ["s"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "w2"], ["y"], transB=1),
        ],
        [
            weight("w1", 4, 3, 3, 3),
            number("g", [1.0, 0.5, 1.5, 2.0]),
            weight("b", 4),
            number("m", [0.1, -0.1, 0.0, 0.2]),
            number("v", [1.0, 0.5, 2.0, 1.0]),
            weight("w2", 3, 4),
        ],
        (3, 3, 5, 5),
    )


@pytest.mark.parametrize("settings", [{"norms": "trained"}, {"optimizer": "sgd", "decay": 0.1, "l1": 1e-3}])
def test_a_net_with_batch_norms_takes_the_same_steps(settings):
    model = normed()
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 3, 5, 5)).astype(np.float32)}
    wanted = {"y": np.eye(3, dtype=np.float32)}
    check(both(model, None, feeds, wanted, (Term("mse", "y"),), **settings))


def residual():
    return net(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4),
            node("Relu", ["a"], ["r"]),
            node("Conv", ["r", "w2"], ["c"]),
            node("Add", ["c", "r"], ["s"]),
            node("GlobalAveragePool", ["s"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "w3"], ["y"], transB=1),
        ],
        [weight("w1", 4, 3, 3, 3), weight("b1", 4), weight("w2", 4, 4, 1, 1), weight("w3", 3, 4)],
        (2, 3, 4, 4),
    )


@pytest.mark.parametrize(("make", "per_channel"), [(residual, True), (normed, False)])
def test_a_quantised_net_has_the_same_gradients(make, per_channel):
    model = make()
    quantised = Int8(per_channel=per_channel)(model, context(model, 8)).model
    feeds = samples(model, 1, seed=5)[0]
    wanted = {"y": ran(model, feeds) * np.float32(1.1)}
    found = both(quantised, model, feeds, wanted, (Term("mse", "y"),))
    # A sum in another order may fall on the other side of the edge between two codes.
    check(found, loose=set(found[0][1]))
