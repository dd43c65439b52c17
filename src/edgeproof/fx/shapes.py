"""Shapes: asking for them, and giving tensors new ones."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from . import at_run_time
from .call import Call, Handler, as_sizes, from_sizes
from .dtypes import to_torch
from .values import Constant, Size, Sizes, Value


def constant(n: Call) -> Value:
    """Constant, of any of its attributes."""
    attribute = next(iter(n.node.attributes.values()))
    if attribute.name == "value":
        tensor = to_torch(n.torch, attribute.value, n.build.onnx_node)
        name = n.node.outputs[0].name or ""
        return Constant(tensor, name if tensor.dtype.is_floating_point and n.trainable(name) else "", name)
    if attribute.name in ("value_float", "value_floats"):
        return Constant(n.torch.tensor(n.attr(attribute.name), dtype=n.torch.float32))
    if attribute.name in ("value_int", "value_ints"):
        return Constant(n.torch.tensor(n.attr(attribute.name), dtype=n.torch.int64))
    raise n.refused(f"holds its value as {attribute.name}, expected numbers", "remove text from the model")


def shape(n: Call) -> Value:
    """Shape, from `start` to `end`."""
    rank = n.rank()
    start, end, _ = slice(n.attr("start", 0), n.attr("end", rank)).indices(rank)
    return from_sizes(n.build, [n.size(0, i) for i in range(start, end)])


def size(n: Call) -> Value:
    """Size."""
    dims = [n.size(0, i) for i in range(n.rank())]
    return from_sizes(n.build, [_product(n, dims)], scalar=True)


def _product(n: Call, dims: Sequence[int | Size]) -> int | Size:
    whole: int | Size = 1
    for size in dims:
        whole = size if whole == 1 else n.build.number(operator.mul, whole, size)
    return whole


def reshape(n: Call) -> Value:
    """Reshape; a 0 copies the size of the input, unless allowzero."""
    target: Any = n.attr("shape") if n.opset < 5 else n.sizes(1)
    allow_zero = bool(n.attr("allowzero", 0))
    if isinstance(n[0], Sizes):
        return _sizes_reshaped(n, target)
    if target is None:
        return n.call(at_run_time.reshape, n[0], n[1], allow_zero)
    if not allow_zero:
        target = [n.size(0, i) if t == 0 and isinstance(t, int) else t for i, t in enumerate(target)]
    return n.call(n.torch.reshape, n[0], _filled(n, target))


def _filled(n: Call, target: list[int | Size]) -> list[int | Size]:
    """The target with its -1 as a number, when it can be known."""
    shape = n.shape(0)
    if shape is None or None in shape or target.count(-1) != 1 or not all(isinstance(t, int) for t in target):
        return target
    rest = functools.reduce(operator.mul, [t for t in target if t != -1], 1)
    whole = functools.reduce(operator.mul, [s or 0 for s in shape], 1)
    return [whole // rest if t == -1 and rest else t for t in target]


def _sizes_reshaped(n: Call, target: list[int | Size] | None) -> Value:
    sizes = as_sizes(n[0])
    if sizes is not None and target in ([-1], [len(sizes.items)]):
        return from_sizes(n.build, sizes.items)
    if sizes is not None and target == [] and len(sizes.items) == 1:
        return from_sizes(n.build, sizes.items, scalar=True)
    if target is None:
        raise n.refused("gives a shape computed at run time to a shape", "simplify the model")
    return n.call(n.torch.reshape, n[0], target)


def flatten(n: Call) -> Value:
    """Flatten into a matrix."""
    axis = n.axis("axis", 1)
    rank = n.rank()
    if axis == 1 and rank >= 2:
        return n.call(n.torch.flatten, n[0], 1)
    dims = [n.size(0, i) for i in range(rank)]
    return n.call(n.torch.reshape, n[0], [_product(n, dims[:axis]), _product(n, dims[axis:])])


def squeeze(n: Call) -> Value:
    """Squeeze the axes named, or all of size one."""
    if n.opset >= 13 and n.has(1) and n.constant(1) is None:
        return n.call(at_run_time.squeeze, n[0], n[1])
    axes = n.listed(1, "axes", 13)
    sizes = as_sizes(n[0])
    if isinstance(n[0], Sizes) and sizes is not None:
        return from_sizes(n.build, sizes.items, scalar=len(sizes.items) == 1)
    return n.call(n.torch.squeeze, n[0]) if axes is None else n.call(n.torch.squeeze, n[0], tuple(axes))


def unsqueeze(n: Call) -> Value:
    """Unsqueeze."""
    if n.opset >= 13 and n.constant(1) is None:
        return n.call(at_run_time.unsqueeze, n[0], n[1])
    axes = n.listed(1, "axes", 13) or []
    sizes = as_sizes(n[0])
    if isinstance(n[0], Sizes) and sizes is not None and sizes.scalar and axes in ([0], [-1]):
        return from_sizes(n.build, sizes.items)
    made: Value = n[0]
    shape = n.shape(0)
    whole = None if shape is None else len(shape) + len(axes)
    if whole is None and min(axes, default=0) < 0:
        n.rank()
    for axis in sorted(a + whole if a < 0 and whole is not None else a for a in axes):
        made = n.call(n.torch.unsqueeze, made, axis)
    return made


def transpose(n: Call) -> Value:
    """Transpose; reverses the axes when not told otherwise."""
    order = n.attr("perm") or list(range(n.rank()))[::-1]
    return n.call(n.torch.permute, n[0], order)


def expand(n: Call) -> Value:
    """Expand: both shapes may broadcast."""
    target = n.sizes(1)
    have = n.shape(0)
    if target is None or have is None:
        return n.call(at_run_time.expand, n[0], n[1])
    width = max(len(have), len(target))
    dims: list[int | Size] = [*[1] * (width - len(have)), *(n.size(0, i) for i in range(len(have)))]
    wanted: list[int | Size] = [*[1] * (width - len(target)), *target]
    made = [d if isinstance(w, int) and w == 1 else w for d, w in zip(dims, wanted, strict=True)]
    if any(not isinstance(w, int) and d != 1 for d, w in zip(dims, wanted, strict=True)):
        return n.call(at_run_time.expand_to, n[0], wanted)
    return n.call("expand", n[0], made)


def tile(n: Call) -> Value:
    """Tile."""
    repeats = n.sizes(1)
    if repeats is None:
        return n.call(at_run_time.tile, n[0], n[1])
    return n.call(n.torch.tile, n[0], tuple(repeats))


def constant_of_shape(n: Call) -> Value:
    """ConstantOfShape."""
    attribute = n.node.attributes.get("value")
    value = n.torch.zeros(1) if attribute is None else to_torch(n.torch, attribute.value, n.build.onnx_node)
    target = n.sizes(0)
    if target is None:
        return n.call(at_run_time.full, n[0], value.item(), value.dtype)
    return n.call(n.torch.full, target, value.item(), dtype=value.dtype)


def arange(n: Call) -> Value:
    """Range, of numbers, sizes or scalars known at run time."""
    sizes = [n.sizes(i) for i in range(3)]
    if all(s is not None and len(s) == 1 for s in sizes):
        return n.call(
            n.torch.arange, *(s[0] for s in sizes if s), dtype=n.torch.int64 if n.dtype() is None else n.dtype()
        )
    return n.call(at_run_time.arange, n[0], n[1], n[2])


def eye_like(n: Call) -> Value:
    """EyeLike."""
    dtype = n.dtype() if n.attr("dtype") is None else None
    if dtype is None:
        from .dtypes import torch_dtype

        dtype = torch_dtype(n.torch, n.attr("dtype", 1), n.build.onnx_node)
    return n.call(at_run_time.eye_like, n[0], n.attr("k", 0), dtype)


def depth_to_space(n: Call) -> Value:
    """DepthToSpace, in either order of the depth."""
    block, mode = n.attr("blocksize"), n.attr("mode", "DCR")
    if mode == "CRD":
        return n.call(n.functional.pixel_shuffle, n[0], block)
    return n.call(at_run_time.depth_to_space, n[0], block)


def space_to_depth(n: Call) -> Value:
    """SpaceToDepth."""
    if n.attr("mode", "DCR") == "CRD":
        return n.call(n.functional.pixel_unshuffle, n[0], n.attr("blocksize"))
    return n.call(at_run_time.space_to_depth, n[0], n.attr("blocksize"))


OPERATORS: dict[str, Handler] = {
    "Constant": constant,
    "Shape": shape,
    "Size": size,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Expand": expand,
    "Tile": tile,
    "ConstantOfShape": constant_of_shape,
    "Range": arange,
    "EyeLike": eye_like,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
