"""COCO average precision from per-picture matches, so that any resample of pictures can be computed from raw scores.

Each picture is matched once, as COCOeval.evaluateImg does (area range "all", at most 100 detections per class). The
accumulation follows COCOeval.accumulate; only its points at true positives matter, since precision falls between them.
Resampled pictures enter as weights. Detections of equal score keep the order of the pictures.

Source: pycocotools 2.0, cocoeval.py; tested equal to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..dataset import Boxes
from ..measurement import Better
from ..protocols import Kind, Needs

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MAX_DETECTIONS = 100
MAX_AREA = 1e10
"""COCO's area range "all" ends here, in square pixels; an unmatched detection above it is ignored."""

TOGETHER = 8192
"""Detections times thresholds that are accumulated at once: 64 kB an array (measured against one threshold at a
time: 2.0 times as fast for 300 pictures, 1.3 for 1,000, 0.9 for 5,000)."""

PictureScore = list[list[list[float]]]
"""[[class, score, matched, ignored] per detection, [class, boxes that count] per class of the picture]; matched and
ignored are bit sets over the IoU thresholds, lowest threshold first."""


class AveragePrecision:
    """Mean over classes that have a box, over the thresholds of `bits`."""

    unit: ClassVar[str] = "1"
    better: ClassVar[Better] = "higher"
    needs: ClassVar[Needs] = "labels"
    kind: ClassVar[Kind] = "pooled"
    bits: ClassVar[tuple[int, ...]]

    def score(self, got: Any, want: Any) -> PictureScore:
        """What one picture contributes.

        Args:
            got: Detections, `Boxes`.
            want: Ground truth, `Boxes`.
        """
        return matches(got, want)

    def value(self, scores: Sequence[PictureScore]) -> float:
        """The average precision; NaN when no picture has a box."""
        return self.resampled(scores)(np.arange(len(scores)))

    def resampled(self, scores: Sequence[PictureScore]) -> Callable[[NDArray[np.intp]], float]:
        """A function from indices of pictures, repeats allowed, to the average precision on them."""
        return accumulator(scores, self.bits)


def matches(got: Boxes, want: Boxes) -> PictureScore:
    """Match the detections of one picture with its ground truth, class by class."""
    crowd = np.zeros(len(want.classes), bool) if want.crowd is None else want.crowd
    counted = Counter(want.classes[~crowd].tolist())
    detections: list[list[float]] = []
    for label in np.unique(got.classes).tolist():
        mine = np.flatnonzero(got.classes == label)
        mine = mine[np.argsort(-got.scores[mine], kind="stable")][:MAX_DETECTIONS]
        theirs = np.flatnonzero(want.classes == label)
        theirs = theirs[np.argsort(crowd[theirs], kind="stable")]
        boxes = got.xyxy[mine].astype(np.float64)
        matched, ignored = _matched(boxes, want.xyxy[theirs].astype(np.float64), crowd[theirs])
        scores = got.scores[mine].tolist()
        detections += [[label, s, m, i] for s, m, i in zip(scores, matched, ignored, strict=True)]
    return [detections, [[c, n] for c, n in sorted(counted.items())]]


def _matched(
    found: NDArray[np.float64], truth: NDArray[np.float64], crowd: NDArray[np.bool_]
) -> tuple[list[int], list[int]]:
    """Bit sets of thresholds at which each detection is matched, and at which it is ignored.

    Args:
        found: Detections of one class, best first, float64 [n, 4] corners.
        truth: Ground truth of that class, crowds last, float64 [m, 4] corners.
        crowd: bool [m].
    """
    from pycocotools import mask

    area = np.prod(found[:, 2:] - found[:, :2], axis=1)
    outside = (area < 0) | (area > MAX_AREA)
    every = (1 << len(IOU_THRESHOLDS)) - 1
    matched, ignored = [0] * len(found), [every if o else 0 for o in outside]
    if not len(truth) or not len(found):
        return matched, ignored
    ious = np.asarray(mask.iou(_xywh(found), _xywh(truth), crowd.astype(np.uint8).tolist()))
    near = np.flatnonzero(ious.max(axis=1) >= IOU_THRESHOLDS[0])
    for bit, threshold in enumerate(IOU_THRESHOLDS):
        taken = np.zeros(len(truth), bool)
        for d in near.tolist():
            best = _best(ious[d], crowd, taken, min(float(threshold), 1 - 1e-10))
            if best is None:
                continue
            taken[best] = True
            matched[d] |= 1 << bit
            ignored[d] = ignored[d] | 1 << bit if crowd[best] else ignored[d] & ~(1 << bit)
    return matched, ignored


def _best(ious: NDArray[Any], crowd: NDArray[np.bool_], taken: NDArray[np.bool_], least: float) -> int | None:
    """The free box with the highest overlap, the last of equals; a crowd only when no other box is near enough."""
    for is_crowd in (False, True):
        usable = (crowd == is_crowd) & (ious >= least) & (crowd | ~taken)
        if usable.any():
            overlap = np.where(usable, ious, -1.0)
            return len(overlap) - 1 - int(overlap[::-1].argmax())
    return None


def _xywh(xyxy: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1)


