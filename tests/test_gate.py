import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pytest

from edgeproof.bounds import tango_bounds
from edgeproof.environment import Control
from edgeproof.gate import decide
from edgeproof.measurement import Measurement
from edgeproof.policy import Policy, Rule, Verdict
from edgeproof.protocols import Metric


class Number:
    unit: ClassVar[str] = "1"
    better: ClassVar[str] = "higher"
    needs: ClassVar[str] = "labels"
    kind: ClassVar[str] = "mean"

    def score(self, got: Any, want: Any) -> Any:
        return got

    def value(self, scores: Sequence[Any]) -> float:
        return sum(scores) / len(scores)


class Accuracy(Number):
    kind: ClassVar[str] = "proportion"


class ErrorRate(Number):
    better: ClassVar[str] = "lower"
    kind: ClassVar[str] = "pooled"

    def value(self, scores: Sequence[Any]) -> float:
        return sum(s[0] for s in scores) / sum(s[1] for s in scores)


class Latency(Number):
    unit: ClassVar[str] = "ms"
    better: ClassVar[str] = "lower"
    needs: ClassVar[str] = "runs"
    kind: ClassVar[str] = "run"


class Throughput(Latency):
    unit: ClassVar[str] = "1/s"
    better: ClassVar[str] = "higher"


class Power(Latency):
    unit: ClassVar[str] = "W"


class Memory(Latency):
    unit: ClassVar[str] = "bytes"
    kind: ClassVar[str] = "max"

    def value(self, scores: Sequence[Any]) -> float:
        return max(scores)


class Size(Number):
    unit: ClassVar[str] = "bytes"
    better: ClassVar[str] = "lower"
    needs: ClassVar[str] = "file"
    kind: ClassVar[str] = "exact"


METRICS: dict[str, Any] = {
    "accuracy": Accuracy(),
    "mean": Number(),
    "cer": ErrorRate(),
    "latency": Latency(),
    "throughput": Throughput(),
    "power": Power(),
    "memory": Memory(),
    "size": Size(),
}
DROP = Rule("quality", "<=", Decimal("0.01"), "drop", "baseline")
FIT = Control(1.0, 0.99, 1.01, 0.1)
BUDGET = Rule("latency", "<=", Decimal(80), "ms")


def metric(name: str) -> Metric:
    found: Metric = METRICS[name]
    return found


def measured(name: str, samples: Sequence[Any], **changes: Any) -> Measurement:
    m = metric(name)
    made = Measurement(
        name, m.value(samples), m.unit, m.better, None, None, samples, "sha256:model", "d", "e", "cpu", "machine"
    )
    return replace(made, **changes)


def runs(mean: float, sd: float, n: int = 10) -> list[float]:
    """Runs with exactly this mean and standard deviation of logarithms."""
    z = np.random.default_rng(7).normal(size=n)
    z = (z - z.mean()) / z.std(ddof=1)
    return [float(x) for x in np.exp(math.log(mean) + sd * z)]


def judge(
    rules: Rule | tuple[Rule, ...],
    candidate: Measurement | tuple[Measurement, ...] | None,
    baseline: Measurement | tuple[Measurement, ...] | None = None,
    *,
    quality: str = "accuracy",
    control: Control | None = FIT,
    absent: dict[str, str] | None = None,
    void: str = "",
    **policy: Any,
) -> Verdict:
    def named(side: Measurement | tuple[Measurement, ...] | None) -> dict[str, Measurement]:
        each = side if isinstance(side, tuple) else (side,) if side else ()
        return {m.metric: m for m in each}

    return decide(
        Policy("test", rules if isinstance(rules, tuple) else (rules,), **policy),
        {
            n: replace(m, model="sha256:original") if m.model == "sha256:model" else m
            for n, m in named(baseline).items()
        },
        named(candidate),
        quality_metric=quality,
        control=control,
        absent=absent,
        metrics=metric,
        void=void,
    )


def answers(n: int, wrong: Sequence[int] = ()) -> list[int]:
    return [0 if i in set(wrong) else 1 for i in range(n)]


