"""What of a model can be removed: groups of units, each of which goes from every tensor that it is part of.

A unit is the least that can go: a channel with all that residual additions, depthwise convolutions, batch norms and the
readers of that channel tie to it, an attention head, a group of a grouped convolution. Units of the same layers form a
group. Inputs and outputs of the model keep their shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..graph.cost import Layer, cost_of
from ..graph.rewrite import answers, label
from ..graph.shapes import Shape, Shaped, shaped
from ..model import Model
from .atoms import Atoms, Labels
from .follow import follow
from .trace import Trace, Weight

if TYPE_CHECKING:
    import onnx_ir as ir

SIZES = (224, 64, 128, 48, 32, 96, 256, 299, 320, 28, 512, 640, 16)
"""Sizes to try for open dimensions other than the batch, until every shape follows."""

FIXED = -1
"""Unit of an index that stays."""


@dataclass(frozen=True, slots=True)
class Part:
    """An axis of a weight along which the units of a group lie.

    Attributes:
        weight: The weight.
        axis: Its axis.
        units: Unit per index, int64 [size]; `FIXED` for one that stays.
        layers: Names of the nodes that read it.
    """

    weight: Weight
    axis: int
    units: Labels
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Units that the same layers make.

    Attributes:
        name: Its first layer.
        units: Their numbers, int64 [n].
        made: Where layers make them.
        inexact: Why taking zeros away changes the result; empty where it does not.
    """

    name: str
    units: Labels
    made: tuple[Part, ...]
    inexact: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A layer's work.

    Attributes:
        layer: Its name.
        macs: Multiply-accumulates at the traced size.
        axes: Units along each axis that its work is proportional to.
        out: Units of the channels that it makes; None when it has none to lose.
        share: Part of the work that is proportional to them.
    """

    layer: str
    macs: int
    axes: tuple[Labels, ...]
    out: Labels | None
    share: float = 1.0

    def left(self, lost: NDArray[np.bool_]) -> float:
        """Multiply-accumulates without some units; bool [units + 1], the last entry False for what stays."""
        kept = float(np.prod([1.0 - lost[axis].mean() for axis in self.axes]))
        return self.macs * (1.0 - self.share + self.share * kept)


@dataclass(frozen=True, slots=True)
class Channels:
    """What of a model can be removed.

    Attributes:
        model: The model.
        graph: A private copy that was traced: functions inlined, weights no inputs.
        trace: The atoms of its tensors.
        unit_of: Unit per atom, int64; `FIXED` for those that stay.
        units: How many there are.
        groups: The groups.
        tasks: The layers' work.
        pinned: (layer, why its channels stay).
        shapes: The input sizes that were traced.
    """

    model: Model
    graph: ir.Model
    trace: Trace
    unit_of: Labels
    units: int
    groups: tuple[Group, ...]
    tasks: tuple[Task, ...]
    pinned: tuple[tuple[str, str], ...]
    shapes: Mapping[str, Shape]

    def traced(self) -> Model:
        """The private copy as a model; it computes what the model computes."""
        return _as(self.model, self.graph)

    def of(self, labels: Labels) -> Labels:
        """Unit per index of an axis."""
        return self.unit_of[labels]

    def macs(self, gone: NDArray[np.bool_] | None = None) -> float:
        """Multiply-accumulates of all layers without some units.

        Args:
            gone: bool [units]; None for the whole model.
        """
        return sum(self.work(gone))

    def work(self, gone: NDArray[np.bool_] | None = None) -> list[float]:
        """Like `macs`, one number a task."""
        if gone is None:
            return [float(task.macs) for task in self.tasks]
        lost = np.append(gone, False)  # the last stands for what stays
        return [task.left(lost) for task in self.tasks]

    def savings(self) -> NDArray[np.float64]:
        """Multiply-accumulates that each unit alone takes along, float64 [units]."""
        saved = np.zeros(self.units + 1)
        for task in self.tasks:
            for axis in task.axes:
                np.add.at(saved, axis, task.share * task.macs / len(axis))
        return saved[:-1]


def channels(model: Model, shapes: Mapping[str, Shape] | None = None, *, exclude: Sequence[str] = ()) -> Channels:
    """Find out what of a model can be removed.

    Args:
        model: The model; not changed.
        shapes: Sizes for open dimensions of the inputs. Without, an open first dimension is 1 and others are the first
            of `SIZES` at which every shape follows.
        exclude: Layers whose channels stay: node names, operators, or patterns with ``*`` and ``?``.

    Raises:
        InputError: shape.input, shape.rank, shape.dimension.
    """
    graph = _own(model)
    sizes, found = _at_a_size(_as(model, graph), shapes or {})
    t = Trace(_shapes(found.graph.graph))
    follow(graph.graph, t)
    _exclude(graph.graph, t, exclude)
    unit_of, units = _units(t)
    layers = cost_of(found).layers
    nodes = list(graph.graph)
    tasks = tuple(_tasks(t, unit_of, nodes, layers))
    groups = tuple(_groups(t, unit_of, units, {n: i for i, n in enumerate(nodes)}))
    return Channels(model, graph, t, unit_of, units, groups, tasks, tuple(_pinned(t)), sizes)


def _own(model: Model) -> ir.Model:
    """A copy without functions whose weights are no inputs and whose nodes have names, so that a layer can be told."""
    import onnx_ir.passes.common as common

    graph = model.graph.clone()
    if graph.functions:
        common.InlinePass()(graph)
    kept = [v for v in graph.graph.inputs if not v.is_initializer()]
    if len(kept) != len(graph.graph.inputs):
        graph.graph.inputs[:] = kept
        graph.ir_version = max(graph.ir_version, 4)
    names = {node.name for node in graph.graph}
    for i, node in enumerate(graph.graph):
        if not node.name:
            name = f"{node.op_type}_{i}"
            node.name = name if name not in names else f"{name}_{node.outputs[0].name}"
    return graph


def _as(model: Model, graph: ir.Model) -> Model:
    """The traced graph as a model, without hashing it again."""
    return Model(model.name, model.digest, model.inputs, model.outputs, graph)


def _at_a_size(model: Model, given: Mapping[str, Shape]) -> tuple[dict[str, Shape], Shaped]:
    """Sizes of the inputs, and the model with all shapes at those."""
    tried: list[tuple[dict[str, Shape], Shaped]] = []
    for size in SIZES:
        sizes = dict(given)
        for spec in model.inputs:
            shape = given.get(spec.name, spec.shape)
            if shape is not None:
                sizes[spec.name] = tuple(
                    d if isinstance(d, int) else 1 if i == 0 and len(shape) > 1 else size for i, d in enumerate(shape)
                )
        tried.append((sizes, shaped(model, sizes)))
        values = [v for n in tried[-1][1].graph.graph for v in n.outputs]
        if all(v.shape is not None and all(isinstance(d, int) for d in v.shape) for v in values if v.name):
            return tried[-1]
        if not any(spec.dynamic for spec in model.inputs):
            break
    return tried[0]  # what stays unknown is held where it lies


def _shapes(graph: ir.Graph) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for value in [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]:
        if value.name and value.shape is not None and all(isinstance(d, int) for d in value.shape):
            shapes[value.name] = tuple(int(d) for d in value.shape if isinstance(d, int))
    return shapes


def excluded(graph: ir.Graph, pattern: str) -> list[ir.Node]:
    """The nodes that a pattern leaves alone.

    Raises:
        InputError: prune.exclude, when there is none.
    """
    held = [n for n in graph if answers(n, pattern)]
    if not held:
        raise InputError("prune.exclude", pattern, "matches no node", "name a node or an operator; * and ? match")
    return held


def _exclude(graph: ir.Graph, t: Trace, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        for node in excluded(graph, pattern):
            for value in node.outputs:
                for labels in t.axes_of(value):
                    t.stay(labels, f"excluded by {pattern!r}")


def _units(t: Trace) -> tuple[Labels, int]:
    """Number the sets of atoms that may go: made by a layer in floats, tied to nothing that stays."""
    roots = t.atoms.all_roots()
    made: set[int] = set()
    for weight in t.weights.values():
        if weight.dtype.is_floating_point():
            for axis, labels in weight.labels.items():
                if weight.roles[axis] == "out":
                    made.update(roots[labels].tolist())
    free = sorted(root for root in made if t.atoms.pinned(root) is None)
    number = np.full(len(roots) + 1, FIXED, np.int64)
    number[free] = np.arange(len(free))
    return (number[roots] if len(roots) else np.zeros(0, np.int64)), len(free)


def _tasks(t: Trace, unit_of: Labels, nodes: list[ir.Node], layers: Sequence[Layer]) -> list[Task]:
    at = {node: i for i, node in enumerate(nodes)}
    tasks = []
    for work in t.work:
        layer = layers[at[work.node]]
        macs = layer.macs.value if layer.macs is not None else None
        out = None if work.out is None else unit_of[work.out]
        tasks.append(Task(label(work.node), macs or 0, tuple(unit_of[a] for a in work.axes), out, work.share))
    return tasks


def _groups(t: Trace, unit_of: Labels, units: int, order: Mapping[ir.Node, int]) -> list[Group]:
    """Units that lie along the same axis of a weight belong together."""
    together = Atoms()
    together.fresh(units)
    parts: list[tuple[int, Part]] = []
    for weight in t.weights.values():
        for axis, labels in weight.labels.items():
            along = unit_of[labels]
            free = np.unique(along[along != FIXED])
            if weight.roles[axis] != "out" or not len(free):
                continue
            together.unite_rows(free[None, :])
            uses = sorted((n for n, _ in weight.uses), key=lambda n: order.get(n, 0))
            parts.append((order.get(uses[0], 0), Part(weight, axis, along, tuple(label(n) for n in uses))))
    by_head: dict[int, list[Part]] = {}
    for _, part in sorted(parts, key=lambda p: p[0]):
        by_head.setdefault(together.find(int(part.units[part.units != FIXED][0])), []).append(part)
    root_of = np.zeros(units, np.int64)
    roots = t.atoms.all_roots()
    root_of[unit_of[unit_of != FIXED]] = roots[unit_of != FIXED]
    members: dict[int, list[int]] = {}
    for unit in range(units):
        members.setdefault(together.find(unit), []).append(unit)
    groups = []
    for key, held in by_head.items():
        inexact = next((why for u in members[key] if (why := t.atoms.loose(int(root_of[u])))), "")
        groups.append(Group(held[0].layers[0], np.asarray(members[key], np.int64), tuple(held), inexact))
    return groups


def _pinned(t: Trace) -> list[tuple[str, str]]:
    """Layers none of whose channels can go."""
    found = []
    for weight in t.weights.values():
        for axis, labels in weight.labels.items():
            if weight.roles[axis] != "out":
                continue
            reasons = [t.atoms.pinned(root) for root in t.atoms.roots(labels).tolist()]
            if all(reasons):
                found.append((label(weight.uses[0][0]), f"its channels stay: {reasons[0]}"))
    return found
