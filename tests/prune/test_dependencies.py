"""What hangs together goes together, and what is dead goes without a trace."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgeproof.graph.cost import cost
from edgeproof.graph.inference import inferred
from edgeproof.model import Model
from edgeproof.prune.channels import Channels, channels
from edgeproof.prune.importance import scores
from edgeproof.prune.removal import kept, masked, remove
from passes.small_models import run
from prune.nets import NETS, Net


def weights(model: Model) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(v.const_value.shape.numpy())
        for name, v in model.graph.graph.initializers.items()
        if v.const_value is not None
    }


def valid(model: Model) -> Model:
    """ONNX's own opinion of a model, strictly."""
    proto = onnx.load_model_from_string(model.to_bytes())
    onnx.checker.check_model(proto)
    inferred(proto, strict=True)
    return model


def dead(found: Channels) -> np.ndarray:
    return np.asarray(scores(found, "l1", scale="none") == 0)


@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_dead_channels_go_and_the_output_stays(net: Net) -> None:
    model = net.model()
    found = channels(model)
    gone = dead(found)
    assert gone.any()
    small = valid(remove(found, gone))
    sizes = weights(small)
    for name, shape in net.shapes.items():
        assert any(n == name or n.startswith(f"{name}_kept") for n in sizes), name
        assert next(s for n, s in sizes.items() if n == name or n.startswith(f"{name}_kept")) == shape, name
    assert small.inputs == model.inputs
    assert small.outputs == model.outputs
    for want, got in zip(run(model, net.feeds()), run(small, net.feeds()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_masking_any_units_computes_what_removing_them_computes(net: Net, seed: int) -> None:
    model = net.model(dead=False)
    found = channels(model)
    gone = np.zeros(found.units, bool)
    rng = np.random.default_rng(seed)
    for group in found.groups:
        count = len(group.units)
        gone[rng.choice(group.units, rng.integers(0, max(1, count // 2 + 1)), replace=False)] = True
    for axis in found.trace.every_axis():  # nothing may become empty
        units = found.of(axis)
        if units.min() >= 0 and gone[units].all():
            gone[units[0]] = False
    small, zero = valid(remove(found, gone)), masked(found, gone)
    for want, got in zip(run(zero, net.feeds()), run(small, net.feeds()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_removing_nothing_changes_nothing(net: Net) -> None:
    model = net.model(dead=False)
    found = channels(model)
    whole = remove(found, np.zeros(found.units, bool))
    assert weights(whole) == weights(model)
    np.testing.assert_array_equal(run(whole, net.feeds())[0], run(model, net.feeds())[0])


@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_the_work_that_is_predicted_is_the_work_that_is_left(net: Net) -> None:
    found = channels(net.model())
    gone = dead(found)
    left = cost(remove(found, gone), found.shapes).macs
    assert left is not None
    assert found.macs(gone) == pytest.approx(left.value)


@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_indices_that_stay_cut_the_weights_to_what_is_left(net: Net) -> None:
    model = net.model(dead=False)
    found = channels(model)
    gone = dead(channels(net.model()))
    small = {n: v.const_value.numpy() for n, v in remove(found, gone).graph.graph.initializers.items() if v.const_value}
    indices = kept(found, gone)
    assert indices
    for name, by_axis in indices.items():
        cut = net.weights[name]
        for axis, stays in by_axis.items():
            cut = cut.take(stays, axis)
        np.testing.assert_array_equal(small.get(name, small.get(f"{name}_kept")), cut)
