"""Models of other formats are inspected as far as their formats tell."""

import json

import pytest

from edgeproof.cli import main
from structure.models import FIXTURES


def test_a_tflite_model_shows_interface_operators_and_quantisation(capsys):
    assert main(["inspect", str(FIXTURES / "fc_int8.tflite")]) == 0
    text = capsys.readouterr().out
    assert "x int8[1, 4]" in text
    assert "FULLY_CONNECTED 1" in text
    assert "Quantised tensors: 4" in text


def test_an_engine_shows_what_is_hidden_as_unknown(tmp_path, capsys):
    (tmp_path / "m.engine").write_bytes(b"ftrt" + bytes(20) + bytes([10, 3, 0, 26]) + bytes(100))
    assert main(["inspect", str(tmp_path / "m.engine")]) == 0
    text = capsys.readouterr().out
    assert "Operators: unknown" in text
    assert "tensorrt_version" in text
    assert "weight_digests: unavailable" in text


@pytest.mark.parametrize("name", ["conv.xml", "tensors.gguf", "tensors.safetensors"])
def test_the_structure_is_told_as_json(name, capsys):
    assert main(["inspect", str(FIXTURES / name), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weights"]
    assert told["format"] == "edgeproof.structure/1"


def test_a_pickle_is_still_refused(tmp_path, capsys):
    (tmp_path / "m.pt").write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00.")
    assert main(["inspect", str(tmp_path / "m.pt")]) == 2
    assert "pickle" in capsys.readouterr().err
