"""What the run keeps about a candidate's layers: for a quantised one, also ranges, errors, times and reasons."""

from __future__ import annotations

from edgeproof import trial
from edgeproof.layers import layer_report
from edgeproof.recipe import Recipe, Step
from test_calibration_is_kept import setup


def test_a_quantised_candidate_is_explained_layer_by_layer(tmp_path):
    run = setup(tmp_path)
    clean = trial.build(run, Recipe("float", (Step("simplify"),)), lambda *_: None)
    int8 = trial.build(run, Recipe("int8", (Step("simplify"), Step("int8", {"keep": "c3"}))), lambda *_: None)
    report = layer_report(run, int8, clean)
    rows = {r["name"]: r for r in report["quantised"]}
    assert rows["c3"]["reason"] == "kept in float by the setting keep=c3"
    assert rows["c1"]["precision"] == "uint8×int8"
    for name in ("c1", "c2", "fc"):
        row = rows[name]
        assert row["clipped_from"] == "measured"
        assert row["weight_from"] == "float weight"
        assert row["before_ms"] > 0
        assert row["after_ms"] > 0
    # At the input of the last layer, the errors of all layers before it have arrived: some 20 dB to 6-odd bits.
    assert 20 < rows["fc"]["arrived_db"] < 60


def test_a_float_candidate_has_nothing_to_explain(tmp_path):
    run = setup(tmp_path)
    clean = trial.build(run, Recipe("float", (Step("simplify"),)), lambda *_: None)
    assert layer_report(run, clean, None)["quantised"] == []
