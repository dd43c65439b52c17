"""ONNX Runtime must not quantise what the placement left in float."""

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof.passes.int8 import Int8
from edgeproof.quant.guard import guard, unguard
from edgeproof.quant.sensitivity import model_error
from small_nets import CPU, compiled, context, net, node, number, samples, weight


def separable_net(activation: str = "Clip"):
    """Pointwise, depthwise, pointwise; the depthwise weight's channels differ by a factor of 20."""
    spread = np.geomspace(0.02, 0.4, 8, dtype=np.float32).reshape(8, 1, 1, 1)
    depthwise = np.random.default_rng(1).standard_normal((8, 1, 3, 3)).astype(np.float32) * spread
    last = np.random.default_rng(2).standard_normal((4, 8, 1, 1)).astype(np.float32) / spread.reshape(1, 8, 1, 1)
    between = {
        "Clip": [node("Clip", ["d", "zero", "six"], ["e"], name="act")],
        "Relu": [node("Relu", ["d"], ["e"], name="act")],
        "": [],
    }[activation]
    return net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1"),
            node("Conv", ["a", "w2"], ["d"], name="dw", group=8, pads=[1] * 4),
            *between,
            node("Conv", ["e" if between else "d", "w3"], ["y"], name="c3"),
        ],
        [
            weight("w1", 8, 3, 1, 1),
            number("w2", depthwise),
            number("w3", last),
            number("zero", 0.0),
            number("six", 6.0),
        ],
        opset=19,
    )


def unguarded(model):
    """The same without the guard's Clip."""
    graph = model.graph.clone()
    unguard(graph.graph)
    return type(model)(model.name, model.digest, model.inputs, model.outputs, graph)


@pytest.mark.parametrize("activation", ["Clip", "Relu", ""])
def test_a_layer_left_in_float_computes_as_onnx_defines_it(activation):
    from edgeproof.backends.reference import Reference

    model = separable_net(activation)
    int8 = Int8(method="minmax", depthwise=False)(model, context(model)).model
    feeds = samples(model, 4, seed=5)
    reference = lambda m: Reference().compile(m, CPU)  # noqa: E731
    want = model_error(model, int8, reference, feeds)
    assert model_error(model, int8, compiled, feeds) == pytest.approx(want, rel=0.15)


def test_without_the_guard_the_runtime_would_quantise_the_layer():
    model = separable_net()
    int8 = Int8(method="minmax", depthwise=False)(model, context(model)).model
    feeds = samples(model, 4, seed=5)
    assert model_error(model, unguarded(int8), compiled, feeds) > 1.5 * model_error(model, int8, compiled, feeds)


def test_the_guard_changes_no_value():
    from edgeproof.backends.reference import Reference

    model = separable_net()
    int8 = Int8(method="minmax", depthwise=False)(model, context(model)).model
    feeds = samples(model, 4, seed=6)
    assert model_error(unguarded(int8), int8, lambda m: Reference().compile(m, CPU), feeds) == 0.0


def test_integer_layers_and_layers_at_the_ends_get_no_guard():
    model = separable_net()
    assert not [n for n in Int8()(model, context(model)).model.graph.graph if ".guard." in (n.name or "")]
    last = Int8(keep="c3")(model, context(model)).model
    assert guard(ir.from_proto(ir.to_proto(last.graph)).graph) == 0


def test_guards_can_be_taken_out_again():
    model = separable_net()
    int8 = Int8(method="minmax", depthwise=False)(model, context(model)).model
    assert [n.op_type for n in int8.graph.graph].count("Clip") == 2
    assert [n.op_type for n in unguarded(int8).graph.graph].count("Clip") == 1
