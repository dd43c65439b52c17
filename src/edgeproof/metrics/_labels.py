"""Numbers that are scored example by example against labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..measurement import Better
from ..protocols import Kind, Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Share:
    """Share of the examples that score 1."""

    unit: ClassVar[str] = "1"
    better: ClassVar[Better] = "higher"
    needs: ClassVar[Needs] = "labels"
    kind: ClassVar[Kind] = "proportion"

    def value(self, scores: Sequence[int]) -> float:
        """Mean of the scores."""
        return sum(scores) / len(scores)


class TopK(Share):
    """Whether the class of the label is among the best ``k``."""

    k: ClassVar[int]

    def score(self, got: Any, want: Any) -> int:
        """1 when it is.

        Args:
            got: Classes, best first, int64 [classes].
            want: Class index.
        """
        return int(int(want) in got[: self.k])


def edit_distance(a: str, b: str) -> int:
    """Least number of insertions, deletions and substitutions of code points that turn ``a`` into ``b``.

    Source: Levenshtein 1966, by Wagner and Fischer's dynamic programme (1974).

    >>> edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


class CharacterErrors(ABC):
    """Edits and characters, pooled over all examples: long lines count more than short ones."""

    unit: ClassVar[str] = "1"
    needs: ClassVar[Needs] = "labels"
    kind: ClassVar[Kind] = "pooled"

    def score(self, got: Any, want: Any) -> list[int]:
        """[edits from the label to the prediction, characters of the label].

        Args:
            got: Text read. Compared by code points, without normalising case, width or accents.
            want: Text of the label.
        """
        return [edit_distance(want, got), len(want)]

    @abstractmethod
    def value(self, scores: Sequence[Sequence[int]]) -> float:
        """The number, from pairs of edits and characters."""

    def resampled(self, scores: Sequence[Sequence[int]]) -> Callable[[NDArray[np.intp]], float]:
        """The value on chosen examples: that of their sums, which arrays add up much faster."""
        import numpy as np

        edits, characters = np.asarray(scores, np.int64).T
        return lambda chosen: self.value([[int(edits[chosen].sum()), int(characters[chosen].sum())]])

    def cost(self, scores: Sequence[Sequence[int]]) -> int:
        """Two numbers an example."""
        return 2 * len(scores)


def error_rate(scores: Sequence[Sequence[int]]) -> float:
    """All edits over all characters; NaN when there are no characters at all."""
    characters = sum(n for _, n in scores)
    return sum(e for e, _ in scores) / characters if characters else float("nan")
