import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeproof import load_model, worker
from edgeproof.bench import CONTROL, Leg, Plan, absent, bench, measurements, random_feeds
from edgeproof.benchfile import BenchFile, KeptLeg, cases, load_bench, run_bench
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.gate import decide
from edgeproof.job import feeds_digest, load_feeds, save_feeds
from edgeproof.measurement import LegRun, Measurement
from edgeproof.model import TensorSpec
from edgeproof.policy import policy_from
from edgeproof.target import Target

CPU = Target("onnxruntime:cpu", "onnxruntime", "cpu", settings={"threads": 1})
QUICK = Plan(warmup=1, block=4, settle=1, timeout_s=120)


def network(path: Path, *, layers: int = 1, shape: tuple[int | str, ...] = (1, 16), op: str = "Relu") -> Path:
    """``layers`` times MatMul and ``op`` on a vector of 16 numbers."""
    weight = numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")
    nodes, last = [], "x"
    for i in range(layers):
        nodes += [helper.make_node("MatMul", [last, "w"], [f"m{i}"]), helper.make_node(op, [f"m{i}"], [f"r{i}"])]
        last = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def pictures(path: Path, convolutions: int) -> Path:
    """A chain of 3 × 3 convolutions of 16 channels on 64 × 64 pixels: about a millisecond for every two or three."""
    weight = np.random.default_rng(0).normal(0, 0.05, (16, 16, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", [f"x{i}", "w"], [f"x{i + 1}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for i in range(convolutions)
    ]
    shape = [1, 16, 64, 64]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"x{convolutions}", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture
def legs(tmp_path: Path) -> list[Leg]:
    path = network(tmp_path / "net.onnx")
    return [Leg("baseline", path, CPU), Leg(CONTROL, path, CPU)]


FEEDS = [{"x": np.full((1, 16), i, np.float32)} for i in range(3)]


def run_of(leg: str, index: int, latency_ms: list[float], **more: Any) -> LegRun:
    return LegRun(leg, index, tuple(round(x * 1e6) for x in latency_ms), **more)


def test_every_leg_of_every_process_keeps_all_its_samples(legs: list[Leg]) -> None:
    seen: list[tuple[int, list[str]]] = []
    runs = bench(
        legs,
        FEEDS,
        rounds=2,
        inferences=10,
        plan=QUICK,
        on_round=lambda index, new: seen.append((index, [r.leg for r in new])),
    )
    assert [(r.leg, r.round, len(r.latency_ns)) for r in runs] == [
        ("baseline", 0, 10),
        (CONTROL, 0, 10),
        ("baseline", 1, 10),
        (CONTROL, 1, 10),
    ]
    assert seen == [(0, ["baseline", CONTROL]), (1, ["baseline", CONTROL])]
    for r in runs:
        assert min(r.latency_ns) > 0
        assert r.cold_start_ns is not None
        assert r.cold_start_ns > max(r.latency_ns[:1])
        assert r.base_rss_bytes is not None
        assert r.peak_rss_bytes is not None
        assert r.peak_rss_bytes >= r.base_rss_bytes > 0
        assert r.environment["before"]["load"]
        assert LegRun.from_json(r.to_json()) == r


def test_processes_that_are_there_already_are_not_measured_again(legs: list[Leg]) -> None:
    done = [run_of("baseline", 0, [1.0]), run_of(CONTROL, 0, [1.0]), run_of("baseline", 1, [1.0])]
    measured: list[int] = []
    runs = bench(
        legs, FEEDS, rounds=2, inferences=2, plan=QUICK, done=done, on_round=lambda index, _: measured.append(index)
    )
    assert measured == [1]  # process 1 is only half there
    assert runs[:2] == done[:2]
    assert len(runs) == 4


def test_a_large_parent_does_not_show_in_the_peak_memory_of_its_child(legs: list[Leg]) -> None:
    ballast = np.ones(60_000_000)
    runs = bench(legs[:1], FEEDS, rounds=1, inferences=1, plan=QUICK)
    assert runs[0].peak_rss_bytes is not None
    assert runs[0].peak_rss_bytes < ballast.nbytes


def test_a_leg_that_the_runtime_refuses_is_named(legs: list[Leg], tmp_path: Path) -> None:
    bad = network(tmp_path / "bad.onnx", op="NoSuchOperator")
    with pytest.raises(
        UnsupportedError, match=r"^candidate: bad on onnxruntime:cpu: operator NoSuchOperator"
    ) as caught:
        bench([*legs, Leg("candidate", bad, CPU)], FEEDS, rounds=1, inferences=1, plan=QUICK)
    assert caught.value.code == "backend.unknown_operator"


def test_feeds_that_do_not_fit_name_the_leg_and_the_input(legs: list[Leg]) -> None:
    with pytest.raises(InputError, match=r"^baseline: net: could not run on y float32"):
        bench(legs[:1], [{"y": FEEDS[0]["x"]}], rounds=1, inferences=1, plan=QUICK)


def test_a_process_that_takes_too_long_is_ended(legs: list[Leg]) -> None:
    with pytest.raises(UnsupportedError, match=r"its measuring process was stopped after 0.05 s") as caught:
        bench(legs, FEEDS, rounds=1, inferences=1, plan=replace(QUICK, timeout_s=0.05))
    assert caught.value.code == "bench.timeout"
    assert _children(os.getpid()) == []


def test_a_process_that_is_killed_is_blamed_on_its_leg(legs: list[Leg]) -> None:
    killer = threading.Thread(target=_kill_first_child)
    killer.start()
    with pytest.raises(UnsupportedError, match=r"its measuring process was ended by SIGKILL") as caught:
        bench(legs, FEEDS, rounds=1, inferences=100_000_000, plan=QUICK)
    killer.join()
    assert caught.value.code == "bench.crashed"
    assert caught.value.subject in ("baseline", CONTROL, "baseline, control")


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopping_a_bench_ends_its_processes(legs: list[Leg], tmp_path: Path, stop: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "edgeproof", "bench", str(legs[0].path), "--inferences", "100000000"]
    parent = subprocess.Popen([*command, "--out", str(tmp_path / "out")], stderr=subprocess.DEVNULL)
    child = _first_child(parent.pid)
    parent.send_signal(stop)
    assert parent.wait(60) == code
    assert _eventually(lambda: not Path(f"/proc/{child}").exists() or _zombie(child))


def test_no_input_no_leg_and_no_process_are_refused(legs: list[Leg]) -> None:
    with pytest.raises(InputError, match="there is no input to run"):
        bench(legs, [])
    with pytest.raises(InputError, match="expected different names"):
        bench([legs[0], legs[0]], FEEDS)
    with pytest.raises(InputError, match="asked for 0 processes of 200 inferences"):
        bench(legs, FEEDS, rounds=0)


def test_legs_take_turns_in_blocks_and_in_changing_order() -> None:
    import random

    calls: list[str] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
            calls.append(self.name)
            return {}

    names = ["a", "b", "c"]
    legs = [Leg(n, Path(n), CPU) for n in names]
    plan = Plan(block=5, settle=2)
    latency = worker._timed(legs, {n: Recorder(n) for n in names}, FEEDS, plan, 12, random.Random(1))  # type: ignore[arg-type, misc]
    assert {n: len(t) for n, t in latency.items()} == {"a": 12, "b": 12, "c": 12}
    turns = [calls[i : i + 7] for i in range(0, 42, 7)]  # two cycles of three turns: 2 to settle, 5 timed
    assert all(len(set(turn)) == 1 for turn in turns)
    assert sorted(t[0] for t in turns[:3]) == sorted(t[0] for t in turns[3:]) == names
    assert calls[42:] == [c for c in calls[42::4] for _ in range(4)]  # the rest: 2 to settle, 2 timed


def test_of_several_sensors_of_a_quantity_the_highest_is_taken() -> None:
    class Thermometer:
        unit = "°C"

    readings = {"hwmon": [40.0, 41.0], "thermal": [52.0, 50.0]}
    found = worker._by_quantity(readings, {"hwmon": Thermometer(), "thermal": Thermometer()})  # type: ignore[dict-item]
    assert found == {**readings, "temperature": [52.0, 50.0]}


def test_inputs_survive_the_way_to_the_process(tmp_path: Path) -> None:
    feeds = [
        {"a/b:0": np.arange(6, dtype=np.int64).reshape(2, 3), "text": np.array(["ü", "xyz"], object)},
        {"": np.array(2.5)},
    ]
    save_feeds(tmp_path / "feeds.npz", feeds)
    back = load_feeds(tmp_path / "feeds.npz")
    assert [list(f) for f in back] == [["a/b:0", "text"], [""]]
    assert np.array_equal(back[0]["a/b:0"], feeds[0]["a/b:0"])
    assert list(back[0]["text"]) == ["ü", "xyz"]
    assert back[1][""] == 2.5
    assert feeds_digest(back[1:]) == feeds_digest(feeds[1:])
    assert feeds_digest(back[:1]) != feeds_digest(back[1:])


def test_measurements_are_computed_from_the_raw_samples() -> None:
    latency = [[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 6.0], [1.0, 1.0, 1.0, 1.0]]
    runs = [run_of("a", i, ms) for i, ms in enumerate(latency)][::-1]
    found = measurements(runs, "a", ("latency_p50", "throughput"), model="m", target="t", machine="x")
    assert list(found["latency_p50"].samples) == pytest.approx([2.5, 2.0, 1.0])
    assert list(found["throughput"].samples) == pytest.approx([400.0, 4000 / 12, 1000.0])
    m = found["latency_p50"]
    assert (m.unit, m.better, m.model, m.target, m.machine) == ("ms", "lower", "m", "t", "x")
    assert m.low is not None
    assert m.high is not None
    assert m.low < m.value < m.high


def test_a_sensor_without_readings_in_one_process_gives_no_measurement() -> None:
    runs = [run_of("a", 0, [1.0], sensors={"power": (5.0, 7.0)}), run_of("a", 1, [1.0])]
    assert "power" not in measurements(runs, "a", ("power",), model="m")
    assert measurements(runs[:1], "a", ("power",), model="m")["power"].value == 6.0


def test_missing_sensors_are_told_by_quantity() -> None:
    reasons = {"rapl": "no counter", "hwmon": "no file", "thermal": "no zone"}
    runs = [run_of("a", 0, [1.0], environment={"no_sensor": reasons})]
    assert absent(runs) == {"power": "rapl: no counter", "temperature": "hwmon: no file; thermal: no zone"}


def test_random_inputs_fit_the_model_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    model = load_model(network(tmp_path / "net.onnx", shape=("batch", 16)))
    feeds = random_feeds(model, count=2)
    assert [f["x"].shape for f in feeds] == [(1, 16), (1, 16)]
    assert feeds[0]["x"].dtype == np.float32
    assert not np.array_equal(feeds[0]["x"], feeds[1]["x"])
    assert feeds_digest(feeds) == feeds_digest(random_feeds(model, count=2))
    assert feeds_digest(feeds) != feeds_digest(random_feeds(model, count=2, seed=1))
    assert random_feeds(model, {"x": (5, 16)})[0]["x"].shape == (5, 16)


@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8", "bool", "string"])
def test_random_inputs_have_the_dtype_that_is_asked_for(tmp_path: Path, dtype: str) -> None:
    model = replace(load_model(network(tmp_path / "net.onnx")), inputs=(TensorSpec("x", dtype, (2, 3)),))
    array = random_feeds(model, count=1)[0]["x"]
    assert array.shape == (2, 3)
    assert array.dtype.kind == "U" if dtype == "string" else array.dtype.name == dtype


def test_an_input_too_large_to_make_up_is_named(tmp_path: Path) -> None:
    model = load_model(network(tmp_path / "net.onnx", shape=("batch", "width")))
    with pytest.raises(InputError, match=r"^x: would have 1,152,921,504,606,846,976 values in shape"):
        random_feeds(model, {"x": (1 << 40, 1 << 20)})


def test_an_open_dimension_is_asked_for_by_name(tmp_path: Path) -> None:
    model = load_model(network(tmp_path / "net.onnx", shape=("batch", "width")))
    with pytest.raises(InputError, match=r"^x: has open dimensions: x float32\[batch, width\]") as caught:
        random_feeds(model)
    assert caught.value.hint == "give its shape, e.g. --shape x=1,WIDTH"


def test_a_kept_bench_goes_on_and_can_be_extended(tmp_path: Path) -> None:
    paths = [network(tmp_path / "a.onnx"), network(tmp_path / "b.onnx", layers=3)]
    out = tmp_path / "out"
    first = run_bench(paths, CPU, out, rounds=1, inferences=3, plan=QUICK)
    assert [leg.name for leg in first.legs] == ["a", CONTROL, "b"]
    more = run_bench(paths, CPU, out, rounds=2, inferences=3, plan=QUICK)
    assert more.rounds == 2
    assert more.runs[:3] == first.runs
    assert load_bench(out / "bench.json") == more
    with pytest.raises(InputError, match=r"holds a bench with other inferences"):
        run_bench(paths, CPU, out, rounds=2, inferences=4, plan=QUICK)


def test_models_with_other_inputs_are_not_measured_against_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"takes x0 float32") as caught:
        run_bench([network(tmp_path / "a.onnx"), pictures(tmp_path / "b.onnx", 1)], CPU, tmp_path / "out")
    assert caught.value.code == "bench.interface"


