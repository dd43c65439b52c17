"""The one name for the most accurate INT8: closer than plain INT8, all in integers, chosen on samples held back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgeproof.dataset import Feeds
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.passes.int8 import Int8
from edgeproof.passes.int8_accurate import Int8Accurate
from edgeproof.quant.numerics import sqnr_db
from small_nets import context, executed, net, node, ran, samples, small_cnn, weight


def test_it_errs_less_than_plain_int8_on_samples_that_it_did_not_see() -> None:
    model = small_cnn()
    made = Int8Accurate()(model, context(model, 32)).model
    plain = Int8()(model, context(model, 32)).model
    fresh = samples(model, 8, seed=5)
    want = np.stack([ran(model, s) for s in fresh])
    got = {id(m): sqnr_db(want, np.stack([ran(m, s) for s in fresh])) for m in (made, plain)}
    assert got[id(made)] > got[id(plain)] + 3


def test_every_convolution_runs_in_integers() -> None:
    model = small_cnn()
    ops = list(executed(Int8Accurate()(model, context(model, 16)).model).values())
    assert ops.count("QLinearConv") == 3
    assert "Conv" not in ops


def test_the_method_with_the_least_error_on_the_samples_held_back_is_taken() -> None:
    model = small_cnn()
    change = Int8Accurate(methods="percentile,minmax,mse")(model, context(model, 16))
    errors = change.facts["output_errors"]
    assert set(errors) == {"percentile", "minmax", "mse"}
    assert change.facts["method"] == min(errors, key=errors.get)


def test_samples_held_back_take_no_part_in_the_ranges() -> None:
    model = small_cnn()
    loud = samples(model, 12)
    loud[-1] = {"x": loud[-1]["x"] * np.float32(1000)}

    def feeds() -> Iterator[Feeds]:
        return iter(loud)

    change = Int8Accurate(methods="minmax,mse")(model, replace(context(model, 12), feeds=feeds))
    assert max(abs(fact["max"]) for fact in change.facts["tensors"].values()) < 200


def test_the_same_samples_give_the_same_model() -> None:
    model = small_cnn()
    digests = {Int8Accurate()(model, context(model, 8)).model.digest for _ in range(2)}
    assert len(digests) == 1


def test_a_transformer_block_is_smoothed_instead() -> None:
    model = net(
        [
            node("LayerNormalization", ["x", "scale", "bias"], ["n"], name="norm"),
            node("MatMul", ["n", "w1"], ["p"], name="product"),
            node("Relu", ["p"], ["r"], name="relu"),
            node("MatMul", ["r", "w2"], ["y"], name="back"),
        ],
        [weight("scale", 16), weight("bias", 16), weight("w1", 16, 32), weight("w2", 32, 16)],
        shape=(1, 5, 16),
    )
    change = Int8Accurate()(model, context(model, 8))
    assert change.modified
    assert {"product", "back"} <= {n for n, kind in change.facts["nodes"].items() if kind == "int8"}


def test_what_is_missing_is_said() -> None:
    model = small_cnn()
    with pytest.raises(InputError, match=r"int8\.samples"):
        Int8Accurate()(model, replace(context(model), feeds=None, samples=0))
    with pytest.raises(InputError, match=r"int8_accurate\.methods"):
        Int8Accurate(methods=" ")(model, context(model))
    with pytest.raises(UnsupportedError, match=r"int8\.target"):
        Int8Accurate()(model, context(model, target=None))


def test_a_net_without_layers_is_returned_as_it_is() -> None:
    model = net([node("Relu", ["x"], ["y"], name="r")])
    change = Int8Accurate()(model, context(model))
    assert change.model is model
    assert not change.modified
