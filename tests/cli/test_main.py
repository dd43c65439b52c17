"""What holds for every command: one JSON document, documented exit codes, output that steers nothing."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from edgeproof.cli import main
from edgeproof.cli.show import visible


def model(path: Path, name: str = "x") -> str:
    value = helper.make_tensor_value_info
    ends = [value(name, TensorProto.FLOAT, [1, 4])], [value("y", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", *ends)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json"],
        ["optimise", "--json"],
        ["inspect", "--json"],
        ["inspect", "m.onnx", "--nonsense", "--json"],
        ["bench", "m.onnx", "--runs", "many", "--json"],
        ["bench", "m.onnx", "--seed", "-1", "--json"],
        ["apply", "simplify", "m.onnx", "--seed", "9" * 30, "--json"],
        ["apply", "fp16", "m.onnx", "--headroom", "nan", "--json"],
        ["apply", "fp16", "m.onnx", "--headroom", "1e400", "--json"],
        ["inspect", "m.onnx", "--shape", f"x={'9' * 5000},4", "--json"],
        ["demo", "--target", "nothing", "--json"],
    ],
)
def test_a_mistake_on_the_command_line_is_one_json_document_and_exit_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "m.onnx")
    assert main(arguments) == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


def test_control_and_direction_characters_are_spelled_out() -> None:
    assert visible("a\x1b[31m\u202e b") == r"a\x1b[31m\u202e b"
    assert visible("日本 ×≈ é\n") == "日本 ×≈ é\n"
    assert visible("cell\n", kept="") == r"cell\n"


@pytest.mark.parametrize("flags", [[], ["--layers"]])
def test_a_name_in_a_model_does_not_steer_the_terminal(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", model(tmp_path / "m.onnx", "red\x1b[2J"), *flags]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"red\x1b[2J" in out


def test_what_the_users_code_prints_stays_out_of_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "noise.py"
    source.write_text("print('noise')\ndef load():\n    print('more noise')\n    return []\n", encoding="utf-8")
    assert main(["apply", "simplify", model(tmp_path / "m.onnx"), "--data", f"{source}:load", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"]["code"] == "data.empty"
    assert "more noise" in captured.err


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "def load():\n    raise SystemExit(0)\n"])
def test_the_users_code_cannot_end_a_command_as_if_it_had_accepted(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "leaves.py"
    source.write_text(text, encoding="utf-8")
    assert main(["apply", "simplify", model(tmp_path / "m.onnx"), "--data", f"{source}:load", "--json"]) == 2
    assert "SystemExit" in json.loads(capsys.readouterr().out)["error"]["problem"]


def test_an_output_that_cannot_hold_a_name_still_gets_one_json_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["inspect", model(tmp_path / "m.onnx", "日本"), "--json"]) == 0
    assert json.loads(raw.getvalue())["inputs"][0]["name"] == "日本"
    assert main(["inspect", model(tmp_path / "m.onnx", "日本")]) == 0


def test_a_closed_output_is_not_an_accept_and_says_nothing(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "edgeproof", "inspect", model(tmp_path / "m.onnx")]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_without_any_output_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["inspect", model(tmp_path / "m.onnx")]) == 0


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["gate", "bench.json", "--pollicy", "speed"], "--policy"),
        (["optimize", "m.onnx", "--dta=samples"], "--data"),
        (["inspect", "m.onnx", "--shapes", "x=1"], "--shape"),
        (["bench", "m.onnx", "--inference", "5"], "--inferences"),
        (["apply", "simplify", "m.onnx", "--tolerence", "1"], "--tolerance"),
        (["report", "runs/a", "--ouT", "x"], "--out"),
        (["targets", "--jsn"], "--json"),
        (["demo", "--sed", "1"], "--seed"),
    ],
)
def test_a_mistyped_flag_is_named_with_the_one_that_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_a_flag_like_no_other_leads_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--zzz"]) == 2
    captured = capsys.readouterr().err
    assert "has no flag '--zzz'" in captured
    assert "hint: run 'edgeproof targets --help'" in captured
