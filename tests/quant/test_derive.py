"""Functions of observed tensors against the tensors themselves."""

from __future__ import annotations

import numpy as np
import pytest

from edgeproof.model import Model
from edgeproof.quant.calibration import calibrate, observed
from edgeproof.quant.derive import heads
from edgeproof.quant.histogram import Histogram
from edgeproof.quant.ranges import find_range
from small_nets import compiled, net, node, number, samples, weight


def chain() -> Model:
    return net(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Mul", ["scale", "a"], ["b"]),
            node("Add", ["b", "three"], ["c"]),
            node("Clip", ["c", "zero", "six"], ["d"]),
            node("Mul", ["b", "d"], ["e"]),
            node("Div", ["e", "six"], ["f"]),
            node("Transpose", ["f"], ["g"], perm=[0, 2, 3, 1]),
            node("Sub", ["g", "three"], ["h"]),
            node("Neg", ["h"], ["i"]),
            node("LeakyRelu", ["i"], ["j"], alpha=0.2),
            node("Sigmoid", ["j"], ["k"]),
            node("Tanh", ["b"], ["l"]),
            node("HardSigmoid", ["b"], ["m"]),
            node("HardSwish", ["b"], ["n"]),
            node("Relu", ["b"], ["o"]),
            node("Concat", ["k", "l", "m", "n", "o"], ["y"], axis=0),
        ],
        [
            weight("w", 4, 3, 3, 3),
            number("scale", [2.5]),
            number("three", 3.0),
            number("zero", 0.0),
            number("six", 6.0),
        ],
        [1, 3, 16, 16],
    )


def test_a_chain_of_scalar_functions_is_observed_at_its_head_alone() -> None:
    found = heads(chain().graph.graph, list("abcdefghijklmno"))
    assert found == dict.fromkeys("bcdefghijklmno", "a")


def test_the_head_is_the_first_tensor_that_is_wanted() -> None:
    assert heads(chain().graph.graph, ["d", "e", "b"]) == {"d": "b", "e": "b"}
    assert heads(chain().graph.graph, ["d", "e"]) == {}  # e needs b, of which nothing is known


@pytest.mark.parametrize("name", list("bcdefghijklmno"))
def test_what_is_derived_equals_what_would_have_been_observed(name: str) -> None:
    model = chain()
    model = net([n for n in _nodes(model) if n.op_type != "Concat"], _weights(model), outputs=("o",))
    feeds = samples(model, 6)
    derived = calibrate(model, ["a", name], compiled, iter(feeds))[name]
    seen = Histogram(thin=False)
    session = compiled(observed(model, [name]))
    for sample in feeds:
        seen.update(session.run(sample)[name])
    step = (seen.high - seen.low) / 500
    assert derived.low == pytest.approx(seen.low, abs=step)
    assert derived.high == pytest.approx(seen.high, abs=step)
    assert derived.seen == seen.seen
    for method in ("percentile", "mse"):
        assert find_range(derived, method) == pytest.approx(find_range(seen, method), abs=10 * step)
    places = np.linspace(seen.low, seen.high, 40)
    shares = []
    for histogram in (derived, seen):
        counts, edges = histogram.counts()
        shares.append(np.interp(places, edges[1:], np.cumsum(counts) / counts.sum()))
    assert np.abs(shares[0] - shares[1])[1:-1].max() < 0.02


def _nodes(model: Model) -> list:
    import onnx_ir as ir

    return list(ir.to_proto(model.graph).graph.node)


def _weights(model: Model) -> list:
    import onnx_ir as ir

    return list(ir.to_proto(model.graph).graph.initializer)


@pytest.mark.parametrize(
    "middle",
    [
        node("Mul", ["a", "each"], ["b"]),  # a constant per channel
        node("Add", ["a", "x2"], ["b"]),  # two tensors
        node("Clip", ["a", "bound"], ["b"]),  # a bound that is computed
        node("MaxPool", ["a"], ["b"], kernel_shape=[1, 1]),
    ],
)
def test_what_is_no_function_of_one_number_is_observed(middle: object) -> None:
    model = net(
        [
            node("Identity", ["x"], ["x2"]),
            node("ReduceMin", ["x"], ["bound"], keepdims=0),
            node("Conv", ["x", "w"], ["a"]),
            middle,
            node("Relu", ["b"], ["y"]),
        ],
        [weight("w", 3, 3, 1, 1), number("each", np.ones((3, 1, 1)))],
    )
    assert "b" not in heads(model.graph.graph, ["a", "b"])
