"""Every rung is held against its own tolerance, and the first that fails is named."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof.dataset import load_spec
from edgeproof.errors import UnsupportedError
from edgeproof.evaluate import complete, open_dataset
from edgeproof.ladder import climb, rungs, table
from edgeproof.model import Model, load_model
from edgeproof.protocols import Context
from edgeproof.runtimes import compile_for
from edgeproof.stages import first_failure
from small_nets import CPU
from small_runs import write_job


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = write_job(tmp_path_factory.mktemp("job"))
    model = load_model(folder / "net.onnx")
    spec = load_spec(str(folder / "samples.npz"))
    dataset = open_dataset(spec, model)
    feeds = [dataset[i].feeds for i in range(16)]
    context = Context(lambda m: compile_for(CPU, m), lambda: iter(feeds), len(feeds), CPU)
    return model, dataset, complete(spec, model, dataset), rungs(context)


def climbed(job, steps):
    model, dataset, spec, _ = job
    session = compile_for(CPU, model)
    try:
        return climb(session.run, model, steps, CPU, dataset, range(60), spec)
    finally:
        session.close()


def test_a_sound_ladder_has_no_rung_that_fails(job):
    found, made = climbed(job, job[3])
    assert [c.name for c in found] == ["onnx", "fp16", "int8"]
    assert [c.tolerance for c in found] == [1e-4, 1e-3, 1e-2]
    assert first_failure(found) is None
    assert found[0].got == 0
    assert "QuantizeLinear" in {n.op_type for n in made["int8"].graph.graph}
    assert table(found).count("\n") == 3


def test_a_broken_rung_is_named_and_the_ones_above_are_not_blamed_on_it(job):
    onnx, fp16, int8 = job[3]

    def negated(model):
        graph = model.graph.clone()
        held = graph.graph.initializers
        name = next(n for n, v in held.items() if len(v.shape) == 2)
        held[name].const_value = ir.tensor(-held[name].const_value.numpy(), name=name)
        return Model.of(graph, model.name)

    found, _ = climbed(job, (onnx, replace(fp16, make=lambda m: fp16.make(negated(m))), int8))
    assert found[0].state == "pass"
    assert first_failure(found).name == "fp16"
    assert found[2].state != "fail"


def test_an_export_with_other_numbers_is_the_stage_that_failed(job):
    model, dataset, spec, steps = job
    session = compile_for(CPU, model)
    found, _ = climb(
        lambda feeds: {n: y * np.float32(1.001) for n, y in session.run(feeds).items()},
        model,
        steps[:1],
        CPU,
        dataset,
        range(20),
        spec,
    )
    session.close()
    assert first_failure(found).name == "onnx"
    assert found[0].got == pytest.approx(1e-3, rel=1e-2)


def test_a_rung_that_cannot_be_made_is_broken(job):
    def refuse(_model):
        raise UnsupportedError("int8.scheme", "net", "has no scheme", "choose a target")

    onnx, fp16, int8 = job[3]
    found, made = climbed(job, (onnx, fp16, replace(int8, make=refuse)))
    assert first_failure(found).state == "broken"
    assert "has no scheme" in first_failure(found).reason
    assert set(made) == {"onnx", "fp16"}
