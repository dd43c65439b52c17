"""Bias correction and second-moment rounding inside the INT8 pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeproof.dataset import Feeds
from edgeproof.errors import InputError
from edgeproof.model import Model, graph_digest
from edgeproof.passes.int8 import Int8
from edgeproof.quant import moments
from edgeproof.quant.layers import Layer
from edgeproof.quant.numerics import sqnr_db
from small_nets import TENSORRT, context, executed, net, node, ran, samples, small_cnn, weight


def smooth_samples(model: Model, count: int, seed: int) -> list[Feeds]:
    """Pictures with neighbours alike and a mean, as real ones: white noise has nothing to correct."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        coarse = rng.random((1, 3, 4, 4)).astype(np.float32)
        made.append({"x": np.repeat(np.repeat(coarse, 4, 2), 4, 3)})
    return made


def calibrated(model: Model, **settings: object) -> Model:
    there = replace(context(model), feeds=lambda: iter(smooth_samples(model, 16, 0)), samples=16)
    return Int8(**settings)(model, there).model  # type: ignore[arg-type]


def held_out_error(model: Model, other: Model) -> tuple[float, float]:
    """Norm of the mean error per output, and SQNR, over samples that were not calibrated on."""
    pairs = [(ran(model, s), ran(other, s)) for s in smooth_samples(model, 24, 9)]
    want, got = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    return float(np.linalg.norm((got - want).mean(axis=0))), sqnr_db(want, got)


def coarse_cnn() -> Model:
    """Per-tensor weight scales and a channel with a weight far out, so that rounding hurts."""
    model = small_cnn()
    for name in ("w1", "w2", "w3"):
        array = model.graph.graph.initializers[name].const_value.numpy().copy()  # type: ignore[union-attr]
        array.reshape(-1)[0] *= 12
        import onnx_ir as ir

        model.graph.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return Model.of(model.graph, "coarse")


def test_bias_correction_takes_the_mean_out_of_the_error_on_samples_it_has_not_seen() -> None:
    model = coarse_cnn()
    plain = held_out_error(model, calibrated(model, per_channel=False))
    corrected = held_out_error(model, calibrated(model, per_channel=False, bias_correction=True))
    assert corrected[0] < 0.6 * plain[0]
    assert corrected[1] > plain[1]


def test_rounding_by_second_moments_lowers_the_error_on_samples_it_has_not_seen() -> None:
    model = coarse_cnn()
    plain = held_out_error(model, calibrated(model, per_channel=False))
    rounded = held_out_error(model, calibrated(model, per_channel=False, rounding="gptq"))
    assert rounded[1] > plain[1] + 1.0


def test_the_corrected_bias_of_one_layer_is_that_of_the_means_by_hand() -> None:
    model = net(
        [node("Conv", ["x", "w", "b"], ["y"], name="c", pads=[1] * 4)], [weight("w", 4, 3, 3, 3), weight("b", 4)]
    )
    feeds = smooth_samples(model, 4, 0)  # 256 positions each: all are taken
    there = replace(context(model, target=TENSORRT), feeds=lambda: iter(feeds), samples=4)
    made = Int8(bias_correction=True)(model, there).model
    initializers = {n: v.const_value.numpy() for n, v in made.graph.graph.initializers.items() if v.const_value}
    plain = Int8()(model, there).model
    # The means of both models' outputs, which the runtime computes and the correction never saw.
    shift = np.mean([(ran(model, s) - ran(plain, s)).mean(axis=(0, 2, 3)) for s in feeds], axis=0)
    bias = next(a for n, a in initializers.items() if n.startswith("b.") and a.dtype == np.float32)
    np.testing.assert_allclose(bias - weight_of(model, "b"), shift, atol=1e-5)


def weight_of(model: Model, name: str) -> np.ndarray:
    tensor = model.graph.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def test_a_layer_without_a_bias_is_given_one_and_still_runs_as_an_integer_kernel() -> None:
    model = small_cnn()
    change = Int8(bias_correction=True)(model, context(model))
    assert len(change.facts["corrected"]) == 4
    assert Counter(executed(change.model).values())["QLinearConv"] == 3


def test_a_product_is_corrected_in_the_addition_behind_it_or_declined() -> None:
    model = net(
        [
            node("MatMul", ["x", "w1"], ["a"], name="first"),
            node("Add", ["a", "b"], ["s"], name="plus"),
            node("Relu", ["s"], ["r"], name="r"),
            node("MatMul", ["r", "w2"], ["y"], name="second"),
        ],
        [weight("w1", 6, 5), weight("b", 5), weight("w2", 5, 4)],
        [8, 6],
    )
    change = Int8(bias_correction=True)(model, context(model))
    assert change.facts["corrected"] == ["first"]
    assert ("second", "bias not corrected: no constant is added to its output") in change.declined


