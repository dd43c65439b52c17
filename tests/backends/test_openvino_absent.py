"""Without OpenVINO everything else works, and one line says how to get it."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest

from edgeproof.backends.openvino import IMPL, OpenVinoSettings, properties
from edgeproof.cli import main
from edgeproof.errors import UnsupportedError
from edgeproof.runtimes import find_target

find_spec = importlib.util.find_spec


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else find_spec(name))


def test_the_line_names_an_extra_of_the_package(absent):
    assert IMPL().missing() == "edgeproof targets --install openvino"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    assert any(line.startswith("openvino") for line in extras["openvino"])
    assert not any(line.startswith("openvino") for name in ("optimize", "test") for line in extras[name])


def test_targets_shows_the_line_and_the_other_runtimes(absent, capsys):
    assert main(["targets", "--json"]) == 0
    rows = {r.get("target", r["backend"]): r for r in json.loads(capsys.readouterr().out)["targets"]}
    assert rows["openvino"] == {
        "backend": "openvino",
        "state": "missing",
        "install": "edgeproof targets --install openvino",
    }
    assert rows["onnxruntime:cpu"]["state"] == "ready"


def test_asking_for_it_is_refused_with_the_line(absent):
    with pytest.raises(UnsupportedError) as caught:
        find_target("openvino:cpu", {})
    assert caught.value.hint == "run 'edgeproof targets --install openvino'"


@pytest.mark.parametrize(
    ("device", "settings", "want"),
    [
        ("cpu", {}, {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}),
        ("cpu", {"threads": 2, "hint": "throughput"}, {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 2}),
        ("npu", {"precision": "device", "hint": "none"}, {}),
        ("auto", {"precision": "bf16"}, {"ENABLE_STARTUP_FALLBACK": False, "INFERENCE_PRECISION_HINT": "bf16"}),
    ],
)
def test_settings_become_properties_of_the_runtime(device, settings, want):
    found = properties(device, OpenVinoSettings(**settings))
    assert want.items() <= found.items()
    assert ("INFERENCE_NUM_THREADS" in found) == ("threads" in settings)
    assert ("PERFORMANCE_HINT" in found) == (settings.get("hint") != "none")
    assert ("INFERENCE_PRECISION_HINT" in found) == (settings.get("precision") != "device")
