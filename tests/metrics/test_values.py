from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproof.errors import InputError
from edgeproof.measurement import LegRun
from edgeproof.metrics._labels import edit_distance
from edgeproof.protocols import Metric
from edgeproof.registry import load


def metric(name: str) -> Metric:
    found: Metric = load("metrics", name)()
    return found


def total(name: str, *pairs: tuple[Any, Any]) -> float:
    m = metric(name)
    return m.value([m.score(got, want) for got, want in pairs])


# --- labels


def test_top1_and_top5_by_hand() -> None:
    ranked = np.array([3, 1, 4, 0, 5, 2])
    pairs = [(ranked, 3), (ranked, 5), (ranked, 2), (ranked, 1)]
    assert total("top1", *pairs) == 0.25
    assert total("top5", *pairs) == 0.75


def test_an_empty_ranking_is_never_right() -> None:
    assert total("top1", (np.array([], np.int64), 0)) == 0


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("kitten", "sitting", 3), ("intention", "execution", 5), ("", "abc", 3), ("flaw", "lawn", 2), ("漢字", "漢", 1)],
)
def test_edit_distances_from_textbooks(a: str, b: str, distance: int) -> None:
    # Levenshtein's and Jurafsky & Martin's examples (unit costs)
    assert edit_distance(a, b) == distance


texts = st.text("abc ", max_size=8)


@given(texts, texts, texts)
def test_edit_distance_is_a_metric_within_its_bounds(a: str, b: str, c: str) -> None:
    d = edit_distance(a, b)
    assert d == edit_distance(b, a)
    assert (d == 0) == (a == b)
    assert abs(len(a) - len(b)) <= d <= max(len(a), len(b))
    assert edit_distance(a, c) <= d + edit_distance(b, c)


def test_character_errors_are_pooled_not_averaged() -> None:
    # 1 edit in 2 characters and 0 in 8: 1/10, not the mean of 1/2 and 0.
    pairs = [("ax", "ab"), ("abcdefgh", "abcdefgh")]
    assert total("cer", *pairs) == pytest.approx(0.1)
    assert total("char_accuracy", *pairs) == pytest.approx(0.9)
    assert total("exact_match", *pairs) == 0.5


def test_character_accuracy_may_fall_below_zero() -> None:
    assert total("char_accuracy", ("abcd", "x")) == -3
    assert total("cer", ("abcd", "x")) == 4


def test_no_characters_at_all_is_undefined() -> None:
    assert math.isnan(total("cer", ("", "")))
    assert total("cer", ("x", ""), ("ab", "ab")) == 0.5


# --- outputs against the original's


def test_sqnr_is_the_ratio_of_pooled_energies_in_decibels() -> None:
    # signal 3² + 4² + 10² = 125, noise 0.5² + 1² = 1.25: 100 times, 20 dB
    pairs = [
        ({"y": np.array([3.0, 4.5])}, {"y": np.array([3.0, 4.0])}),
        ({"y": np.array([9.0])}, {"y": np.array([10.0])}),
    ]
    assert total("sqnr", *pairs) == pytest.approx(20.0)


def test_one_bit_more_gives_six_decibels() -> None:
    # uniform quantisation noise: Δ²/12 against a uniform signal's (2^b Δ)²/12, 6.02 dB per bit
    x = np.random.default_rng(0).uniform(-1, 1, 200_000)
    for bits in (6, 8):
        step = 2 / 2**bits
        assert total("sqnr", ({"y": np.round(x / step) * step}, {"y": x})) == pytest.approx(6.02 * bits, abs=0.1)


def test_the_worst_output_decides_and_each_is_told() -> None:
    want = {"a": np.array([1.0, 0.0]), "b": np.array([2.0, 2.0])}
    got = {"a": np.array([1.0, 0.0]), "b": np.array([2.0, 0.0])}
    cosine: Any = metric("cosine")
    scores = [cosine.score(got, want)]
    assert cosine.by_output(scores) == {"a": 1.0, "b": pytest.approx(math.sqrt(0.5))}
    assert cosine.value(scores) == pytest.approx(math.sqrt(0.5))
    assert total("max_abs", (got, want)) == 2.0


