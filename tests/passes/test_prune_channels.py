"""The pass that removes channels: what it keeps, says and declines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.graph.cost import cost
from edgeproof.model import Model
from edgeproof.passes.prune_channels import PruneChannels
from passes.small_models import CONTEXT, build, floats, node, reasons, run

RNG = np.random.default_rng(5)


def residual(batch: int | str = 2) -> Model:
    return build(
        [
            node("Conv", "x a ab", "c", pads=[1] * 4),
            node("Relu", "c", "r"),
            node("Conv", "r b", "d", pads=[1] * 4),
            node("Add", "d r", "s"),
            node("Relu", "s", "t"),
            node("Conv", "t e", "u"),
            node("GlobalAveragePool", "u", "g"),
            node("Flatten", "g", "f"),
            node("Gemm", "f fc", "y", transB=1),
        ],
        {"x": (batch, 3, 8, 8)},
        "y",
        {
            "a": floats(16, 3, 3, 3),
            "ab": floats(16),
            "b": floats(16, 16, 3, 3),
            "e": floats(32, 16, 1, 1),
            "fc": floats(4, 32),
        },
    )


def test_half_of_the_work_is_left_and_the_interface_stays() -> None:
    model = residual()
    digest = Model.of(model.graph, "again").digest
    change = PruneChannels(0.5, round_to=1)(model, CONTEXT)
    assert change.modified
    assert Model.of(model.graph, "again").digest == digest
    assert (change.model.inputs, change.model.outputs) == (model.inputs, model.outputs)
    before, after = (cost(m).macs for m in (model, change.model))
    assert before is not None
    assert after is not None
    assert change.facts["macs"] == [before.value, after.value]
    assert after.value <= 0.5 * before.value
    assert run(change.model, {"x": floats(2, 3, 8, 8)})[0].shape == (2, 4)


def test_every_layer_is_accounted_for() -> None:
    change = PruneChannels(0.5)(residual(), CONTEXT)
    layers = {row["name"]: row for row in change.facts["layers"]}
    # Of 16 and 32 channels in multiples of 8; 8·8 places, kernels of 9 and 1.
    assert layers["Conv_c"]["channels"] == (16, 8)
    assert layers["Conv_c"]["macs"] == (2 * 64 * 16 * 27, 2 * 64 * 8 * 27)
    assert layers["Conv_c"]["parameters"] == (16 * 27 + 16, 8 * 27 + 8)
    assert layers["Conv_d"]["macs"] == (2 * 64 * 16 * 16 * 9, 2 * 64 * 8 * 8 * 9)
    assert layers["Gemm_y"]["channels"] == (4, 4)
    assert sum(row["macs"][1] for row in layers.values()) == change.facts["macs"][1]
    assert change.applied[0].endswith(" multiply-accumulates are left")
    assert any(line.startswith("Conv_d (Conv): 16 channels became 8") for line in change.applied)


def test_layers_that_stay_are_declined_with_the_reason() -> None:
    change = PruneChannels(0.5)(residual(), CONTEXT)
    assert "Gemm_y: its channels stay: the output 'y' keeps its shape" in reasons(change)


def test_an_open_batch_stays_open() -> None:
    change = PruneChannels(0.5)(residual("n"), CONTEXT)
    assert change.model.inputs[0].shape == ("n", 3, 8, 8)
    for n in (1, 3):
        assert run(change.model, {"x": floats(n, 3, 8, 8)})[0].shape == (n, 4)


def test_a_share_that_cannot_be_reached_is_said() -> None:
    change = PruneChannels(0.05, exclude="Conv_c,Conv_d")(residual(), CONTEXT)
    assert "not 5%: the rest has to stay" in reasons(change)
    assert {row["name"]: row["channels"] for row in change.facts["layers"]}["Conv_c"] == (16, 16)


def test_a_model_with_nothing_to_remove_is_returned_as_it_is() -> None:
    model = build([node("Conv", "x a", "y")], {"x": (1, 3, 4, 4)}, "y", {"a": floats(8, 3, 1, 1)})
    change = PruneChannels()(model, CONTEXT)
    assert change.model is model
    assert "nothing to remove" in reasons(change)


@pytest.mark.parametrize("criterion", ["activation", "contribution"])
def test_samples_decide_where_they_are_asked(criterion: str) -> None:
    model = residual()
    dark = np.zeros((2, 3, 8, 8), np.float32)
    context = replace(CONTEXT, feeds=lambda: iter([{"x": dark}]), samples=1)
    change = PruneChannels(0.5, criterion, round_to=1)(model, context)
    # On black pictures the first layer gives its bias, so the channels of the smallest biases carry least.
    bias = model.graph.graph.initializers["ab"].const_value
    kept = change.model.graph.graph.initializers["ab"].const_value
    assert bias is not None
    assert kept is not None
    assert len(kept.numpy()) < 16
    if criterion == "activation":
        assert set(kept.numpy()) - set(bias.numpy()) == set()


def test_without_samples_a_criterion_that_needs_them_is_refused() -> None:
    with pytest.raises(InputError, match="needs samples"):
        PruneChannels(0.5, "activation")(residual(), CONTEXT)


def test_without_a_batch_norm_its_scale_says_nothing_and_all_stays() -> None:
    change = PruneChannels(0.5, "bn")(residual(), CONTEXT)
    assert not change.modified
