"""Calibration stops once ranges stand still, and goes on while they move."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgeproof.dataset import Feeds
from edgeproof.passes.int8 import Int8
from edgeproof.protocols import Context
from edgeproof.quant.calibration import calibrate
from edgeproof.quant.settle import Settling
from small_nets import compiled, context, samples, small_cnn


def test_equal_samples_settle_at_the_second_look() -> None:
    model = small_cnn()
    read = 0

    def stream() -> Iterator[Feeds]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield samples(model, 1)[0]

    settling = Settling()
    found = calibrate(model, ["x", "r"], compiled, stream(), enough=settling)
    assert read == 32
    assert found["x"].seen == 32 * 3 * 16 * 16
    assert settling.facts(100) == {"stopped_early": True, "samples": 32, "of": 100, "settled_share": 1.0}


def test_samples_that_grow_never_settle() -> None:
    model = small_cnn()
    stream = ({"x": (i + 1) * samples(model, 1)[0]["x"]} for i in range(70))
    settling = Settling()
    calibrate(model, ["x", "r"], compiled, stream, enough=settling)
    assert settling.facts(70) == {"stopped_early": False, "samples": 70, "of": 70, "settled_share": 0.0}


def test_without_being_asked_every_sample_is_read() -> None:
    model = small_cnn()
    found = calibrate(model, ["x"], compiled, iter(samples(model, 40)))
    assert found["x"].seen == 40 * 3 * 16 * 16
    assert context(model).samples == 8


def test_the_range_at_the_stop_is_that_of_the_samples_read() -> None:
    model = small_cnn()
    feeds = samples(model, 64)
    settling = Settling()
    found = calibrate(model, ["x"], compiled, iter(feeds), enough=settling)
    want = max(float(np.max(f["x"])) for f in feeds[: settling.samples])
    assert found["x"].high == want


def test_the_pass_says_after_how_many_samples_it_stopped() -> None:
    model = small_cnn()
    given = context(model)
    same = Context(given.compile, lambda: iter(samples(model, 1) * 100), 100, given.target)
    early = Int8(settle=True)(model, same)
    assert early.applied[0] == "calibrated on 32 of 100 samples: 100% of the ranges had settled"
    assert early.facts["calibration"]["samples"] == 32
    assert not any("calibrated on" in line for line in Int8()(model, same).applied)
    few = Context(given.compile, lambda: iter(samples(model, 1) * 20), 20, given.target)
    assert not any("calibrated on" in line for line in Int8(settle=True)(model, few).applied)