def kept_bench(ratio: float, *, inferences: int = 200) -> BenchFile:
    """A bench whose candidate takes ``ratio`` times as long, on a machine with 2 % noise between processes."""
    rng = np.random.default_rng(5)
    runs = []
    for i in range(10):
        drift = rng.uniform(1, 1.5)
        for leg, factor in (("a", 1.0), (CONTROL, 1.0), ("b", ratio)):
            times = 10 * drift * factor * rng.lognormal(0, 0.02) * rng.lognormal(0, 0.05, inferences)
            runs.append(run_of(leg, i, times.tolist()))
    kept = tuple(KeptLeg(n, "m.onnx", f"sha256:{n}", 1000, "onnxruntime:cpu") for n in ("a", CONTROL, "b"))
    return BenchFile(kept, inferences, QUICK, "sha256:d", {"digest": "sha256:m"}, tuple(runs))


def relative(limit: str, **more: Any) -> Any:
    rule = {"metric": "latency_p95", "op": "<=", "limit": limit, "unit": "ratio", "relative_to": "baseline"}
    return policy_from({"rules": [rule], **more}, "test", {"latency_p95": "ms"})


@pytest.mark.parametrize(("ratio", "state"), [(1.0, "accept"), (1.1, "reject")])
def test_a_kept_bench_is_decided_on_by_pairs_of_interleaved_runs(tmp_path: Path, ratio: float, state: str) -> None:
    from edgeproof.files import write_json

    write_json(tmp_path / "bench.json", kept_bench(ratio).to_json())
    [case] = cases(tmp_path / "bench.json", relative("1.03"))
    assert case.control.ok
    verdict = decide(
        relative("1.03"), case.baseline, case.candidate, quality_metric=case.quality_metric, control=case.control
    )
    assert (case.name, verdict.state) == ("b", state)


