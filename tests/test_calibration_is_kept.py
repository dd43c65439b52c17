"""A run that goes on, or tries another range method, never streams the calibration samples a second time."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from edgeproof import trial
from edgeproof.dataset import load_spec, split
from edgeproof.evaluate import complete, open_dataset
from edgeproof.model import save_model
from edgeproof.passes.int8 import Int8
from edgeproof.policy import Policy, Rule
from edgeproof.recipe import Recipe, Step
from edgeproof.workspace import Workspace
from small_nets import CPU, context, samples, small_cnn

POLICY = Policy("p", (Rule("size", "<=", Decimal(10_000_000), "bytes"),), runs=3, inferences=5)


def setup(folder: Path, seed: int = 0) -> trial.Setup:
    """A run's setup as a fresh process makes it."""
    model = small_cnn()
    if not (folder / "net.onnx").is_file():
        save_model(model, folder / "net.onnx")
        np.savez(folder / "samples.npz", x=np.concatenate([f["x"] for f in samples(model, 40)]))
    dataset = open_dataset(load_spec(str(folder / "samples.npz")), model)
    spec = complete(load_spec(str(folder / "samples.npz")), model, dataset)
    return trial.Setup(
        workspace=Workspace.create(folder / "run", {}),
        path=folder / "net.onnx",
        original=model,
        dataset=dataset,
        spec=spec,
        parts=split(len(dataset), seed),
        metric=spec.metric,
        policy=POLICY,
        target=CPU,
        machine="m",
    )


def recipe(method: str, **settings: object) -> Recipe:
    return Recipe(f"int8-{method}", (Step("int8", {"method": method, **settings}),))


def unreadable(_setup: trial.Setup) -> None:
    raise AssertionError("calibration samples were read again")


def test_another_process_calibrates_from_what_the_first_one_saw(tmp_path, monkeypatch):
    trial.build(setup(tmp_path), recipe("minmax"), lambda *_: None)
    (tmp_path / "alone").mkdir()
    alone = trial.build(setup(tmp_path / "alone"), recipe("mse"), lambda *_: None)
    monkeypatch.setattr(trial, "calibration_feeds", unreadable)
    again = trial.build(setup(tmp_path), recipe("mse"), lambda *_: None)
    assert again.digest == alone.digest


def test_other_samples_are_calibrated_anew(tmp_path, monkeypatch):
    trial.build(setup(tmp_path), recipe("minmax"), lambda *_: None)
    monkeypatch.setattr(trial, "calibration_feeds", unreadable)
    with pytest.raises(AssertionError, match="read again"):
        trial.build(setup(tmp_path, seed=1), recipe("mse"), lambda *_: None)


def test_what_was_seen_is_kept_when_the_recipe_fails_later(tmp_path, monkeypatch):
    failing = Recipe("fails", (Step("int8"), Step("int8", {"method": "magic"})))
    with pytest.raises(Exception, match="magic"):
        trial.build(setup(tmp_path), failing, lambda *_: None)
    monkeypatch.setattr(trial, "calibration_feeds", unreadable)
    trial.build(setup(tmp_path), recipe("mse"), lambda *_: None)


@pytest.mark.parametrize("change_is_there", [True, False])
def test_measurements_of_a_model_that_is_made_otherwise_now_are_not_taken_for_its_own(tmp_path, change_is_there):
    first = setup(tmp_path)
    old = trial.build(first, recipe("minmax"), lambda *_: None)
    assert trial.quality(first, old, "search", lambda *_: None).model == old.digest
    first.workspace.write("confirm/round-000.json", [])
    if not change_is_there:
        (first.workspace.folder(old.name) / "change.json").unlink()
    again = setup(tmp_path)
    new = trial.build(again, recipe("minmax", per_channel=False), lambda *_: None)
    assert new.digest != old.digest
    assert trial.quality(again, new, "search", lambda *_: None).model == new.digest
    assert again.workspace.read("confirm/round-000.json") is None


def test_a_model_made_again_as_it_was_keeps_its_measurements(tmp_path):
    first = setup(tmp_path)
    old = trial.build(first, recipe("minmax"), lambda *_: None)
    first.workspace.write("confirm/round-000.json", [])
    old.path.unlink()
    again = setup(tmp_path)
    assert trial.build(again, recipe("minmax"), lambda *_: None).digest == old.digest
    assert again.workspace.read("confirm/round-000.json") == []


def test_settling_says_how_many_samples_it_took():
    model = small_cnn()
    facts = Int8(settle=True)(model, context(model, 64)).facts["calibration"]
    assert facts["of"] == 64
    assert facts["samples"] in (32, 64)
    assert "calibration" not in Int8()(model, context(model, 4)).facts


def test_settling_survives_the_cache():
    model = small_cnn()
    memory: dict[str, object] = {}
    first = Int8(settle=True)(model, context(model, 64, cache=memory))
    second = Int8(settle=True, method="mse")(model, context(model, 64, cache=memory))
    assert first.facts["calibration"] == second.facts["calibration"]
