"""The pass that zeroes weights."""

from __future__ import annotations

import numpy as np
import pytest

from edgeproof.model import Model
from edgeproof.passes.prune_weights import PruneWeights
from edgeproof.prune.magnitude import is_two_of_four
from passes.small_models import CONTEXT, build, floats, node, reasons, run


def two() -> Model:
    return build(
        [node("Conv", "x a", "c"), node("Relu", "c", "r"), node("Conv", "r b", "y")],
        {"x": (1, 4, 5, 5)},
        "y",
        {"a": floats(8, 4, 3, 3), "b": floats(6, 8, 1, 1)},
    )


def arrays(model: Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.graph.initializers.items() if v.const_value is not None}


@pytest.mark.parametrize("pattern", ["global", "layer", "2:4"])
def test_half_of_the_weights_become_zero_and_the_rest_stays(pattern: str) -> None:
    model = two()
    change = PruneWeights(pattern)(model, CONTEXT)
    before, after = arrays(model), arrays(change.model)
    zeros = sum(int((a == 0).sum()) for a in after.values())
    assert change.facts["zeros"] == zeros
    assert zeros == change.facts["weights"] // 2
    for name, array in after.items():
        np.testing.assert_array_equal(array[array != 0], before[name][array != 0])
    assert run(change.model, {"x": floats(1, 4, 5, 5)})[0].shape == (1, 6, 3, 3)


def test_two_of_four_lies_along_the_input_channels() -> None:
    for array in arrays(PruneWeights("2:4")(two(), CONTEXT).model).values():
        assert is_two_of_four(array, 1)


def test_doing_it_again_changes_nothing() -> None:
    once = PruneWeights("2:4")(two(), CONTEXT).model
    again = PruneWeights("2:4")(once, CONTEXT)
    assert again.model is once
    assert "has those zeros already" in reasons(again)


def test_a_model_without_layers_is_returned_as_it_is() -> None:
    model = build([node("Relu", "x", "y")], {"x": (1, 4)}, "y")
    change = PruneWeights()(model, CONTEXT)
    assert change.model is model
    assert "no layer with constant weights" in reasons(change)
