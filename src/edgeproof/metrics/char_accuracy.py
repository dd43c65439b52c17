"""Character accuracy, 1 − character error rate, pooled over all examples. It may fall below 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..measurement import Better
from ..protocols import Metric
from ._labels import CharacterErrors, error_rate


class CharAccuracy(CharacterErrors):
    """The metric."""

    better: ClassVar[Better] = "higher"

    def value(self, scores: Sequence[Sequence[int]]) -> float:
        """1 − all edits over all characters; NaN when there are no characters."""
        return 1 - error_rate(scores)


IMPL: type[Metric] = CharAccuracy
