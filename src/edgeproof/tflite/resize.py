"""Resize and Upsample.

LiteRT's two operators know three ways to place the points of a grid, ONNX knows more. Where the points of both are the
same, LiteRT's operator is used; else nearest becomes a GATHER per axis, and what interpolates becomes a product with
the matrix of its weights per axis.

Source: ONNX Resize-19, coordinate transformation modes; LiteRT's ``resize_nearest_neighbor.h``, ``resize_bilinear.h``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import attribute
from . import layout
from .held import REMEDY, refuse
from .lowering import Lowering

if TYPE_CHECKING:
    import onnx_ir as ir

_WAYS = ((False, False), (False, True), (True, False))
"""(align corners, half-pixel centres) of LiteRT's operators."""


def resize(low: Lowering, node: ir.Node) -> None:
    """Resize and Upsample."""
    value = node.inputs[0]
    shape, result = low.shape(value), low.shape(node.outputs[0])
    mode = attribute(node, "mode", "nearest")
    where = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if node.op_type == "Upsample" or (low.opset < 11):
        where = "asymmetric"
    if where == "tf_crop_and_resize" or attribute(node, "antialias", 0):
        asked = "cuts out a part (tf_crop_and_resize)" if where == "tf_crop_and_resize" else "smooths (antialias=1)"
        raise refuse(node, f"{asked}, which LiteRT cannot", REMEDY)
    axes = [a for a in range(len(shape)) if shape[a] != result[a]]
    scales = _scales(low, node, shape, result)
    points = {a: coordinates(shape[a], result[a], scales[a], where) for a in axes}
    if mode == "nearest":
        if node.op_type == "Upsample" or low.opset < 11:
            how = "floor"
        else:
            how = attribute(node, "nearest_mode", "round_prefer_floor")
        _nearest(low, node, {a: nearest(p, shape[a], how) for a, p in points.items()})
        return
    cubic = mode == "cubic"
    a = float(attribute(node, "cubic_coeff_a", -0.75))
    outside = bool(attribute(node, "exclude_outside", 0))
    weights = {
        axis: (cubic_weights(p, shape[axis], a, outside) if cubic else linear_weights(p, shape[axis]))
        for axis, p in points.items()
    }
    _interpolated(low, node, weights, cubic)


def _scales(low: Lowering, node: ir.Node, shape: layout.Shape, result: layout.Shape) -> list[float]:
    index = 1 if node.op_type == "Upsample" or low.opset < 11 else 2
    given = attribute(node, "scales", None)
    held = node.inputs[index] if given is None and index < len(node.inputs) else None
    # An empty list of scales means that sizes are given.
    number = low.wanted(node, index, "scales") if held is not None and low.shape(held) != (0,) else None
    scales = [float(s) for s in (given if given is not None else [] if number is None else number.reshape(-1))]
    axes = attribute(node, "axes", None) or range(len(shape))
    full = [r / s for r, s in zip(result, shape, strict=True)]
    if scales:
        for axis, scale in zip(axes, scales, strict=True):
            full[axis] = scale
    return full


def coordinates(size: int, new: int, scale: float, where: str) -> NDArray[np.float64]:
    """Where the points of the new grid lie in the old one, float64 [new]."""
    at = np.arange(new, dtype=np.float64)
    if where == "asymmetric":
        return at / scale
    if where == "align_corners":
        return at * (size - 1) / (scale * size - 1) if scale * size > 1 else at * 0
    if where == "pytorch_half_pixel" and new == 1:
        return at * 0
    middle = (at + 0.5) / scale - 0.5
    if where == "half_pixel_symmetric":
        middle += size / 2 * (1 - new / (scale * size))
    return middle


def nearest(points: NDArray[np.float64], size: int, how: str) -> NDArray[np.int64]:
    """The old point that each new one takes."""
    rounded = {
        "round_prefer_floor": np.ceil(points - 0.5),
        "round_prefer_ceil": np.floor(points + 0.5),
        "floor": np.floor(points),
        "ceil": np.ceil(points),
    }[how]
    return np.clip(rounded, 0, size - 1).astype(np.int64)


