"""What an ONNX value is while it is being imported.

Whatever can be known at import is known: a stored or computed constant is a `Constant`, a shape is followed element by
element (`Sizes`), and only the rest are nodes of the graph (`Tensor`). So a reshape whose target an exporter computed
from ``Shape`` becomes a reshape to numbers and sizes, and nothing in it depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Shape = tuple[int | None, ...]
"""Sizes known at import; None for those that are not."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor that exists only at run time.

    Attributes:
        node: The torch.fx node that makes it.
        shape: What is known of its shape; None when not even its rank is.
        dtype: Its torch dtype; None when unknown.
    """

    node: Any
    shape: Shape | None = None
    dtype: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor known at import.

    Attributes:
        tensor: The torch tensor.
        name: Its name in the ONNX file when it is stored there as floats, so that it can be trained; else empty.
        label: Its name in the ONNX file whatever it holds, for people.
    """

    tensor: Any
    name: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """A whole number known at run time only: a Python int then, a symbol in an export."""

    node: Any


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """An integer tensor of rank 0 or 1 whose elements are followed one by one.

    Attributes:
        items: Its elements; at least one is a `Size`, otherwise it would be a `Constant`.
        scalar: Whether its rank is 0.
    """

    items: tuple[int | Size, ...]
    scalar: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """An ONNX sequence, of as many values as the graph says."""

    items: tuple[Value, ...]


Value = Tensor | Constant | Sizes | Items
"""What an ONNX name stands for."""
