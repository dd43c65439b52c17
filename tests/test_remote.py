"""A backend in another process answers as it does in this one."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof import registry, runtimes, toolchain
from edgeproof.bench import bench
from edgeproof.cli import main
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.job import CONTROL, Leg, Plan
from edgeproof.model import Model, save_model
from edgeproof.protocols import Timed
from edgeproof.remote import RemoteBackend, target_from_json, target_to_json

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 2, 5, 5] x) => (float[1, 3, 3, 3] y) <float[3, 2, 3, 3] w> { y = Conv(x, w) }"""
SAME = Path(sys.executable).with_name("python3")
"""This environment's Python under another name, so that it counts as another one."""


def net() -> Model:
    graph = ir.from_onnx_text(NET.replace("<float[3, 2, 3, 3] w>", ""))
    weights = ir.tensor(np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3) / 54, name="w")
    graph.graph.register_initializer(ir.Value(name="w", const_value=weights, shape=ir.Shape([3, 2, 3, 3])))
    graph.graph.node(0).replace_input_with(1, graph.graph.initializers["w"])
    return Model.of(graph, "net")


@pytest.fixture(scope="module")
def remote():
    return RemoteBackend("onnxruntime", SAME)


def test_targets_come_through_with_their_schemes(remote):
    here = registry.load("backends", "onnxruntime")().targets()
    assert [asdict(t) for t in remote.targets()] == [asdict(t) for t in here]


def test_a_target_survives_json():
    for target in registry.load("backends", "onnxruntime")().targets():
        assert target_from_json(target_to_json(target)) == target


def test_outputs_are_those_of_this_process_bit_for_bit(remote):
    target = runtimes.find_target("onnxruntime:cpu", {"threads": 1})
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype(np.float32)}
    here = runtimes.compile_for(target, net())
    there = remote.compile(net(), target)
    np.testing.assert_array_equal(there.run(feeds)["y"], here.run(feeds)["y"])
    assert there.placement().nodes == here.placement().nodes
    here.close()
    there.close()


def test_times_are_taken_in_the_other_process(remote):
    session = remote.compile(net(), runtimes.find_target("onnxruntime:cpu", {"threads": 1}))
    feeds = [{"x": np.zeros((1, 2, 5, 5), np.float32)}]
    assert isinstance(session, Timed)
    times = session.timed(feeds, 0, 7)
    session.close()
    assert len(times) == 7
    assert min(times) > 0


def test_layers_come_through(remote):
    session = remote.compile(net(), runtimes.find_target("onnxruntime:cpu", {"threads": 1, "profile": True}))
    session.run({"x": np.zeros((1, 2, 5, 5), np.float32)})
    (layer,) = [v for v in session.layers() if "Conv" in v.op]
    session.close()
    assert layer.time_ns


def test_what_the_other_end_refuses_is_the_same_error(remote):
    session = remote.compile(net(), runtimes.find_target("onnxruntime:cpu", {}))
    with pytest.raises(InputError, match=r"session\.feeds"):
        session.run({})
    assert session.run({"x": np.zeros((1, 2, 5, 5), np.float32)})["y"].shape == (1, 3, 3, 3)  # it lives on
    session.close()


def test_a_process_that_dies_is_named(remote):
    session = remote.compile(net(), runtimes.find_target("onnxruntime:cpu", {}))
    session._child._process.kill()
    with pytest.raises(UnsupportedError, match="onnxruntime: its process"):
        session.run({"x": np.zeros((1, 2, 5, 5), np.float32)})
    session.close()


def test_a_python_that_lacks_the_runtime_says_so():
    backend = RemoteBackend("openvino", SAME)
    if runtimes.backend("openvino").missing() is None:
        assert backend.targets()
        return
    with pytest.raises(UnsupportedError, match=r"target\.not_installed"):
        backend.targets()


def test_it_builds_in_the_other_process(remote, tmp_path):
    told: list[str] = []
    target = runtimes.find_target("onnxruntime:cpu", {})
    made = remote.build(net(), target, tmp_path / "net", lambda what, _share: told.append(what))
    assert made.path == tmp_path / "net.ort"
    assert made.path.read_bytes()[4:8] == b"ORTM"
    assert told == ["optimising"]


def test_a_bench_interleaves_several_runtimes(tmp_path):
    path = save_model(net(), tmp_path / "net.onnx")
    here, there = (runtimes.find_target(n, {}) for n in ("onnxruntime:cpu", "reference:cpu"))
    legs = [Leg("a", path, here), Leg(CONTROL, path, here), Leg("b", path, there)]
    feeds = [{"x": np.zeros((1, 2, 5, 5), np.float32)}]
    runs = bench(legs, feeds, rounds=1, inferences=3, plan=Plan(warmup=1, sensor_s=0, alone=False))
    assert {r.leg: len(r.latency_ns) for r in runs} == {"a": 3, CONTROL: 3, "b": 3}


def test_only_a_finished_installation_counts(tmp_path, monkeypatch):
    monkeypatch.setenv(toolchain.FOLDER, str(tmp_path))
    (tmp_path / "openvino" / "bin").mkdir(parents=True)
    assert toolchain.python_of("openvino") is None
    (tmp_path / "openvino" / ".edgeproof-installed").touch()
    python = tmp_path / "openvino" / "bin" / "python"
    assert toolchain.python_of("openvino") is None
    python.symlink_to(tmp_path / "gone")
    assert toolchain.python_of("openvino") is None
    python.unlink()
    python.symlink_to(sys.executable)
    assert toolchain.python_of("openvino") == python


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 3\n", "#!/nowhere/python\n", "no program\n"])
def test_a_toolchain_that_does_not_start_is_one_row_of_the_targets_and_says_what_mends_it(
    script, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(toolchain.FOLDER, str(tmp_path))
    python = tmp_path / "coreml" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(script)
    python.chmod(0o755)
    (tmp_path / "coreml" / ".edgeproof-installed").touch()
    assert main(["targets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["targets"]
    (broken,) = [r for r in rows if r["state"] == "broken"]
    assert broken["backend"] == "coreml"
    assert broken["error"]["code"] == "toolchain.broken"
    assert "edgeproof targets --install coreml" in broken["error"]["hint"]
    assert any(r["state"] == "ready" for r in rows)


def test_where_no_environment_can_be_made_nothing_half_made_stays(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(toolchain.FOLDER, str(tmp_path / "file"))
    with pytest.raises(UnsupportedError, match=r"toolchain\.venv"):
        toolchain.install("torch")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_toolchain_that_another_process_installs_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(toolchain.FOLDER, str(tmp_path))
    half_made = tmp_path / "torch" / "pyvenv.cfg"
    half_made.parent.mkdir()
    half_made.touch()
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    line = [sys.executable, "-c", script, str(tmp_path / ".torch.lock")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(InputError, match=r"toolchain\.busy"):
            toolchain.install("torch")
        other.kill()
    assert half_made.is_file()


def test_an_unknown_runtime_is_named_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'openvino'"):
        toolchain.install("openvno")
