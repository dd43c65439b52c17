"""Every metric in the registry, through the rules that bench, gate and evidence rely on."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import numpy as np
import pytest

from edgeproof.dataset import Boxes, Example
from edgeproof.measurement import Better, LegRun
from edgeproof.protocols import Kind, Metric, Needs, Resampled
from edgeproof.registry import load, names

METRICS = names("metrics")
rng = np.random.default_rng(0)


def _boxes(n: int) -> Boxes:
    corner = rng.uniform(0, 20, (n, 2))
    xyxy = np.concatenate([corner, corner + 10], axis=1).astype(np.float32)
    return Boxes(xyxy, rng.integers(0, 2, n), rng.random(n).astype(np.float32))


def pairs(name: str) -> list[tuple[Any, Any]]:
    """Five examples or runs of the kind that the metric is scored on."""
    metric: Metric = load("metrics", name)()
    if metric.needs == "file":
        return [(12345, None)]
    if metric.needs == "runs":
        sensors = {"power": (3.0, 4.0), "temperature": (50.0, 51.0)}
        return [(LegRun("x", i, (10**6 + i, 2 * 10**6), 10**7, 10**8, 10**7, sensors), None) for i in range(5)]
    if metric.needs == "reference":
        outputs = [{"y": rng.normal(size=(1, 4)).astype(np.float32)} for _ in range(5)]
        return [({"y": o["y"] + np.float32(0.1)}, o) for o in outputs]
    if metric.needs == "examples":
        return [({"y": np.ones((1, 4))}, Example(str(i), {})) for i in range(5)]
    if name.startswith("top"):
        return [(rng.permutation(8), i) for i in range(5)]
    if name.startswith("map"):
        return [(_boxes(4), _boxes(3)) for _ in range(5)]
    return [("abc"[: i % 4], "abd") for i in range(5)]


@pytest.mark.parametrize("name", METRICS)
def test_it_declares_unit_direction_need_and_bound(name: str) -> None:
    metric: Metric = load("metrics", name)()
    assert metric.unit
    assert metric.better in get_args(Better)
    assert metric.needs in get_args(Needs)
    assert metric.kind in get_args(Kind)


@pytest.mark.parametrize("name", METRICS)
def test_raw_scores_survive_json_and_give_the_same_finite_value(name: str) -> None:
    metric: Metric = load("metrics", name)()
    scores = [metric.score(*p) for p in pairs(name)]
    again = json.loads(json.dumps(scores, allow_nan=False))
    value = metric.value(scores)
    assert isinstance(value, float)
    assert math.isfinite(value)
    assert metric.value(again) == value


@pytest.mark.parametrize("name", METRICS)
def test_scores_are_of_the_kind_that_its_bound_assumes(name: str) -> None:
    metric: Metric = load("metrics", name)()
    scores = [metric.score(*p) for p in pairs(name)]
    if metric.kind == "proportion":
        assert set(scores) <= {0, 1}
    if metric.kind in ("proportion", "mean", "run"):
        assert metric.value(scores) == pytest.approx(float(np.mean(scores)))
    if metric.kind == "max" and metric.needs == "runs":
        assert metric.value(scores) == max(scores)
    if metric.needs in ("labels", "examples", "reference"):
        assert metric.kind in ("proportion", "mean", "pooled", "max")


@pytest.mark.parametrize("name", METRICS)
def test_the_value_does_not_depend_on_the_order_of_the_scores(name: str) -> None:
    metric: Metric = load("metrics", name)()
    scores = [metric.score(*p) for p in pairs(name)]
    assert metric.value(scores[::-1]) == pytest.approx(metric.value(scores), rel=1e-12)


@pytest.mark.parametrize("name", [n for n in METRICS if isinstance(load("metrics", n)(), Resampled)])
def test_a_fast_resample_is_the_value_of_that_resample(name: str) -> None:
    metric: Any = load("metrics", name)()
    scores = [metric.score(*p) for p in pairs(name)]
    resampled = metric.resampled(scores)
    assert resampled(np.arange(5)) == metric.value(scores)
    for indices in ([0, 0, 3, 3, 4], [2], [1, 2, 4]):
        assert resampled(np.array(indices)) == pytest.approx(metric.value([scores[i] for i in indices]), abs=1e-12)
