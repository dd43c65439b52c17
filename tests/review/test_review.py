"""A review: frozen, decided from raw samples and structures, sealed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from edgeproof.benchfile import run_bench
from edgeproof.cli import main
from edgeproof.errors import InputError, TrustError
from edgeproof.evidence.verify import verify
from edgeproof.job import Plan
from edgeproof.review import prepare, run
from edgeproof.review.gather import Given
from edgeproof.runtimes import find_target
from review.reviews import (
    FASTER,
    QUALITY,
    TIME,
    latencies,
    measured,
    models,
    prepared,
    record,
    rules,
    state,
)
from structure.models import FIXTURES, conv


def reason(folder: Path, metric: str = "latency_p95") -> str:
    verdict = run(folder / "review", folder / "evidence.zip", timestamp=TIME).sealed.verdict
    return next(c.reason for c in verdict.checks if c.rule.metric == metric)


def test_a_faster_candidate_is_accepted_and_its_evidence_gives_the_same_verdict(tmp_path):
    prepared(tmp_path)
    assert state(tmp_path) == "accept"
    checked = verify(tmp_path / "evidence.zip")
    assert checked.state == "accept"
    assert checked.differences == ()
    assert {c.rule.metric for c in checked.verdict.checks} == {"latency_p95", "interface", "new_defects"}


def test_a_slower_candidate_is_rejected(tmp_path):
    prepared(tmp_path, measured(tmp_path, candidate_ms=11.0))
    assert state(tmp_path) == "reject"


def test_the_evidence_keeps_the_original_records_the_comparison_and_the_change_in_words(tmp_path):
    prepared(tmp_path)
    state(tmp_path)
    import zipfile

    with zipfile.ZipFile(tmp_path / "evidence.zip") as z:
        names = set(z.namelist())
        assert {"comparison.json", "review.json", "record-00-baseline.json", "record-02-candidate.json"} <= names
        assert z.read("record-02-candidate.json") == (tmp_path / "candidate.json").read_bytes()
        assert json.loads(z.read("request.json"))["change"] == "INT8 weights"
        comparison = json.loads(z.read("comparison.json"))
    assert [(t["name"], t["state"]) for t in comparison["tensors"]] == [("fc/weight", "changed")]


def test_the_same_review_sealed_twice_gives_the_same_bytes(tmp_path):
    prepared(tmp_path)
    a = run(tmp_path / "review", tmp_path / "a.zip", timestamp=TIME).sealed
    b = run(tmp_path / "review", tmp_path / "b.zip", timestamp=TIME).sealed
    assert a.digest == b.digest


def test_a_review_of_the_same_files_elsewhere_freezes_the_same(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert prepared(tmp_path / "one").frozen == prepared(tmp_path / "two").frozen


def test_without_any_measurement_it_holds(tmp_path):
    prepared(tmp_path, [])
    assert state(tmp_path) == "hold"
    assert "no measurement" in reason(tmp_path)


def test_without_a_control_it_holds(tmp_path):
    prepared(tmp_path, [g for g in measured(tmp_path) if g.paths[0].stem != "control"])
    assert state(tmp_path) == "hold"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("dataset", "sha256:others", "data set"),
        ("evaluator", "sha256:others", "evaluator"),
        ("environment", {"board": "Orin NX", "power": "15W"}, "machine"),
        ("environment", None, "machine"),
        ("dataset", None, "data set"),
    ],
)
def test_measurements_with_other_data_settings_or_machine_hold_and_say_so(key, value, named, tmp_path):
    prepared(tmp_path, measured(tmp_path, **{key: value}))
    assert state(tmp_path) == "hold"
    assert f"different {named} digests" in reason(tmp_path)


def test_a_receipt_of_another_model_is_set_aside_with_the_reason_and_then_holds(tmp_path):
    done = prepared(tmp_path, measured(tmp_path, model="sha256:" + "9" * 64))
    assert [("candidate.json" in u.what, "sha256:999999" in u.why) for u in done.unused] == [(True, True)]
    assert state(tmp_path) == "hold"
    assert run(tmp_path / "review", tmp_path / "e.zip", timestamp=TIME).unused == done.unused


def test_a_receipt_made_under_another_policy_is_set_aside_and_then_holds(tmp_path):
    first = prepared(tmp_path)
    path = tmp_path / "kept.json"
    receipt = next(r for role, r in first.receipts if role == "candidate")
    from dataclasses import replace

    path.write_text(json.dumps(replace(receipt, policy="sha256:" + "1" * 64).to_json()))
    shutil.rmtree(tmp_path / "review")
    given = [*measured(tmp_path)[:2], Given((path,), "candidate")]
    done = prepared(tmp_path, given)
    assert "another policy" in done.unused[0].why
    assert state(tmp_path) == "hold"


def test_a_receipt_of_our_own_finds_its_side_by_the_models_digest(tmp_path):
    first = prepared(tmp_path)
    for role, receipt in first.receipts:
        (tmp_path / f"{role}-receipt.json").write_text(json.dumps(receipt.to_json()))
    shutil.rmtree(tmp_path / "review")
    paths = [Given((tmp_path / f"{role}-receipt.json",)) for role in ("baseline", "candidate")]
    done = prepared(tmp_path, [*paths, Given((tmp_path / "control-receipt.json",), "control")])
    assert [role for role, _ in done.receipts] == ["baseline", "candidate", "control"]
    assert state(tmp_path) == "accept"


def test_two_receipts_of_the_same_measurement_are_refused_so_that_none_is_chosen_afterwards(tmp_path):
    given = measured(tmp_path)
    again = record(tmp_path / "again.json", "candidate", runs=latencies(4.0, 9))
    with pytest.raises(InputError) as e:
        prepared(tmp_path, [*given, Given((again,))])
    assert e.value.code == "review.twice"


def test_aggregates_without_samples_hold_and_their_claims_are_kept(tmp_path):
    importers = Path(__file__).parent.parent / "importers/fixtures"
    given = [
        Given((importers / "trtexec_8.log",), "baseline"),
        Given((importers / "trtexec_10.log",), "candidate"),
    ]
    done = prepared(tmp_path, given)
    assert state(tmp_path) == "hold"
    assert "no samples" in reason(tmp_path) or "no measurement" in reason(tmp_path)
    assert ("candidate", "Latency median", 7.125) in {(role, c.name, c.value) for role, c in done.claims}


def test_a_foreign_record_must_be_given_to_a_side(tmp_path):
    importers = Path(__file__).parent.parent / "importers/fixtures"
    with pytest.raises(InputError) as e:
        prepared(tmp_path, [Given((importers / "trtexec_10.log",))])
    assert e.value.code == "review.role"


def scores(seed: int, wrong: int, n: int = 3000) -> list[dict]:
    right = np.ones(n, int)
    right[np.random.default_rng(0).permutation(n)[: 150 + wrong]] = 0
    del seed
    return [{"metric": "top1", "unit": "1", "better": "higher", "samples": right.tolist()}]


def quality(folder: Path, wrong: int) -> list[Given]:
    sides = (("baseline", 0), ("candidate", wrong))
    return [Given((record(folder / f"q-{role}.json", role, kind="quality", scores=scores(1, n)),)) for role, n in sides]


def test_quality_is_decided_example_by_example(tmp_path):
    prepared(tmp_path, quality(tmp_path, 3), rules(QUALITY))
    assert state(tmp_path) == "accept"
    shutil.rmtree(tmp_path / "review")
    prepared(tmp_path, quality(tmp_path, 300), rules(QUALITY))
    assert state(tmp_path) == "reject"


def test_speed_and_quality_are_decided_together(tmp_path):
    given = [*measured(tmp_path), *quality(tmp_path, 2)]
    done = prepared(tmp_path, given, rules(FASTER, QUALITY))
    assert len(done.receipts) == 5
    assert state(tmp_path) == "accept"


def test_the_baseline_as_its_own_candidate_is_refused(tmp_path):
    before, _ = models(tmp_path)
    with pytest.raises(InputError) as e:
        prepared(tmp_path, candidate=before)
    assert e.value.code == "review.same_model"


def test_a_review_without_words_and_a_second_one_in_the_same_folder_are_refused(tmp_path):
    before, after = models(tmp_path)
    with pytest.raises(InputError) as e:
        prepare(tmp_path / "r", baseline=before, candidate=after, policy=rules(), change="  ")
    assert e.value.code == "review.change"
    prepared(tmp_path)
    with pytest.raises(InputError) as e:
        prepared(tmp_path)
    assert e.value.code == "review.exists"


def test_a_new_defect_in_the_candidate_rejects_however_fast_it_is(tmp_path):
    w = np.ones((4, 3, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.nan
    prepared(tmp_path, baseline=conv(tmp_path / "well.onnx"), candidate=conv(tmp_path / "sick.onnx", w))
    assert state(tmp_path) == "reject"
    assert "NaN" in reason(tmp_path, "new_defects")


def test_a_change_of_the_interface_rejects_unless_the_policy_declares_it(tmp_path):
    baseline, candidate = FIXTURES / "conv.onnx", FIXTURES / "fc_int8.tflite"
    prepared(tmp_path, baseline=baseline, candidate=candidate)
    assert state(tmp_path) == "reject"
    assert "does not declare" in reason(tmp_path, "interface")
    shutil.rmtree(tmp_path / "review")
    interface = {
        "inputs": [{"baseline": "x", "dtype": "int8", "shape": [1, 4]}],
        "outputs": [{"baseline": "y", "dtype": "int8", "shape": [1, 2]}],
    }
    prepared(tmp_path, baseline=baseline, candidate=candidate, policy=rules(interface=interface))
    assert state(tmp_path) == "accept"
    assert verify(tmp_path / "evidence.zip").state == "accept"


def test_an_onnx_model_and_its_openvino_ir_are_reviewed_together(tmp_path):
    prepared(tmp_path, baseline=FIXTURES / "conv.onnx", candidate=FIXTURES / "conv.xml")
    assert state(tmp_path) == "accept"
    checked = verify(tmp_path / "evidence.zip", models=[FIXTURES / "conv.onnx", FIXTURES / "conv.xml"])
    assert (checked.state, checked.differences) == ("accept", ())


def test_an_engine_without_a_build_record_holds_since_its_interface_is_not_known(tmp_path):
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"ftrt" + bytes(20) + bytes([10, 3, 0, 26]) + bytes(100))
    prepared(tmp_path, candidate=engine)
    assert state(tmp_path) == "hold"
    shutil.rmtree(tmp_path / "review")
    specs = {"inputs": [("x", [1, 4])], "outputs": [("y", [1, 2])]}
    told = {k: [{"name": n, "dtype": "int8", "shape": s} for n, s in v] for k, v in specs.items()}
    (tmp_path / "m.engine.json").write_text(json.dumps(told))
    prepared(tmp_path, candidate=engine)
    assert state(tmp_path) == "accept"


EDITS = (
    "request.json",
    "ledger.jsonl",
    "index.json",
    "analysis-baseline.json",
    "analysis-candidate.json",
    "comparison.json",
    "review.json",
    "receipt-baseline-runs.json",
    "receipt-candidate-runs.json",
    "record-02-candidate.json",
)


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Path:
    """A review that was frozen, to be copied."""
    folder = tmp_path_factory.mktemp("once")
    prepared(folder)
    return folder / "review"


@pytest.mark.parametrize("name", EDITS)
def test_editing_anything_after_it_was_frozen_is_refused_by_name(name, once, tmp_path):
    shutil.copytree(once, tmp_path / "review")
    path = tmp_path / "review" / name
    text = path.read_text()
    i = next(i for i in range(len(text) // 2, len(text)) if text[i] in "0123456789n")
    path.write_text(text[:i] + ("m" if text[i] == "n" else str((int(text[i]) + 1) % 10)) + text[i + 1 :])
    with pytest.raises((TrustError, InputError)) as e:
        state(tmp_path)
    assert path.name in str(e.value) or e.value.code == "workspace.ledger"
    assert not (tmp_path / "evidence.zip").exists()


@pytest.mark.parametrize("name", EDITS)
def test_deleting_anything_that_was_frozen_is_refused(name, once, tmp_path):
    shutil.copytree(once, tmp_path / "review")
    (tmp_path / "review" / name).unlink()
    with pytest.raises((TrustError, InputError)):
        state(tmp_path)


def test_a_value_replaced_together_with_the_index_is_refused(once, tmp_path):
    shutil.copytree(once, tmp_path / "review")
    from edgeproof.workspace import Workspace

    workspace = Workspace.open(tmp_path / "review")
    value = workspace.read("receipt-candidate-runs.json")
    value["runs"][0]["latency_ns"][0] -= 1000
    workspace.write("receipt-candidate-runs.json", value)
    with pytest.raises(TrustError) as e:
        state(tmp_path)
    assert e.value.code == "review.changed"


@pytest.mark.parametrize("which", ["before.tflite", "after.tflite"])
def test_a_model_file_that_changed_since_is_refused_and_one_that_moved_is_noted(which, tmp_path):
    prepared(tmp_path, [])
    path = tmp_path / which
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(TrustError) as e:
        state(tmp_path)
    assert e.value.code == "review.changed_model"
    path.unlink()
    assert any(which in note for note in run(tmp_path / "review", tmp_path / "e.zip", timestamp=TIME).notes)


def test_a_review_redone_in_secret_has_another_frozen_digest(tmp_path):
    first = prepared(tmp_path).frozen
    shutil.rmtree(tmp_path / "review")
    prepared(tmp_path, measured(tmp_path, candidate_ms=4.0))
    with pytest.raises(TrustError) as e:
        run(tmp_path / "review", tmp_path / "e.zip", timestamp=TIME, frozen=first)
    assert e.value.code == "review.frozen"


def test_a_bench_of_our_own_brings_all_three_sides_and_its_machine(tmp_path):
    before, after, third = (
        conv(tmp_path / f"{name}.onnx", np.full((4, 3, 3, 3), value, np.float32))
        for name, value in (("before", 0.5), ("after", 0.25), ("third", 1.0))
    )
    target = find_target("onnxruntime:cpu", {"threads": 1})
    plan = Plan(alone=False)  # no memory measured: half the processes
    run_bench([before, after], target, tmp_path / "bench", rounds=1, inferences=5, plan=plan)
    given, policy = [Given((tmp_path / "bench",))], rules(FASTER, runs=2, inferences=5)
    done = prepared(tmp_path, given, policy, baseline=before, candidate=after)
    assert [(role, r.kind, len(r.runs)) for role, r in done.receipts] == [
        ("baseline", "runs", 1), ("control", "runs", 1), ("candidate", "runs", 1),
    ]  # fmt: skip
    assert done.unused == ()
    assert state(tmp_path) in ("hold", "reject")  # the same graph is not a tenth faster
    shutil.rmtree(tmp_path / "review")
    done = prepared(tmp_path, given, policy, baseline=before, candidate=third)
    assert "another model" in done.unused[0].why
    assert state(tmp_path) == "hold"


def test_the_commands_prepare_and_run_end_with_the_verdicts_exit_code(tmp_path, capsys):
    before, after = models(tmp_path)
    files = [g.paths[0] for g in measured(tmp_path)]
    policy = tmp_path / "p.yaml"
    policy.write_text(json.dumps(rules().to_json()))
    folder = tmp_path / "review"
    arguments = [
        "review", "prepare", str(folder), "--baseline", str(before), "--candidate", str(after), "--policy", str(policy),
        "--change", "INT8 weights", *(x for f in files for x in ("--receipt", str(f))),
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "frozen  sha256:" in capsys.readouterr().out
    assert main(["review", "run", str(folder), "--timestamp", TIME, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"]["state"] == "accept"
    assert Path(told["path"]).is_file()
    assert main(["review", "prepare", str(tmp_path / "x"), "--baseline", str(before)]) == 2


@pytest.mark.parametrize(("ms", "code"), [(5.0, 0), (11.0, 1), (9.0, 5)])
def test_exit_codes_are_0_1_and_5(ms, code, tmp_path, capsys):
    given = measured(tmp_path, candidate_ms=ms)
    prepared(tmp_path, given)
    assert main(["review", "run", str(tmp_path / "review"), "--timestamp", TIME]) == code
    capsys.readouterr()
