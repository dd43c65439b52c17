"""`edgeproof apply`: settings are flags, changes and refusals are shown, files are written whole or not at all."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgeproof import registry
from edgeproof.cli import main
from edgeproof.model import load_model


@pytest.fixture
def path(tmp_path):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["x"], ["i"], name="same"),
            helper.make_node("Conv", ["i", "w"], ["c"], name="conv"),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("BatchNormalization", ["r", "g", "g", "g", "v"], ["y"], name="norm"),
        ],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["n", 2, 4, 4])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 3, 2, 2])],
        [
            numpy_helper.from_array(np.ones((3, 2, 3, 3), np.float32), "w"),
            numpy_helper.from_array(np.ones(3, np.float32), "g"),
            numpy_helper.from_array(np.full(3, 2, np.float32), "v"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "net.onnx"
    onnx.save(proto, file)
    return file


def test_what_changed_and_what_did_not_is_shown(path, tmp_path, capsys):
    out = tmp_path / "small.onnx"
    assert main(["apply", "simplify", str(path), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "simplify: 4 nodes became 3" in text
    assert "+ removed Identity without effect: 1 (same)" in text
    assert "- norm: no Conv, ConvTranspose, Gemm or MatMul" in text
    assert f"wrote {out}" in text
    assert len(load_model(out).graph.graph) == 3


def test_without_out_nothing_is_written(path, capsys):
    assert main(["apply", "simplify", str(path)]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir()] == ["net.onnx"]


def test_json_holds_every_declined_node(path, capsys):
    assert main(["apply", "simplify", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["nodes_before"], result["nodes_after"], result["modified"]) == (4, 3, True)
    assert result["declined"][-1]["node"] == "norm"
    assert result["digest_before"] != result["digest_after"]


@pytest.mark.parametrize("flags", [["--shapes", "x=5,2,4,4"], ["--set", "shapes=x=5,2,4,4"]])
def test_a_setting_is_a_flag_or_a_set(path, tmp_path, flags):
    out = tmp_path / "fixed.onnx"
    assert main(["apply", "fix_shapes", str(path), *flags, "--out", str(out)]) == 0
    assert load_model(out).inputs[0].shape == (5, 2, 4, 4)


def test_flags_are_typed(path, tmp_path):
    out = tmp_path / "half.onnx"
    assert main(["apply", "fp16", str(path), "--keep-io", "false", "--samples", "1", "--out", str(out)]) == 0
    assert load_model(out).inputs[0].dtype == "float16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simplfy"], "did you mean 'simplify'?"),
        (["simplify", "--tolerance", "much"], "'much' is no float"),
        (["simplify", "--verify", "perhaps"], "is not true or false"),
        (["simplify", "--shapes", "x=1"], "is not a setting of simplify"),
        (["simplify", "--set", "tolerence=1"], "did you mean 'tolerance'?"),
        (["simplify", "--set", "tolerance"], "has no '='"),
        (["fix_shapes", "--shapes", "y=1"], "y: is not an input of the model"),
        (["simplify", "--target", "onnxruntim:cpu"], "did you mean 'onnxruntime'?"),
    ],
)
def test_a_mistake_names_itself_and_the_remedy(path, capsys, arguments, message):
    assert main(["apply", arguments[0], str(path), *arguments[1:]]) == 2
    assert message in capsys.readouterr().err


def test_a_pass_without_a_model_is_refused(capsys):
    assert main(["apply", "simplify"]) == 2
    assert "no model was given" in capsys.readouterr().err
    assert main(["apply"]) == 2


def test_an_interrupted_write_leaves_the_old_file(path, tmp_path, capsys):
    out = tmp_path / "folder"
    out.mkdir()
    assert main(["apply", "simplify", str(path), "--out", str(out)]) == 2
    assert "files.wrong_kind" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "net.onnx"]


def test_the_list_names_every_pass_with_its_settings(capsys):
    assert main(["apply", "--list", "--json"]) == 0
    listed = {p["pass"]: p for p in json.loads(capsys.readouterr().out)["passes"]}
    assert tuple(sorted(listed)) == registry.names("passes")
    assert listed["simplify"]["settings"] == {"verify": True, "tolerance": 1e-5}
    assert all(p["summary"] for p in listed.values())


def test_samples_are_read_from_data(path, tmp_path, capsys):
    data = tmp_path / "samples.npz"
    np.savez(data, x=np.ones((3, 2, 4, 4), np.float32))
    assert main(["apply", "fp16", str(path), "--data", str(data)]) == 0
    assert "on 3 samples" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["same", "relative", "symlink", "hardlink"])
def test_the_given_model_is_never_overwritten(path, tmp_path, monkeypatch, capsys, way):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "other.onnx"
    if way == "symlink":
        out.symlink_to(path)
    elif way == "hardlink":
        out.hardlink_to(path)
    else:
        out = path if way == "same" else f"./{path.name}"
    before = path.read_bytes()
    assert main(["apply", "simplify", str(path), "--out", str(out)]) == 2
    assert "is the model itself" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_the_size_of_the_original_is_told_beside_that_of_the_result(path, tmp_path, capsys):
    out, before = tmp_path / "small.onnx", path.stat().st_size
    assert main(["apply", "simplify", str(path), "--out", str(out)]) == 0
    assert f"({out.stat().st_size:,} bytes; the original has {before:,})" in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_fits_the_terminal(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["apply", "--list"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert all(name in text for name in registry.names("passes"))
