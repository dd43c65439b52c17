"""Logging, auditing and importing against a real tracking server, changed behind our back through its REST API."""

import json
import shutil
import urllib.error
import urllib.request

import pytest

from edgeproof.cli import main
from edgeproof.digest import digest_bytes, digest_file
from edgeproof.errors import InputError, TrustError
from edgeproof.evidence.verify import verify
from edgeproof.mlflow_bridge.audit import audit
from edgeproof.mlflow_bridge.fetch import export, imported_receipt, sealed_receipts
from edgeproof.mlflow_bridge.log import log
from edgeproof.mlflow_bridge.record import record_of
from edgeproof.mlflow_bridge.tracking import tracking
from edgeproof.receipt import Receipt
from evidence_files import digest, golden_signer, read, values, write

SIGNER = golden_signer()


@pytest.fixture(scope="session")
def evidence(tmp_path_factory):
    path = tmp_path_factory.mktemp("evidence") / "evidence.zip"
    write(values(), path, [SIGNER], **{"report.html": b"<!doctype html><title>report</title>"})
    return path


@pytest.fixture(scope="session")
def record(evidence):
    return record_of(evidence, [SIGNER.public_key])


@pytest.fixture(scope="session")
def at(server):
    return tracking(server)


@pytest.fixture
def logged(record, at, request):
    """The evaluation in an experiment of the test's own."""
    return log(record, at, experiment=request.node.name)


@pytest.fixture
def audited(record, at, request):
    """A function that audits it: code and what of each drift."""
    return lambda: [(d.code, d.what) for d in audit(record, at, experiment=request.node.name).drifts]


