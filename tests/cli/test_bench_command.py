import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof.benchfile import BenchFile, KeptLeg
from edgeproof.cli import main
from edgeproof.cli.bench import _print
from edgeproof.cli.show import Show
from edgeproof.job import CONTROL, Plan
from edgeproof.measurement import LegRun


def network(path: Path, layers: int = 1, shape: tuple[int | str, ...] = (1, 16)) -> Path:
    """``layers`` times MatMul and Relu on vectors of 16 numbers."""
    nodes, last = [], "x"
    for i in range(layers):
        nodes += [helper.make_node("MatMul", [last, "w"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        last = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_bench_prints_one_json_document_and_keeps_every_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(network(tmp_path / "a.onnx")), str(network(tmp_path / "b.onnx", 3))]
    quick = ["--runs", "1", "--inferences", "5", "--set", "threads=1", "--out", str(tmp_path / "out"), "--json"]
    assert main(["bench", *models, *quick]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [m["name"] for m in result["models"]] == ["a", "b"]
    assert result["models"][1]["target"] == "onnxruntime:cpu threads=1"
    assert result["models"][0]["measured"]["size"]["value"] == Path(models[0]).stat().st_size
    assert set(result["models"][0]["measured"]) >= {"latency_p50", "latency_p99", "throughput", "cold_start"}
    assert "one run cannot show" in result["control"]["problems"][0]
    kept = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [(r["leg"], len(r["latency_ns"])) for r in kept["runs"]] == [("a", 5), ("control", 5), ("b", 5)]


def test_bench_prints_a_table_with_a_column_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(network(tmp_path / "net.onnx", shape=("n", 16)))
    quick = ["--shape", "2,16", "--runs", "1", "--inferences", "2", "--out", str(tmp_path / "out")]
    assert main(["bench", model, *quick]) == 0
    text = capsys.readouterr().out
    for word in (
        "latency_p50",
        "latency_p99",
        "throughput",
        "peak_memory",
        " MB",
        " /s",
        "A/A control",
        "bench.json",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.onnx"], "none.onnx: no such file"),
        (["net.onnx", "--target", "onnxruntme:cpu"], "did you mean 'onnxruntime'?"),
        (["net.onnx", "--set", "thread=1"], "did you mean 'threads'?"),
        (["net.onnx", "--set", "threads=two"], "'two' is no int"),
        (["net.onnx", "--shape", "y=1,16"], "y: is not an input of the model"),
        (["net.onnx", "--runs", "0"], "asked for 0 processes of 200 inferences"),
        (["open.onnx"], "give its shape, e.g. --shape x=1,M"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    network(tmp_path / "net.onnx")
    network(tmp_path / "open.onnx", shape=("n", "m"))
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_bench_that_failed_before_it_measured_anything_does_not_hold_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The determinant of a matrix that is not square fails in the first run."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"])],
        "net",
        [value("x", TensorProto.FLOAT, ("n", "m"))],
        [value("y", TensorProto.FLOAT, None)],
    )
    bad = tmp_path / "bad.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), bad)
    quick = ["--runs", "1", "--inferences", "5", "--out", str(tmp_path / "out")]
    assert main(["bench", str(bad), *quick, "--shape", "3,4"]) != 0
    assert (tmp_path / "out" / "bench.json").is_file()
    assert main(["bench", str(network(tmp_path / "good.onnx")), *quick]) == 0
    assert "latency_p50" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_found_out_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    model = str(network(tmp_path / "net.onnx"))
    assert main(["bench", model, "--out", str(tmp_path / "file" / "out")]) == 2
    captured = capsys.readouterr()
    assert "files.wrong_kind" in captured.err
    assert "measuring" not in captured.err


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_the_table_fits_the_terminal_with_every_model_in_it(
    width: int, models: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rng = np.random.default_rng(3)
    names = ["text_recogniser", CONTROL, *(f"text_recogniser-int8-variant-{i}" for i in range(1, models))]
    runs = [
        LegRun(
            name,
            i,
            tuple((33e3 * rng.lognormal(0, 0.02, 200)).astype(int).tolist()),
            environment={"no_sensor": {"rapl": "no energy counter " * 9, "thermal": "no zone"}},
        )
        for i in range(10)
        for name in names
    ]
    legs = tuple(KeptLeg(n, "m.onnx", f"sha256:{n}", 33_020, "onnxruntime:cpu threads=1") for n in names)
    _print(BenchFile(legs, 200, Plan(), "sha256:d", {"digest": "sha256:m"}, tuple(runs)), Path("bench.json"), Show())
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "e+0" not in out
    assert out.count("33.0 kB") >= models  # every model's size; the baseline's in every table
    assert out.count(" µs") >= 4 * models
    for i in range(1, models):
        assert f"int8-variant-{i}" in out
    assert len([line for line in out.splitlines() if "no sensor for" in line]) == 1
