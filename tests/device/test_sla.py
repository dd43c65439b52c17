"""Decisions from what was watched: worked by hand, and simulated."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pytest

from edgeproof.device.sla import Watch, holds, statistic
from edgeproof.manifest import HardLimit, Objective, Rollback, Sla

LATENCY = Objective("latency", "p95", "<=", Decimal(20), window=10, k=3, n=5)
NO_NAN = HardLimit("nan_outputs", "<=", Decimal(0))
NO_CRASH = HardLimit("crashes", "<=", Decimal(0))
TRIAL = Rollback(trial_seconds=100, boots=3, samples=50)


def watch(*objectives: Objective, hard: tuple[HardLimit, ...] = (NO_NAN, NO_CRASH)) -> Watch:
    return Watch(Sla(objectives, hard), TRIAL)


def window(w: Watch, latency: float, count: int = 10) -> None:
    for _ in range(count):
        w.inference({"latency": latency, "nan_outputs": 0.0})


def code(w: Watch, elapsed_s: float = 1.0, boots: int = 1) -> tuple[str, str]:
    decision = w.decide(elapsed_s, boots)
    return decision.kind, decision.code


def test_a_bundle_is_kept_once_samples_and_windows_are_enough_and_not_one_sooner():
    w = watch(LATENCY)
    window(w, 10.0, count=49)
    assert code(w) == ("go_on", "sla.watching")
    window(w, 10.0, count=1)
    assert code(w) == ("commit", "sla.kept")


def test_samples_alone_are_not_enough_without_n_windows():
    w = Watch(Sla((LATENCY,), ()), Rollback(samples=5))
    window(w, 10.0, count=49)
    assert code(w) == ("go_on", "sla.watching")
    window(w, 10.0, count=1)
    assert code(w) == ("commit", "sla.kept")


def test_three_of_five_windows_outside_leave_the_bundle_two_do_not():
    w = watch(LATENCY)
    for latency in (30.0, 10.0, 30.0, 10.0):
        window(w, latency)
    assert code(w) == ("go_on", "sla.watching")
    window(w, 30.0)
    assert code(w) == ("roll_back", "sla.broken")


def test_windows_that_lie_back_further_than_n_no_longer_count():
    w = watch(LATENCY)
    for latency in (30.0, 30.0, 10.0, 10.0, 10.0, 30.0):
        window(w, latency)
    assert code(w) == ("go_on", "sla.watching")


def test_a_flapping_sla_is_never_kept_and_goes_back_at_the_deadline():
    w = watch(LATENCY)
    for i in range(200):  # one window in four is outside: fewer than k of n, and never n in a row inside
        window(w, 30.0 if i % 4 == 0 else 10.0)
        assert code(w, elapsed_s=99.9) == ("go_on", "sla.watching")
    assert code(w, elapsed_s=100.0) == ("roll_back", "sla.undecided")


def test_undecided_at_the_deadline_or_after_too_many_starts_goes_back():
    w = watch(LATENCY)
    window(w, 10.0, count=20)
    assert code(w, elapsed_s=99.9, boots=3) == ("go_on", "sla.watching")
    assert code(w, elapsed_s=100.0) == ("roll_back", "sla.undecided")
    assert code(w, boots=4) == ("roll_back", "sla.undecided")


def test_a_bundle_that_is_never_used_is_never_kept():
    assert code(watch(), elapsed_s=99.0) == ("go_on", "sla.watching")
    assert code(watch(), elapsed_s=100.0) == ("roll_back", "sla.undecided")


def test_enough_at_the_deadline_is_kept():
    w = watch(LATENCY)
    window(w, 10.0, count=50)
    assert code(w, elapsed_s=1000.0) == ("commit", "sla.kept")


@pytest.mark.parametrize("values", [{"nan_outputs": 1.0}, {"crashes": 1.0}, {"temperature": 95.5}])
def test_a_hard_limit_goes_back_at_once_whatever_else_was_seen(values):
    w = watch(hard=(NO_NAN, NO_CRASH, HardLimit("temperature", "<=", Decimal(95))))
    window(w, 10.0, count=1000)
    w.reading({"temperature": 95.0})
    assert code(w) == ("commit", "sla.kept")
    w.reading(values)
    assert code(w) == ("roll_back", "sla.hard")
    window(w, 10.0, count=1000)
    w.reading({"temperature": 20.0})
    assert code(w) == ("roll_back", "sla.hard")


def test_counted_limits_are_held_against_the_sum():
    w = watch(hard=(HardLimit("nan_outputs", "<=", Decimal(2)),))
    w.inference({"nan_outputs": 1.0})
    w.inference({"nan_outputs": 1.0})
    assert code(w)[0] == "go_on"
    w.inference({"nan_outputs": 1.0})
    assert code(w) == ("roll_back", "sla.hard")


@pytest.mark.parametrize(
    "sla",
    [
        Sla((Objective("temperature", "max", "<=", Decimal(90), window=1, k=1, n=1),), ()),
        Sla((), (HardLimit("power", "<=", Decimal(15)),)),
    ],
)
def test_a_limit_without_a_sensor_is_never_met_by_silence(sla):
    w = Watch(sla, TRIAL)
    window(w, 10.0, count=1000)
    decision = w.decide(1.0, 1)
    assert decision.kind == "go_on"
    assert "nothing measures" in decision.why
    assert code(w, elapsed_s=100.0) == ("roll_back", "sla.undecided")


def test_an_inference_that_gave_no_answer_breaks_the_clean_run():
    w = watch(LATENCY)
    window(w, 10.0, count=49)
    w.failed()
    window(w, 10.0, count=49)
    assert code(w)[0] == "go_on"
    window(w, 10.0, count=1)
    assert code(w)[0] == "commit"


def test_a_nan_sample_is_outside_every_limit():
    w = watch(Objective("latency", "mean", ">=", Decimal(0), window=1, k=1, n=1))
    w.inference({"latency": float("nan")})
    assert code(w) == ("roll_back", "sla.broken")


def test_a_frame_rate_is_held_from_below():
    w = watch(Objective("throughput", "mean", ">=", Decimal(30), window=2, k=1, n=1))
    for rate in (30.0, 30.0):
        w.inference({"throughput": rate})
    assert code(w)[0] == "go_on"
    for rate in (30.0, 29.9):
        w.inference({"throughput": rate})
    assert code(w) == ("roll_back", "sla.broken")


def test_exactly_met_is_met_and_one_ulp_over_is_not():
    assert holds(0.1, "<=", Decimal("0.1"))
    assert not holds(0.10000000000000002, "<=", Decimal("0.1"))
    assert not holds(float("inf"), ">=", Decimal(0))


@pytest.mark.parametrize("share", [50, 90, 95, 99])
def test_percentiles_are_the_nearest_rank(share):
    samples = [random.Random(share).gauss(10, 3) for _ in range(137)]
    expected = np.percentile(samples, share, method="inverted_cdf")
    assert statistic(f"p{share}", samples) == expected


def outcomes(outside: float, seed: int, runs: int = 400) -> dict[str, int]:
    """How trials end whose windows are outside with a probability, each on its own."""
    found = {"commit": 0, "roll_back": 0}
    for run in range(runs):
        chance = random.Random(seed * 10_000 + run)
        w = Watch(Sla((Objective("latency", "mean", "<=", Decimal(20), window=1, k=3, n=5),), ()), Rollback(100, 3, 5))
        for step in range(100):
            w.inference({"latency": 30.0 if chance.random() < outside else 10.0})
            decision = w.decide(float(step), 1)
            if decision.kind != "go_on":
                found[decision.kind] += 1
                break
        else:
            found["roll_back"] += w.decide(100.0, 1).kind == "roll_back"
    return found


def first_run_of_five(outside: float) -> float:
    """Probability that five windows inside come before three of five outside: an exact walk over the last five."""
    inside, committed = {(): 1.0}, 0.0
    for _ in range(100):
        following: dict[tuple[bool, ...], float] = {}
        for last, weight in inside.items():
            for bad, chance in ((True, outside), (False, 1 - outside)):
                seen = (*last, bad)[-5:]
                if sum(seen) >= 3:
                    continue
                if len(seen) == 5 and not any(seen):
                    committed += weight * chance
                else:
                    following[seen] = following.get(seen, 0.0) + weight * chance
        inside = following
    return committed


@pytest.mark.parametrize("outside", [0.02, 0.1, 0.3, 0.5, 0.8])
def test_simulated_trials_end_as_often_kept_as_the_exact_walk_says(outside):
    expected = first_run_of_five(outside)
    found = outcomes(outside, seed=7)
    assert sum(found.values()) == 400
    deviation = (expected * (1 - expected) / 400) ** 0.5
    assert abs(found["commit"] / 400 - expected) <= 4 * deviation + 1e-9


def test_a_sound_bundle_is_nearly_always_kept_and_a_broken_one_nearly_never():
    assert first_run_of_five(0.02) > 0.99
    assert first_run_of_five(0.8) < 0.01
