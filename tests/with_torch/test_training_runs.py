"""Whole training runs through the process that does them: a file's stages, and the pass in a recipe."""

import json

import numpy as np
import pytest

from edgeproof.cli import main
from edgeproof.errors import InputError
from edgeproof.passes.distil import Distil
from edgeproof.passes.int8 import Int8
from edgeproof.protocols import Context
from edgeproof.runtimes import compile_for
from edgeproof.train.child import can_train, engine
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