def test_fewer_inferences_than_the_policy_asks_for_are_held(tmp_path: Path) -> None:
    from edgeproof.files import write_json

    write_json(tmp_path / "bench.json", kept_bench(1.0, inferences=50).to_json())
    [case] = cases(tmp_path / "bench.json", relative("1.03"))
    assert case.control.problems == ("each process timed 50 inferences, the policy asks for 200",)


def test_a_result_of_a_run_can_be_decided_on_again(tmp_path: Path) -> None:
    from edgeproof.files import write_json

    kept = kept_bench(1.0)
    measured = {leg.name: {n: m.to_json() for n, m in kept.measured(leg).items()} for leg in kept.legs}
    result = {
        "format": "edgeproof.result/1",
        "metric": "top1",
        "control": kept.control.to_json(),
        "candidates": [
            {"name": "original", "measured": measured["a"]},
            {"name": "int8", "measured": measured["b"]},
            {"name": "screened", "measured": {}},
        ],
    }
    write_json(tmp_path / "result.json", result)
    [case] = cases(tmp_path / "result.json", relative("1.03"))
    assert (case.name, case.quality_metric) == ("int8", "top1")
    again = Measurement.from_json(measured["b"]["latency_p95"])
    assert case.candidate["latency_p95"] == again


def test_another_json_file_is_no_bench(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match=r"is no kept bench of format edgeproof.bench/1"):
        load_bench(tmp_path / "x.json")