def test_latency_well_inside_its_budget_is_accepted() -> None:
    verdict = judge(BUDGET, measured("latency", runs(60, 0.03)))
    assert verdict.state == "accept"
    assert verdict.why == "every rule passes"


def test_latency_whose_bound_is_over_the_budget_is_held_with_the_runs_still_needed() -> None:
    check = judge(BUDGET, measured("latency", runs(79.2, 0.05))).checks[0]
    assert check.state == "undecided"
    # scipy: smallest n with ln 79.2 + t(0.95, n − 1) · 0.05 / √n ≤ ln 80.
    from scipy.stats import t

    n = next(n for n in range(11, 1000) if math.log(79.2) + t.ppf(0.95, n - 1) * 0.05 / n**0.5 <= math.log(80))
    assert check.more_runs == n - 10
    assert check.reason.endswith(f"undecided, about {n - 10} more runs needed")


def test_latency_clearly_over_the_budget_is_rejected_and_says_by_how_much() -> None:
    verdict = judge(BUDGET, measured("latency", [91.2] * 10))
    assert verdict.state == "reject"
    assert verdict.why == "latency is 91.2 ms (95 % bound 91.2 ms), limit 80 ms"


def test_a_bound_that_exactly_meets_the_limit_passes_and_one_ulp_over_fails() -> None:
    assert judge(BUDGET, measured("memory", [1.0]), None).state == "hold"
    limit = Rule("size", "<=", Decimal(80), "bytes")
    assert judge(limit, measured("size", [80.0])).state == "accept"
    assert judge(limit, measured("size", [math.nextafter(80.0, 81.0)])).state == "reject"


def test_a_drop_of_exactly_one_hundredth_meets_a_limit_of_one_hundredth() -> None:
    # In binary, 0.92 − 0.91 is greater than 0.01.
    assert 0.92 - 0.91 > 0.01
    rule = Rule("size", "<=", Decimal("0.01"), "drop", "baseline")
    assert judge(rule, measured("size", [0.92]), measured("size", [0.91])).state == "accept"
    assert judge(rule, measured("size", [math.nextafter(0.92, 1)]), measured("size", [0.91])).state == "reject"


def test_a_lower_limit_mirrors_an_upper_one() -> None:
    rule = Rule("throughput", ">=", Decimal(20), "1/s")
    assert judge(rule, measured("throughput", runs(25, 0.03))).state == "accept"
    assert judge(rule, measured("throughput", runs(20.2, 0.05))).state == "hold"
    rejected = judge(rule, measured("throughput", [15.0] * 10))
    assert (rejected.state, rejected.why) == (
        "reject",
        "throughput is 15 1/s (95 % bound 15 1/s), limit at least 20 1/s",
    )


def test_fewer_runs_than_the_policy_asks_for_never_pass() -> None:
    check = judge(BUDGET, measured("latency", runs(20, 0.01, 6))).checks[0]
    assert (check.state, check.more_runs) == ("undecided", 4)
    assert "6 runs of the 10 that the policy asks for" in check.reason


def test_fewer_runs_than_the_policy_asks_for_can_fail() -> None:
    assert judge(BUDGET, measured("latency", runs(200, 0.01, 6))).state == "reject"


def test_a_single_run_is_held() -> None:
    check = judge(BUDGET, measured("latency", [20.0])).checks[0]
    assert (check.state, check.high, check.more_runs) == ("undecided", None, 9)


def test_a_failure_needs_stronger_evidence_when_there_are_more_rules() -> None:
    # Lower bound at α = 0.05 is above 80, at α/5 = 0.01 it is not.
    over = measured("latency", runs(82.5, 0.05))
    assert judge(BUDGET, over).state == "reject"
    assert judge((BUDGET,) * 5, over).state == "hold"


def test_looks_share_alpha() -> None:
    near = measured("latency", runs(78, 0.035))
    assert judge(BUDGET, near).state == "accept"
    assert judge(BUDGET, near, looks=10).state == "hold"


