from dataclasses import replace

import numpy as np
import pytest

from edgeproof.passes.spell_activations import SpellActivations
from edgeproof.quant.schemes import OPENVINO
from passes.small_models import CONTEXT, TARGET, build, floats, node, ops, run

FOR_OPENVINO = replace(CONTEXT, target=replace(TARGET, scheme=OPENVINO))
FOR_ORT = replace(CONTEXT, target=TARGET)
X = {"x": floats(1, 3, 5, 5) * 4}


def net(*nodes, outputs="y", opset=13):
    return build(list(nodes), {"x": (1, 3, 5, 5)}, outputs, opset=opset)


GATED = net(node("HardSigmoid", "x", "g", alpha=1 / 6, beta=0.5), node("Mul", "x g", "y"))
ALONE = net(node("HardSigmoid", "x", "y", alpha=0.2, beta=0.5))


@pytest.mark.parametrize(
    ("model", "want"),
    [(GATED, {"HardSwish": 1}), (ALONE, {"Add": 1, "Clip": 1, "Mul": 1})],
    ids=["a product becomes HardSwish", "a gate is spelled out"],
)
def test_openvino_gets_the_form_that_it_fuses_with_the_same_values(model, want):
    change = SpellActivations()(model, FOR_OPENVINO)
    assert ops(change.model) == want
    assert [o.name for o in change.model.outputs] == ["y"]
    np.testing.assert_allclose(run(change.model, X)[0], run(model, X)[0], atol=1e-6)


def test_the_original_is_left_as_it_was():
    before = GATED.digest
    SpellActivations()(GATED, FOR_OPENVINO)
    assert type(GATED).of(GATED.graph, GATED.name).digest == before


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ((node("HardSigmoid", "x", "g", alpha=0.2, beta=0.5), node("Mul", "x g", "y")), "another slope"),
        ((node("HardSigmoid", "x", "g", alpha=1 / 6, beta=0.5), node("Mul", "g g", "y")), "not its own input"),
    ],
)
def test_a_product_that_is_no_hard_swish_is_only_spelled_out(nodes, left):
    change = SpellActivations()(net(*nodes), FOR_OPENVINO)
    assert "HardSwish" not in ops(change.model), left
    assert "HardSigmoid" not in ops(change.model)
    np.testing.assert_allclose(run(change.model, X)[0], run(net(*nodes), X)[0], atol=1e-6)


def test_a_gate_that_is_an_output_too_is_not_joined():
    model = net(node("HardSigmoid", "x", "g", alpha=1 / 6, beta=0.5), node("Mul", "x g", "y"), outputs="g y")
    change = SpellActivations()(model, FOR_OPENVINO)
    assert "HardSwish" not in ops(change.model)
    for got, want in zip(run(change.model, X), run(model, X), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "context", "why"),
    [
        (GATED, FOR_ORT, "takes hard activations as they are"),
        (GATED, CONTEXT, "takes hard activations as they are"),
        (net(node("Relu", "x", "y")), FOR_OPENVINO, "has no HardSigmoid"),
    ],
    ids=["onnxruntime", "no target", "nothing to do"],
)
def test_it_leaves_alone_and_says_why(model, context, why):
    change = SpellActivations()(model, context)
    assert not change.modified
    assert change.model is model
    assert why in change.declined[0][1]
