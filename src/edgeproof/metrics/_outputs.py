"""Outputs against the original's, output by output.

A value that is NaN or infinite where the original's is finite, another shape, or other text gets the worst score there
is, as a number that JSON can hold. Where both are NaN, or the same infinity, they agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, did_you_mean
from ..protocols import Kind, Needs

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


class OutputMetric(ABC):
    """One score per output; the value is the worst output's."""

    needs: ClassVar[Needs] = "reference"
    kind: ClassVar[Kind] = "pooled"

    @abstractmethod
    def of_pair(self, got: NDArray[np.float64], want: NDArray[np.float64]) -> Any:
        """Score of one output, from its finite values, float64 [n]."""

    @abstractmethod
    def broken(self, want: NDArray[Any]) -> Any:
        """Score of an output that cannot be compared."""

    @abstractmethod
    def pooled(self, scores: NDArray[np.float64]) -> float:
        """The number of one output over all examples, from its scores, float64 [n, …]."""

    @abstractmethod
    def worst(self, values: Sequence[float]) -> float:
        """The worst of some numbers."""

    def score(self, got: Any, want: Any) -> dict[str, Any]:
        """Output name → score of that output.

        Args:
            got: Outputs of the model, name → array.
            want: Outputs of the original.

        Raises:
            InputError: data.mismatch, when an output of the original is absent.
        """
        scores = {}
        for name, reference in want.items():
            if name not in got:
                raise InputError("data.mismatch", f"output {name!r}", "the candidate lacks it", did_you_mean(name, got))
            pair = comparable(np.asarray(got[name]), np.asarray(reference))
            scores[name] = self.broken(np.asarray(reference)) if pair is None else self.of_pair(*pair)
        return scores

    def by_output(self, scores: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Output name → number over all examples."""
        return {name: self.pooled(each) for name, each in _columns(scores).items()}

    def value(self, scores: Sequence[Mapping[str, Any]]) -> float:
        """The worst output's number."""
        return self.worst(list(self.by_output(scores).values()))

    def resampled(self, scores: Sequence[Mapping[str, Any]]) -> Callable[[NDArray[np.intp]], float]:
        """The value on chosen examples, from one array per output."""
        columns = list(_columns(scores).values())
        return lambda chosen: self.worst([self.pooled(each[chosen]) for each in columns])

    def cost(self, scores: Sequence[Mapping[str, Any]]) -> int:
        """All numbers of all outputs."""
        return sum(each.size for each in _columns(scores).values())


def _columns(scores: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Output name → its scores, float64 [n, …]."""
    return {name: np.asarray([s[name] for s in scores], np.float64) for name in scores[0]}


def comparable(got: NDArray[Any], want: NDArray[Any]) -> Pair | None:
    """The values where both are finite, float64 [n]; None when the arrays cannot agree."""
    if got.shape != want.shape:
        return None
    if want.dtype.kind not in "biuf" or got.dtype.kind not in "biuf":
        return (np.empty(0), np.empty(0)) if np.array_equal(got, want) else None
    a, b = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
    finite = np.isfinite(a) & np.isfinite(b)
    if finite.all():
        return a, b
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return None
    return a[finite], b[finite]
