"""COCO mean average precision, AP@[.50:.95]: mean over ten IoU thresholds and over classes."""

from __future__ import annotations

from typing import ClassVar

from ..protocols import Metric
from ._average_precision import AveragePrecision


class Map(AveragePrecision):
    """The metric."""

    bits: ClassVar[tuple[int, ...]] = tuple(range(10))


IMPL: type[Metric] = Map