def test_ten_equal_models_measured_interleaved_meet_a_margin_of_three_percent() -> None:
    rule = Rule("latency", "<=", Decimal("1.03"), "ratio", "baseline")
    base = runs(10, 0.3)
    noise = runs(1.0, 0.02)
    cand = [b * e for b, e in zip(base, noise[::-1], strict=True)]
    check = judge(rule, measured("latency", cand), measured("latency", base)).checks[0]
    assert check.state == "pass"
    assert check.got == pytest.approx(1.0)
    assert check.reason.startswith("latency / baseline is 1 (95 % bound 1.01")


def test_a_tenth_slower_is_not_within_three_percent() -> None:
    rule = Rule("latency", "<=", Decimal("1.03"), "ratio", "baseline")
    base = runs(10, 0.3)
    cand = [b * 1.1 * e for b, e in zip(base, runs(1.0, 0.02)[::-1], strict=True)]
    assert judge(rule, measured("latency", cand), measured("latency", base)).state == "reject"


def test_a_drop_of_a_run_metric_is_counted_in_its_unit() -> None:
    rule = Rule("throughput", "<=", Decimal(3), "drop", "baseline")
    base, cand = [50.0, 52, 49, 51, 50] * 2, [48.0, 50, 47, 49, 48.5] * 2
    check = judge(rule, measured("throughput", cand), measured("throughput", base)).checks[0]
    assert check.state == "pass"
    assert check.got == pytest.approx(1.9)
    assert "throughput drop is 1.9 1/s" in check.reason


def test_the_same_runs_on_both_sides_are_no_comparison() -> None:
    rule = Rule("latency", "<=", Decimal("1.03"), "ratio", "baseline")
    check = judge(rule, measured("latency", runs(10, 0.1)), measured("latency", runs(10, 0.1))).checks[0]
    assert (check.state, check.reason) == (
        "incomparable",
        "latency: baseline and candidate are the same measurement",
    )


def test_equal_answers_of_three_thousand_examples_are_accepted() -> None:
    assert judge(DROP, measured("accuracy", answers(3000)), measured("accuracy", answers(3000))).state == "accept"


def test_equal_answers_of_a_hundred_examples_are_held_with_the_examples_still_needed() -> None:
    check = judge(DROP, measured("accuracy", answers(100)), measured("accuracy", answers(100))).checks[0]
    assert (check.state, check.more_runs) == ("undecided", 168)  # z² (1 − 0.01) / 0.01 = 267.8 examples in all


def test_accuracy_is_decided_on_tangos_bound() -> None:
    base, cand = answers(1000, range(20)), answers(1000, range(15, 38))  # lost 18, gained 15
    check = judge(DROP, measured("accuracy", cand), measured("accuracy", base)).checks[0]
    assert check.got == pytest.approx(0.003)
    assert (check.low, check.high) == pytest.approx(tango_bounds(18, 15, 1000, 0.05, 0.05))


def test_a_model_beside_itself_loses_nothing_however_few_the_examples() -> None:
    same = measured("accuracy", answers(20, range(4)), model="sha256:one")
    check = judge(DROP, same, same).checks[0]
    assert (check.state, check.got, check.low, check.high) == ("pass", 0.0, 0.0, 0.0)
    other = measured("accuracy", answers(20, range(4)), model="sha256:two")
    assert judge(DROP, other, same).checks[0].state == "undecided"


def test_an_original_that_only_guesses_has_no_quality_to_lose() -> None:
    scores = measured("accuracy", answers(1000, range(900)))
    verdict = judge(DROP, scores, scores, void="the original scores 0.1, as guessing would")
    assert (verdict.state, verdict.why) == ("hold", "accuracy: the original scores 0.1, as guessing would")


def test_a_difference_of_nothing_is_shown_as_0() -> None:
    base = measured("accuracy", answers(3000))
    assert judge(DROP, base, base).why == "every rule passes"
    assert judge(DROP, base, base).checks[0].reason.startswith("accuracy drop is 0 (95 % bound")


def test_a_clear_loss_of_accuracy_is_rejected() -> None:
    base, cand = answers(1000), answers(1000, range(60))
    verdict = judge(DROP, measured("accuracy", cand), measured("accuracy", base))
    assert verdict.state == "reject"
    # Nothing was gained, so the bound is Wilson's for 60 of 1000: (60 + z²/2 + z √(60 · 0.94 + z²/4)) / (1000 + z²).
    assert verdict.why == "accuracy drop is 0.06 (95 % bound 0.07358), limit 0.01"


