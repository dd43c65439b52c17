"""F1 of text lines found in a probability map; copied beside the data.

Regions above a threshold are grown to the size of the line (the map shows shrunk lines, Liao et al. 2019,
Differentiable Binarization, eq. 10: offset = area × ratio / perimeter) and matched to the true boxes at IoU 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.3
GROWTH = 1.6
SMALLEST = 3
"""Regions lower or narrower than this many pixels are dropped."""
IOU = 0.5


def line_f1(outputs: Mapping[str, NDArray[Any]], truth: Any, _meta: Mapping[str, Any]) -> float:
    """F1 of one page; the truth is `Boxes` in pixels of the map."""
    found = boxes_of(np.squeeze(next(iter(outputs.values()))))
    pairs = matched(found, np.asarray(truth.xyxy, np.float64))
    return 2 * pairs / max(1, len(found) + len(truth.xyxy))


def boxes_of(chances: NDArray[Any]) -> NDArray[np.float64]:
    """Boxes [n, 4] of the regions of a map [H, W]."""
    boxes = []
    for rows, columns in regions(chances > THRESHOLD):
        left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        width, height = right - left, bottom - top
        if min(width, height) >= SMALLEST:
            grow = width * height * GROWTH / (2 * (width + height))
            boxes.append((left - grow, top - grow, right + grow, bottom + grow))
    return np.array(boxes, np.float64).reshape(-1, 4)


def regions(mask: NDArray[np.bool_]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Row and column indices of every 4-connected region: labels spread to the smallest one in the neighbourhood."""
    outside = mask.size
    labels = np.where(mask, np.arange(mask.size).reshape(mask.shape), outside)
    while True:
        padded = np.pad(labels, 1, constant_values=outside)
        neighbours = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
        smallest = np.where(mask, np.minimum.reduce([labels, *neighbours]), outside)
        flat = np.append(smallest.ravel(), outside)
        smallest = np.where(mask, flat[smallest], outside)  # jump to the label's own label: rounds stay few
        if np.array_equal(smallest, labels):
            break
        labels = smallest
    found = (np.nonzero(labels == label) for label in np.unique(labels[mask]))
    return [(rows, columns) for rows, columns in found]


def matched(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> int:
    """How many boxes pair up, one to one, best overlap first."""
    if not len(found) or not len(wanted):
        return 0
    low = np.maximum(found[:, None, :2], wanted[None, :, :2])
    high = np.minimum(found[:, None, 2:], wanted[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    area = [np.prod(b[:, 2:] - b[:, :2], axis=1) for b in (found, wanted)]
    iou = both / (area[0][:, None] + area[1][None] - both)
    pairs = 0
    while iou.size and iou.max() >= IOU:
        row, column = np.unravel_index(iou.argmax(), iou.shape)
        iou[row, :] = iou[:, column] = -1
        pairs += 1
    return pairs
