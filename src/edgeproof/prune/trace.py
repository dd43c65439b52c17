"""What a walk over a graph knows: the atoms along each axis of each value, and how a node changes when some go.

Axes of one element, and axes that no layer makes or reads by channel, have no atoms. Constants get theirs when a rule
asks: a vector anew for every node that reads it, since tools let unlike layers share one vector of zeros; a matrix or a
filter once, since a layer that is used twice must stay one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..graph.rewrite import array, constant_tensor
from .atoms import Atoms, Labels

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

Role = Literal["out", "in", "scale", "vector", "data"]
"""What an axis of a constant is: what a layer makes, what it reads, scale of a batch norm, one number per channel, or
anything else."""
Axes = list[Labels | None]
Keep = Callable[[Labels], "NDArray[np.bool_]"]
"""Which indices of an axis stay."""


class UnfollowedError(Exception):
    """A rule does not hold for a node; the text says why."""


@dataclass(slots=True)
class Weight:
    """A constant, and the atoms along its axes.

    Attributes:
        value: The initializer, Constant or ConstantOfShape output.
        shape: Its shape.
        labels: Axis → atoms, where a rule asked.
        roles: Axis → what it is.
        uses: (node, input index) that read it in this way.
    """

    value: ir.Value
    shape: tuple[int, ...]
    labels: dict[int, Labels] = field(default_factory=dict)
    roles: dict[int, Role] = field(default_factory=dict)
    uses: list[tuple[ir.Node, int]] = field(default_factory=list)

    @property
    def dtype(self) -> ir.DataType:
        """Of its numbers; a value read from a file need not carry one."""
        tensor = constant_tensor(self.value)
        if tensor is not None:
            return tensor.dtype
        import onnx_ir as ir

        return self.value.dtype or ir.DataType.FLOAT

    def array(self) -> NDArray[np.float32]:
        """Its numbers; a constant of shape is a view without memory of its own."""
        held = array(self.value)
        return filled(self.value, self.shape) if held is None else held


@dataclass(frozen=True, slots=True)
class Edit:
    """How a node changes when channels go.

    Attributes:
        node: The node of the traced graph.
        labels: The axes that it follows; while all of them stay whole, so does the node.
        apply: Called with (the node to change, its graph's editor, which indices stay).
    """

    node: ir.Node
    labels: tuple[Labels, ...]
    apply: Callable[[ir.Node, Edits, Keep], None]


@dataclass(frozen=True, slots=True)
class Edits:
    """What an edit may use: new constants."""

    constant: Callable[[str, NDArray[np.int64]], ir.Value]
    """(hint of a name, int64 array) → value in the graph."""
    node: Callable[[ir.Node, str, Sequence[ir.Value], dict[str, int]], ir.Value]
    """(before, operator, inputs, attributes) → output."""


@dataclass(frozen=True, slots=True)
class Work:
    """Multiply-accumulates of a node shrink with each of these axes.

    Attributes:
        node: The layer.
        axes: Atoms of its factors: channels made, channels read, heads.
        out: Atoms of the channels that it makes; None when they cannot go.
        share: Part of its work that shrinks.
    """

    node: ir.Node
    axes: tuple[Labels, ...]
    out: Labels | None
    share: float = 1.0


class Trace:
    """The state of a walk.

    Args:
        shapes: Value name → shape, all numbers; absent where unknown.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.atoms = Atoms()
        self.edits: list[Edit] = []
        self.work: list[Work] = []
        self.weights: dict[tuple[int, ...], Weight] = {}
        self.reads: list[tuple[str, int, Labels, ir.Node]] = []
        """(value, axis, atoms, layer) for what a layer with weights reads."""
        self._shapes = shapes
        self._axes: dict[int, Axes] = {}

    def dims(self, value: ir.Value | None) -> tuple[int, ...]:
        """Shape of a value.

        Raises:
            UnfollowedError: When it is unknown.
        """
        found = None if value is None else self._shapes.get(value.name or "")
        if found is None:
            raise UnfollowedError(f"the shape of {'an input' if value is None else repr(value.name)} is unknown")
        return found

    def knows(self, value: ir.Value | None) -> bool:
        """Whether a value's shape is known."""
        return value is not None and (value.name or "") in self._shapes

    def put(self, value: ir.Value, axes: Axes) -> None:
        """Note the atoms of a value that a node makes."""
        shape = self.dims(value)
        if len(axes) != len(shape) or any(a is not None and len(a) != d for a, d in zip(axes, shape, strict=True)):
            raise UnfollowedError("its output does not have the shape that its inputs ask for")
        self._axes[id(value)] = [a if d > 1 else None for a, d in zip(axes, shape, strict=True)]

    def forget(self, value: ir.Value) -> None:
        """Nothing of a value can go."""
        self._axes.pop(id(value), None)

    def read(self, node: ir.Node, index: int, role: Role = "data") -> Axes:
        """Atoms along all axes of an input; a constant's are made here."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return []
        rank = len(self.dims(value))
        if is_constant(value):
            return [self.axis(node, index, i, role) for i in range(rank)]
        return self._axes.get(id(value), [None] * rank)

    def axis(self, node: ir.Node, index: int, axis: int, role: Role = "data") -> Labels | None:
        """Atoms along one axis of an input; None when it has one element or nobody follows it."""
        value = node.inputs[index]
        shape = self.dims(value)
        if shape[axis] == 1:
            return None
        weight = self.weight(node, index)
        if weight is None:
            return self._axes.get(id(value), [None] * len(shape))[axis]
        if axis not in weight.labels:
            weight.labels[axis] = self.atoms.fresh(shape[axis])
            weight.roles[axis] = role
        elif weight.roles[axis] == "data":
            weight.roles[axis] = role
        return weight.labels[axis]

    def weight(self, node: ir.Node, index: int) -> Weight | None:
        """The constant that a node reads; None when it is none."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or not is_constant(value):
            return None
        shape = self.dims(value)
        key = (id(value),) if sum(d > 1 for d in shape) > 1 else (id(value), id(node), index)
        weight = self.weights.get(key)
        if weight is None:
            weight = self.weights[key] = Weight(value, shape)
        if not any(n is node and i == index for n, i in weight.uses):
            weight.uses.append((node, index))
        return weight

    def seen(self, node: ir.Node) -> list[Labels]:
        """Everything known of what a node reads, without asking constants."""
        return [a for v in node.inputs if v is not None for a in self._axes.get(id(v), ()) if a is not None]

    def axes_of(self, value: ir.Value) -> Axes:
        """What is known of a value; empty when nothing is."""
        return self._axes.get(id(value), [])

    def every_axis(self) -> Iterator[Labels]:
        """Atoms along every axis of every tensor."""
        for axes in self._axes.values():
            yield from (a for a in axes if a is not None)
        for weight in self.weights.values():
            yield from weight.labels.values()

    def join(self, a: Labels | None, b: Labels | None, why: str) -> Labels | None:
        """Tie two axes; one that nobody follows pins the other."""
        if a is None or b is None:
            if a is not None or b is not None:
                self.stay(a if a is not None else b, why)
            return None
        if len(a) != len(b):
            raise UnfollowedError(f"axes of {len(a)} and {len(b)} meet")
        self.atoms.unite(a, b)
        return a

    def stay(self, labels: Labels | None, why: str) -> None:
        """Pin an axis."""
        if labels is not None:
            self.atoms.pin(labels, why)

    def edit(self, node: ir.Node, labels: Sequence[Labels], apply: Callable[[ir.Node, Edits, Keep], None]) -> None:
        """Note how a node changes when some of these axes do."""
        self.edits.append(Edit(node, tuple(labels), apply))


def is_constant(value: ir.Value) -> bool:
    """Whether a value is a weight: an initializer, a Constant, or a ConstantOfShape of a constant shape."""
    if constant_tensor(value) is not None:
        return True
    producer = value.producer()
    return producer is not None and producer.op_type == "ConstantOfShape" and array(producer.inputs[0]) is not None


def filled(value: ir.Value, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array that a ConstantOfShape makes, as a view of one number."""
    producer = value.producer()
    assert producer is not None
    attr = producer.attributes.get("value")
    number = np.float32(0) if attr is None else attr.as_tensor().numpy().reshape(-1)[0]
    return np.broadcast_to(np.asarray(number), shape)
