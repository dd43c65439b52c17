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
_NEXT_RECALL = np.append(RECALLS[1:], np.inf)
MAX_DETECTIONS = 100
MAX_AREA = 1e10
"""COCO's area range "all" ends here, in square pixels; an unmatched detection above it is ignored."""

TOGETHER = 8192
"""True positives that are accumulated at once: 64 kB an array, so that what is needed stays in the cache."""

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

    def cost(self, scores: Sequence[PictureScore]) -> int:
        """Detections, and true positives over all thresholds."""
        every = sum(1 << bit for bit in self.bits)
        return sum(1 + (int(m) & every).bit_count() for found, _ in scores for _, _, m, _ in found)


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
    positives, kinds, kind_of = _positives(rows, bits)
    starts = np.searchsorted(row_class, np.arange(len(labels)))
    groups = []
    for at in _together([len(p) for p in positives]):
        shift = kind_of[at] * (len(rows) + 1)
        groups.append(_hits([positives[i] for i in at], shift, row_class, starts, picture))

    def value(indices: NDArray[np.intp]) -> float:
        weight = np.bincount(indices, minlength=pictures)
        counted = np.bincount(class_of_truth, truths[:, 2] * weight[truths[:, 0]], len(labels)).astype(np.int64)
        present = counted > 0
        if not present.any():
            return float("nan")
        row_weight = weight[picture]
        seen = np.zeros((len(kinds), len(rows) + 1), np.int64)
        for counts, line in zip(kinds, seen, strict=True):
            np.cumsum(row_weight if counts is None else row_weight * counts, out=line[1:])
        sums = sum(_precision(weight, seen.reshape(-1), hits, counted, present) for hits in groups)
        return sums / (len(RECALLS) * int(present.sum()) * len(bits))

    return value


def _positives(
    rows: NDArray[np.float64], bits: Sequence[int]
) -> tuple[list[NDArray[np.intp]], list[NDArray[np.int64] | None], NDArray[np.intp]]:
    """Rows of the true positives at each threshold, and which rows count: patterns, and the pattern of each threshold.

    Thresholds mostly agree on the rows that count, and mostly all do: such a pattern is None.
    """
    matched, ignored = rows[:, 3].astype(np.int64), rows[:, 4].astype(np.int64)
    positives: list[NDArray[np.intp]] = []
    kinds: list[NDArray[np.int64] | None] = []
    kind_of: list[int] = []
    known: dict[bytes, int] = {}
    for bit in bits:
        counts = (ignored >> bit) & 1 == 0
        positives.append(np.flatnonzero(((matched >> bit) & 1 == 1) & counts))
        at = known.setdefault(counts.tobytes(), len(kinds))
        if at == len(kinds):
            kinds.append(None if counts.all() else counts.astype(np.int64))
        kind_of.append(at)
    return positives, kinds, np.array(kind_of, np.intp)


def _together(sizes: Sequence[int]) -> list[list[int]]:
    """Neighbouring thresholds in groups of at most `TOGETHER` true positives, or one alone."""
    groups: list[list[int]] = []
    size = 0
    for i, n in enumerate(sizes):
        if not groups or size + n > TOGETHER:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += n
    return groups


@dataclass(frozen=True, slots=True)
class _Hits:
    """Where true positives are, all thresholds of a group one after the other.

    Attributes:
        picture: Picture of every true positive.
        classes: Its class.
        ends: Its place in the running sums of rows that count, each of rows + 1 entries.
        starts: The place of its class's first row.
        before: First true positive of its class at its threshold.
        first: Where each class begins among the true positives, at each threshold; without those that have none.
        step: What keeps running maxima apart by class and threshold.
    """

    picture: NDArray[np.intp]
    classes: NDArray[np.intp]
    ends: NDArray[np.intp]
    starts: NDArray[np.intp]
    before: NDArray[np.intp]
    first: NDArray[np.intp]
    step: NDArray[np.float64]


def _hits(
    positives: Sequence[NDArray[np.intp]],
    shift: NDArray[np.intp],
    row_class: NDArray[np.intp],
    starts: NDArray[np.intp],
    picture: NDArray[np.intp],
) -> _Hits:
    positive, sizes = np.concatenate(positives), [len(p) for p in positives]
    classes, threshold = row_class[positive], np.repeat(np.arange(len(sizes)), sizes)
    places = threshold * (len(starts) + 1) + classes
    first = np.flatnonzero(np.diff(places, prepend=-1))
    run = np.repeat(np.arange(len(first)), np.diff(first, append=len(places)))
    return _Hits(
        picture=picture[positive],
        classes=classes,
        ends=positive + 1 + shift[threshold],
        starts=starts[classes] + shift[threshold],
        before=first[run],
        first=first,
        # Precision is at most 1: steps of 2 between classes keep the running maximum from crossing them.
        step=2.0 * (len(first) - run).astype(np.float64),
    )


def _precision(
    weight: NDArray[np.int64],
    seen: NDArray[np.int64],
    hits: _Hits,
    counted: NDArray[np.int64],
    present: NDArray[np.bool_],
) -> float:
    """Sum of the interpolated precision over recalls, classes present, and the thresholds of a group.

    Every recall is credited to the true positive at which it is reached: those that a true positive reaches first are
    as many as its share of the boxes has passed since the one before.

    Args:
        weight: How often each picture was drawn, int64 [pictures].
        seen: Running sums of the rows that count, one after the other.
        hits: Where true positives are.
        counted: Boxes of each class in what was drawn, int64 [classes].
        present: Classes that have a box, bool [classes].
    """
    if not len(hits.picture):
        return 0.0
    true = np.concatenate([[0], np.cumsum(weight[hits.picture])])
    within = true[1:] - true[hits.before]
    precision = within / (seen[hits.ends] - seen[hits.starts] + np.spacing(1))
    envelope = np.maximum.accumulate((precision + hits.step)[::-1])[::-1] - hits.step
    boxes = np.where(present, counted, 1)[hits.classes]
    reached = _reached(np.minimum(within / boxes, 1.0))
    newly = np.diff(reached, prepend=0)
    newly[hits.first] = reached[hits.first]
    return float(envelope @ (newly * present[hits.classes]))


def _reached(share: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of `RECALLS` are at most each share, 0 to 1: a guess by arithmetic, set right by the recalls themselves.

    With a search in 101 numbers instead, the whole takes a third longer (measured).
    """
    last: NDArray[np.int64] = (share * (len(RECALLS) - 1)).astype(np.int64)
    last += _NEXT_RECALL[last] <= share
    last -= RECALLS[last] > share
    return last + 1
