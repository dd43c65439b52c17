"""What a strategy is told, on a small real network, in a run's folder."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeproof import trial
from edgeproof.dataset import load_spec, split
from edgeproof.evaluate import complete, open_dataset
from edgeproof.model import load_model, save_model
from edgeproof.policy import default_policy
from edgeproof.probe import Prober, _Times
from edgeproof.recipe import Recipe, Step
from edgeproof.trial import Setup, build, made
from edgeproof.workspace import Workspace
from small_nets import CPU, small_cnn

ALL = Recipe("int8-all", (Step("simplify"), Step("int8", {"method": "minmax"})))


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    model = small_cnn()
    path = save_model(model, tmp_path / "net.onnx")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((30, *model.inputs[0].shape[1:])).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=x, labels=np.arange(30) % 10)
    original = load_model(path)
    spec = load_spec(str(tmp_path / "samples.npz"))
    dataset = open_dataset(spec, original)
    spec = complete(spec, original, dataset)
    workspace = Workspace.create(tmp_path / "run", {"model": original.digest})
    parts = split(30, 0)
    return Setup(workspace, path, original, dataset, spec, parts, spec.metric, default_policy(), CPU, "m")


def test_layers_have_an_error_and_both_times_and_the_worst_are_verified(setup):
    said = []
    facts = Prober(setup, lambda what, _: said.append(what)).layers(ALL)
    assert [layer.op for layer in facts.layers] == ["Conv", "Conv", "Conv", "Gemm"]
    assert facts.timed
    assert all(layer.error > 0 and layer.float_ms > 0 and layer.int8_ms > 0 for layer in facts.layers)
    verified = [layer for layer in facts.layers if layer.verified is not None]
    assert len(verified) == 3
    assert max(facts.layers, key=lambda layer: layer.error) in verified
    assert any(what.startswith("looking into 4 layers: ") and "inferences" in what for what in said)


def test_neither_the_range_rule_nor_the_scope_is_chosen_on_samples_that_made_the_ranges(setup, monkeypatch):
    read: set[int] = set()

    class Listening:
        def __init__(self, dataset):
            self.dataset = dataset

        def __getattr__(self, name):
            return getattr(self.dataset, name)

        def __getitem__(self, index):
            read.add(index)
            return self.dataset[index]

    ranges_from = setup.dataset
    monkeypatch.setattr(trial, "calibration_feeds", lambda s: (ranges_from[i].feeds for i in s.parts.calibration))
    monkeypatch.setattr(Prober, "_times", lambda *_: _Times({}, {}, 0.0, (), False))  # times ask for any input
    setup = replace(setup, dataset=Listening(setup.dataset))
    assert Prober(setup).output_error(ALL) is not None
    assert Prober(setup).layers(ALL) is not None
    assert read
    assert read <= set(setup.parts.search)


def test_what_was_worked_out_once_is_read_back(setup):
    facts = Prober(setup).layers(ALL)
    error = Prober(setup).output_error(ALL)
    said = []
    again = Prober(setup, lambda what, _: said.append(what))
    assert again.layers(ALL) == facts
    assert again.output_error(ALL) == error
    assert said == []


def test_the_output_error_of_a_float_recipe_is_nearly_none_and_of_int8_is_some(setup):
    probe = Prober(setup)
    assert probe.output_error(Recipe("float", (Step("simplify"),))) < 1e-8
    assert 1e-6 < probe.output_error(ALL) < 0.1


def test_a_recipe_that_cannot_be_made_or_quantises_nothing_has_no_facts(setup):
    probe = Prober(setup)
    bad = Recipe("bad", (Step("int8", {"method": "magic"}),))
    assert probe.layers(bad) is None
    assert probe.output_error(Recipe("worse", bad.steps)) is None
    kept = setup.workspace.read("candidates/bad/layer-facts.json")
    assert "magic" in kept["why"]
    assert probe.layers(Recipe("none", (Step("int8", {"keep": "*"}),))) is None


def test_reasons_of_the_search_replace_the_setting_that_it_made_of_them(setup):
    steps = (Step("int8", {"method": "minmax", "keep": "u"}),)
    build(setup, Recipe("int8-mixed-1", steps, reasons={"c3": "slower in INT8", "c1": "never asked"}), lambda *_: None)
    declined = setup.workspace.read("candidates/int8-mixed-1/change.json")["steps"][0]["declined"]
    assert ["c3", "slower in INT8"] in declined
    assert not [row for row in declined if row[0] == "c1"]


def test_beginnings_of_recipes_are_made_once(setup, monkeypatch):
    from edgeproof.passes import simplify

    calls = []
    original = simplify.Simplify.__call__
    monkeypatch.setattr(simplify.Simplify, "__call__", lambda *args: calls.append(1) or original(*args))
    for method in ("minmax", "mse"):
        made(setup, Recipe(method, (Step("simplify"), Step("int8", {"method": method}))))
    assert len(calls) == 1
