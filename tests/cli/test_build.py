"""``edgeproof build``: what is written, what is shown, what is refused."""

import hashlib
import json

import numpy as np
import onnxruntime as ort
import pytest

from edgeproof.cli import main
from edgeproof.model import save_model
from small_nets import node, number, small_cnn


@pytest.fixture
def model(tmp_path):
    return save_model(small_cnn(), tmp_path / "net.onnx")


@pytest.mark.parametrize("kind", ["ort", "onnx"])
def test_what_it_writes_computes_what_the_model_computes(model, tmp_path, kind, capsys):
    out = tmp_path / "built"
    assert (
        main(["build", str(model), "--target", "onnxruntime:cpu", "--set", f"artifact={kind}", "--out", str(out)]) == 0
    )
    x = {"x": np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)}
    before, after = (ort.InferenceSession(str(p)).run(None, x)[0] for p in (model, f"{out}.{kind}"))
    np.testing.assert_allclose(after, before, atol=1e-5)
    assert f"built {out}.{kind} for onnxruntime:cpu" in capsys.readouterr().out


def test_json_gives_digests_of_all_files(model, tmp_path, capsys):
    out = tmp_path / "net.ort"
    assert main(["build", str(model), "--target", "onnxruntime:cpu", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    assert said["files"] == {str(out): {"bytes": out.stat().st_size, "sha256": f"sha256:{digest}"}}
    assert said["format"] == "ort"


def test_a_portable_level_says_nothing_of_this_processor(model, tmp_path, capsys):
    flags = ["--set", "graph_optimization=basic", "--out", str(tmp_path / "net")]
    assert main(["build", str(model), "--target", "onnxruntime:cpu", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--target", "reference:cpu"], "build.nothing"),
        (["--target", "onxruntime:cpu"], "target.unknown"),
        (["--target", "onnxruntime:cpu", "--set", "artefact=ort"], "settings.unknown"),
        (["--target", "onnxruntime:cpu", "--set", "artifact=blob"], "settings.value"),
        (["--target", "onnxruntime:cpu", "--shape", "z=1,2"], "fix_shapes.unknown_input"),
    ],
)
def test_it_refuses_by_name(model, flags, code, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["build", str(model), *flags, "--json"]) in (2, 3)
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_it_never_overwrites_the_model(model, capsys):
    flags = ["--target", "onnxruntime:cpu", "--set", "artifact=onnx", "--out", str(model), "--json"]
    assert main(["build", str(model), *flags]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "build.same_file"


def test_an_operator_that_the_runtime_lacks_is_named(tmp_path, capsys):
    from small_nets import net

    strange = net([node("Add", ["x", "one"], ["a"]), node("Strange", ["a"], ["y"], domain="own")], [number("one", 1.0)])
    path = save_model(strange, tmp_path / "net.onnx")
    assert main(["build", str(path), "--target", "onnxruntime:cpu", "--out", str(tmp_path / "o"), "--json"]) == 3
    assert "Strange" in json.loads(capsys.readouterr().out)["error"]["problem"]
    assert not (tmp_path / "o.ort").exists()
