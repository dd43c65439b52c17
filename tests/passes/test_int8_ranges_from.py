"""Ranges that TensorRT found are taken as they are, on the sides where a tensor has values."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproof.errors import InputError
from edgeproof.passes.int8 import Int8
from edgeproof.quant.trt_cache import TrtCache, from_ranges, read_cache, write_cache
from small_nets import TENSORRT, context, small_cnn


def test_tensors_of_the_cache_take_its_ranges_and_others_are_calibrated(tmp_path: Path) -> None:
    model = small_cnn()
    write_cache(tmp_path / "c", TrtCache({"r": 0.03125, "x": 0.015625, "elsewhere": 1.0}))
    plain = Int8()(model, context(model)).facts["tensors"]
    facts = Int8(ranges_from=str(tmp_path / "c"))(model, context(model)).facts["tensors"]
    assert (facts["r"]["low"], facts["r"]["high"]) == (0.0, 127 / 32)  # r comes out of a ReLU
    assert (facts["x"]["low"], facts["x"]["high"]) == (-127 / 64, 127 / 64)
    assert facts["x"]["clipped_share"] > 0
    assert facts["c"] == plain["c"]


def test_a_symmetric_target_gets_the_very_steps(tmp_path: Path) -> None:
    model = small_cnn()
    ctx = context(model, target=TENSORRT)
    facts = Int8(method="mse")(model, ctx).facts["tensors"]
    write_cache(tmp_path / "c", from_ranges({n: (f["low"], f["high"]) for n, f in facts.items()}))
    again = Int8(ranges_from=str(tmp_path / "c"))(model, ctx).facts["tensors"]
    for name, fact in facts.items():
        assert again[name]["scale"] == pytest.approx(fact["scale"], rel=1e-6)
        assert read_cache(tmp_path / "c").scales[name] == pytest.approx(fact["scale"], rel=1e-6)


def test_a_cache_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = small_cnn()
    with pytest.raises(InputError, match="no such file"):
        Int8(ranges_from=str(tmp_path / "absent"))(model, context(model))
