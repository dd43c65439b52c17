"""Scores against the equations they come from, worked out on the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.prune.channels import channels
from edgeproof.prune.importance import CRITERIA, scores, watch
from edgeproof.prune.removal import masked
from passes.small_models import CONTEXT, run
from prune.nets import NETS, w

CHAIN = NETS["a chain"]
NORMED = NETS["a batch norm and a PRelu"]


def test_norms_are_those_of_the_filters() -> None:
    found = channels(CHAIN.model(dead=False))
    first = found.groups[0].units
    a = CHAIN.weights["a"].astype(np.float64)
    np.testing.assert_allclose(scores(found, "l1", scale="none")[first], np.abs(a).sum(axis=(1, 2, 3)))
    np.testing.assert_allclose(scores(found, "l2", scale="none")[first], np.sqrt((a**2).sum(axis=(1, 2, 3))))


def test_layers_of_a_group_count_alike() -> None:
    net = NETS["a residual addition"]
    found = channels(net.model(dead=False))
    a, b = (np.abs(net.weights[n].astype(np.float64)).sum(axis=(1, 2, 3)) for n in "ab")
    np.testing.assert_allclose(scores(found, "l1", scale="none")[found.groups[0].units], (a + b) / 2)


def test_scaling_gives_every_group_the_mean_or_the_maximum_one() -> None:
    found = channels(CHAIN.model(dead=False))
    for scale, of in (("mean", np.mean), ("max", np.max)):
        held = scores(found, "l2", scale=scale)
        for group in found.groups:
            assert of(held[group.units]) == pytest.approx(1)


def test_the_scale_of_a_batch_norm_is_the_score_and_layers_without_one_have_none() -> None:
    found = channels(NORMED.model(dead=False))
    held = scores(found, "bn", scale="none")
    np.testing.assert_allclose(held[found.groups[0].units], np.abs(NORMED.weights["n_s"]))
    assert np.isnan(held[found.groups[1].units]).all()


def test_activation_is_the_root_mean_square_of_what_the_next_layer_reads() -> None:
    model = CHAIN.model(dead=False)
    found = channels(model)
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.standard_normal(CHAIN.shape).astype(np.float32)} for _ in range(3)]
    seen = watch(found, replace(CONTEXT, feeds=lambda: iter(feeds), samples=3))
    a, ab = CHAIN.weights["a"], CHAIN.weights["ab"]
    # A convolution of 3 × 3 with a border, the long way round.
    values = []
    for f in feeds:
        padded = np.pad(f["x"], ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
        out = np.zeros((2, 8, 8, 8))
        for i in range(3):
            for j in range(3):
                out += np.einsum("nchw,oc->nohw", padded[:, :, i : i + 8, j : j + 8], a[:, :, i, j])
        values.append(np.maximum(out + ab[None, :, None, None], 0))
    rms = np.sqrt(np.square(np.stack(values)).mean(axis=(0, 1, 3, 4)))
    first = found.groups[0].units
    np.testing.assert_allclose(scores(found, "activation", seen=seen, scale="none")[first], rms, rtol=1e-5)
    reads = np.sqrt(np.square(CHAIN.weights["b"].astype(np.float64)).sum(axis=(0, 2, 3)))
    np.testing.assert_allclose(scores(found, "contribution", seen=seen, scale="none")[first], rms * reads, rtol=1e-5)


def test_taylor_is_the_square_of_what_the_loss_changes_by_to_first_order() -> None:
    """The loss is Σ y; on a network that is linear in each layer, the first-order change of one layer is exact."""
    net = NETS["flattened pictures"]
    nodes = [n for n in net.nodes if n.op_type != "Relu"]
    linear = replace(net, nodes=_without_relu(nodes))
    model = linear.model(dead=False)
    found = channels(model)
    group = next(g for g in found.groups if g.name == "Conv_c")
    gradients = {name: _gradient(linear, name) for name in ("a", "l1", "lb", "l2", "l3")}
    held = scores(found, "taylor", gradients=gradients, scale="none")
    whole = float(run(model, linear.feeds())[0].astype(np.float64).sum())
    for unit in group.units.tolist():
        gone = np.zeros(found.units, bool)
        gone[unit] = True
        change = float(run(masked(found, gone), linear.feeds())[0].astype(np.float64).sum()) - whole
        assert held[unit] == pytest.approx(change**2, rel=1e-3)


def _without_relu(nodes: list) -> list:
    renamed = {"r": "c", "n": "m"}
    out = []
    for n in nodes:
        copy = type(n)()
        copy.CopyFrom(n)
        copy.input[:] = [renamed.get(i, i) for i in copy.input]
        out.append(copy)
    return out


def _gradient(net: object, name: str) -> np.ndarray:
    """Central differences of Σ y; exact up to rounding where y is linear in the weight."""
    base = net.weights[name]  # type: ignore[attr-defined]
    gradient = np.zeros(base.shape, np.float64)
    for index in list(np.ndindex(base.shape))[: base.size if name == "a" else 0]:
        ends = []
        for step in (1.0, -1.0):
            changed = np.array(base)
            changed[index] += step
            other = replace(net, weights={**net.weights, name: changed})  # type: ignore[attr-defined, type-var]
            ends.append(float(run(other.model(dead=False), other.feeds())[0].astype(np.float64).sum()))
        gradient[index] = (ends[0] - ends[1]) / 2
    return gradient


def test_gradients_that_are_missing_or_misshapen_are_refused() -> None:
    found = channels(CHAIN.model(dead=False))
    with pytest.raises(InputError, match="there are none"):
        scores(found, "taylor")
    with pytest.raises(InputError, match="has no gradient"):
        scores(found, "taylor", gradients={"b": w(6, 8, 1, 1)})
    with pytest.raises(InputError, match="its gradient has"):
        scores(found, "taylor", gradients={"a": w(8, 3), "ab": w(8), "b": w(6, 8, 1, 1)})


@pytest.mark.parametrize("criterion", ["activation", "contribution"])
def test_criteria_that_need_samples_say_so(criterion: str) -> None:
    found = channels(CHAIN.model(dead=False))
    with pytest.raises(InputError, match="needs samples"):
        scores(found, criterion)

    def none() -> Iterator[dict[str, np.ndarray]]:
        return iter(())

    with pytest.raises(InputError, match="got 0 samples"):
        watch(found, replace(CONTEXT, feeds=none))


def test_an_unknown_criterion_is_guessed() -> None:
    found = channels(CHAIN.model(dead=False))
    with pytest.raises(InputError, match="did you mean 'taylor'"):
        scores(found, "tailor")
    with pytest.raises(InputError, match="did you mean 'mean'"):
        scores(found, "l2", scale="meen")
    assert set(CRITERIA) == {"l1", "l2", "bn", "activation", "contribution", "taylor"}
