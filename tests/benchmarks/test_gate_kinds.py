"""A small, seeded part of benchmarks/gate_kinds: the gate on the limit, for the kinds that cost little."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.gate_kinds import F1, METRICS, find, rows

from edgeproof import registry

BAR = 0.07


def test_every_kind_of_metric_is_simulated():
    known = {registry.load("metrics", name)().kind for name in registry.names("metrics")}
    assert {find(name).kind for name in METRICS} >= known


def test_the_f1_that_is_simulated_is_that_of_its_definition():
    got, want = np.array([1, 1, 0, 0, 1], bool), np.array([1, 0, 1, 0, 1], bool)
    precision, recall = 2 / 3, 2 / 3
    scores = [F1().score(g, w) for g, w in zip(got, want, strict=True)]
    assert F1().value(scores) == pytest.approx(2 * precision * recall / (precision + recall))


@pytest.mark.slow
def test_the_gate_accepts_on_the_limit_no_more_often_than_declared_and_an_equal_model_nearly_always():
    found = {row["case"]: row for row in rows(600, ("runs", "exact"))}
    assert {name: row["gate"] for name, row in found.items() if row["boundary"] and row["gate"] > BAR} == {}
    for name in ("latency_p50 / baseline, A/A against 1.03", "power / baseline, A/A", "energy / baseline, A/A"):
        assert found[name]["gate"] >= 0.9
