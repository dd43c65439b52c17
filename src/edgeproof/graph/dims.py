"""The dimensions of a value, read in one way everywhere.

A dimension is a number, a symbol, or None when nothing is known. Two equal symbols are the same size; so a name counts
only when it says that. What exporters write for "some size" does not, and neither do the numbered names of shape
inference (``unk__7``): they are unique in one graph only, and inlining a function twice puts them there twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .symbolic import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

UNNAMED = "?"
"""How a dimension without a name is written where None would not do."""

_NAMELESS = frozenset({"", UNNAMED, "-1", "None", "none", "unknown"})
"""Names that exporters write for "some size": two of them need not be equal."""


def dims(value: ir.Value | None) -> tuple[Dim | None, ...] | None:
    """Dimensions of a value: int, symbol, or None for one that is unknown (or negative); None when the rank is."""
    if value is None or value.shape is None:
        return None
    return tuple(
        (d if d >= 0 else None) if isinstance(d, int) else (None if _nameless(d.value) else str(d.value))
        for d in value.shape
    )


def known(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """Dimensions of a value when each is a number or a symbol, otherwise None."""
    shape = dims(value)
    if shape is None:
        return None
    named = tuple(d for d in shape if d is not None)
    return named if len(named) == len(shape) else None


def static(value: ir.Value | None) -> tuple[int, ...] | None:
    """Dimensions of a value when all are numbers, otherwise None."""
    shape = dims(value)
    if shape is None:
        return None
    numbers = tuple(d for d in shape if isinstance(d, int))
    return numbers if len(numbers) == len(shape) else None


def _nameless(symbol: str | None) -> bool:
    return symbol is None or symbol in _NAMELESS or symbol.startswith("unk__")
