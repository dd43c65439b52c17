"""Share of examples whose label is among the five best classes."""

from __future__ import annotations

from typing import ClassVar

from ..protocols import Metric
from ._labels import TopK


class TopFive(TopK):
    """The metric."""

    k: ClassVar[int] = 5


IMPL: type[Metric] = TopFive
