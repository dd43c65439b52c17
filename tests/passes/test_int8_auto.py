"""INT8 that tries what recovers accuracy: what helped is kept, what it gained is told, and the time is kept to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgeproof.dataset import Feeds
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.passes.int8 import Int8
from edgeproof.passes.int8_auto import Int8Auto
from edgeproof.quant.numerics import sqnr_db
from small_nets import context, executed, net, node, ran, samples, small_cnn, weight

LONG = 3600.0


def held_out_db(model, made):
    fresh = samples(model, 8, seed=5)
    want = np.stack([ran(model, s) for s in fresh])
    return sqnr_db(want, np.stack([ran(made, s) for s in fresh]))


def test_it_errs_less_than_plain_int8_on_samples_that_it_did_not_see():
    model = small_cnn()
    change = Int8Auto(budget_s=LONG)(model, context(model, 32))
    plain = Int8("percentile")(model, context(model, 32)).model
    assert held_out_db(model, change.model) > held_out_db(model, plain) + 1


def test_what_was_kept_gained_and_the_gains_add_up_to_what_the_result_shows():
    model = small_cnn()
    trials = Int8Auto(budget_s=LONG)(model, context(model, 32)).facts["trials"]
    kept = [t for t in trials if t["kept"]]
    assert len(kept) > 1
    assert all(t["gain_db"] >= 0.1 for t in kept[1:])
    assert all(t["gain_db"] < 0.1 for t in trials if not t["kept"])
    total = min(kept[-1]["outputs_db"]) - min(kept[0]["outputs_db"])
    assert sum(t["gain_db"] for t in kept) == pytest.approx(total, abs=0.01 * len(kept))


def test_the_error_it_tells_is_that_of_the_samples_kept_back():
    model = small_cnn()
    change = Int8Auto(budget_s=LONG)(model, context(model, 32))
    kept_back = samples(model, 32)[24:]
    want = np.stack([ran(model, s) for s in kept_back]).astype(np.float64)
    got = np.stack([ran(change.model, s) for s in kept_back])
    told = [t for t in change.facts["trials"] if t["kept"]][-1]["outputs_db"]
    assert told == [pytest.approx(sqnr_db(want, got), abs=0.02)]


def test_what_was_kept_is_what_the_pass_int8_makes_with_these_settings():
    model = small_cnn()
    change = Int8Auto(budget_s=LONG, methods="mse,minmax")(model, context(model, 32))
    names = [t["name"] for t in change.facts["trials"] if t["kept"]]
    method = [n.removesuffix(" again") for n in names if n.removesuffix(" again") in ("mse", "minmax")][-1]
    assert change.facts["passes"] == []
    same = Int8(
        method,
        bias_correction="bias_correction" in names,
        rounding="gptq" if "rounding=gptq" in names else "nearest",
        channel_outputs="channel_outputs" in names,
    )
    made = same(model, context(model, 24)).model  # the other 8 judged
    assert made.digest == change.model.digest


def test_without_time_it_is_plain_int8_and_says_what_was_not_tried():
    model = small_cnn()
    change = Int8Auto(budget_s=0.0)(model, context(model, 16))
    assert change.model.digest == Int8("percentile")(model, context(model, 12)).model.digest
    skipped = {name for name, why in change.declined if why.startswith("not tried: ") and why.endswith("of 0 s")}
    assert {"mse", "auto", "minmax", "bias_correction", "rounding=gptq", "smooth", "equalize"} <= skipped


def test_the_time_is_announced_and_every_trial_after_it():
    model = small_cnn()
    heard: list[str] = []
    there = replace(context(model, 16), progress=lambda what, _share: heard.append(what))
    Int8Auto(budget_s=LONG)(model, there)
    assert heard[0] == "percentile; then more, for at most 3600 s"
    assert "trying rounding=gptq" in heard


def test_the_same_samples_give_the_same_model():
    model = small_cnn()
    digests = {Int8Auto(budget_s=LONG)(model, context(model, 8)).model.digest for _ in range(2)}
    assert len(digests) == 1


def test_without_followers_what_layers_alone_can_have_is_tried():
    model = small_cnn()
    change = Int8Auto(budget_s=LONG, followers=False)(model, context(model, 16))
    tried = {t["name"] for t in change.facts["trials"]}
    assert "level" in tried
    assert "equalize" not in tried
    assert list(executed(change.model).values()).count("QLinearConv") == 3


def test_the_output_that_is_worst_off_decides():
    loud = net(
        [
            node("Conv", ["x", "w1"], ["y"], name="easy"),
            node("Conv", ["x", "w2"], ["a"], name="c", pads=[1] * 4),
            node("Relu", ["a"], ["r"], name="r"),
            node("Conv", ["r", "w3"], ["z"], name="hard"),
        ],
        [weight("w1", 2, 3, 1, 1), weight("w2", 8, 3, 3, 3), weight("w3", 2, 8, 1, 1)],
        outputs=("y", "z"),
    )
    trials = Int8Auto(budget_s=LONG)(loud, context(loud, 16)).facts["trials"]
    assert all(len(t["outputs_db"]) == 2 for t in trials)
    best = min(trials[0]["outputs_db"])
    for trial in trials[1:]:
        assert trial["gain_db"] == pytest.approx(min(trial["outputs_db"]) - best, abs=0.02)
        best = min(trial["outputs_db"]) if trial["kept"] else best


def test_samples_kept_back_take_no_part_in_the_ranges():
    model = small_cnn()
    loud = samples(model, 12)
    loud[-1] = {"x": loud[-1]["x"] * np.float32(1000)}

    def feeds() -> Iterator[Feeds]:
        return iter(loud)

    change = Int8Auto(budget_s=LONG)(model, replace(context(model, 12), feeds=feeds))
    assert max(abs(fact["max"]) for fact in change.facts["tensors"].values()) < 200


def test_what_is_missing_is_said():
    model = small_cnn()
    with pytest.raises(InputError, match=r"int8\.samples"):
        Int8Auto()(model, replace(context(model), feeds=None, samples=0))
    with pytest.raises(InputError, match=r"expected 4 or more"):
        Int8Auto()(model, context(model, 3))
    with pytest.raises(InputError, match=r"int8_auto\.methods"):
        Int8Auto(methods=" ")(model, context(model))
    with pytest.raises(UnsupportedError, match=r"int8\.target"):
        Int8Auto()(model, context(model, target=None))


def test_a_net_without_layers_is_returned_as_it_is():
    model = net([node("Relu", ["x"], ["y"], name="r")])
    change = Int8Auto()(model, context(model))
    assert change.model is model
    assert not change.modified
