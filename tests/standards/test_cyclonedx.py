"""The ML-BOM validates against the official 1.7 schema and says what the evidence says, no more."""

import json
import uuid
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from edgeproof.digest import digest_file
from edgeproof.evidence.verify import verify
from edgeproof.standards import export, read_verified
from edgeproof.standards.cyclonedx import serial_number
from evidence_files import read
from standards.sealing import GOLDEN, KEY, NO_SENSOR, TOO_SMALL, sealed

TESTS = Path(__file__).parents[1]


def bom(path, keys=(KEY,)):
    data = export(read_verified(path, keys), "cyclonedx", keys)
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(data.decode()) is None
    return json.loads(data)


def properties(component) -> dict[str, str]:
    return {p["name"]: p["value"] for p in component["properties"]}


@pytest.mark.parametrize("name", ["top1", "cer", "map"])
def test_the_bom_of_every_golden_file_validates(name):
    assert bom(TESTS / "golden" / f"evidence-1-{name}.zip")["specVersion"] == "1.7"


def test_the_validator_does_refuse():
    broken = export(read_verified(GOLDEN), "cyclonedx").decode().replace("machine-learning-model", "model")
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(broken) is not None


def test_the_model_and_its_ancestor_are_named_by_the_sha_256_of_their_files():
    component = bom(GOLDEN)["metadata"]["component"]
    found = verify(GOLDEN)
    (ancestor,) = component["pedigree"]["ancestors"]
    assert component["type"] == "machine-learning-model"
    assert component["hashes"] == [{"alg": "SHA-256", "content": found.candidate.removeprefix("sha256:")}]
    assert ancestor["hashes"] == [{"alg": "SHA-256", "content": found.baseline.removeprefix("sha256:")}]
    assert component["pedigree"]["notes"] == "simplify, int8"
    assert json.loads(properties(component)["edgeproof:recipe"]) == {"name": "int8"}


def test_the_verdict_the_policy_and_the_evidence_are_properties():
    component = bom(GOLDEN)["metadata"]["component"]
    told = properties(component)
    assert told["edgeproof:verdict"] == "accept"
    assert told["edgeproof:evidence"] == digest_file(GOLDEN)
    assert told["edgeproof:policy"] == verify(GOLDEN).policy
    assert told["edgeproof:signed_by"] == KEY.keyid
    assert component["externalReferences"][0]["hashes"][0]["content"] == digest_file(GOLDEN).removeprefix("sha256:")


def test_figures_have_value_interval_and_slice_as_the_decision_has_them():
    card = bom(GOLDEN)["metadata"]["component"]["modelCard"]
    decision = json.loads(read(GOLDEN)["decision.json"])["candidate"]
    shown = {m["type"]: m for m in card["quantitativeAnalysis"]["performanceMetrics"]}
    assert len(shown) == len(decision)
    p95 = shown["latency_p95 [ms]"]
    assert float(p95["value"]) == decision["latency_p95"]["value"]
    assert float(p95["confidenceInterval"]["lowerBound"]) == decision["latency_p95"]["low"]
    assert float(p95["confidenceInterval"]["upperBound"]) == decision["latency_p95"]["high"]
    assert p95["slice"] == "10 processes, onnxruntime:cpu"
    assert "confidenceInterval" not in shown["size [bytes]"]
    assert shown["top1"]["slice"].startswith("300 samples, onnxruntime:cpu, sha256:")


def test_the_task_the_data_and_the_interface_are_model_parameters():
    parameters = bom(GOLDEN)["metadata"]["component"]["modelCard"]["modelParameters"]
    (data,) = parameters["datasets"]
    told = {p["name"]: p["value"] for p in data["contents"]["properties"]}
    assert parameters["task"] == "classification"
    assert told["edgeproof:digest"] == json.loads(read(GOLDEN)["dataset.json"])["digest"]
    assert told["edgeproof:confirm_samples"] == "300"
    assert parameters["inputs"] == [{"format": "x: float32 [1, 3, 16, 16]"}]
    assert "architectureFamily" not in parameters


def test_every_rule_is_a_requirement_with_a_claim_or_a_counter_claim_unless_it_is_open(tmp_path):
    value = bom(sealed(tmp_path / "e.zip", TOO_SMALL, NO_SENSOR))
    (attestation,) = value["declarations"]["attestations"]
    requirements = value["definitions"]["standards"][0]["requirements"]
    states = {}
    for row, requirement in zip(attestation["map"], requirements, strict=True):
        assert row["requirement"] == requirement["bom-ref"]
        kind = "claims" if "claims" in row else "counterClaims" if "counterClaims" in row else "open"
        states[requirement["text"]] = (kind, row["conformance"].get("score"))
    assert states["size <= 12000 bytes"] == ("claims", 1)
    assert states["size <= 1000 bytes"] == ("counterClaims", 0)
    assert states["power <= 10 W"] == ("open", None)


def test_every_reference_within_the_bom_leads_somewhere(tmp_path):
    value = bom(sealed(tmp_path / "e.zip", TOO_SMALL))
    known, used = set(), set()

    def walk(v):
        if isinstance(v, dict):
            known.update([v["bom-ref"]] if "bom-ref" in v else [])
            for key in ("requirement", "target"):
                used.update([v[key]] if isinstance(v.get(key), str) else [])
            for key in ("claims", "counterClaims", "evidence"):
                used.update(r for r in v.get(key, []) if isinstance(r, str))
            for inner in v.values():
                walk(inner)
        for inner in v if isinstance(v, list) else ():
            walk(inner)

    walk(value)
    assert used
    assert used <= known


def test_the_serial_number_is_a_version_5_uuid_of_the_evidence():
    found = uuid.UUID(bom(GOLDEN)["serialNumber"])
    name = f"urn:edgeproof:evidence:1:{digest_file(GOLDEN).removeprefix('sha256:')}"
    assert found == uuid.uuid5(uuid.NAMESPACE_URL, name)
    assert found.version == 5
    assert serial_number("sha256:" + 64 * "0") != serial_number("sha256:" + 64 * "1")


def test_findings_are_limitations_and_nothing_is_invented(tmp_path):
    value = bom(sealed(tmp_path / "e.zip", analysed=True))
    considerations = value["metadata"]["component"]["modelCard"]["considerations"]
    assert "defect: conv_1.scale: is 0.0 in {3} of [64] channels" in considerations["technicalLimitations"]
    assert set(considerations) == {"technicalLimitations", "performanceTradeoffs"}


def test_the_time_is_when_it_was_sealed():
    assert bom(GOLDEN)["metadata"]["timestamp"] == "2026-12-01T09:30:00Z"