def test_more_accuracy_than_before_is_a_negative_drop() -> None:
    check = judge(DROP, measured("accuracy", answers(1000)), measured("accuracy", answers(1000, range(30)))).checks[0]
    assert (check.state, check.got) == ("pass", -0.03)


def test_a_drop_of_an_error_rate_is_its_rise() -> None:
    base, cand = [[1, 20]] * 2000, [[1, 20]] * 1900 + [[5, 20]] * 100
    check = judge(DROP, measured("cer", cand), measured("cer", base), quality="cer").checks[0]
    assert check.got == pytest.approx(100 * 4 / 40000)


def test_a_pooled_metric_with_no_difference_on_few_examples_is_held() -> None:
    same = measured("cer", [[1, 20]] * 50)
    check = judge(DROP, same, same, quality="cer").checks[0]
    assert check.state == "undecided"
    assert check.more_runs is not None
    assert check.more_runs > 200


def test_bounds_of_a_bootstrap_are_the_same_each_time() -> None:
    rng = np.random.default_rng(3)
    base = [[int(e), 20] for e in rng.integers(0, 3, 400)]
    cand = [[int(e), 20] for e in rng.integers(0, 3, 400)]
    a = judge(DROP, measured("cer", cand), measured("cer", base), quality="cer")
    assert a == judge(DROP, measured("cer", cand), measured("cer", base), quality="cer")


def test_a_ratio_of_quality_is_bounded_too() -> None:
    rule = Rule("quality", ">=", Decimal("0.97"), "ratio", "baseline")
    rng = np.random.default_rng(3)
    base = [float(x) for x in rng.uniform(0.7, 1.0, 2000)]
    good = [x * 0.995 for x in base]
    bad = [x * 0.9 for x in base]
    assert judge(rule, measured("mean", good), measured("mean", base), quality="mean").state == "accept"
    assert judge(rule, measured("mean", bad), measured("mean", base), quality="mean").state == "reject"


def test_an_absolute_accuracy_is_bounded_exactly() -> None:
    rule = Rule("quality", ">=", Decimal("0.9"), "1")
    assert judge(rule, measured("accuracy", answers(1000, range(50)))).state == "accept"
    held = judge(rule, measured("accuracy", answers(100, range(7)))).checks[0]
    assert held.state == "undecided"
    assert judge(rule, measured("accuracy", answers(1000, range(200)))).state == "reject"


def test_memory_is_the_largest_of_the_runs() -> None:
    rule = Rule("memory", "<=", Decimal(100), "bytes")
    assert judge(rule, measured("memory", [90.0] * 9 + [100.0])).state == "accept"
    assert judge(rule, measured("memory", [90.0] * 9 + [101.0])).state == "reject"


def test_a_metric_that_was_not_measured_is_missing() -> None:
    check = judge(BUDGET, None).checks[0]
    assert (check.state, check.got) == ("missing", None)
    assert check.reason == "there is no measurement of latency for the candidate"


def test_a_missing_sensor_says_why() -> None:
    rule = Rule("power", "<=", Decimal(8), "W")
    verdict = judge(rule, None, absent={"power": "rapl: no energy counter", "temperature": "x"})
    assert verdict.state == "hold"
    assert verdict.why == "there is no measurement of power for the candidate (rapl: no energy counter)"


def test_a_sensor_that_reads_zero_is_missing() -> None:
    check = judge(Rule("power", "<=", Decimal(8), "W"), measured("power", [5.0] * 9 + [0.0])).checks[0]
    assert (check.state, check.reason) == (
        "missing",
        "power of the candidate has a reading of 0 W, which no working sensor gives",
    )


def test_a_sample_that_is_no_number_is_missing() -> None:
    check = judge(BUDGET, measured("latency", [5.0] * 9 + [math.nan])).checks[0]
    assert check.state == "missing"


