"""Arguments of MIL's operators: tensors, or constants as Python and NumPy hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arguments = Mapping[str, Any]
Operator = Callable[[Any, Arguments], Any]
"""(torch, arguments by name) → a tensor, or several."""


class UnknownOperatorError(Exception):
    """An operator that is not computed here."""


def ints(value: Any) -> list[int]:
    """A constant or a tensor of integers as a list."""
    return [int(v) for v in np.asarray(value).reshape(-1)]


def get(a: Arguments, name: str, default: Any) -> Any:
    """An argument, or its default where it is not given."""
    value = a.get(name)
    return default if value is None else value


def along(torch: Any, vector: Any, rank: int, axis: int) -> Any:
    """A vector laid along one axis of a tensor."""
    vector = torch.as_tensor(vector)
    if vector.dim() == 0 or vector.numel() == 1:
        return vector.reshape(())
    shape = [1] * rank
    shape[axis % rank] = -1
    return vector.reshape(shape)
