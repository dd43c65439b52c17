"""What cannot be compared holds; what is exact is compared exactly. Measured elsewhere, so nothing else binds it."""

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from securesystemslib.signer import CryptoSigner

from edgeproof.digest import digest_json
from edgeproof.errors import TrustError
from edgeproof.evidence.verify import verify
from edgeproof.policy import Policy, Rule
from evidence_files import POLICY, chained, digest, reentered, structure, values, write

SIGNER = CryptoSigner.generate_ed25519()


def reviewed(policy: Policy = POLICY):
    """The same samples in a review: frozen elsewhere, no ledger of its own."""
    found = values(policy)
    found["request.json"]["by"] = "review"
    found["request.json"]["frozen"] = {"policy": policy.to_json()}
    found["ledger.json"]["lines"] = []
    return found


def verified(found, tmp_path):
    write(found, tmp_path / "e.zip", [SIGNER])
    return verify(tmp_path / "e.zip", keys=[SIGNER.public_key])


def state(found, tmp_path) -> str:
    result = verified(found, tmp_path)
    assert result.differences == ()
    assert result.accepted == (result.state == "accept")
    return result.state


def test_a_review_of_good_samples_is_an_accept_and_asks_of_the_structure_too(tmp_path):
    result = verified(reviewed(), tmp_path)
    assert (result.state, result.differences, result.accepted) == ("accept", (), True)
    assert [c.rule.metric for c in result.verdict.checks][-2:] == ["interface", "new_defects"]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("quality", "dataset"),
        ("quality", "evaluator"),
        ("quality", "environment"),
        ("runs", "environment"),
        ("runs", "dataset"),
    ],
)
def test_another_data_set_evaluator_or_environment_on_one_side_holds(tmp_path, kind, key):
    found = reviewed()
    found[f"receipt-candidate-{kind}.json"][key] = digest("another")
    result = verified(found, tmp_path)
    assert (result.state, result.differences) == ("hold", ())
    assert "different" in result.verdict.why


def test_another_device_on_one_side_holds(tmp_path):
    # A workstation's figures never stand for a device's: its facts are in the environment's digest.
    found = reviewed()
    found["receipt-candidate-runs.json"]["device"] = {"module": "a workstation"}
    found["receipt-candidate-runs.json"]["environment"] = digest_json({"device": "a workstation"})
    assert state(found, tmp_path) == "hold"


def test_another_device_under_one_stated_environment_holds(tmp_path):
    found = reviewed()
    found["receipt-baseline-runs.json"]["device"] = {"module": "Orin Nano"}
    found["receipt-candidate-runs.json"]["device"] = {"module": "a workstation"}
    result = verified(found, tmp_path)
    assert (result.state, result.differences) == ("hold", ())
    assert "different machine" in result.verdict.why


def test_another_unit_holds(tmp_path):
    found = reviewed()
    for role in ("baseline", "candidate"):
        found[f"receipt-{role}-quality.json"]["scores"][0]["unit"] = "%"
    result = verified(found, tmp_path)
    assert result.state == "hold"
    assert "measured in '%'" in result.verdict.why


def test_a_direction_that_is_not_the_metrics_holds(tmp_path):
    found = reviewed()
    found["receipt-candidate-quality.json"]["scores"][0]["better"] = "lower"
    assert state(found, tmp_path) == "hold"


def test_a_missing_sensor_written_as_0_holds(tmp_path):
    power = replace(POLICY, rules=(*POLICY.rules, Rule("power", "<=", Decimal(8), "W")))
    found = reviewed(power)
    for role in ("baseline", "control", "candidate"):
        for run in found[f"receipt-{role}-runs.json"]["runs"]:
            run["sensors"] = {"power": [0.0, 0.0]}
    result = verified(found, tmp_path)
    assert (result.state, result.differences) == ("hold", ())
    assert [c.state for c in result.verdict.checks if c.rule.metric == "power"] == ["missing"]


def test_a_sensor_without_readings_holds_and_says_why(tmp_path):
    power = replace(POLICY, rules=(*POLICY.rules, Rule("power", "<=", Decimal(8), "W")))
    result = verified(reviewed(power), tmp_path)
    assert result.state == "hold"
    assert "rapl: no readings" in result.verdict.why


def test_runs_without_a_control_hold(tmp_path):
    found = {n: v for n, v in reviewed().items() if n != "receipt-control-runs.json"}
    assert state(found, tmp_path) == "hold"


