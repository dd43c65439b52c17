"""Equality with pycocotools.COCOeval on random scenes: crowds, ties, several classes, empty pictures, more than 100."""

from __future__ import annotations

import contextlib
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproof.dataset import Boxes
from edgeproof.metrics.map import Map
from edgeproof.metrics.map50 import Map50

Scene = tuple[Boxes, Boxes]


def scene(rng: np.random.Generator, classes: int, most: int, coarse: bool) -> Scene:
    n = int(rng.integers(0, 7))
    corner, size = rng.uniform(0, 60, (n, 2)), rng.uniform(4, 40, (n, 2))
    truth = np.concatenate([corner, corner + size], axis=1).astype(np.float32)
    labels = rng.integers(0, classes, n)
    want = Boxes(truth, labels, np.ones(n, np.float32), rng.random(n) < 0.15)
    m = int(rng.integers(0, most))
    near = rng.integers(0, n, m) if n else np.zeros(0, int)
    jitter = rng.normal(0, 3, (len(near), 4))
    boxes = truth[near] + jitter.astype(np.float32)
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    guessed = np.where(rng.random(len(near)) < 0.8, labels[near] if n else near, rng.integers(0, classes, len(near)))
    scores = rng.random(len(near))
    scores = np.round(scores, 1) if coarse else scores
    return Boxes(boxes.astype(np.float32), guessed.astype(np.int64), scores.astype(np.float32)), want


def coco_stats(scenes: list[Scene]) -> tuple[float, float]:
    """AP and AP50 by pycocotools; ids start at 1, since it takes a match with id 0 for none."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truths: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for i, (got, want) in enumerate(scenes, 1):
        for target, boxes in ((truths, want), (found, got)):
            for k, (x0, y0, x1, y1) in enumerate(boxes.xyxy.astype(np.float64).tolist()):
                box = [x0, y0, x1 - x0, y1 - y0]
                entry = {"image_id": i, "category_id": int(boxes.classes[k]) + 1, "bbox": box, "area": box[2] * box[3]}
                crowd = boxes.crowd is not None and bool(boxes.crowd[k])
                target.append(entry | {"id": len(target) + 1, "iscrowd": int(crowd), "score": float(boxes.scores[k])})
    with contextlib.redirect_stdout(io.StringIO()):
        gt = COCO()
        categories = sorted({e["category_id"] for e in truths + found})
        gt.dataset = {"images": [{"id": i} for i in range(1, len(scenes) + 1)], "annotations": truths}
        gt.dataset["categories"] = [{"id": c} for c in categories]
        gt.createIndex()
        dt = COCO()
        dt.dataset = {**gt.dataset, "annotations": found}
        dt.createIndex()
        run = COCOeval(gt, dt, "bbox")
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][:, :, :, 0, -1]

    def mean(p: Any) -> float:
        return float(p[p > -1].mean()) if (p > -1).any() else math.nan

    return mean(precision), mean(precision[0])


def ours(scenes: list[Scene]) -> tuple[float, float]:
    scores = json.loads(json.dumps([Map().score(*s) for s in scenes]))  # they survive JSON
    return Map().value(scores), Map50().value(scores)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([4, 15, 130]), st.booleans())
def test_average_precision_is_that_of_pycocotools(seed: int, classes: int, most: int, coarse: bool) -> None:
    rng = np.random.default_rng(seed)
    scenes = [scene(rng, classes, most, coarse) for _ in range(int(rng.integers(1, 12)))]
    assert ours(scenes) == pytest.approx(coco_stats(scenes), abs=1e-12, nan_ok=True)


def test_more_than_a_hundred_detections_of_a_class_are_cut_as_in_coco() -> None:
    rng = np.random.default_rng(1)
    scenes = [scene(rng, 1, 400, coarse=False) for _ in range(4)]
    assert max(len(got.scores) for got, _ in scenes) > 100
    assert ours(scenes) == pytest.approx(coco_stats(scenes), abs=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_a_resample_is_the_value_of_the_pictures_taken_that_often(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scenes = [scene(rng, 3, 12, coarse=False) for _ in range(8)]
    scores = [Map().score(*s) for s in scenes]
    indices = rng.integers(0, 8, 8)
    # copies of a picture tie in score, so give them as COCO would see them: pictures of their own, in order
    repeated = [scenes[i] for i in sorted(indices)]
    got = Map().resampled(scores)(indices)
    assert got == pytest.approx(Map().value([Map().score(*s) for s in repeated]), abs=1e-12, nan_ok=True)
    assert got == pytest.approx(coco_stats(repeated)[0], abs=1e-12, nan_ok=True)


def test_a_perfect_detector_reaches_one_and_an_empty_one_zero() -> None:
    rng = np.random.default_rng(0)
    truths = [scene(rng, 3, 4, coarse=False)[1] for _ in range(6)]
    plain = [Boxes(t.xyxy, t.classes, t.scores) for t in truths]
    nothing = Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
    assert ours([(t, t) for t in plain]) == pytest.approx((1, 1))
    assert ours([(nothing, t) for t in plain]) == (0, 0)


def test_without_any_box_the_value_is_undefined() -> None:
    nothing = Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
    assert math.isnan(Map().value([Map().score(nothing, nothing)]))