def test_a_baseline_that_was_not_measured_holds_a_relative_rule() -> None:
    check = judge(DROP, measured("accuracy", answers(3000))).checks[0]
    assert check.reason == "there is no measurement of accuracy for the baseline"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dataset": "sha256:0123456789abcdef"}, "data set digests (d and 0123456789ab)"),
        ({"evaluator": "f"}, "evaluator digests (e and f)"),
        ({"machine": ""}, "machine digests (machine and none)"),
        ({"unit": "%"}, "measured in '%', the metric's unit is '1'"),
    ],
)
def test_what_was_measured_differently_is_incomparable(change: dict[str, str], reason: str) -> None:
    same = answers(3000)
    check = judge(DROP, measured("accuracy", same, **change), measured("accuracy", same)).checks[0]
    assert check.state == "incomparable"
    assert reason in check.reason


def test_unequal_numbers_of_samples_are_incomparable() -> None:
    check = judge(DROP, measured("accuracy", answers(2999)), measured("accuracy", answers(3000))).checks[0]
    assert check.reason == "accuracy: the baseline has 3000 samples, the candidate 2999"


def test_a_limit_in_another_unit_is_incomparable() -> None:
    check = judge(Rule("latency", "<=", Decimal("0.08"), "s"), measured("latency", runs(60, 0.03))).checks[0]
    assert (check.state, check.reason) == ("incomparable", "latency: measured in 'ms', the limit is in 's'")


def test_a_files_size_is_the_same_on_every_machine() -> None:
    rule = Rule("size", "<=", Decimal("0.5"), "ratio", "baseline")
    verdict = judge(rule, measured("size", [40], machine="b"), measured("size", [80], machine="a"))
    assert verdict.state == "accept"


def test_an_unfit_environment_voids_runs_and_nothing_else() -> None:
    control = Control(1.3, 1.2, 1.4, 0.1, ("the same model measured twice differs",))
    same = answers(3000)
    verdict = judge(
        (DROP, BUDGET),
        (measured("accuracy", same), measured("latency", runs(200, 0.01))),
        measured("accuracy", same),
        control=control,
    )
    assert [c.state for c in verdict.checks] == ["pass", "invalid_environment"]
    assert verdict.state == "hold"
    assert verdict.why == "latency: the same model measured twice differs"


def test_runs_without_an_aa_control_are_held() -> None:
    check = judge(BUDGET, measured("latency", runs(60, 0.03)), control=None).checks[0]
    assert check.state == "invalid_environment"
    assert check.reason == "latency: no A/A control shows that the machine was fit to measure on"


def test_one_failed_rule_rejects_whatever_else_is_open() -> None:
    verdict = judge(
        (Rule("power", "<=", Decimal(8), "W"), BUDGET),
        measured("latency", runs(200, 0.01)),
    )
    assert [c.state for c in verdict.checks] == ["missing", "fail"]
    assert verdict.state == "reject"


def test_a_verdict_names_its_policy_and_model() -> None:
    verdict = judge(BUDGET, measured("latency", runs(60, 0.03)))
    assert verdict.policy == Policy("test", (BUDGET,)).digest
    assert verdict.model == "sha256:model"


def test_undecided_on_the_limit_itself_says_that_more_would_not_help() -> None:
    check = judge(BUDGET, measured("latency", runs(80.0, 0.03))).checks[0]
    assert check.more_runs is None
    assert check.reason.endswith("more runs would not decide: the estimate sits on the limit")


def test_more_confirmations_than_declared_looks_leave_every_rule_open():
    policy = Policy("p", (Rule("size", "<=", Decimal(100), "bytes"), Rule("size", "<=", Decimal(1), "bytes")), looks=2)
    side = {"size": Measurement("size", 50.0, "bytes", "lower", None, None, (50,), "m")}
    for spent, state in ((2, "reject"), (3, "hold")):
        verdict = decide(policy, side, side, quality_metric="quality", spent=spent)
        assert verdict.state == state
    assert [c.state for c in verdict.checks] == ["incomparable", "incomparable"]
    assert "3 confirmations were made, and the policy declared 2" in verdict.why
