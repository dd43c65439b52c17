"""Character error rate: edits over characters of the labels, pooled over all examples. It may exceed 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..measurement import Better
from ..protocols import Metric
from ._labels import CharacterErrors, error_rate


class Cer(CharacterErrors):
    """The metric."""

    better: ClassVar[Better] = "lower"

    def value(self, scores: Sequence[Sequence[int]]) -> float:
        """All edits over all characters; NaN when there are no characters."""
        return error_rate(scores)


IMPL: type[Metric] = Cer