def accumulator(scores: Sequence[PictureScore], bits: Sequence[int]) -> Callable[[NDArray[np.intp]], float]:
    """Sort all detections once; the returned function then only sums weights."""
    pictures = len(scores)
    rows = np.array([[p, *d] for p, s in enumerate(scores) for d in s[0]], np.float64).reshape(-1, 5)
    truths = np.array([[p, *t] for p, s in enumerate(scores) for t in s[1]], np.int64).reshape(-1, 3)
    labels, class_of_truth = np.unique(truths[:, 1], return_inverse=True)
    rows = rows[np.isin(rows[:, 1], labels)]  # a class without a box has no average precision
    rows = rows[np.lexsort((-rows[:, 2], rows[:, 1]))]
    picture = rows[:, 0].astype(np.intp)
    row_class = np.searchsorted(labels, rows[:, 1])
    # Several thresholds at once, one's classes after the other's, as long as what they need stays in the cache.
    together = max(1, TOGETHER // max(len(rows), 1))
    groups = [bits[i : i + together] for i in range(0, len(bits), together)]
    hits = [_hits(rows, row_class, group, len(labels)) for group in groups]

    def value(indices: NDArray[np.intp]) -> float:
        weight = np.bincount(indices, minlength=pictures)
        counted = np.bincount(class_of_truth, truths[:, 2] * weight[truths[:, 0]], len(labels)).astype(np.int64)
        present = np.flatnonzero(counted)
        if not len(present):
            return float("nan")
        needed, row_weight, total = _needed(counted[present]), weight[picture], 0.0
        for group, hit in zip(groups, hits, strict=True):
            everywhere = (present + np.arange(len(group))[:, None] * len(labels)).reshape(-1)
            total += len(group) * _precision(row_weight, hit, everywhere, np.tile(needed, (len(group), 1)))
        return total / len(bits)

    return value


@dataclass(frozen=True, slots=True)
class _Hits:
    """Where true positives are, all thresholds one after the other.

    Attributes:
        counts: Whether a row counts, int64 [k, rows], once for all thresholds that agree on it (mostly k = 1).
        positive: Row of every true positive.
        ends: Its place in the running sums of rows that count, each of rows + 1 entries.
        starts: The place of its class's first row.
        classes: Its class, counted on from threshold to threshold; rising.
        before: First true positive of its class.
        first: Where each class begins among the true positives.
        step: What keeps running maxima apart by class.
    """

    counts: NDArray[np.int64]
    positive: NDArray[np.intp]
    ends: NDArray[np.intp]
    starts: NDArray[np.intp]
    classes: NDArray[np.intp]
    before: NDArray[np.intp]
    first: NDArray[np.intp]
    step: NDArray[np.float64]


def _hits(rows: NDArray[np.float64], row_class: NDArray[np.intp], bits: Sequence[int], class_count: int) -> _Hits:
    bit = np.asarray(bits, np.int64)[:, None]
    matched = (rows[:, 3].astype(np.int64) >> bit) & 1 == 1
    counts = (rows[:, 4].astype(np.int64) >> bit) & 1 == 0
    threshold, positive = np.nonzero(matched & counts)
    classes = row_class[positive] + threshold * class_count
    kinds, kind = np.unique(counts, axis=0, return_inverse=True)
    shift = kind.reshape(-1)[threshold] * (len(rows) + 1)
    every = class_count * len(bits)
    first = np.searchsorted(classes, np.arange(every + 1))
    return _Hits(
        counts=kinds.astype(np.int64),
        positive=positive,
        ends=positive + 1 + shift,
        starts=np.searchsorted(row_class, row_class[positive]) + shift,
        classes=classes,
        before=first[classes],
        first=first,
        # Precision is at most 1: steps of 2 between classes keep the running maximum from crossing them.
        step=2.0 * (every - 1 - classes).astype(np.float64),
    )


def _needed(counted: NDArray[np.int64]) -> NDArray[np.int64]:
    """True positives from which each recall is reached, int64 [classes, 101]."""
    return np.stack([np.searchsorted(np.arange(n + 1) / n, RECALLS, side="left") for n in counted.tolist()])


def _precision(weight: NDArray[np.int64], hits: _Hits, present: NDArray[np.intp], needed: NDArray[np.int64]) -> float:
    """Mean interpolated precision over thresholds and the classes present.

    Args:
        weight: How often each row's picture was drawn, int64 [rows].
        hits: Where true positives are.
        present: Classes that have a box, counted on from threshold to threshold, rising.
        needed: True positives from which each recall is reached, int64 [present, 101].
    """
    seen = np.zeros((len(hits.counts), len(weight) + 1), np.int64)
    np.cumsum(weight * hits.counts, axis=1, out=seen[:, 1:])
    flat = seen.reshape(-1)
    true = np.concatenate([[0], np.cumsum(weight[hits.positive])])
    within = true[1:] - true[hits.before]
    total = flat[hits.ends] - flat[hits.starts]
    precision = within / (total + np.spacing(1))
    envelope = np.maximum.accumulate((precision + hits.step)[::-1])[::-1] - hits.step
    large = int(true[-1]) + 2
    key = within + hits.classes * large
    at = np.searchsorted(key, np.minimum(np.maximum(needed, 0), large - 1) + (present * large)[:, None])
    found = at < hits.first[present + 1][:, None]
    return float(np.where(found, np.append(envelope, 0.0)[np.minimum(at, len(envelope))], 0.0).mean())
