"""The stage that lost accuracy is named."""

import numpy as np
import pytest

from edgeproof.dataset import load_spec
from edgeproof.errors import UnsupportedError
from edgeproof.evaluate import complete, open_dataset
from edgeproof.model import load_model
from edgeproof.runtimes import compile_for, find_target
from edgeproof.stages import Stage, check, difference, first_failure
from small_nets import CPU
from small_runs import write_job

REFERENCE = find_target("reference:cpu", {})


class Spoilt:
    """A session whose outputs are off, as a broken tool leaves them."""

    def __init__(self, session, change):
        self._session, self._change = session, change

    def run(self, feeds):
        return {name: self._change(value) for name, value in self._session.run(feeds).items()}

    def placement(self):
        return self._session.placement()

    def layers(self):
        return ()

    def close(self):
        self._session.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    job = write_job(tmp_path_factory.mktemp("job"))
    model = load_model(job / "net.onnx")
    spec = load_spec(str(job / "samples.npz"))
    dataset = open_dataset(spec, model)
    return model, dataset, complete(spec, model, dataset)


def climb(task, changes, *, samples=60):
    model, dataset, spec = task
    stages = [Stage("source", model, lambda: compile_for(CPU, model), "outputs", 0.0)]
    for name, judged, tolerance, change in changes:
        stages.append(Stage(name, model, lambda c=change: Spoilt(compile_for(CPU, model), c), judged, tolerance))
    return check(stages, dataset, range(samples), spec, spec.metric)


def test_a_way_without_loss_passes_every_stage(task):
    found = climb(task, [("export", "outputs", 1e-5, lambda y: y), ("int8", "score", 0.5, lambda y: y)])
    assert [c.state for c in found] == ["pass", "pass"]
    assert first_failure(found) is None


def test_an_export_that_moves_the_outputs_is_named_and_what_follows_is_held_against_it(task):
    found = climb(
        task,
        [
            ("export", "outputs", 1e-5, lambda y: y * 1.01),
            ("simplify", "outputs", 1e-5, lambda y: y * 1.01),
        ],
    )
    assert [c.state for c in found] == ["fail", "pass"]
    assert first_failure(found).name == "export"
    assert first_failure(found).got == pytest.approx(0.01, rel=1e-3)


def test_a_precision_that_loses_the_task_is_named(task):
    found = climb(task, [("fp16", "score", 1e-3, lambda y: y), ("int8", "score", 1e-2, lambda y: -y)])
    assert [(c.name, c.state) for c in found if c.state == "fail"] == [("int8", "fail")]
    assert "became" in found[1].reason


def test_few_samples_leave_a_small_loss_open(task):
    turn = iter([*[False] * 8, True, *[False] * 100])  # 8 samples are compared before any is scored
    found = climb(task, [("int8", "score", 0.01, lambda y: -y if next(turn) else y)], samples=20)
    assert found[0].state == "open"
    assert found[0].got == pytest.approx(1 / 20)


def test_a_stage_that_cannot_run_is_broken_and_the_next_is_held_against_the_last_that_could(task):
    model, dataset, spec = task

    def refuse():
        raise UnsupportedError("backend.refused", "net", "no such operator", "choose another")

    stages = [
        Stage("source", model, lambda: compile_for(CPU, model), "outputs", 0.0),
        Stage("engine", model, refuse, "outputs", 1e-3),
        Stage("reference", model, lambda: compile_for(REFERENCE, model), "outputs", 1e-3),
    ]
    found = check(stages, dataset, range(4), spec, spec.metric)
    assert [(c.name, c.state) for c in found] == [("engine", "broken"), ("reference", "pass")]
    assert "no such operator" in found[0].reason


def test_the_difference_is_a_share_of_the_peak():
    one = {"y": np.array([0.0, 2.0, -4.0]), "n": np.array([1, 2])}
    other = {"y": np.array([0.1, 2.0, -4.0]), "n": np.array([1, 2])}
    assert difference(one, other) == pytest.approx(0.1 / 4)


@pytest.mark.parametrize(
    "other", [{"y": np.zeros(2)}, {"z": np.zeros(3)}, {"y": np.array([0, 0, np.nan])}], ids=["shape", "name", "nan"]
)
def test_what_cannot_be_compared_differs_without_limit(other):
    assert difference({"y": np.zeros(3)}, other) == float("inf")
