"""Training files: what they may say, and what is told of one that cannot be read."""

from pathlib import Path

import numpy as np
import pytest

from edgeproof.errors import InputError, UnsupportedError
from edgeproof.training import STAGES, load_training, run_training
from edgeproof.workspace import only_one
from small_runs import write_job


def read(folder: Path, text: str):
    path = folder / "spec.yaml"
    path.write_text(text)
    return load_training(path)


def test_a_file_names_model_data_and_stages_seen_from_its_own_folder(tmp_path):
    (tmp_path / "data.npz").touch()
    spec = read(tmp_path, "model: net.onnx\ndata: data.npz\nstages: [{train: {epochs: 3, rate: 1e-3}}, qat]\n")
    assert spec.model == tmp_path / "net.onnx"
    assert spec.data == str(tmp_path / "data.npz")
    assert spec.out == tmp_path / "runs/spec"
    assert [s.kind for s in spec.stages] == ["train", "qat"]
    assert (spec.stages[0].settings.epochs, spec.stages[0].settings.rate) == (3, 0.001)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("[1, 2]", "training.not_yaml", "holds no mapping"),
        ("model: [", "training.not_yaml", "is no readable YAML"),
        ("data: d\nstages: [qat]", "training.key", "model: is missing"),
        ("model: m\ndata: d\nstages: []", "training.key", "stages: is missing"),
        ("model: m\ndata: d\nstages: qat", "training.value", "expected a list"),
        ("model: m\ndata: d\nstages: [tran]", "training.key", "did you mean 'train'?"),
        ("model: m\ndata: d\nstages: [{train: {epoch: 3}}]", "training.key", "did you mean 'epochs'?"),
        ("model: m\ndata: d\nstages: [{train: {epochs: many}}]", "training.value", "'many'; expected a whole number"),
        ("model: m\ndata: d\nstages: [{train: {epochs: 2.5}}]", "training.value", "2.5; expected a whole number"),
        ("model: m\ndata: d\nstages: [{train: {epochs: true}}]", "training.value", "True; expected a whole number"),
        ("model: m\ndata: d\nstages: [{train: {rate: .nan}}]", "training.value", "nan; expected a number"),
        ("model: m\ndata: d\nstages: [{train: {norms: warm}}]", "training.value", "one of trained, frozen"),
        ("model: m\ndata: d\nstages: [{train: {}, qat: {}}]", "training.value", "expected one stage"),
        ("model: m\ndata: d\nstages: [{prune: 3}]", "training.value", "expected settings"),
        ("model: m\ndata: d\nstages: [qat]\ntest: 1.5", "training.value", "between 0 and 1"),
        ("model: m\ndata: d\nstages: [qat]\nsed: 1", "training.key", "did you mean 'seed'?"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(tmp_path, text, code, said):
    with pytest.raises(InputError) as e:
        read(tmp_path, text)
    assert e.value.code == code
    assert said in str(e.value)
    assert e.value.hint


@pytest.mark.parametrize(("count", "share"), [(1, 0.25), (60, 0.999)])
def test_samples_that_leave_none_to_learn_from_are_counted(tmp_path, count, share):
    write_job(tmp_path)
    with np.load(tmp_path / "samples.npz") as z:
        np.savez(tmp_path / "samples.npz", x=z["x"][:count], labels=z["labels"][:count])
    spec = read(tmp_path, f"model: net.onnx\ndata: samples.npz\ntest: {share}\nstages: [train]\n")
    with pytest.raises(InputError, match=r"none would be learned from"):
        run_training(spec)


def test_one_sample_that_scores_gives_a_value_without_an_interval(tmp_path):
    write_job(tmp_path)
    with np.load(tmp_path / "samples.npz") as z:
        np.savez(tmp_path / "samples.npz", x=z["x"][:2], labels=z["labels"][:2])
    spec = read(tmp_path, "model: net.onnx\ndata: samples.npz\nstages: [export]\n")
    told: list[str] = []
    assert run_training(spec, tell=told.append)["stages"][0]["quality"]["value"] == 1.0
    assert "too few samples" in told[0]


def test_two_processes_do_not_work_on_one_run(tmp_path):
    write_job(tmp_path)
    spec = read(tmp_path, "model: net.onnx\ndata: samples.npz\nstages: [{prune: {keep: 0.9}}]\n")
    with only_one(spec.out), pytest.raises(InputError, match=r"workspace\.busy"):
        run_training(spec)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"training\.missing"):
        load_training(tmp_path / "none.yaml")


def test_every_setting_is_described():
    for settings in STAGES.values():
        described = " ".join(c.__doc__ or "" for c in settings.__mro__)
        for name in settings.__dataclass_fields__:
            assert f"{name}:" in described, (settings, name)


