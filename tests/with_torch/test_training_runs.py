"""Whole training runs through the process that does them: a file's stages, and the pass in a recipe."""

import json

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof.cli import main
from edgeproof.errors import InputError
from edgeproof.model import Model, graph_digest, save_model
from edgeproof.passes.distil import Distil
from edgeproof.passes.int8 import Int8
from edgeproof.protocols import Context
from edgeproof.runtimes import compile_for
from edgeproof.train.child import can_train, engine, train
from edgeproof.train.fit import Training
from edgeproof.train.losses import Term
from small_nets import CPU, context, ran, samples, small_cnn
from small_runs import write_job


def test_an_engine_is_found_by_name_and_refused_by_name():
    assert can_train()
    assert engine("torch").missing() is None
    with pytest.raises(Exception, match="is no engine"):
        engine("jax")


def test_the_pass_teaches_a_quantised_model_what_the_float_one_does():
    model = small_cnn()
    quantised = Int8(per_channel=False)(model, context(model, 64)).model
    told: list[float] = []
    taught = Context(
        lambda m: compile_for(CPU, m),
        lambda: iter(samples(model, 96, seed=3)),
        96,
        CPU,
        progress=lambda _what, share: told.append(share),
        before=lambda: model,
    )
    change = Distil(epochs=8, rate=3e-3, threads=1)(quantised, taught)
    assert change.modified
    assert change.facts["taught"] == ["y"]
    assert len(change.facts["epochs"]) == 8
    assert told == sorted(told)
    fresh = samples(model, 16, seed=50)

    def error(candidate):
        return np.mean([((ran(candidate, f) - ran(model, f)) ** 2).mean() for f in fresh])

    assert error(change.model) < 0.6 * error(quantised)


def test_without_teacher_or_samples_it_says_what_to_give():
    model = small_cnn()
    with pytest.raises(InputError, match=r"distil\.teacher"):
        Distil()(model, context(model, 4))
    with pytest.raises(InputError, match=r"distil\.samples"):
        Distil()(model, Context(lambda m: compile_for(CPU, m), before=lambda: model))


def test_a_file_is_trained_pruned_retrained_quantised_and_exported(tmp_path, capsys):
    write_job(tmp_path)
    (tmp_path / "spec.yaml").write_text(
        "model: net.onnx\n"
        "data: samples.npz\n"
        "stages:\n"
        "- train: {epochs: 2}\n"
        "- prune: {keep: 0.6, round_to: 1}\n"
        "- retrain: {epochs: 3, rate: 5e-3}\n"
        "- qat: {epochs: 2}\n"
        "- export: {targets: 'onnxruntime:cpu'}\n"
    )
    assert main(["train", str(tmp_path / "spec.yaml"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    by_kind = {s["stage"]: s for s in result["stages"]}
    assert by_kind["retrain"]["epochs"][-1]["held_out"] < by_kind["retrain"]["epochs"][0]["held_out"]
    assert by_kind["qat"]["size_bytes"] < by_kind["retrain"]["size_bytes"]
    assert (tmp_path / "runs/spec/05-export/onnxruntime-cpu.ort").is_file()
    assert main(["train", str(tmp_path / "spec.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result


def trained(folder, capsys, stages: str) -> dict:
    """The result of a training file with these stages, or its error."""
    (folder / "spec.yaml").write_text(f"model: net.onnx\ndata: samples.npz\nstages: {stages}\n")
    main(["train", str(folder / "spec.yaml"), "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_run_of_another_model_in_the_same_folder_is_not_gone_on_from(tmp_path, capsys):
    write_job(tmp_path)
    first = trained(tmp_path, capsys, "[{train: {epochs: 2}}]")
    model = small_cnn()
    for name, tensor in model.graph.graph.initializers.items():
        if tensor.const_value is not None and tensor.const_value.dtype.name == "FLOAT":
            tensor.const_value = ir.tensor(-0.5 * tensor.const_value.numpy(), name=name)
    save_model(Model.of(model.graph, "net"), tmp_path / "net.onnx")
    second = trained(tmp_path, capsys, "[{train: {epochs: 2}}]")
    assert second["stages"][0]["model"] != first["stages"][0]["model"]
    assert second["stages"][1]["model"] != first["stages"][1]["model"]
    assert second["stages"][1]["epochs"][0]["loss"] != first["stages"][1]["epochs"][0]["loss"]


def test_labels_that_the_model_has_no_class_for_are_named(tmp_path, capsys):
    write_job(tmp_path)
    with np.load(tmp_path / "samples.npz") as z:
        x, labels = z["x"], z["labels"]
    labels[np.random.default_rng(0).permutation(60)[20]] = 99  # behind the quarter that only scores
    np.savez(tmp_path / "samples.npz", x=x, labels=labels)
    error = trained(tmp_path, capsys, "[{train: {epochs: 1}}]")["error"]
    assert error["code"] == "training.labels"
    assert "has the label 99" in error["problem"]
    assert "has scores for 0 to" in error["problem"]


def test_samples_that_are_no_numbers_are_told_before_the_first_step(tmp_path, capsys):
    write_job(tmp_path)
    with np.load(tmp_path / "samples.npz") as z:
        np.savez(tmp_path / "samples.npz", x=np.full_like(z["x"], np.nan), labels=z["labels"])
    error = trained(tmp_path, capsys, "[{train: {epochs: 1}}]")["error"]
    assert error["code"] == "train.not_finite"
    assert error["exit_code"] == 2


def test_the_pass_leaves_what_it_is_given_as_it_is_and_gives_the_same_twice():
    model = small_cnn()
    quantised = Int8()(model, context(model, 8)).model
    digest = quantised.digest

    def taught():
        return Context(lambda m: compile_for(CPU, m), lambda: iter(samples(model, 8)), 8, CPU, before=lambda: model)

    first, second = (Distil(epochs=1, threads=1)(quantised, taught()) for _ in range(2))
    assert graph_digest(quantised.graph) == digest
    assert first.model.digest == second.model.digest


def test_a_training_that_was_interrupted_tells_all_its_epochs(tmp_path):
    """The process is ended between its last epoch and its result: what is left to do is to write it down."""
    model = small_cnn()
    training = Training(terms=(Term("mse", "y"),), epochs=3, threads=1)
    feeds = samples(model, 12)
    _, whole = train(model, model, feeds, training, folder=tmp_path / "job")
    (tmp_path / "job/trained.onnx").unlink()
    _, again = train(model, model, feeds, training, folder=tmp_path / "job")
    assert again == whole
    assert [e.number for e in again] == [1, 2, 3]
    assert again[1].before == again[0].held_out
