"""The benchmark with peers, without the network: its own drivers, memory watch, cells and tables."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.peers import children, environments, latency, quality, table, tools
from benchmarks.peers.cells import Bench
from benchmarks.peers.tasks import TASKS, Prepared
from onnx import helper, numpy_helper

from edgeproof.decode import Ctc, best_path

TURNED = next(t for t in TASKS if t.data == "turned")
BY_NAME = {t.name: t for t in tools.TOOLS}


def network(path: Path) -> Path:
    """A convolution and a matrix product: 16·3·9·64 = 27,648 and 16·10 = 160 multiply-accumulates."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 3, 3, 3)), "v": rng.standard_normal((16, 10))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, [1, 3, 8, 8])],
        [value("y", 1, [1, 10])],
        [numpy_helper.from_array(a.astype("f4"), n) for n, a in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def bench(folder: Path) -> Bench:
    home = folder / "turned"
    (home / "samples").mkdir(parents=True)
    rng = np.random.default_rng(1)
    for i in range(8):
        np.savez(home / "samples" / f"{i:04}.npz", x=rng.standard_normal((1, 3, 8, 8)).astype("f4"))
    task = Prepared(TURNED, network(home / "float.onnx"), home / "samples", home / "test-1" / "data.yaml")
    return Bench(task, home, again=False, limit_gb=4.0, limit_s=120.0)


def holding(megabytes: int, wrapped: bool = False) -> subprocess.Popen[bytes]:
    hold = f"x = bytearray({megabytes} << 20); import time; time.sleep(60)"
    call = [sys.executable, "-c", hold]
    if wrapped:
        call = [sys.executable, "-c", f"import subprocess, sys; subprocess.run({call!r})"]
    return subprocess.Popen(call, start_new_session=True)


@pytest.mark.parametrize("wrapped", [False, True], ids=["child", "grandchild"])
def test_a_process_that_holds_too_much_is_noticed_whoever_holds_it(wrapped):
    child = holding(300, wrapped)
    try:
        peak_mb, why = children._watch(child, 0.2, 30)
    finally:
        children._end(child)
    assert why == "stopped above 0.2 GB"
    assert peak_mb > 200
    assert child.poll() is not None
    assert children.resident(child.pid) == 0


def test_a_process_that_takes_too_long_is_noticed():
    child = holding(1)
    try:
        assert children._watch(child, 4, 0.2)[1] == "stopped after 0.2 s"
    finally:
        children._end(child)


def test_the_error_of_a_log_is_its_last_line_that_names_one(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("Traceback\nKeyError: 'conv_3'\n\nValueError: no scale for conv_3\nshutting down\n")
    assert children._last_line(log, 1) == "ValueError: no scale for conv_3"
    log.write_text("")
    assert children._last_line(log, 3) == "exit code 3"
    assert children._last_line(log, -9) == "ended by signal 9"


def test_cells_are_kept_counted_and_shown_and_not_measured_twice(tmp_path):
    b = bench(tmp_path)
    chosen = [BY_NAME["edgeproof-int8"]]
    b.run(chosen, [4], ("quantise", "latency"), rounds=2)
    cost = json.loads((b.cell(chosen[0], 4) / "cost.json").read_text())
    assert cost["macs"] == 27_648 + 160
    assert cost["int8_share"] == 1.0
    assert cost["kernels"]["QLinearConv"] == 1
    assert cost["cpu_s"] > 0
    assert cost["peak_mb"] > 10
    files = sorted(tmp_path.rglob("*.json"))
    before = [f.stat().st_mtime_ns for f in files]
    b.run(chosen, [4], ("quantise", "latency"), rounds=2)
    assert [f.stat().st_mtime_ns for f in files] == before
    text = table.render(tmp_path, 4)
    assert "| edgeproof int8 | 100 % |" in text
    assert "| FP32 a second time |" in text


def test_a_driver_that_fails_is_a_cell_with_its_reason(tmp_path, monkeypatch):
    b = bench(tmp_path)
    wrong = tools.Tool("edgeproof-int8", "edgeproof int8", "edgeproof", {"passes": [("int8", {"method": "guess"})]})
    b._quantise(BY_NAME["float"], 2, again=False)
    b._quantise(wrong, 2, again=False)
    cost = json.loads((b.cell(wrong, 2) / "cost.json").read_text())
    assert "guess" in cost["failed"]
    assert "What failed" in table.render(tmp_path, 2)


def test_the_share_of_macs_counts_only_operands_that_are_codes(tmp_path):
    found = quality.integers(network(tmp_path / "m.onnx"))
    assert (found["macs"], found["int8_share"], found["uncounted"]) == (27_808, 0.0, 0)


def test_a_ratio_is_the_geometric_mean_over_processes_with_its_t_interval():
    runs = [{"float": [1.0, 2.0], "a": [r, 2.0 * r]} for r in (0.5, 0.5 * 4)]  # logs ±ln 2: mean ratio 1
    found = latency._summary(runs, "a")
    assert found["ratio"] == pytest.approx(1.0)
    assert found["wall_ratio"] == pytest.approx(1.0)
    # t(0.975, df=1) = 12.706; the standard error of ±ln 2 is ln 2
    assert found["high"] == pytest.approx(np.exp(12.7062047 * np.log(2)), rel=1e-6)


def test_nncf_is_scored_by_the_text_that_edgeproof_reads(monkeypatch):
    monkeypatch.syspath_prepend(str(tools.FOLDER))
    lines = importlib.import_module("drive_nncf")._Lines
    rng = np.random.default_rng(0)
    symbols = ["", "a", "b", "c", " "]
    reader = object.__new__(lines)
    reader.symbols = symbols
    for _ in range(50):
        scores = rng.random((1, 12, 5)).astype("f4")
        want = best_path(scores, Ctc(ignore=" \u3000", charset="abc"), {})
        assert reader._read(scores) == want


def test_every_tool_has_a_driver_and_an_environment():
    for tool in tools.TOOLS:
        assert tool.script.is_file(), tool.name
        assert tool.name != tool.peer  # so that --only can mean either
        assert tool.peer == "edgeproof" or tool.peer in environments.PINS