def linear_weights(points: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Share of each old point in each new one, float64 [new, size]."""
    points = np.clip(points, 0, size - 1)
    low = np.minimum(np.floor(points).astype(np.int64), size - 1)
    made = np.zeros((len(points), size))
    rows = np.arange(len(points))
    made[rows, low] += 1 - (points - low)
    made[rows, np.minimum(low + 1, size - 1)] += points - low
    return made


def cubic_weights(points: NDArray[np.float64], size: int, a: float, outside: bool) -> NDArray[np.float64]:
    """The same for four points, by the cubic convolution; those outside are repeated edges, or left out.

    Source: R. Keys, Cubic convolution interpolation for digital image processing, 1981, equation 4 with its ``a``.
    """
    made = np.zeros((len(points), size))
    rows = np.arange(len(points))
    floor = np.floor(points).astype(np.int64)
    for tap in range(-1, 3):
        d = np.abs(points - (floor + tap))
        near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        weight = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
        inside = (floor + tap >= 0) & (floor + tap < size)
        np.add.at(made, (rows, np.clip(floor + tap, 0, size - 1)), np.where(inside, weight, 0.0) if outside else weight)
    return made / made.sum(1, keepdims=True) if outside else made


def _nearest(low: Lowering, node: ir.Node, index: Mapping[int, NDArray[np.int64]]) -> None:
    value = node.inputs[0]
    shape, result = low.shape(value), low.shape(node.outputs[0])
    if len(shape) == 4 and set(index) <= {2, 3}:
        for align, half in _WAYS:
            if all(np.array_equal(i, _lite_nearest(shape[a], result[a], align, half)) for a, i in index.items()):
                _grid(low, node, "RESIZE_NEAREST_NEIGHBOR", align, half)
                return
    perm = low.order(value)
    x = low.read(value, perm)
    for axis, i in index.items():
        t = low.file.tensors[x]
        size = tuple(len(i) if a == axis else n for a, n in zip(perm, t.shape, strict=True))
        x = low.emit("GATHER", [x, low.integers(i)], size, {"axis": perm.index(axis), "batchDims": 0}, quant=t.quant)
    low.give(x, perm)


def _grid(low: Lowering, node: ir.Node, code: str, align: bool, half: bool) -> None:
    order = layout.channels_last(4)
    x = low.read(node.inputs[0], order)
    result = low.shape(node.outputs[0])
    quant = low.file.tensors[x].quant
    inputs = [x, low.integers(result[2:])]
    shape = layout.stored(result, order)
    low.give(low.emit(code, inputs, shape, {"alignCorners": align, "halfPixelCenters": half}, quant=quant), order)


def _lite_nearest(size: int, new: int, align: bool, half: bool) -> NDArray[np.int64]:
    scale = np.float32((size - 1) / (new - 1)) if align and new > 1 else np.float32(size / new)
    at = (np.arange(new, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    found = np.floor(at + np.float32(0.5)) if align else np.floor(at)
    at_last: NDArray[np.int64] = np.clip(found, 0, size - 1).astype(np.int64)
    return at_last


def _lite_linear(size: int, new: int, align: bool, half: bool) -> NDArray[np.float64]:
    scale = (size - 1) / (new - 1) if align and new > 1 else size / new
    at = np.arange(new, dtype=np.float64)
    return linear_weights((at + 0.5) * scale - 0.5 if half else at * scale, size)


def _interpolated(low: Lowering, node: ir.Node, weights: Mapping[int, NDArray[np.float64]], cubic: bool) -> None:
    value = node.inputs[0]
    shape, result = low.shape(value), low.shape(node.outputs[0])
    if len(shape) == 4 and set(weights) <= {2, 3} and not cubic:
        for align, half in _WAYS:
            ours = (_lite_linear(shape[a], result[a], align, half) for a in weights)
            if all(np.allclose(w, o, atol=1e-6) for w, o in zip(weights.values(), ours, strict=True)):
                _grid(low, node, "RESIZE_BILINEAR", align, half)
                return
    perm = low.order(value)
    x = low.form(value, perm, codes=False).tensor
    for axis, weight in weights.items():
        turned = layout.last(perm, axis)
        x = low.reorder(x, layout.change(perm, turned))
        size = (*low.file.tensors[x].shape[:-1], weight.shape[0])
        inputs = [x, low.store(weight.astype(np.float32))]
        x = low.emit(
            "FULLY_CONNECTED",
            inputs,
            size,
            {"weightsFormat": 0, "keepNumDims": True, "asymmetricQuantizeInputs": False},
        )
        perm = turned
    low.give(x, perm)


OPS: Mapping[str, Any] = {"Resize": resize, "Upsample": resize}