@pytest.fixture
def rest(server):
    """A function that calls the server's REST API, as anyone with access can; no package of MLflow is involved."""

    def call(path, **body):
        data = json.dumps(body).encode()
        asked = urllib.request.Request(f"{server}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    return call


@pytest.fixture
def stored(server):
    """A function that reads a run through the REST API."""

    def get(run):
        with urllib.request.urlopen(f"{server}/api/2.0/mlflow/runs/get?run_id={run}", timeout=60) as answer:
            return json.load(answer)["run"]

    return get


def pairs(rows):
    return {row["key"]: row["value"] for row in rows}


def test_the_server_has_full_hashes_values_bounds_and_the_very_evidence(logged, evidence, stored, at, tmp_path):
    run, found = stored(logged.run), verify(evidence)
    params, tags, metrics = (pairs(run["data"][k]) for k in ("params", "tags", "metrics"))
    assert run["info"]["status"] == "FINISHED"
    assert params["edgeproof.evidence"] == tags["edgeproof.evidence"] == digest_file(evidence)
    assert params["edgeproof.candidate"] == tags["edgeproof.candidate"] == found.candidate
    assert params["edgeproof.policy"] == found.policy
    assert (tags["edgeproof.kind"], tags["edgeproof.state"]) == ("deployment evaluation", "accept")
    decision = json.loads(read(evidence)["decision.json"])
    for side, prefix in (("candidate", ""), ("baseline", "baseline.")):
        for name, m in decision[side].items():
            assert metrics[f"{prefix}{name}"] == m["value"]
            assert metrics.get(f"{prefix}{name}.low") == m["low"]
    at.client.download_artifacts(logged.run, "", str(tmp_path))
    assert (tmp_path / "evidence.zip").read_bytes() == evidence.read_bytes()
    kept = {p.name for p in (tmp_path / "receipts").iterdir()}
    assert kept == {n for n in read(evidence) if n.startswith("receipt-")}
    raw = json.loads((tmp_path / "receipts/receipt-candidate-runs.json").read_bytes())
    assert Receipt.from_json(raw).to_json() == values()["receipt-candidate-runs.json"]


def test_datasets_are_inputs_of_the_run_with_our_whole_digest_beside_the_cut_one(logged, stored):
    inputs = stored(logged.run)["inputs"]["dataset_inputs"]
    receipts = values()
    for one in inputs:
        ours = receipts[f"receipt-candidate-{one['dataset']['name']}.json"]["dataset"]
        assert pairs(one["tags"])["edgeproof.digest"] == ours
        assert one["dataset"]["digest"] == ours.removeprefix("sha256:")[:36]
    assert {one["dataset"]["name"] for one in inputs} == {"runs", "quality"}


def test_an_untouched_run_is_equal_to_its_evidence(logged, audited):
    assert audited() == []


def test_logging_the_same_evidence_again_makes_no_second_run_and_changes_nothing(logged, record, at, stored, request):
    before = stored(logged.run)
    again = log(record, at, experiment=request.node.name)
    assert (again.run, again.outcome) == (logged.run, "there")
    assert len(at.client.search_runs([logged.experiment])) == 1
    assert stored(logged.run) == before


@pytest.mark.parametrize("call", ["log_batch", "log_inputs", "log_artifacts", "set_terminated"])
def test_interrupted_logging_is_seen_and_finished_by_the_second_call(call, record, at, monkeypatch, request, audited):
    def cut(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(at.client, call, cut)
        with pytest.raises(KeyboardInterrupt):
            log(record, at, experiment=request.node.name)
    assert "mlflow.unfinished" in {code for code, _ in audited()}
    done = log(record, at, experiment=request.node.name)
    assert done.outcome == "finished"
    assert len(at.client.search_runs([done.experiment])) == 1
    assert audited() == []


def test_a_metric_edited_afterwards_is_named(logged, rest, audited):
    rest("runs/log-metric", run_id=logged.run, key="latency_p95", value=0.001, timestamp=2**41, step=0)
    assert audited() == [("mlflow.metric", "metric latency_p95")]


def test_a_metric_edited_and_set_back_is_named_by_its_history(logged, rest, record, audited):
    value = record.metrics["latency_p95"]
    rest("runs/log-metric", run_id=logged.run, key="latency_p95", value=0.001, timestamp=2**41, step=0)
    rest("runs/log-metric", run_id=logged.run, key="latency_p95", value=value, timestamp=2**41 + 1, step=1)
    assert audited() == [("mlflow.history", "metric latency_p95")]


def test_a_tag_edited_added_or_deleted_afterwards_is_named(logged, rest, audited):
    rest("runs/set-tag", run_id=logged.run, key="edgeproof.state", value="hold")
    rest("runs/set-tag", run_id=logged.run, key="edgeproof.approved", value="yes")
    rest("runs/delete-tag", run_id=logged.run, key="edgeproof.model")
    names = ("approved", "model", "state")
    assert audited() == [("mlflow.tag", f"tag edgeproof.{name}") for name in names]


def test_the_tag_by_which_a_run_is_found_may_be_edited_and_the_run_is_still_found(logged, rest, audited):
    rest("runs/set-tag", run_id=logged.run, key="edgeproof.evidence", value=digest("other"))
    assert audited() == [("mlflow.tag", "tag edgeproof.evidence")]


def test_a_tag_of_somebody_elses_and_an_edited_note_are_no_drift(logged, rest, audited):
    rest("runs/set-tag", run_id=logged.run, key="reviewed", value="by the team of the line")
    rest("runs/set-tag", run_id=logged.run, key="mlflow.note.content", value="shipped")
    assert audited() == []


def test_a_hash_in_a_param_cannot_be_edited_and_an_added_param_is_named(logged, rest, audited):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        rest("runs/log-parameter", run_id=logged.run, key="edgeproof.candidate", value=digest("other"))
    assert audited() == []
    rest("runs/log-parameter", run_id=logged.run, key="edgeproof.waiver", value="granted")
    assert audited() == [("mlflow.param", "param edgeproof.waiver")]


def test_a_dataset_added_afterwards_is_named(logged, rest, audited):
    other = {"name": "quality", "digest": "0" * 36, "source_type": "local", "source": "{}"}
    rest("runs/log-inputs", run_id=logged.run, datasets=[{"dataset": other, "tags": []}])
    assert audited() == [("mlflow.dataset", f"dataset quality {'0' * 36}")]


def artifact(server, run, name):
    return f"{server}/api/2.0/mlflow-artifacts/artifacts/{run['info']['artifact_uri'].split(':/', 1)[1]}/{name}"


def send(method, address, data=None):
    with urllib.request.urlopen(urllib.request.Request(address, data, method=method), timeout=60):
        pass


def test_an_artifact_deleted_replaced_or_added_afterwards_is_named(logged, server, stored, record, audited):
    run = stored(logged.run)
    send("DELETE", artifact(server, run, "evidence.zip"))
    raw = record.artifacts["receipts/receipt-candidate-runs.json"]
    send("PUT", artifact(server, run, "receipts/receipt-candidate-runs.json"), raw.replace(b"2", b"1"))
    send("PUT", artifact(server, run, "report.html"), b"shorter")
    send("PUT", artifact(server, run, "receipts/waiver.txt"), b"granted")
    names = ("evidence.zip", "receipts/receipt-candidate-runs.json", "receipts/waiver.txt", "report.html")
    assert audited() == [("mlflow.artifact", f"artifact {name}") for name in names]


def test_a_deleted_run_is_named_and_logging_again_makes_a_new_one(logged, rest, audited, record, at, request):
    rest("runs/delete", run_id=logged.run)
    assert audited() == [("mlflow.deleted", f"run {logged.run}")]
    again = log(record, at, experiment=request.node.name)
    assert (again.outcome, again.run != logged.run) == ("new", True)
    found = audit(record, at, experiment=request.node.name)
    assert (found.run, found.drifts) == (again.run, ())
    assert "1 other runs of this evidence were deleted" in found.notes


def test_a_run_that_was_never_logged_is_missing_by_digest_and_by_id(record, at, audited):
    assert audited() == [("mlflow.missing", "run in 'test_a_run_that_was_never_logged_is_missing_by_digest_and_by_id'")]
    assert [d.code for d in audit(record, at, run="0" * 32).drifts] == ["mlflow.missing"]


def test_a_copy_of_a_run_is_named(logged, rest, record, audited):
    tags = [{"key": k, "value": v} for k, v in record.tags.items()]
    copy = rest("runs/create", experiment_id=logged.experiment, start_time=2**41, tags=tags)["run"]["info"]["run_id"]
    rest("runs/update", run_id=copy, status="FINISHED")
    assert audited() == [("mlflow.twice", f"run {logged.run}")]


def test_a_run_of_other_evidence_differs_in_its_hashes(logged, at, tmp_path):
    other = values()
    other["request.json"]["change"] = "something else"
    write(other, tmp_path / "other.zip", [SIGNER])
    drifts = audit(record_of(tmp_path / "other.zip"), at, run=logged.run).drifts
    assert {("mlflow.param", "param edgeproof.evidence"), ("mlflow.tag", "tag edgeproof.evidence")} <= {
        (d.code, d.what) for d in drifts
    }


def test_a_training_run_is_linked_and_not_written_to(record, at, rest, stored, request, audited):
    training = rest("runs/create", experiment_id="0", start_time=1)["run"]["info"]["run_id"]
    before = stored(training)
    done = log(record, at, experiment=request.node.name, training_run=training)
    assert pairs(stored(done.run)["data"]["tags"])["edgeproof.training_run"] == training
    assert stored(training) == before
    assert stored(done.run)["info"]["experiment_id"] != before["info"]["experiment_id"]
    assert audited() == []
    with pytest.raises(InputError) as e:
        log(record, at, experiment=request.node.name, training_run="0" * 32)
    assert e.value.code == "mlflow.training_run"


def test_a_deleted_experiment_is_told_of(logged, rest, record, at, request):
    rest("experiments/delete", experiment_id=logged.experiment)
    with pytest.raises(InputError) as e:
        log(record, at, experiment=request.node.name)
    assert e.value.code == "mlflow.experiment"


def test_a_run_of_ours_is_imported_as_the_sealed_receipts(logged, at, evidence, tmp_path):
    exported = export(at, logged.run, tmp_path)
    found = sealed_receipts(at, exported, tmp_path, [SIGNER.public_key])
    members = read(evidence)
    assert {p.name for p in found.receipts} == {n for n in members if n.startswith("receipt-")}
    assert all(p.read_bytes() == members[p.name] for p in found.receipts)
    assert SIGNER.public_key.keyid in found.notes[1]


def test_evidence_that_was_replaced_on_the_server_is_not_imported(logged, at, server, stored, tmp_path):
    write(values(), tmp_path / "unsigned.zip")
    send("PUT", artifact(server, stored(logged.run), "evidence.zip"), (tmp_path / "unsigned.zip").read_bytes())
    with pytest.raises(TrustError) as e:
        sealed_receipts(at, export(at, logged.run, tmp_path), tmp_path)
    assert e.value.code == "mlflow.artifact"
    send("DELETE", artifact(server, stored(logged.run), "evidence.zip"))
    with pytest.raises(InputError) as e:
        sealed_receipts(at, export(at, logged.run, tmp_path), tmp_path)
    assert e.value.code == "mlflow.artifact"


def test_an_artifact_larger_than_any_evidence_is_not_fetched(logged, at, monkeypatch, tmp_path):
    monkeypatch.setattr("edgeproof.mlflow_bridge.fetch.MOST_BYTES", 10)
    with pytest.raises(TrustError, match="never as large") as e:
        sealed_receipts(at, export(at, logged.run, tmp_path), tmp_path)
    assert e.value.code == "mlflow.too_large"


def test_a_run_of_somebody_elses_is_imported_as_aggregates_without_samples(at, rest, server, tmp_path):
    run = rest("runs/create", experiment_id="0", start_time=1)["run"]["info"]["run_id"]
    rest("runs/log-metric", run_id=run, key="latency_p95", value=8.5, timestamp=1, step=0)
    rest("runs/log-metric", run_id=run, key="loss", value="NaN", timestamp=1, step=0)
    rest("runs/set-tag", run_id=run, key="edgeproof.model", value=digest("model"))
    exported = export(at, run, tmp_path)
    assert sealed_receipts(at, exported, tmp_path) is None
    found = imported_receipt(exported, tmp_path, model="", files={})
    receipt = Receipt.from_json(json.loads(found.receipts[0].read_text()))
    assert (receipt.source, receipt.model) == ("mlflow", digest("model"))
    assert receipt.original == digest_bytes(exported.read_bytes())
    assert [(c.name, c.value) for c in found.claims] == [("latency_p95", 8.5)]
    assert all(s.samples == () for s in receipt.scores.values())
    # What the REST API answers is read alike.
    with urllib.request.urlopen(f"{server}/api/2.0/mlflow/runs/get?run_id={run}", timeout=60) as answer:
        (tmp_path / "rest.json").write_bytes(answer.read())
    assert imported_receipt(tmp_path / "rest.json", tmp_path, model="", files={}).claims == found.claims


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what MLflow asks of SQLAlchemy
def test_the_commands_log_audit_and_import_in_a_local_folder(evidence, tmp_path, capsys):
    where = ["--tracking", str(tmp_path / "tracking"), "--json"]
    assert main(["log-mlflow", str(evidence), *where]) == 0
    first = json.loads(capsys.readouterr().out)["runs"][0]
    assert main(["log-mlflow", str(evidence), *where]) == 0
    second = json.loads(capsys.readouterr().out)["runs"][0]
    assert (first["outcome"], second["outcome"], second["run"]) == ("new", "there", first["run"])
    files = list((tmp_path / "tracking/artifacts").rglob("evidence.zip"))
    assert [digest_file(f) for f in files] == [first["digest"]]
    assert main(["audit-mlflow", str(evidence), *where]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True
    assert main(["import-mlflow", first["run"], *where, "--out", str(tmp_path / "in")]) == 0
    assert len(json.loads(capsys.readouterr().out)["receipts"]) == 5
    shutil.rmtree(tmp_path / "tracking/artifacts")
    assert main(["audit-mlflow", str(evidence), *where]) == 4
    drifts = json.loads(capsys.readouterr().out)["drifts"]
    assert {d["code"] for d in drifts} == {"mlflow.artifact"}


def test_a_server_that_is_not_there_is_told_of_without_its_password(record):
    with pytest.raises(InputError) as e:
        tracking("http://somebody:secret@127.0.0.1:9")
    assert e.value.code == "mlflow.server"
    assert "secret" not in str(e.value)
