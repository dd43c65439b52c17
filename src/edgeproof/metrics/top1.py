"""Share of examples whose best class is the label."""

from __future__ import annotations

from typing import ClassVar

from ..protocols import Metric
from ._labels import TopK


class TopOne(TopK):
    """The metric."""

    k: ClassVar[int] = 1


IMPL: type[Metric] = TopOne