def test_a_control_that_differs_from_the_baseline_holds(tmp_path):
    found = reviewed()
    for run in found["receipt-control-runs.json"]["runs"]:
        run["latency_ns"] = [t * 5 // 4 for t in run["latency_ns"]]
    result = verified(found, tmp_path)
    assert result.state == "hold"
    assert "differs by more than" in result.verdict.why


def test_a_processor_that_throttled_holds(tmp_path):
    found = reviewed()
    found["receipt-candidate-runs.json"]["runs"][2]["environment"]["after"]["throttled"] = 3
    assert state(found, tmp_path) == "hold"


def test_sides_measured_in_different_processes_hold(tmp_path):
    found = reviewed()
    for run in found["receipt-candidate-runs.json"]["runs"]:
        run["round"] += 100
    result = verified(found, tmp_path)
    assert result.state == "hold"
    assert "not measured in the same processes" in result.verdict.why


def test_no_quality_holds(tmp_path):
    found = {n: v for n, v in reviewed().items() if n != "receipt-candidate-quality.json"}
    result = verified(found, tmp_path)
    assert result.state == "hold"
    assert "there is no measurement of top1 for the candidate" in result.verdict.why


def test_a_baseline_that_only_guesses_holds(tmp_path):
    # With 10 classes, one right in ten is what guessing gives.
    found = reviewed()
    for role in ("baseline", "candidate"):
        scores = found[f"receipt-{role}-quality.json"]["scores"][0]
        scores["samples"] = [int(i % 10 == 0) for i in range(300)]
    assert state(found, tmp_path) == "hold"


def test_the_baseline_handed_in_as_its_own_candidate_is_no_accept(tmp_path):
    found = reviewed()
    for kind in ("runs", "quality"):
        found[f"receipt-candidate-{kind}.json"] = found[f"receipt-baseline-{kind}.json"]
    found["analysis-candidate.json"] = {**found["analysis-baseline.json"]}
    result = verified(found, tmp_path)
    assert not result.accepted
    assert result.state != "accept"
    assert {d.code for d in result.differences} == {"evidence.replayed"}


def test_the_baselines_receipt_for_another_candidate_differs(tmp_path):
    found = reviewed()
    found["receipt-candidate-runs.json"] = found["receipt-baseline-runs.json"]
    result = verified(found, tmp_path)
    assert {"evidence.other_model", "evidence.replayed"} <= {d.code for d in result.differences}
    assert not result.accepted


def test_whole_pipeline_times_never_stand_for_isolated_ones(tmp_path):
    found = reviewed()
    for role in ("baseline", "control", "candidate"):
        receipt = found.pop(f"receipt-{role}-runs.json")
        found[f"receipt-{role}-pipeline.json"] = {**receipt, "kind": "pipeline"}
    result = verified(found, tmp_path)
    assert result.state == "hold"
    assert "there is no measurement of latency_p95" in result.verdict.why


def limited(limit: Decimal, tmp_path) -> str:
    return state(reviewed(replace(POLICY, rules=(Rule("size", "<=", limit, "bytes"),))), tmp_path)


def test_a_limit_exactly_met_is_an_accept_and_one_unit_in_the_last_place_over_it_a_reject(tmp_path):
    # The candidate has 12,000 bytes; the next smaller double is 11999.999999999998.
    assert limited(Decimal(12_000), tmp_path) == "accept"
    assert limited(Decimal(repr(math.nextafter(12_000, 0))), tmp_path) == "reject"


def test_an_undeclared_change_of_the_interface_is_a_reject_in_a_review(tmp_path):
    found = reviewed()
    found["analysis-candidate.json"]["inputs"][0]["dtype"] = "int8"
    assert state(found, tmp_path) == "reject"


def test_a_candidate_that_is_worse_is_a_reject(tmp_path):
    found = reviewed()
    found["receipt-candidate-quality.json"]["scores"][0]["samples"] = [0] * 300
    assert state(found, tmp_path) == "reject"


def test_two_receipts_of_one_metric_are_refused(tmp_path):
    found = reviewed()
    found["receipt-candidate-quality-2.json"] = found["receipt-candidate-quality.json"]
    with pytest.raises(TrustError) as e:
        write(found, tmp_path / "e.zip")
    assert e.value.code == "evidence.receipt"


def test_the_original_itself_may_be_the_candidate(tmp_path):
    # What 'optimize' seals when the original meets the policy: it stands for itself through its control.
    rules = (Rule("latency_p95", "<=", Decimal(80), "ms"), Rule("quality", "<=", Decimal("0.05"), "drop", "baseline"))
    found = values(replace(POLICY, rules=rules))
    found["request.json"]["candidate"]["name"] = "original"
    found["analysis-candidate.json"] = structure("net", 40_000, "float").to_json()
    found["receipt-candidate-runs.json"] = found["receipt-control-runs.json"]
    found["receipt-candidate-quality.json"] = found["receipt-baseline-quality.json"]
    lines = reentered(found)["ledger.json"]["lines"]
    kept = [v for v in lines if v["candidate"] != "int8"]
    bodies = [{k: v for k, v in line.items() if k not in ("n", "previous")} for line in kept]
    found["ledger.json"]["lines"] = chained(found["request.json"]["frozen"], bodies)
    assert state(found, tmp_path) == "accept"
