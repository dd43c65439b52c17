"""A real run of the main job, sealed and verified, from the library and from the command line."""

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from securesystemslib.signer import CryptoSigner

from edgeproof.bundle.keys import load_signer, new_key
from edgeproof.bundle.pack import Order, pack
from edgeproof.cli import main
from edgeproof.digest import digest_file, digest_json
from edgeproof.errors import InputError, TrustError
from edgeproof.evidence.seal import device_of, run_members, seal
from edgeproof.evidence.verify import verify
from edgeproof.model import save_model
from edgeproof.report import render
from edgeproof.strictjson import loads
from edgeproof.workspace import Workspace
from evidence_files import LATER, TIME, read, tamper
from small_nets import small_cnn
from small_runs import INT8, finished_run, run_job, size_policy

SIGNER = CryptoSigner.generate_ed25519()
KEYS = [SIGNER.public_key]
POLICY = size_policy(2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run in ``run``, of the model ``net.onnx``."""
    return finished_run(tmp_path_factory.mktemp("sealed"))


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run that may be spoilt."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def sealed(run, out, **options):
    return seal(run, out, signer=SIGNER, timestamp=TIME, expires=LATER, **options)


def test_a_sealed_run_verifies_with_the_models_bytes_and_without(made, tmp_path):
    done = sealed(made / "run", tmp_path / "e.zip", candidate="int8")
    assert (done.verdict.state, done.differences, done.signed) == ("accept", (), True)
    file = made / "run/candidates/int8/model.onnx"
    found = verify(tmp_path / "e.zip", keys=KEYS, models=[file, made / "net.onnx"])
    assert (found.accepted, found.differences) == (True, ())
    assert found.candidate == digest_file(file)
    assert verify(tmp_path / "e.zip", keys=KEYS).accepted
    assert found.digest == done.digest == digest_file(tmp_path / "e.zip")


def test_the_best_model_of_a_run_is_the_very_file_that_the_evidence_names(made, tmp_path):
    sealed(made / "run", tmp_path / "e.zip")
    found = verify(tmp_path / "e.zip", keys=KEYS, models=[made / "run/best.onnx"])
    assert found.differences == ()
    assert found.candidate == digest_file(made / "run/best.onnx")


def test_the_original_of_a_run_can_be_sealed_too(made, tmp_path):
    done = sealed(made / "run", tmp_path / "e.zip", candidate="original")
    assert done.differences == ()
    found = verify(tmp_path / "e.zip", keys=KEYS, models=[made / "net.onnx"])
    assert (found.state, found.differences) == (done.verdict.state, ())
    assert found.candidate == found.baseline


def test_the_same_run_key_and_time_give_the_same_bytes(made, tmp_path):
    page = render(made / "run").encode()
    first = sealed(made / "run", tmp_path / "a.zip", report=page)
    shutil.copytree(made / "run", tmp_path / "elsewhere")
    second = sealed(tmp_path / "elsewhere", tmp_path / "b.zip", report=render(tmp_path / "elsewhere").encode())
    assert first.digest == second.digest
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_processes_with_other_hash_seeds_seal_the_same_bytes_report_included(made, tmp_path):
    for seed in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "edgeproof",
            "seal",
            str(made / "run"),
            "--timestamp",
            TIME,
            "--candidate",
            "int8",
        ]
        command += ["--out", str(tmp_path / f"{seed}.zip")]
        done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()


def test_receipts_say_which_device_measured_and_where_every_node_ran(made):
    members, _ = run_members(Workspace.open(made / "run"))
    receipt = loads(members["receipt-candidate-runs.json"], "receipt")
    assert receipt["device"]["runtime"]["onnxruntime"]
    assert receipt["device"]["module"]
    assert receipt["placement"]["nodes"]
    assert all(device == "CPUExecutionProvider" for _, _, device, _ in receipt["placement"]["nodes"])


def test_a_device_is_described_by_what_is_known_and_nothing_else():
    facts = {"device": "NVIDIA Jetson Orin Nano", "nvpmodel": "15W", "governor": "schedutil", "memory_gib": 8}
    assert device_of(facts) == {
        "module": "NVIDIA Jetson Orin Nano",
        "power_mode": "15W",
        "clocks": {"governor": "schedutil"},
        "memory_gib": 8,
    }


def test_a_candidate_changed_after_it_was_measured_is_not_sealed(run, tmp_path):
    save_model(small_cnn(), run / "candidates/int8/model.onnx")
    with pytest.raises(TrustError) as e:
        sealed(run, tmp_path / "e.zip", candidate="int8")
    assert e.value.code == "evidence.changed_model"


@pytest.mark.parametrize("name", ["samples.json", "result.json", "confirm/round-000.json", "environment.json"])
def test_a_value_of_the_run_that_was_changed_is_not_sealed(run, tmp_path, name):
    (run / name).write_text((run / name).read_text().replace("1", "2", 1))
    with pytest.raises(TrustError) as e:
        sealed(run, tmp_path / "e.zip")
    assert e.value.code == "workspace.changed"


def test_a_result_that_its_samples_do_not_give_is_not_sealed(run, tmp_path):
    workspace = Workspace.open(run)
    result = workspace.read("result.json")
    for row in result["candidates"]:
        if row["verdict"]:
            row["verdict"]["state"] = "reject"
    workspace.write("result.json", result)
    with pytest.raises(TrustError) as e:
        sealed(run, tmp_path / "e.zip")
    assert e.value.code == "evidence.result"


def test_a_deleted_ledger_is_noticed_by_the_run(run, tmp_path):
    (run / "ledger.jsonl").unlink()
    for act in (lambda: sealed(run, tmp_path / "e.zip"), lambda: Workspace.open(run).record({"kind": "again"})):
        with pytest.raises(TrustError) as e:
            act()
        assert e.value.code == "workspace.ledger"
    assert not (run / "ledger.jsonl").exists()


def test_a_ledger_deleted_with_the_index_leaves_evidence_that_says_what_is_missing(run, tmp_path):
    # Whoever deletes both has everything measured again, but for what is in the ledger; here the files are put back.
    index = json.loads((run / "index.json").read_text())
    del index["ledger.jsonl"], index["seal"]
    (run / "index.json").write_text(json.dumps({**index, "seal": digest_json(index)}))
    (run / "ledger.jsonl").unlink()
    done = sealed(run, tmp_path / "e.zip")
    assert {d.code for d in done.differences} == {"evidence.ledger_entry"}
    assert not verify(tmp_path / "e.zip", keys=KEYS).accepted


def test_a_confirmation_that_is_repeated_is_not_sealed_as_what_it_was(run, tmp_path):
    workspace = Workspace.open(run)
    line = next(v for v in workspace.ledger() if (v["kind"], v["candidate"]) == ("bench-confirm", "int8"))
    again = {k: v for k, v in line.items() if k not in ("n", "previous")}
    workspace.record({**again, "result": "sha256:of the same candidate, measured once more"})
    with pytest.raises(TrustError) as e:
        sealed(run, tmp_path / "e.zip", candidate="int8")
    assert e.value.code == "evidence.result"
    assert "give hold: quality: 2 confirmations were made" in e.value.problem


def test_rounds_deleted_to_be_measured_again_count_as_another_look(made, run, tmp_path, capsys):
    for path in (run / "confirm").glob("round-*.json"):
        path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeproof.optimize.FASTER", 0.0)
        result = run_job(made, run, [INT8], POLICY)
    rows = {c["name"]: c for c in result["candidates"]}
    assert rows["int8"]["state"] == "hold"
    assert "2 confirmations were made, and the policy declared 1" in rows["int8"]["why"]
    done = sealed(run, tmp_path / "e.zip", candidate="int8")
    assert (done.verdict.state, done.differences) == ("hold", ())
    # 'edgeproof gate' counts them too, under the policy of the run.
    (tmp_path / "policy.yaml").write_text(json.dumps(POLICY.to_json()))
    assert main(["gate", str(run), "--policy", str(tmp_path / "policy.yaml")]) == 5
    assert "2 confirmations were made" in capsys.readouterr().out.replace("\n", " ")


def test_an_unfinished_run_and_an_unknown_candidate_are_told_apart(run, tmp_path):
    with pytest.raises(InputError) as e:
        sealed(run, tmp_path / "e.zip", candidate="nope")
    assert e.value.code == "evidence.candidate"
    Workspace.open(run).forget("result.json")
    with pytest.raises(InputError) as e:
        sealed(run, tmp_path / "e.zip")
    assert e.value.code == "evidence.unfinished"


def test_the_commands_seal_and_verify_end_with_the_verdicts_code(run, made, tmp_path, capsys):
    new_key(tmp_path / "k.key", None)
    new_key(tmp_path / "other.key", None)
    arguments = ["seal", str(run), "--key", str(tmp_path / "k.key"), "--timestamp", TIME, "--valid", "3650", "--json"]
    assert main(arguments) == 0
    sealed_to = json.loads(capsys.readouterr().out)
    assert sealed_to["differences"] == []
    file = str(run / "evidence.zip")
    assert sealed_to["path"] == file
    assert main(["verify", file, "--key", str(tmp_path / "k.pub"), "--model", str(made / "net.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["accepted"], found["trusted"], found["expires"][:4]) == (True, True, "2036")
    assert main(["verify", file]) == 4
    assert "NOT TRUSTED" in capsys.readouterr().out
    assert main(["verify", file, "--key", str(tmp_path / "other.pub")]) == 4
    assert main(["verify", file, "--key", str(tmp_path / "k.pub"), "--model", str(tmp_path / "k.pub")]) == 4
    assert "evidence.model_bytes" in capsys.readouterr().out
    members = read(run / "evidence.zip")
    assert b"<title>" in members["report.html"]


def test_a_bundle_brings_the_evidence_and_the_model_that_are_verified(made, tmp_path, capsys):
    public = new_key(tmp_path / "k.key", None)
    new_key(tmp_path / "line.key", None)
    signer = load_signer(tmp_path / "k.key")
    seal(made / "run", tmp_path / "e.zip", signer=signer, timestamp=TIME, candidate="int8")
    model, now = made / "run/candidates/int8/model.onnx", datetime(2026, 12, 2, tzinfo=UTC)
    order = Order(name="reader", product_line="reader", bundle_version=1, security_version=0)
    bundle = tmp_path / "reader.bundle"
    pack(
        tmp_path / "e.zip",
        model,
        order,
        trusted=[public],
        signers=[load_signer(tmp_path / "line.key")],
        out=bundle,
        now=now,
    )
    keys = ["--key", str(tmp_path / "k.pub"), "--key", str(tmp_path / "line.pub")]
    assert main(["verify", str(bundle), *keys, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["candidate"] == digest_file(model)
    assert main(["verify", str(bundle), *keys[:2], "--json"]) == 4  # its evidence holds, but who signed the bundle?
    assert json.loads(capsys.readouterr().out)["bundle"]["refused"]["code"] == "bundle.wrong_key"


def test_a_timestamp_comes_from_source_date_epoch_where_it_is_set(run, monkeypatch, capsys):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1796117400")
    assert main(["seal", str(run), "--out", str(run / "a.zip")]) == 0
    assert verify(run / "a.zip").timestamp == "2026-12-01T09:30:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert main(["seal", str(run), "--out", str(run / "a.zip")]) == 2


def test_a_file_that_is_no_archive_ends_with_4(tmp_path, capsys):
    (tmp_path / "e.zip").write_bytes(b"no archive")
    assert main(["verify", str(tmp_path / "e.zip")]) == 4
    assert "archive.no_end" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda a: a["weights"][0].update(digest="sha256:" + "0" * 64), "weights[0].digest"),
        (lambda a: a["operators"].update(Conv=99), "operators.Conv"),
        (lambda a: a["inputs"][0].update(dtype="int8"), "inputs[0].dtype"),
        (lambda a: a["files"][0].update(size=1), "files[0].size"),
    ],
)
def test_an_analysis_that_is_not_that_of_the_models_bytes_differs(made, tmp_path, change, what):
    # Changed weights under the same graph are among these: every tensor has its digest.
    sealed(made / "run", tmp_path / "e.zip", candidate="int8")
    tamper(tmp_path / "e.zip", lambda v: change(v["analysis-candidate.json"]), decide=True)
    found = verify(tmp_path / "e.zip", keys=KEYS, models=[made / "run/candidates/int8/model.onnx"])
    assert ("evidence.analysis", what) in {(d.code, d.what) for d in found.differences}
    assert not found.accepted
