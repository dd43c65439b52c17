"""Rules for what only moves elements: Reshape and its kin, Transpose, Concat, Expand, DepthToSpace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..model import attribute
from .atoms import Labels
from .targets import numbers_of, retarget
from .trace import Axes, Trace, UnfollowedError, is_constant

if TYPE_CHECKING:
    import onnx_ir as ir

AHEAD = 16
"""How many operators to look past for what a split axis is for."""


def reshape(t: Trace, node: ir.Node) -> None:
    """Reshape: a channel becomes a block of columns, heads, or groups."""
    axes = regrouped(t, node)
    before = t.read(node, 0)
    out = node.outputs[0]
    if len(node.inputs) > 1:
        labels = {i: a for i, a in enumerate(axes) if a is not None}
        zero = not attribute(node, "allowzero", 0)
        retarget(t, node, 1, labels, copied=dict(enumerate(before)) if zero else {})
    elif any(a is not None for a in axes):  # opset 1 to 4: an attribute
        raise UnfollowedError("its target is an attribute of an old operator set")
    t.put(out, axes)


def flatten(t: Trace, node: ir.Node) -> None:
    """Flatten, Squeeze, Unsqueeze: sizes follow by themselves."""
    t.put(node.outputs[0], regrouped(t, node))


def regrouped(t: Trace, node: ir.Node) -> Axes:
    """Atoms of a reshaped tensor."""
    before = t.read(node, 0)
    source, out = t.dims(node.inputs[0]), t.dims(node.outputs[0])
    if math.prod(source) != math.prod(out):
        raise UnfollowedError(f"it brings {source} to {out}")
    axes: Axes = [None] * len(out)
    for old, new in blocks(source, out):
        labelled = [i for i in old if before[i] is not None]
        if not labelled:
            continue
        kept = max(labelled, key=lambda i: source[i])
        for i in labelled:
            if i != kept:
                t.stay(before[i], "it is merged with another axis")
        labels = before[kept]
        assert labels is not None
        if len(old) == len(new) == 1:
            axes[new[0]] = labels
            continue
        shape = [1] * len(old)
        shape[old.index(kept)] = -1
        grid = np.broadcast_to(t.atoms.roots(labels).reshape(shape), [source[i] for i in old])
        split = grid.reshape([out[j] for j in new])
        rows = [np.moveaxis(split, k, 0).reshape(out[j], -1) for k, j in enumerate(new)]
        k = _carrier(t, node.outputs[0], new, rows)
        axes[new[k]] = t.atoms.unite_rows(rows[k])
    return axes


def blocks(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Axes of two shapes of equal size that hold the same elements; axes of one element are left out.

    >>> blocks((2, 12, 64), (2, 3, 4, 8, 8))
    [([0], [0]), ([1], [1, 2]), ([2], [3, 4])]
    """
    left = [i for i, d in enumerate(a) if d != 1]
    right = [j for j, d in enumerate(b) if d != 1]
    found: list[tuple[list[int], list[int]]] = []
    while left and right:
        old, new = [left.pop(0)], [right.pop(0)]
        m, n = a[old[0]], b[new[0]]
        while m != n:
            if m < n:
                old.append(left.pop(0))
                m *= a[old[-1]]
            else:
                new.append(right.pop(0))
                n *= b[new[-1]]
        found.append((old, new))
    return found


def _carrier(t: Trace, value: ir.Value, axes: list[int], rows: list[Labels]) -> int:
    """Which axis of a split one keeps its atoms; those that differ along the others are tied.

    One along which nothing has to be tied; else one that stays whole where tensors are multiplied or normalised (heads,
    groups); else the longest (the channels within each group of a shuffle).
    """
    for k, grid in enumerate(rows):
        if len(grid) > 1 and bool((grid == grid[:, :1]).all()):
            return k
    for k, axis in enumerate(axes):
        if _stays_whole(t, value, axis, AHEAD):
            return k
    return max(range(len(rows)), key=lambda k: len(rows[k]))


def _stays_whole(t: Trace, value: ir.Value, axis: int, depth: int) -> bool:
    """Whether an axis ends as a batch of a product of tensors, or as the channels of an instance normalisation."""
    for user in [use.node for use in value.uses()] if depth else []:
        index = next(i for i, v in enumerate(user.inputs) if v is value)
        rank = len(t.dims(value))
        if user.op_type == "MatMul" and not is_constant(user.inputs[1 - index] or value):
            return axis < rank - 2
        if user.op_type == "InstanceNormalization":
            return axis == 1
        if user.op_type == "Attention" and rank == 4:
            return axis == 1
        after = _moved(t, user, value, index, axis)
        if after is not None and _stays_whole(t, user.outputs[0], after, depth - 1):
            return True
    return False