def test_pruning_needs_no_engine_and_is_not_done_twice(tmp_path):
    write_job(tmp_path)
    spec = read(
        tmp_path,
        "model: net.onnx\ndata: samples.npz\nstages: [{prune: {keep: 0.6, round_to: 1}}, {export: {fp16: true}}]\n",
    )
    told: list[str] = []
    first = run_training(spec, tell=told.append)
    stages = first["stages"]
    assert [s["stage"] for s in stages] == ["start", "prune", "export"]
    assert stages[1]["macs"] < 0.65 * stages[0]["macs"]
    assert stages[1]["size_bytes"] < stages[0]["size_bytes"]
    assert first["samples"] == {"learned": 45, "tested": 15}
    assert (spec.out / "02-export/fp16.onnx").is_file()
    stamp = (spec.out / "01-prune/model.onnx").stat().st_mtime_ns
    assert run_training(spec) == first
    assert (spec.out / "01-prune/model.onnx").stat().st_mtime_ns == stamp


def test_a_change_of_the_file_does_again_what_depends_on_it(tmp_path):
    write_job(tmp_path)
    head = "model: net.onnx\ndata: samples.npz\nstages: [{prune: {keep: KEEP, round_to: 1}}]\n"
    more = run_training(read(tmp_path, head.replace("KEEP", "0.8")))["stages"][1]
    less = run_training(read(tmp_path, head.replace("KEEP", "0.5")))["stages"][1]
    assert less["macs"] < more["macs"]


def test_it_stops_behind_the_stage_that_was_asked_for(tmp_path):
    write_job(tmp_path)
    spec = read(tmp_path, "model: net.onnx\ndata: samples.npz\nstages: [{prune: {keep: 0.6, round_to: 1}}, export]\n")
    assert [s["stage"] for s in run_training(spec, until="prune")["stages"]] == ["start", "prune"]
    with pytest.raises(InputError, match=r"retrain.*is no stage of this file"):
        run_training(spec, until="retrain")


def test_without_an_engine_the_line_that_installs_one_is_the_hint(tmp_path):
    from edgeproof.train.child import can_train

    write_job(tmp_path)
    spec = read(tmp_path, "model: net.onnx\ndata: samples.npz\nstages: [{train: {epochs: 1}}]\n")
    if can_train():
        assert run_training(spec)["stages"][1]["epochs"]
        return
    with pytest.raises(UnsupportedError, match="edgeproof targets --install torch"):
        run_training(spec)


def bomb(depth: int) -> str:
    """Lists of nine aliases of the list before: 9 ** depth values when written out."""
    return "".join(f"- &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(depth))


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (f"model: m\ndata: d\nstages:\n{bomb(12)}", "training.not_yaml", "its aliases stand for more than 1,000,000"),
        ("model: m\ndata: d\nstages: &s [*s]", "training.not_yaml", "its aliases stand for more than"),
        (f"model: m\ndata: d\nstages:\n{bomb(4)}", "training.value", "expected one stage"),
        ("model: m\ndata: [1, 2]\nstages: [qat]", "training.value", "data: is [1, 2]; expected text"),
        (f"model: m\ndata: d\nstages: [qat]\nseed: {'9' * 5000}", "training.not_yaml", "Exceeds the limit"),
        ("model: m\ndata: d\nstages: [qat]\nseed: -1", "train.setting", "seed: is -1; expected 0 to"),
        (f"model: m\ndata: d\nstages: [{{train: {{rate: 1{'0' * 400}}}}}]", "training.value", "expected a number"),
        ("model: m\ndata: d\nstages: [{train: {epochs: 0}}]", "train.setting", "train.epochs: is 0; expected 1 to"),
        ("model: m\ndata: d\nstages: [{train: {batch: -1}}]", "train.setting", "train.batch: is -1; expected 1 to"),
        ("model: m\ndata: d\nstages: [{train: {rate: -1}}]", "train.setting", "train.rate: is -1.0; expected"),
        ("model: m\ndata: d\nstages: [{qat: {labels: 7}}]", "train.setting", "qat.labels: is 7.0; expected 0 to 1"),
        ("model: m\ndata: d\nstages: [{prune: {keep: 2}}]", "train.setting", "prune.keep: is 2.0; expected"),
        ("model: m\ndata: d\nstages: [{prune: {steps: 0}}]", "train.setting", "prune.steps: is 0; expected 1 to"),
    ],
)
def test_hostile_and_senseless_values_are_refused_in_a_line(tmp_path, text, code, said):
    with pytest.raises(InputError) as e:
        read(tmp_path, text)
    assert e.value.code == code
    assert said in str(e.value)
    assert e.value.hint
    assert len(str(e.value)) < 600


def test_without_labels_every_stage_is_scored_against_the_original(tmp_path: Path) -> None:
    write_job(tmp_path)
    x = np.load(tmp_path / "samples.npz")["x"]
    np.savez(tmp_path / "samples.npz", x=x)
    spec = read(tmp_path, "model: net.onnx\ndata: samples.npz\nstages: [{prune: {keep: 0.6, round_to: 1}}]\n")
    start, pruned = run_training(spec)["stages"]
    assert start["quality"]["value"] == pytest.approx(1, abs=1e-6)
    assert pruned["quality"]["value"] < 1
