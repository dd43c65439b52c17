"""Arithmetic of permutations: how a tensor is stored, and what it takes to store it otherwise.

A value of the ONNX graph with axes 0 … r-1 is stored with a permutation: stored axis ``i`` holds the value's axis
``perm[i]``. NCHW values stored as NHWC have ``(0, 2, 3, 1)``. A Transpose of the graph then moves nothing, it only
renames axes; data are moved where an operator demands another order, and only there.
"""

from __future__ import annotations

from collections.abc import Sequence

Perm = tuple[int, ...]
Shape = tuple[int, ...]


def identity(rank: int) -> Perm:
    """The order in which ONNX has the axes."""
    return tuple(range(rank))


def channels_last(rank: int) -> Perm:
    """Batch, space, channels: what convolutions and poolings read.

    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def stored(shape: Shape, perm: Perm) -> Shape:
    """The stored tensor's shape."""
    return tuple(shape[axis] for axis in perm)


def change(have: Perm, want: Perm) -> Perm:
    """The permutation that a TRANSPOSE takes to get from one stored order to another."""
    return tuple(have.index(axis) for axis in want)


def moves(order: Perm, shape: Shape) -> bool:
    """Whether a permutation of a stored tensor of ``shape`` moves any data: axes of size 1 may go anywhere."""
    large = [axis for axis in order if shape[axis] != 1]
    return large != sorted(large)


def transposed(perm: Perm, order: Sequence[int]) -> Perm:
    """How the result of a Transpose is stored by the very tensor that stores its input with ``perm``."""
    return tuple(list(order).index(axis) for axis in perm)


def without(perm: Perm, axes: Sequence[int]) -> Perm:
    """The permutation once axes of the value are gone (a reduction)."""
    left = sorted(set(perm) - set(axes))
    return tuple(left.index(axis) for axis in perm if axis not in axes)


def last(perm: Perm, axis: int) -> Perm:
    """The permutation with one axis of the value moved to the end of the storage."""
    return (*(a for a in perm if a != axis), axis)


def regrouped(shape: Shape, perm: Perm, new: Shape) -> Perm | None:
    """How the result of a Reshape is stored by a plain reshape of the stored tensor.

    Possible where every group of axes that is merged or split lies together, in order, in the storage.

    Args:
        shape: The value's shape.
        perm: How it is stored.
        new: Its shape after the Reshape.

    Returns:
        The permutation, or None when data must be moved first.

    >>> regrouped((1, 64, 7, 5), (0, 2, 3, 1), (1, 64, 35))
    (0, 2, 1)
    >>> regrouped((1, 64, 7, 5), (0, 2, 3, 1), (1, 448, 5)) is None
    True
    """
    order = [axis for axis in perm if shape[axis] != 1]
    made: dict[int, list[int]] = {}
    for old_axes, new_axes in _groups(shape, new):
        at = order.index(old_axes[0])
        if order[at : at + len(old_axes)] != old_axes:
            return None
        made[at] = new_axes
    result = [axis for at in sorted(made) for axis in made[at]]
    for axis, size in enumerate(new):
        if size == 1:
            result.insert(result.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(result)


def _groups(shape: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of axes (those of size 1 left out) with equal products before and after."""
    before = [a for a, n in enumerate(shape) if n != 1]
    after = [a for a, n in enumerate(new) if n != 1]
    groups = []
    while before and after:
        old, made = [before.pop(0)], [after.pop(0)]
        have, want = shape[old[0]], new[made[0]]
        while have != want:
            if have < want:
                old.append(before.pop(0))
                have *= shape[old[-1]]
            else:
                made.append(after.pop(0))
                want *= new[made[-1]]
        groups.append((old, made))
    return groups
