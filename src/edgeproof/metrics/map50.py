"""COCO average precision at an IoU of 0.5, AP50: mean over classes."""

from __future__ import annotations

from typing import ClassVar

from ..protocols import Metric
from ._average_precision import AveragePrecision


class Map50(AveragePrecision):
    """The metric."""

    bits: ClassVar[tuple[int, ...]] = (0,)


IMPL: type[Metric] = Map50
