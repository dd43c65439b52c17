"""The --quant and --tensor of inspect: layers, reasons, pictures, and clear words where there is nothing to show."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from edgeproof.cli import main
from edgeproof.model import save_model
from edgeproof.passes.int8 import Int8
from small_nets import context, samples, small_cnn


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A float model, what INT8 makes of it, samples, and a run folder around both."""
    root = tmp_path_factory.mktemp("quant")
    model = small_cnn()
    change = Int8(method="percentile", percentile=99.0, keep="c3")(model, context(model))
    save_model(model, root / "net.onnx")
    save_model(change.model, root / "int8.onnx")
    np.savez(root / "samples.npz", x=np.concatenate([f["x"] for f in samples(model, 12, seed=4)]))
    run = root / "run"
    for name, made in (("float", model), ("int8", change.model)):
        (run / "candidates" / name).mkdir(parents=True)
        save_model(made, run / "candidates" / name / "model.onnx")
    step = {"pass": "int8", "declined": [list(d) for d in change.declined], "facts": change.facts}
    recipe = {"steps": [{"name": "int8", "settings": {}}]}
    (run / "candidates/int8/change.json").write_text(json.dumps({"recipe": recipe, "steps": [step]}))
    (run / "candidates/float/change.json").write_text(json.dumps({"recipe": {"steps": []}, "steps": []}))
    times = [{"name": "c1", "before_ms": 0.25, "after_ms": 0.125}]
    (run / "candidates/int8/layers.json").write_text(json.dumps({"quantised": times}))
    save_model(change.model, run / "best.onnx")
    (run / "best.json").write_text(json.dumps({"name": "int8"}))
    return root


def told(capsys, *arguments: object) -> dict:
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_layers_are_shown_with_reasons(folder, capsys):
    assert main(["inspect", str(folder / "int8.onnx"), "--quant"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "int8: 8 of 10 operators are quantised" not in out
    assert "nothing measured" in out
    assert "uint8×int8" in out
    assert "it could run in integers: whoever quantised the model left it out (1) c3 (Conv)" in out


def test_samples_and_the_float_model_add_what_can_only_be_measured(folder, capsys):
    value = told(
        capsys, folder / "int8.onnx", "--quant", "--data", folder / "samples.npz", "--against", folder / "net.onnx"
    )
    row = next(r for r in value["layers"] if r["name"] == "c2")
    assert row["clipped_from"] == "measured"
    assert row["weight_from"] == "float weight"
    assert 15 < row["arrived_db"] <= row["input_db"] + 0.5
    assert value["tensors"]["r"]["values"] == 12 * 8 * 16 * 16


def test_ranges_are_written_as_tensorrt_keeps_them(folder, tmp_path, capsys):
    assert main(["inspect", str(folder / "int8.onnx"), "--quant", "--trt-cache", str(tmp_path / "c")]) == 0
    lines = (tmp_path / "c").read_text().splitlines()
    assert lines[0] == "TRT-8601-EntropyCalibration2"
    assert {line.rpartition(":")[0] for line in lines[1:]} >= {"x", "r", "c"}
    assert "wrote" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["candidates/int8/model.onnx", "best.onnx"])
def test_a_model_in_a_run_is_explained_by_what_the_run_kept(folder, capsys, place):
    value = told(capsys, folder / "run" / place, "--quant")
    rows = {r["name"]: r for r in value["layers"]}
    assert rows["c3"]["reason"] == "kept in float by the setting keep=c3"
    assert rows["c2"]["clipped_from"] == "calibration"
    assert rows["c2"]["weight_from"] == "float weight"
    assert (rows["c1"]["before_ms"], rows["c1"]["after_ms"]) == (0.25, 0.125)


@pytest.mark.parametrize(
    ("name", "what"), [("r", "the activation"), ("w1", "the weight, as its int8 codes"), ("x", "the activation")]
)
def test_a_tensor_is_pictured_with_its_range(folder, capsys, tmp_path, name, what):
    path = tmp_path / "a.svg"
    value = told(capsys, folder / "int8.onnx", "--tensor", name, "--data", folder / "samples.npz", "--picture", path)
    assert value["from"].startswith(what)
    assert list(value["ranges"]) == ["chosen"]
    picture = ET.parse(path).getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert name in picture.attrib["aria-label"]
    assert "prefers-color-scheme: dark" in path.read_text()


def test_a_tensor_of_a_float_model_is_shown_with_the_range_of_every_method(folder, capsys, tmp_path):
    path = tmp_path / "f.svg"
    value = told(capsys, folder / "net.onnx", "--tensor", "r", "--data", folder / "samples.npz", "--picture", path)
    assert {"minmax", "percentile", "entropy", "mse"} <= set(value["ranges"])
    assert value["ranges"]["minmax"]["clipped_share"] == 0.0
    assert path.read_text().count("<line") > 8


def test_names_are_text_in_a_picture(folder, tmp_path):
    from edgeproof.quant.histogram import Histogram
    from edgeproof.report.distribution import picture

    held = Histogram()
    held.update(np.linspace(-1, 1, 100))
    svg = picture("<script>a</script>", "values & more", held, {"chosen": (-0.5, 0.5)}, 0.1)
    assert "<script>" not in svg
    assert ET.fromstring(svg) is not None
    # 11 codes from -0.5 to 0.5 in steps of 0.1.
    assert svg.count('class="code"') == 11
    assert ET.fromstring(picture("empty", "nothing", Histogram(), {})) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.onnx", "--quant"], "holds no quantised tensor"),
        (["int8.onnx", "--tensor", "r"], "give samples with --data"),
        (["int8.onnx", "--tensor", "r.scal", "--data", "samples.npz"], "did you mean 'r.scale'?"),
        (["int8.onnx", "--quant", "--data", "samples.npz", "--samples", "0"], "expected 1 or more"),
        (["int8.onnx", "--quant", "--target", "onnxruntime:moon"], "does not run here"),
    ],
)
def test_what_cannot_be_shown_is_said(folder, capsys, arguments, message):
    paths = [str(folder / a) if a.endswith((".onnx", ".npz")) else a for a in arguments]
    assert main(["inspect", *paths]) in (2, 3)
    assert message in capsys.readouterr().err
