"""One model on several runtimes, in one run."""

import json

import pytest

from edgeproof.across import across
from edgeproof.cli import main
from edgeproof.dataset import load_spec
from edgeproof.errors import UnsupportedError
from edgeproof.model import save_model
from edgeproof.runtimes import find_target
from small_nets import CPU, net, node, weight
from small_runs import INT8, SIMPLE, Fixed, size_policy, write_job

REFERENCE = find_target("reference:cpu", {})


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def compared(job, tmp_path_factory):
    out = tmp_path_factory.mktemp("across") / "run"
    result = across(
        job / "net.onnx",
        load_spec(str(job / "samples.npz")),
        size_policy(3),
        [CPU, REFERENCE],
        out,
        strategy=lambda: Fixed([SIMPLE, INT8]),
    )
    return result, out


def test_every_target_has_its_original_in_one_table(compared):
    result, _ = compared
    assert {v["name"] for v in result["variants"]} >= {"original on onnxruntime:cpu", "original on reference:cpu"}
    assert result["baseline"] == "original on onnxruntime:cpu"


def test_times_are_of_one_interleaved_run(compared):
    result, out = compared
    runs = json.loads((out / "together.json").read_text())["runs"]
    legs = {r["leg"] for r in runs}
    assert legs >= {"original on onnxruntime:cpu", "control", "original on reference:cpu"}
    assert all(len([r for r in runs if r["leg"] == leg]) == 3 for leg in legs)
    by_name = {v["name"]: v for v in result["variants"]}
    slow, fast = by_name["original on reference:cpu"], by_name["original on onnxruntime:cpu"]
    assert slow["speedup"][0] < 1 < 1 / slow["speedup"][0]  # pure Python
    assert fast["speedup"][0] == 1.0


def test_the_front_holds_whom_nobody_beats_in_both(compared):
    rows = compared[0]["variants"]
    for row in rows:
        x, y = row["measured"]["latency_p50"]["value"], row["quality"]["value"]
        better = [
            r
            for r in rows
            if (r["measured"]["latency_p50"]["value"] < x and r["quality"]["value"] >= y)
            or (r["measured"]["latency_p50"]["value"] <= x and r["quality"]["value"] > y)
        ]
        assert row["front"] == (not better)


def test_every_stage_of_every_target_is_checked(compared):
    stages = {
        v["target"]: [(s["name"], s["state"]) for s in v["stages"]] for v in compared[0]["variants"] if v["stages"]
    }
    assert ("simplify", "pass") in stages["onnxruntime:cpu"]
    assert ("onnxruntime:cpu → reference:cpu", "pass") in stages["reference:cpu"]
    assert [n for n, _ in stages["onnxruntime:cpu"]][-1] == "int8"


def test_a_run_that_was_finished_costs_nothing_again(compared, job):
    before, out = compared
    stamp = (out / "together.json").stat().st_mtime_ns
    again = across(
        job / "net.onnx",
        load_spec(str(job / "samples.npz")),
        size_policy(3),
        [CPU, REFERENCE],
        out,
        strategy=lambda: Fixed([SIMPLE, INT8]),
    )
    assert again["variants"] == before["variants"]
    assert (out / "together.json").stat().st_mtime_ns == stamp


def test_a_target_that_cannot_take_the_model_is_listed_with_the_reason(job, tmp_path):
    # Gelu's contributed form is ONNX Runtime's own: the reference evaluator does not know it.
    model = net([node("Gelu", ["x"], ["g"], domain="com.microsoft"), node("Flatten", ["g"], ["f"]),
                 node("MatMul", ["f", "w"], ["y"])], [weight("w", 768, 10)])  # fmt: skip
    save_model(model, tmp_path / "net.onnx")
    found = across(
        tmp_path / "net.onnx",
        load_spec(str(job / "samples.npz")),
        size_policy(2),
        [CPU, REFERENCE],
        tmp_path / "run",
        strategy=lambda: Fixed([]),
    )
    assert [v["target"] for v in found["variants"]] == ["onnxruntime:cpu"]
    assert "Gelu" in found["refused"]["reference:cpu"]["problem"]


def test_when_no_target_can_the_first_reason_is_the_error(job, tmp_path):
    model = net([node("Strange", ["x"], ["y"], domain="own")])
    save_model(model, tmp_path / "net.onnx")
    with pytest.raises(UnsupportedError, match="Strange"):
        across(
            tmp_path / "net.onnx",
            load_spec(str(job / "samples.npz")),
            size_policy(2),
            [CPU],
            tmp_path / "run",
            strategy=lambda: Fixed([]),
        )


def test_the_command_shows_who_stands_where(compared, job, capsys, monkeypatch):
    result, out = compared
    from edgeproof.cli import _across
    from edgeproof.cli.show import Show

    assert _across.finish(result, out, Show(json=False)) == 0
    said = capsys.readouterr().out
    assert "● original on onnxruntime:cpu" in said or "●" in said
    assert "as fast as the original on onnxruntime:cpu" in said


def test_the_same_target_twice_is_refused(job, capsys):
    flags = ["--data", str(job / "samples.npz"), "--targets", "reference:cpu,reference:cpu", "--json"]
    assert main(["optimize", str(job / "net.onnx"), *flags]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "target.twice"


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--targets", ""], "target.none"),
        (["--targets", "reference:cpu", "--target", "onnxruntime:cpu"], "usage.arguments"),
    ],
)
def test_no_target_is_ignored_in_silence(job, capsys, flags, code):
    assert main(["optimize", str(job / "net.onnx"), "--data", str(job / "samples.npz"), *flags, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_the_time_to_train_goes_to_every_target(job, tmp_path, monkeypatch, capsys):
    given = []

    def refuse(*_, training_s, **__):
        given.append(training_s)
        raise UnsupportedError("target.not_here", "it", "does not run", "go on")

    monkeypatch.setattr("edgeproof.across.optimize", refuse)
    flags = ["--data", str(job / "samples.npz"), "--targets", "reference,onnxruntime:cpu", "--training", "7"]
    assert main(["optimize", str(job / "net.onnx"), *flags, "--out", str(tmp_path / "run")]) == 3
    assert given == [7.0, 7.0]
