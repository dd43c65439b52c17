"""What a tracking server would be given, without one; tests/with_mlflow has the server."""

import json
import sys

import pytest

from edgeproof.bounds import speedup
from edgeproof.cli import main
from edgeproof.digest import digest_bytes, digest_file
from edgeproof.errors import InputError, TrustError, UnsupportedError
from edgeproof.evidence.verify import verify
from edgeproof.mlflow_bridge.evaluations import sealed_evaluations
from edgeproof.mlflow_bridge.fetch import imported_receipt
from edgeproof.mlflow_bridge.record import record_of
from edgeproof.mlflow_bridge.tracking import tracking
from edgeproof.model import load_model
from evidence_files import LATER, TIME, digest, golden_signer, read, tamper, values, write
from small_runs import finished_run

SIGNER = golden_signer()


@pytest.fixture
def evidence(tmp_path):
    write(values(), tmp_path / "evidence.zip", [SIGNER])
    return tmp_path / "evidence.zip"


def test_a_record_has_full_hashes_within_what_mlflow_holds(evidence):
    record, found = record_of(evidence), verify(evidence)
    expected = {"evidence": digest_file(evidence), "candidate": found.candidate, "policy": found.policy}
    assert expected.items() <= {k.removeprefix("edgeproof."): v for k, v in record.params.items()}.items()
    assert expected.items() <= {k.removeprefix("edgeproof."): v for k, v in record.tags.items()}.items()
    # Source: MLflow 3.17, mlflow/utils/validation.py.
    assert all(0 < len(v) <= 6000 and len(k) <= 250 for k, v in record.params.items())
    assert all(len(v) <= 8000 for v in (*record.tags.values(), record.note))
    assert len(record.metrics) <= 1000


def test_metrics_are_the_decisions_numbers_with_bounds_for_both_sides(evidence):
    record, decision = record_of(evidence), json.loads(read(evidence)["decision.json"])
    p95 = decision["candidate"]["latency_p95"]
    ends = [record.metrics[f"latency_p95{end}"] for end in ("", ".low", ".high")]
    assert ends == [p95["value"], p95["low"], p95["high"]]
    assert record.params["edgeproof.unit.latency_p95"] == p95["unit"]
    assert record.metrics["baseline.size"] == 40_000
    # A second derivation, from the medians of the raw samples.
    medians = []
    for role in ("baseline", "candidate"):
        runs = values()[f"receipt-{role}-runs.json"]["runs"]
        medians.append([sum(sorted(r["latency_ns"])[9:11]) / 2e6 for r in runs])
    assert record.metrics["speedup"] == pytest.approx(speedup(*medians)[0], rel=1e-9)


def test_the_same_evidence_gives_the_same_record(evidence):
    assert record_of(evidence) == record_of(evidence)


def test_raw_samples_and_the_file_itself_are_artifacts(evidence):
    artifacts, members = record_of(evidence).artifacts, read(evidence)
    assert artifacts["evidence.zip"] == evidence.read_bytes()
    receipts = {n: d for n, d in members.items() if n.startswith("receipt-")}
    assert {f"receipts/{n}": d for n, d in receipts.items()}.items() <= artifacts.items()


def test_evidence_that_does_not_hold_is_not_recorded(evidence):
    tamper(evidence, lambda v: v["decision.json"].update(state="hold"))
    with pytest.raises(TrustError) as e:
        record_of(evidence)
    assert e.value.code == "mlflow.evidence"


def test_evidence_that_none_of_the_given_keys_sealed_is_not_recorded(tmp_path):
    write(values(), tmp_path / "unsigned.zip")
    assert record_of(tmp_path / "unsigned.zip").tags["edgeproof.signed"] == "no"
    with pytest.raises(TrustError) as e:
        record_of(tmp_path / "unsigned.zip", [SIGNER.public_key])
    assert e.value.code == "mlflow.evidence"


def test_evidence_that_is_swapped_after_it_was_verified_is_not_recorded(evidence, monkeypatch):
    def swapped(path, **options):
        found = verify(path, **options)
        write(values(), evidence)
        return found

    monkeypatch.setattr("edgeproof.mlflow_bridge.record.verify", swapped)
    with pytest.raises(TrustError, match="changed while it was read"):
        record_of(evidence)


@pytest.mark.parametrize("package", ["mlflow", "sqlalchemy", "alembic"])
def test_without_mlflow_the_line_that_installs_it_is_told(package, monkeypatch, evidence, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError) as e:
        tracking("sqlite://")
    assert (e.value.code, e.value.hint) == ("mlflow.package", "pip install 'edgeproof[mlflow]'")
    assert main(["log-mlflow", str(evidence)]) == main(["audit-mlflow", str(evidence)]) == 3
    assert "edgeproof[mlflow]" in capsys.readouterr().err


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("evaluations"))


def test_a_run_gives_one_evidence_file_for_each_confirmed_candidate_and_the_same_ones_again(made):
    first = sealed_evaluations(made / "run", signer=None, timestamp=TIME, expires=LATER)
    assert [p.relative_to(made / "run").as_posix() for p in first] == ["evidence/int8.zip"]
    before = first[0].read_bytes()
    assert sealed_evaluations(made / "run", signer=None, timestamp=LATER) == first
    assert first[0].read_bytes() == before
    sealed_evaluations(made / "run", signer=SIGNER, timestamp=TIME)
    assert verify(first[0], keys=[SIGNER.public_key]).trusted
    first[0].write_bytes(before[:-1])
    sealed_evaluations(made / "run", signer=None, timestamp=TIME, expires=LATER)
    assert first[0].read_bytes() == before
    assert record_of(first[0]).params["edgeproof.candidate_name"] == "int8"


def exported(path, **data):
    run = {"info": {"run_id": "1", "run_name": "training"}, "data": {"params": {}, "tags": {}, "metrics": {}, **data}}
    path.write_text(json.dumps({"run": run}))
    return path


def test_an_exported_run_needs_a_model_and_takes_the_one_that_it_is_given(made, tmp_path, capsys):
    path = exported(tmp_path / "run.json", metrics={"latency_p95": 8.5})
    with pytest.raises(InputError) as e:
        imported_receipt(path, tmp_path, model="", files={})
    assert e.value.code == "mlflow.model"
    model = str(made / "net.onnx")
    assert main(["import-mlflow", str(path), "--model", model, "--out", str(tmp_path / "out"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    receipt = json.loads((tmp_path / "out/receipt-runs.json").read_text())
    assert receipt["model"] == load_model(made / "net.onnx").digest
    assert receipt["original"] == digest_bytes(path.read_bytes())
    assert shown["claims"] == [{"name": "latency_p95", "value": 8.5, "unit": "", "metric": "latency_p95"}]


def test_an_exported_run_of_another_model_is_refused(tmp_path):
    path = exported(tmp_path / "run.json", tags={"edgeproof.model": digest("one")})
    with pytest.raises(InputError) as e:
        imported_receipt(path, tmp_path, model=digest("another"), files={})
    assert e.value.code == "import.other_model"


def test_a_file_that_is_not_there_is_not_taken_for_the_id_of_a_run(tmp_path, capsys):
    assert main(["import-mlflow", str(tmp_path / "run.json"), "--out", str(tmp_path)]) == 2
    assert "files.missing" in capsys.readouterr().err
