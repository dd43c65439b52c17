"""Rules for layers: convolutions, matrix products, normalisations, recurrences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..model import attribute
from .atoms import Labels
from .trace import Axes, Edits, Keep, Role, Trace, UnfollowedError, Work

if TYPE_CHECKING:
    import onnx_ir as ir

READ = "it is read together with channels that stay"
SLID = "a kernel slides along it"


def conv(t: Trace, node: ir.Node) -> None:
    """Conv: makes channels and reads channels; grouped ones lose whole groups, or the same places of every group."""
    x = t.read(node, 0)
    weight = t.dims(node.inputs[1])
    groups = int(attribute(node, "group", 1))
    _apart(t, x[2:], SLID)
    made = t.axis(node, 1, 0, "out")
    if groups == 1:
        taken = t.axis(node, 1, 1, "in")
        t.join(taken, x[1], READ)
        factors: tuple[Labels | None, ...] = (made, taken)
    else:
        factors = _grouped(t, node, x[1], made, groups, weight)
    _bias(t, node, 2, made)
    _layer(t, node, x[1], 1, factors, made)
    t.put(node.outputs[0], [x[0], made, *[None] * (len(weight) - 2)])


def _grouped(
    t: Trace, node: ir.Node, x: Labels | None, made: Labels | None, groups: int, weight: tuple[int, ...]
) -> tuple[Labels | None, ...]:
    each_in, each_out = weight[1], weight[0] // groups
    if x is None or made is None:
        t.stay(made, READ)
        t.stay(x, "a grouped convolution reads it")
        return (made,)
    grid_in, grid_out = x.reshape(groups, each_in), made.reshape(groups, each_out)
    if groups >= each_in:  # whole groups, as in depthwise convolutions and ResNeXt
        heads = t.atoms.unite_rows(np.concatenate([grid_in, grid_out], axis=1))
        t.edit(node, [heads], _Groups(heads))
        return (made,)
    t.atoms.unite_rows(grid_out.T)
    first = t.atoms.unite_rows(grid_in.T)
    taken = t.axis(node, 1, 1, "in")
    t.join(taken, first, READ)
    return made, taken


class _Groups:
    """The number of groups that stay."""

    def __init__(self, heads: Labels, name: str = "group") -> None:
        self._heads = heads
        self._name = name

    def __call__(self, node: ir.Node, edits: Edits, keep: Keep) -> None:
        import onnx_ir as ir

        node.attributes[self._name] = ir.AttrInt64(self._name, int(keep(self._heads).sum()))


def conv_transpose(t: Trace, node: ir.Node) -> None:
    """ConvTranspose: the weight lies the other way round, [inputs, outputs / group, …]."""
    x = t.read(node, 0)
    weight = t.dims(node.inputs[1])
    groups = int(attribute(node, "group", 1))
    _apart(t, x[2:], SLID)
    taken = t.axis(node, 1, 0, "in")
    t.join(taken, x[1], READ)
    if groups == 1:
        made = t.axis(node, 1, 1, "out")
        factors: tuple[Labels | None, ...] = (taken, made)
    else:
        made, factors = None, (taken,)
        if x[1] is not None:
            heads = t.atoms.unite_rows(x[1].reshape(groups, -1))
            made = np.repeat(heads, weight[1])
            t.edit(node, [heads], _Groups(heads))
    _bias(t, node, 2, made)
    _layer(t, node, x[1], 1, factors, made)
    t.put(node.outputs[0], [x[0], made, *[None] * (len(weight) - 2)])


def gemm(t: Trace, node: ir.Node) -> None:
    """Gemm."""
    a, b = t.read(node, 0), t.dims(node.inputs[1])
    turned = bool(attribute(node, "transA", 0))
    rows, read = (a[1], a[0]) if turned else (a[0], a[1])
    axis = 0 if attribute(node, "transB", 0) else 1
    if len(b) != 2:
        raise UnfollowedError("its second input is no matrix")
    made, taken = t.axis(node, 1, axis, "out"), t.axis(node, 1, 1 - axis, "in")
    t.join(taken, read, READ)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = t.dims(node.inputs[2])
        for i, other in enumerate((rows, made)[2 - len(bias) :] if bias else ()):
            if bias[i] > 1:
                t.join(t.axis(node, 2, i, "vector"), other, READ)
    _layer(t, node, read, 0 if turned else 1, (made, taken), made)
    t.put(node.outputs[0], [rows, made])


def matmul(t: Trace, node: ir.Node) -> None:
    """MatMul of anything with anything; batches are tied, which is how heads hang together."""
    a_shape, b_shape = t.dims(node.inputs[0]), t.dims(node.inputs[1])
    if min(len(a_shape), len(b_shape)) < 2:
        raise UnfollowedError("it multiplies by a vector")
    b_weight = t.weight(node, 1) is not None
    a = _matrix(t, node, 0, ("out", "in"))
    b = _matrix(t, node, 1, ("in", "out"))
    t.join(b[-2], a[-1], READ)
    batch = broadcast(t, [a[:-2], b[:-2]], [a_shape[:-2], b_shape[:-2]])
    axes = [*batch, a[-2], b[-1]]
    factors = (*axes, a[-1])
    t.work.append(Work(node, tuple(f for f in factors if f is not None), b[-1]))
    if b_weight and a[-1] is not None and node.inputs[0] is not None:
        t.reads.append((node.inputs[0].name or "", len(a_shape) - 1, a[-1], node))
    t.put(node.outputs[0], axes)


def _matrix(t: Trace, node: ir.Node, index: int, roles: tuple[Role, Role]) -> Axes:
    """Atoms of a factor of a matrix product; the roles are those of its last two axes where it is a weight."""
    rank = len(t.dims(node.inputs[index]))
    batch: Role = "data"
    each = (*(batch,) * (rank - 2), *roles)
    return [t.axis(node, index, i, each[i]) for i in range(rank)]


def broadcast(t: Trace, inputs: list[Axes], shapes: list[tuple[int, ...]]) -> Axes:
    """Atoms of what tensors make element by element; axes of the same length are tied."""
    rank = max((len(s) for s in shapes), default=0)
    axes: Axes = []
    for i in range(-rank, 0):
        size = max(s[i] for s in shapes if len(s) >= -i)
        found = [a[i] for a, s in zip(inputs, shapes, strict=True) if len(s) >= -i and s[i] == size]
        first = found[0] if size > 1 else None
        for other in found[1:] if size > 1 else ():
            first = t.join(first, other, "it is combined with a tensor that stays")
        axes.append(first)
    return axes


def einsum(t: Trace, node: ir.Node) -> None:
    """Einsum without ellipsis: axes of the same letter are tied."""
    equation = str(attribute(node, "equation", "")).replace(" ", "")
    if "." in equation or "->" not in equation:
        raise UnfollowedError(f"its equation is {equation}")
    terms, result = equation.split("->")
    letters: dict[str, Labels | None] = {}
    for i, term in enumerate(terms.split(",")):
        for letter, labels in zip(term, t.read(node, i), strict=True):
            letters[letter] = t.join(letters[letter], labels, READ) if letter in letters else labels
    t.work.append(Work(node, tuple(a for a in letters.values() if a is not None), None))
    t.put(node.outputs[0], [letters[letter] for letter in result])


def batch_norm(t: Trace, node: ir.Node) -> None:
    """BatchNormalization: four numbers a channel."""
    x = t.read(node, 0)
    for index in range(1, 5):
        t.join(t.axis(node, index, 0, "scale" if index == 1 else "vector"), x[1], READ)
    t.put(node.outputs[0], x)


def instance_norm(t: Trace, node: ir.Node) -> None:
    """InstanceNormalization: every channel by itself."""
    x = t.read(node, 0)
    _apart(t, x[2:], "it is normalised over")
    for index in (1, 2):
        t.join(t.axis(node, index, 0, "vector"), x[1], READ)
    t.put(node.outputs[0], [x[0], x[1], *[None] * (len(x) - 2)])


def layer_norm(t: Trace, node: ir.Node) -> None:
    """LayerNormalization, RMSNormalization: mean and variance are of the channels that stay."""
    x = t.read(node, 0)
    axis = int(attribute(node, "axis", -1)) % len(x)
    for labels in x[axis:]:
        if labels is not None:
            t.atoms.loosen(labels, "a mean over channels changes with their number")
    for index in range(1, len(node.inputs)):
        if node.inputs[index] is None:
            continue
        shape = t.dims(node.inputs[index])
        for i, size in enumerate(shape):
            if size > 1:
                t.join(t.axis(node, index, i, "vector"), x[len(x) - len(shape) + i], READ)
    t.put(node.outputs[0], x)


def group_norm(t: Trace, node: ir.Node) -> None:
    """GroupNormalization: whole groups go."""
    x = t.read(node, 0)
    _apart(t, x[2:], "it is normalised over")
    groups = int(attribute(node, "num_groups", 1))
    if x[1] is not None:
        heads = t.atoms.unite_rows(x[1].reshape(groups, -1))
        for index in (1, 2):
            held = t.axis(node, index, 0, "vector")
            t.join(held, x[1] if held is None or len(held) == len(x[1]) else heads, READ)
        t.edit(node, [heads], _Groups(heads, "num_groups"))
    t.put(node.outputs[0], [x[0], x[1], *[None] * (len(x) - 2)])


def lrn(t: Trace, node: ir.Node) -> None:
    """LRN: neighbours change when a channel between them goes."""
    x = t.read(node, 0)
    if x[1] is not None:
        t.atoms.loosen(x[1], "local response normalisation looks at neighbouring channels")
    t.put(node.outputs[0], x)


def recurrent(t: Trace, node: ir.Node) -> None:
    """LSTM, GRU, RNN: what they read may go, what they make stays."""
    x = t.read(node, 0)
    t.join(t.axis(node, 1, 2, "in"), x[2], READ)
    read, state = t.dims(node.inputs[1])[2], t.dims(node.inputs[2])[2]
    t.work.append(Work(node, () if x[2] is None else (x[2],), None, read / (read + state)))
    _apart(t, x[:2], "a recurrence runs along it")
    for index in range(2, len(node.inputs)):
        if node.inputs[index] is not None and t.weight(node, index) is None:
            _apart(t, t.read(node, index), "it is the state of a recurrence")
    for out in node.outputs:
        t.forget(out)


def _apart(t: Trace, axes: Axes, why: str) -> None:
    for labels in axes:
        t.stay(labels, why)


def _bias(t: Trace, node: ir.Node, index: int, made: Labels | None) -> None:
    if len(node.inputs) > index and node.inputs[index] is not None:
        t.join(t.axis(node, index, 0, "vector"), made, READ)


def _layer(
    t: Trace, node: ir.Node, read: Labels | None, axis: int, factors: tuple[Labels | None, ...], made: Labels | None
) -> None:
    t.work.append(Work(node, tuple(f for f in factors if f is not None), made))
    value = node.inputs[0]
    if read is not None and value is not None:
        t.reads.append((value.name or "", axis, read, node))
