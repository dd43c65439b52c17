"""Share of examples whose text was read without any error."""

from __future__ import annotations

from typing import Any

from ..protocols import Metric
from ._labels import Share


class ExactMatch(Share):
    """The metric."""

    def score(self, got: Any, want: Any) -> int:
        """1 when prediction and label are equal, code point by code point."""
        return int(got == want)


IMPL: type[Metric] = ExactMatch