def test_depthwise_and_grouped_convolutions_are_rounded_too() -> None:
    model = net(
        [
            node("Conv", ["x", "w1"], ["a"], name="dw", group=3, pads=[1] * 4),
            node("Relu", ["a"], ["r"], name="r"),
            node("Conv", ["r", "w2"], ["y"], name="grouped", group=3),
        ],
        [weight("w1", 3, 1, 3, 3), weight("w2", 6, 1, 1, 1)],
    )
    change = Int8(rounding="gptq")(model, context(model))
    assert change.facts["rounded"] == ["dw", "grouped"]


def test_a_layer_whose_products_would_not_fit_is_declined_and_the_rest_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "WIDEST", 40)
    model = small_cnn()
    change = Int8(rounding="gptq", bias_correction=True)(model, context(model))
    assert change.facts["rounded"] == ["c1", "fc"]
    assert ("c2", "not refined: columns of 72 values, above 40: too much to keep") in change.declined


def test_what_is_kept_does_not_grow_with_the_samples() -> None:
    model = small_cnn()
    conv = next(n for n in model.graph.graph if n.name == "c1")
    held = moments.blank({conv: Layer(0, weight_of(model, "w1"))}, True)[0][conv]
    x = np.ones((1, 27, 50), np.float32)
    held.add(x, x)
    size = held.gram.nbytes + held.real.nbytes + held.seen.nbytes  # type: ignore[union-attr]
    for _ in range(20):
        held.add(x, x)
    assert held.gram.nbytes + held.real.nbytes + held.seen.nbytes == size  # type: ignore[union-attr]
    assert held.count == 21 * 50


def test_the_samples_are_read_once_more_and_not_held() -> None:
    model, reads = small_cnn(), []

    def feeds() -> Iterator[Feeds]:
        reads.append(1)
        yield from samples(model, 4)

    Int8(rounding="gptq", bias_correction=True)(model, replace(context(model), feeds=feeds, samples=4))
    assert len(reads) == 2


def test_refining_leaves_the_model_and_gives_the_same_twice() -> None:
    model = small_cnn()
    quantise = Int8(rounding="gptq", bias_correction=True)
    assert quantise(model, context(model)).model.digest == quantise(model, context(model)).model.digest
    assert graph_digest(model.graph) == model.digest


def test_an_unknown_way_to_round_is_refused() -> None:
    model = small_cnn()
    with pytest.raises(InputError, match="no way to round"):
        Int8(rounding="nearset")(model, context(model))  # type: ignore[arg-type]


def test_what_was_found_for_a_layer_is_kept_with_the_calibration_and_gives_the_same_model() -> None:
    model = small_cnn()
    settings: dict[str, Any] = {"bias_correction": True, "rounding": "gptq"}
    read = 0

    def feeds() -> Iterator[Feeds]:
        nonlocal read
        for sample in smooth_samples(model, 8, 0):
            read += 1
            yield sample

    there = replace(context(model), feeds=feeds, samples=8, calibration={})
    Int8(**settings)(model, there)
    before = read
    again = Int8(**settings, keep="c2")(model, there).model
    assert read == before
    fresh = Int8(**settings, keep="c2")(model, replace(there, calibration=None)).model
    assert again.digest == fresh.digest


def test_rounding_from_fewer_samples_than_a_product_has_inputs_still_gains_on_others() -> None:
    """A product behind pooled features shows one column a sample: 16 of them say little about 96 inputs."""
    rng = np.random.default_rng(3)
    mix = rng.standard_normal((12, 96)).astype(np.float32)
    model = net([node("Gemm", ["x", "w", "b"], ["y"], name="fc")], [weight("w", 96, 10), weight("b", 10)], [1, 96])

    def drawn(count: int, seed: int) -> list[Feeds]:
        r = np.random.default_rng(seed)
        hidden, own = r.standard_normal((count, 1, 12)), r.standard_normal((count, 1, 96)) * 0.3
        return [{"x": np.maximum(h @ mix + o, 0).astype(np.float32)} for h, o in zip(hidden, own, strict=True)]

    there = replace(context(model), feeds=lambda: iter(drawn(16, 0)), samples=16)
    fresh = drawn(200, 1)
    want = np.stack([ran(model, s) for s in fresh])
    made = {r: Int8("minmax", rounding=r)(model, there).model for r in ("nearest", "gptq")}  # type: ignore[arg-type]
    got = {r: sqnr_db(want, np.stack([ran(m, s) for s in fresh])) for r, m in made.items()}
    assert got["gptq"] > got["nearest"]
