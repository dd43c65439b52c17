"""Explanations of a quantised model: numbers against a second derivation, and a reason for every float node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from edgeproof.model import Model
from edgeproof.passes.int8 import Int8
from edgeproof.quant.calibration import observed
from edgeproof.quant.explain import explain, layer_keys, measure, quantising_step
from edgeproof.quant.numerics import sqnr_db
from small_nets import CPU, compiled, context, samples, small_cnn

MODEL = small_cnn()
CHANGE = Int8(method="percentile", percentile=99.0, keep="gap")(MODEL, context(MODEL))
FEEDS = samples(MODEL, 6, seed=4)


def rows(**settings: object) -> dict:
    return {row.name: row for row in explain(CHANGE.model, CPU.scheme, **settings)}


def tensor(model, name: str) -> np.ndarray:
    session = compiled(observed(model, [name]))
    found = np.concatenate([session.run(f)[name] for f in FEEDS])
    session.close()
    return found


def test_measured_shares_and_errors_are_those_of_the_arrays_themselves():
    seen = measure(CHANGE.model, compiled, iter(FEEDS), MODEL)["r"]
    x, want, back = tensor(CHANGE.model, "r"), tensor(MODEL, "r"), tensor(CHANGE.model, "r.real")
    row = rows()["c2"]
    outside = (x < row.low - row.scale / 2) | (x > row.high + row.scale / 2)
    assert seen.clipped_share == pytest.approx(outside.mean())
    assert 0 < seen.clipped_share < 0.1
    assert seen.sqnr_db == pytest.approx(sqnr_db(x, back), abs=1e-3)
    assert seen.arrived_db == pytest.approx(sqnr_db(want, back), abs=1e-3)
    assert (seen.low, seen.high, seen.values) == (x.min(), x.max(), x.size)


def test_a_model_input_is_measured_as_well():
    seen = measure(CHANGE.model, compiled, iter(FEEDS))["x"]
    assert seen.values == sum(f["x"].size for f in FEEDS)
    assert seen.arrived_db is None


def test_ranges_and_steps_are_those_of_the_pass():
    row = rows(kept=CHANGE.facts["tensors"])["c2"]
    fact = CHANGE.facts["tensors"]["r"]
    assert (row.scale, row.zero_point) == (pytest.approx(fact["scale"]), fact["zero_point"])
    assert row.high == pytest.approx(fact["high"], rel=1e-6)
    assert (row.clipped_share, row.clipped_from) == (fact["clipped_share"], "calibration")


def test_what_is_measured_goes_before_what_calibration_said():
    seen = measure(CHANGE.model, compiled, iter(FEEDS))
    row = rows(kept=CHANGE.facts["tensors"], seen=seen)["c2"]
    assert (row.clipped_share, row.clipped_from) == (seen["r"].clipped_share, "measured")


def test_the_error_of_a_weight_is_measured_against_the_float_model_and_else_estimated():
    exact, estimated = rows(reference=MODEL)["c1"], rows()["c1"]
    assert (exact.weight_from, estimated.weight_from) == ("float weight", "estimated")
    assert exact.weight_db == pytest.approx(estimated.weight_db, abs=1.5)
    assert exact.weight_scales == 8


def test_every_node_in_float_has_a_reason():
    found = {name: row.reason for name, row in rows(reasons={"gap": "kept by hand"}).items()}
    assert found["gap"] == "kept by hand"
    assert "only between integer nodes" in found["flat"]
    assert not any(found[n] for n in ("c1", "c2", "c3", "fc", "add", "r1"))
    assert all(row.reason for row in explain(CHANGE.model, None) if not row.integer)


def test_a_layer_that_could_have_been_quantised_is_called_so():
    change = Int8(keep="c2")(MODEL, context(MODEL))
    row = {r.name: r for r in explain(change.model, CPU.scheme)}["c2"]
    assert row.reason == "it could run in integers: whoever quantised the model left it out"


def test_times_belong_to_layers_by_their_first_output():
    row = rows(before_ms={"a": 2.0}, after_ms={"a": 1.0})["c1"]
    assert (row.before_ms, row.after_ms) == (2.0, 1.0)
    assert layer_keys(CHANGE.model) == ("a", "c", "u", "y")


def test_a_float_model_with_other_weights_of_the_same_names_is_not_taken_for_the_source():
    other = {name: 7 * value for name, value in _weights(MODEL).items()}
    row = {r.name: r for r in explain(CHANGE.model, CPU.scheme, reference=_with_weights(MODEL, other))}["c1"]
    assert row.weight_from == "estimated"


def test_the_quantising_step_is_the_first_whose_facts_hold_ranges():
    steps = [{"pass": "simplify", "facts": {}}, {"pass": "int8", "facts": {"tensors": {}}}, {"pass": "other"}]
    assert quantising_step({"steps": steps}) == 1
    assert quantising_step({"steps": steps[:1]}) == 1
    assert quantising_step(None) == 0


def _weights(model: Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.graph.initializers.items()}


def _with_weights(model: Model, weights: dict[str, np.ndarray]) -> Model:
    graph = model.graph.clone()
    for name, array in weights.items():
        graph.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return Model.of(graph, "other")