@pytest.mark.slow
def test_a_model_is_never_rejected_against_itself_and_a_slower_one_is_never_accepted(tmp_path: Path) -> None:
    same = pictures(tmp_path / "same.onnx", 6)
    paths = [pictures(tmp_path / "net.onnx", 6), same, pictures(tmp_path / "slow.onnx", 12)]
    plan = Plan(alone=False, sensor_s=0)
    run_bench(paths, CPU, tmp_path / "out", rounds=5, inferences=60, plan=plan)
    # The median and a small alpha: this test must not depend on how busy the machine is.
    rule = {"metric": "latency_p50", "op": "<=", "limit": "1.03", "unit": "ratio", "relative_to": "baseline"}
    asked = {"rules": [rule], "runs": "5", "inferences": "60", "alpha": "0.005"}
    policy = policy_from(asked, "test", {"latency_p50": "ms"})
    states = {
        case.name: decide(policy, case.baseline, case.candidate, quality_metric="", control=case.control).state
        for case in cases(tmp_path / "out" / "bench.json", policy)
    }
    assert states["same"] != "reject"
    assert states["slow"] != "accept"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(p) for p in task.read_text().split()]
    return found


def _eventually(true: Any, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def _first_child(pid: int) -> int:
    assert _eventually(lambda: bool(_children(pid)))
    return _children(pid)[0]


def _kill_first_child() -> None:
    os.kill(_first_child(os.getpid()), signal.SIGKILL)


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
