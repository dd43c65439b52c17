"""Size of the model on disk, weight files included, in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..measurement import Better
from ..protocols import Kind, Metric, Needs


class Size:
    """The metric."""

    unit: ClassVar[str] = "bytes"
    better: ClassVar[Better] = "lower"
    needs: ClassVar[Needs] = "file"
    kind: ClassVar[Kind] = "exact"

    def score(self, got: Any, want: Any) -> int:
        """The size itself."""
        return int(got)

    def value(self, scores: Sequence[int]) -> float:
        """The size itself; it was taken once."""
        return float(scores[0])


IMPL: type[Metric] = Size
