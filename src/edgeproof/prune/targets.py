"""Shapes that are inputs: the target of a Reshape or Expand says sizes that change when channels go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.rewrite import array, integers
from ..model import attribute
from .atoms import Labels
from .trace import Edits, Keep, Trace, UnfollowedError

if TYPE_CHECKING:
    import onnx_ir as ir

Element = int | tuple["ir.Value", int] | None
"""A number, the size of that axis of that value, or something computed."""

_SAME = ("Identity", "Cast", "Unsqueeze", "Squeeze")


def retarget(
    t: Trace, node: ir.Node, index: int, labels: dict[int, Labels], *, copied: dict[int, Labels | None]
) -> None:
    """Let the shape that a node is given follow the channels.

    Args:
        t: The walk.
        node: The node that reads the shape.
        index: Which input that is.
        labels: Position in the shape → atoms along that axis of the result.
        copied: Position → atoms of the size that a 0 stands for; a 0 elsewhere is a size.
    """
    changing = dict(labels)
    target = elements(t, node.inputs[index])
    for position, atoms in labels.items():
        element = target[position] if target is not None and position < len(target) else None
        if isinstance(element, tuple):
            value, axis = element
            found = t.axes_of(value)
            t.join(
                atoms, found[axis] if axis < len(found) and len(found) else None, f"its size is that of {value.name!r}"
            )
            del changing[position]
        elif element is None:
            t.stay(atoms, "the shape that it is brought to is computed")
            del changing[position]
        elif element == -1 or (element == 1 and position not in copied and len(atoms) != 1):
            del changing[position]
        elif element == 0 and position in copied:
            t.join(atoms, copied[position], "its size is copied from an axis that stays")
            del changing[position]
    if changing and target is not None:
        t.edit(node, list(changing.values()), _Retarget(index, tuple(target), changing))


class _Retarget:
    """Write the sizes that changed into the shape; what is computed stays computed."""

    def __init__(self, index: int, target: tuple[Element, ...], labels: dict[int, Labels]) -> None:
        self._index = index
        self._target = target
        self._labels = labels

    def __call__(self, node: ir.Node, edits: Edits, keep: Keep) -> None:
        old = node.inputs[self._index]
        assert old is not None
        numbers: list[int | None] = [e if isinstance(e, int) else None for e in self._target]
        for position, labels in self._labels.items():
            numbers[position] = int(keep(labels).sum())
        whole = [n for n in numbers if n is not None]
        if len(whole) == len(numbers):
            node.replace_input_with(self._index, edits.constant(f"{old.name}_kept", np.asarray(whole, np.int64)))
            return
        parts = []
        for i, number in enumerate(numbers):
            if number is not None:
                parts.append(edits.constant(f"{old.name}_{i}", np.asarray([number], np.int64)))
            else:
                where = edits.constant(f"{old.name}_{i}", np.asarray([i], np.int64))
                parts.append(edits.node(node, "Gather", [old, where], {"axis": 0}))
        node.replace_input_with(self._index, edits.node(node, "Concat", parts, {"axis": 0}))


def elements(t: Trace, value: ir.Value | None) -> list[Element] | None:
    """What each element of a shape tensor is; None when not even their number is known."""
    if value is None:
        return None
    numbers = integers(value)
    if numbers is not None:
        return list(numbers)
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Shape":
        data = node.inputs[0]
        if data is None:
            return None
        axes = list(range(len(t.dims(data))))[attribute(node, "start", 0) : attribute(node, "end", None)]
        return [(data, axis) for axis in axes]
    if node.op_type in _SAME:
        return elements(t, node.inputs[0])
    if node.op_type == "Concat":
        parts = [elements(t, v) for v in node.inputs]
        return None if any(p is None for p in parts) else [e for p in parts for e in p or ()]
    inner = elements(t, node.inputs[0]) if node.inputs else None
    if node.op_type == "Gather" and inner is not None:
        picked = integers(node.inputs[1])
        return None if picked is None else [inner[i] for i in picked]
    if node.op_type == "Slice" and inner is not None and len(node.inputs) > 2:
        starts, ends = integers(node.inputs[1]), integers(node.inputs[2])
        steps = integers(node.inputs[4]) if len(node.inputs) > 4 else [1]
        return None if not starts or not ends or not steps else inner[starts[0] : ends[0] : steps[0]]
    shape = t.dims(value)
    return [None] * (shape[0] if shape else 1)


def numbers_of(node: ir.Node, index: int, name: str, rank: int | None = None) -> list[int] | None:
    """Integers given as an input, or as an attribute of older operator sets; None when absent.

    Raises:
        UnfollowedError: When they are computed.
    """
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        held = attribute(node, name, None)
        found = None if held is None else [int(i) for i in ([held] if isinstance(held, int) else held)]
    else:
        held = array(value)
        if held is None:
            raise UnfollowedError(f"its {name} are computed")
        found = [int(i) for i in held.reshape(-1)]
    return found if found is None or rank is None else [i + rank if i < 0 else i for i in found]