def test_equal_outputs_are_best_and_json_can_hold_that() -> None:
    y = {"y": np.array([1.0, np.nan, np.inf])}
    assert total("sqnr", (y, y)) == 300
    assert total("cosine", (y, y)) == 1
    assert total("max_abs", (y, y)) == 0
    zero = {"y": np.zeros(3)}
    assert total("cosine", (zero, zero)) == 1


@pytest.mark.parametrize(
    "got", [np.array([1.0, np.nan]), np.array([1.0, np.inf]), np.array([1.0]), np.array(["1.0", "2.0"])]
)
def test_outputs_that_cannot_be_compared_get_the_worst(got: Any) -> None:
    want = {"y": np.array([1.0, 2.0])}
    assert total("sqnr", ({"y": got}, want), (want, want)) == -300
    assert total("cosine", ({"y": got}, want)) == -1
    assert total("max_abs", ({"y": got}, want)) == sys.float_info.max


def test_noise_without_signal_is_worst() -> None:
    assert total("sqnr", ({"y": np.ones(2)}, {"y": np.zeros(2)})) == -300
    assert total("cosine", ({"y": np.ones(2)}, {"y": np.zeros(2)})) == 0


def test_huge_and_tiny_values_keep_their_angle() -> None:
    for size in (1e-300, 1e300):
        assert total("cosine", ({"y": np.array([3.0, 4.0]) * size}, {"y": np.array([4.0, 3.0]) * size})) == (
            pytest.approx(0.96)
        )


def test_an_absent_output_is_named() -> None:
    with pytest.raises(InputError, match="output 'logits': the candidate lacks it"):
        metric("cosine").score({"logit": np.ones(1)}, {"logits": np.ones(1)})


# --- runs


def run(ms: list[float], **more: Any) -> LegRun:
    return LegRun("candidate", 0, tuple(int(v * 1e6) for v in ms), **more)


def test_percentiles_interpolate_between_order_statistics() -> None:
    # Hyndman & Fan type 8 by hand for 1..20: position (20 + 1/3) p + 1/3, and at most the last
    r = run([float(v) for v in range(20, 0, -1)])
    third = 1 / 3
    expected = {"latency_p50": 10.5, "latency_p90": 18.3 + third, "latency_p95": 19.65, "latency_p99": 20.0}
    assert {name: metric(name).score(r, None) for name in expected} == pytest.approx(expected)


def test_runs_are_averaged_on_the_scale_of_their_bounds() -> None:
    # the geometric mean of 1 and 4
    assert total("latency_p50", (run([1]), None), (run([4]), None)) == pytest.approx(2)


def test_throughput_is_inferences_over_their_time() -> None:
    assert total("throughput", (run([10, 30]), None)) == pytest.approx(50)


def test_memory_and_temperature_are_the_largest_of_the_runs() -> None:
    assert total("peak_memory", (run([1], peak_rss_bytes=5), None), (run([1], peak_rss_bytes=7), None)) == 7
    hot = run([1], sensors={"temperature": (50.0, 60.0)})
    assert total("temperature", (hot, None), (run([1], sensors={"temperature": (55.0,)}), None)) == 60


def test_power_is_the_mean_of_the_readings() -> None:
    assert total("power", (run([1], sensors={"power": (2.0, 4.0)}), None)) == pytest.approx(3)


def test_cold_start_is_in_milliseconds_and_size_in_bytes() -> None:
    assert total("cold_start", (run([1], cold_start_ns=2_500_000), None)) == 2.5
    assert total("size", (1234, None)) == 1234


@pytest.mark.parametrize("name", ["power", "temperature", "cold_start", "peak_memory"])
def test_what_was_not_measured_is_missing_never_zero(name: str) -> None:
    assert metric(name).score(run([1]), None) is None


@pytest.mark.parametrize("name", ["latency_p50", "throughput"])
def test_a_run_without_inferences_has_no_number(name: str) -> None:
    assert metric(name).score(run([]), None) is None