def _moved(t: Trace, node: ir.Node, value: ir.Value, index: int, axis: int) -> int | None:
    """Where an axis of an input lies in a node's first output; None when it ends there."""
    try:
        source, out = t.dims(value), t.dims(node.outputs[0])
    except UnfollowedError:
        return None
    if node.op_type == "Transpose":
        return list(_permutation(node, len(source))).index(axis)
    if node.op_type in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
        for old, new in blocks(source, out):
            if axis in old:
                return next((j for j in new if out[j] == source[axis]), None)
        return None
    if node.op_type in ("Gather", "Split", "Slice") and index == 0:
        if node.op_type == "Gather":
            along = int(attribute(node, "axis", 0)) % len(source)
            return None if along == axis or len(out) > len(source) else axis - (len(out) < len(source) and along < axis)
        return axis if source[axis] == out[axis] else None
    at = axis + len(out) - len(source)
    return at if 0 <= at < len(out) and out[at] == source[axis] else None


def transpose(t: Trace, node: ir.Node) -> None:
    """Transpose."""
    before = t.read(node, 0)
    t.put(node.outputs[0], [before[i] for i in _permutation(node, len(before))])


def _permutation(node: ir.Node, rank: int) -> Sequence[int]:
    return tuple(attribute(node, "perm", None) or reversed(range(rank)))


def concat(t: Trace, node: ir.Node) -> None:
    """Concat: one after the other along its axis, tied along all others."""
    inputs = [t.read(node, i) for i in range(len(node.inputs))]
    rank = len(t.dims(node.outputs[0]))
    axis = int(attribute(node, "axis", 1)) % rank
    axes: Axes = []
    for i in range(rank):
        if i != axis:
            axes.append(_all_joined(t, [a[i] for a in inputs], "it is laid beside a tensor that stays"))
            continue
        parts: list[Labels] = []
        for value, a in zip(node.inputs, inputs, strict=True):
            found = a[i]
            if found is None:
                found = t.atoms.fresh(t.dims(value)[i])
                t.atoms.pin(found, "that part of the concatenation stays")
            parts.append(found)
        axes.append(np.concatenate(parts))
    t.put(node.outputs[0], axes)


def _all_joined(t: Trace, found: Sequence[Labels | None], why: str) -> Labels | None:
    first = found[0]
    for other in found[1:]:
        first = t.join(first, other, why)
    return first


def expand(t: Trace, node: ir.Node) -> None:
    """Expand: axes that are not repeated keep their atoms."""
    before = t.read(node, 0)
    source, out = t.dims(node.inputs[0]), t.dims(node.outputs[0])
    lead = len(out) - len(source)
    axes: Axes = [None] * len(out)
    for i, labels in enumerate(before, start=lead):
        axes[i] = labels if source[i - lead] == out[i] else None
    given = len(t.dims(node.inputs[1])) and t.dims(node.inputs[1])[0]
    places = {i - len(out) + given: a for i, a in enumerate(axes) if a is not None and i - len(out) + given >= 0}
    retarget(t, node, 1, places, copied={})
    t.put(node.outputs[0], axes)


def tile(t: Trace, node: ir.Node) -> None:
    """Tile: the same atoms again."""
    repeats = numbers_of(node, 1, "repeats") or []
    before = t.read(node, 0)
    t.put(node.outputs[0], [None if a is None else np.tile(a, r) for a, r in zip(before, repeats, strict=True)])


def depth_to_space(t: Trace, node: ir.Node) -> None:
    """DepthToSpace: the channels that become one go together."""
    channels = t.read(node, 0)[1]
    size = int(attribute(node, "blocksize", 1)) ** 2
    if channels is None:
        return
    crd = attribute(node, "mode", "DCR") == "CRD"
    grid = channels.reshape(-1, size) if crd else channels.reshape(size, -1).T
    t.put(node.outputs[0], [None, t.atoms.unite_rows(grid), None, None])


def space_to_depth(t: Trace, node: ir.Node) -> None:
    """SpaceToDepth: every channel comes in several places."""
    channels = t.read(node, 0)[1]
    if channels is not None:
        t.put(node.outputs[0], [None, np.tile(channels, int(attribute(node, "blocksize", 1)) ** 2), None, None])
