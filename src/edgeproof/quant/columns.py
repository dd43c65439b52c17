"""See a layer as the matrix product that it is: weights [G, O, K] times columns [G, K, P].

G are the groups, O the output channels of one, K the products that make one output, and P positions: places of a
convolution's window, or rows of a matrix product. Everything that is learned about a layer without labels (the mean of
its error, the second moments that rounding needs) is learned on such columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import attribute
from .layers import Layer

if TYPE_CHECKING:
    import onnx_ir as ir

Matrix = NDArray[Any]


def unsupported(node: ir.Node, layer: Layer) -> str | None:
    """Why a layer cannot be seen so, if it cannot."""
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return f"{node.op_type} is not seen as columns"
    if node.op_type == "MatMul" and layer.weight.ndim != 2:
        return f"its weight has rank {layer.weight.ndim}; expected 2"
    return None


def matrix(node: ir.Node, layer: Layer) -> Matrix:
    """A layer's weight as [G, O, K]."""
    weight = layer.weight
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        return weight.reshape(groups, weight.shape[0] // groups, -1)
    across = weight if node.op_type == "Gemm" and attribute(node, "transB", 0) else weight.T
    return across[None]


def weight_like(node: ir.Node, layer: Layer, made: Matrix) -> NDArray[np.float32]:
    """The inverse of `matrix`: [G, O, K] as a weight shaped like the layer's."""
    if node.op_type == "Conv":
        back = made.reshape(layer.weight.shape)
    elif node.op_type == "Gemm" and attribute(node, "transB", 0):
        back = made[0]
    else:
        back = made[0].T
    return np.ascontiguousarray(back, np.float32)


def columns(node: ir.Node, layer: Layer, x: Matrix, most: int, seed: int = 0) -> Matrix:
    """The columns that a layer makes of its input, at no more than ``most`` positions.

    Args:
        node: A Conv, Gemm or MatMul.
        layer: Its weight.
        x: Its input: [N, C, …] or [..., K].
        most: Positions taken; when there are more, so many of them are drawn.
        seed: Of the draw.

    Returns:
        float32 [G, K, P]; padding counts as zeros.
    """
    if node.op_type == "Conv":
        return _windows(node, layer, x, most, seed)
    rows = x.reshape(-1, x.shape[-1])
    return np.ascontiguousarray(rows[_drawn(len(rows), most, seed)].T, np.float32)[None]


def _drawn(count: int, most: int, seed: int) -> NDArray[np.intp]:
    if count <= most:
        return np.arange(count)
    # One from every stretch: as even as a stride, without its habit of meeting the same column again and again.
    ends = np.arange(most) * count // most
    width = np.diff(np.append(ends, count))
    return ends + (np.random.default_rng(seed).random(most) * width).astype(np.intp)


def _windows(node: ir.Node, layer: Layer, x: Matrix, most: int, seed: int) -> Matrix:
    kernel, size = layer.weight.shape[2:], x.shape[2:]
    rank = len(kernel)
    strides = tuple(attribute(node, "strides", None) or (1,) * rank)
    dilations = tuple(attribute(node, "dilations", None) or (1,) * rank)
    pads = _pads(node, kernel, size, strides, dilations)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    out = [(size[i] + pads[i] + pads[rank + i] - reach[i]) // strides[i] + 1 for i in range(rank)]
    if min(out) < 1 or not x.shape[0]:
        return np.zeros((attribute(node, "group", 1), int(np.prod(layer.weight.shape[1:])), 0), np.float32)
    places = np.unravel_index(_drawn(x.shape[0] * int(np.prod(out)), most, seed), (x.shape[0], *out))
    # Channels last: then every tap of every position is one contiguous copy.
    flat = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    taps = np.empty((len(places[0]), int(np.prod(kernel)), x.shape[1]), np.float32)
    for tap, offset in enumerate(np.ndindex(*kernel)):
        at = [places[1 + i] * strides[i] - pads[i] + offset[i] * dilations[i] for i in range(rank)]
        inside = np.logical_and.reduce([(a >= 0) & (a < s) for a, s in zip(at, size, strict=True)])
        where = [places[0], *(np.clip(a, 0, s - 1) for a, s in zip(at, size, strict=True))]
        taps[:, tap] = flat[np.ravel_multi_index(where, (x.shape[0], *size))]
        taps[~inside, tap] = 0.0
    groups = attribute(node, "group", 1)
    stacked = taps.reshape(len(taps), -1, groups, x.shape[1] // groups)  # [P, taps, G, C/G]
    return np.ascontiguousarray(stacked.transpose(2, 3, 1, 0).reshape(groups, -1, len(taps)))


def _pads(
    node: ir.Node, kernel: tuple[int, ...], size: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> list[int]:
    """Padding at the beginnings, then at the ends. Source: ONNX Conv-11, auto_pad."""
    rank, auto = len(kernel), attribute(node, "auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        starts, ends = [], []
        for k, s, stride, d in zip(kernel, size, strides, dilations, strict=True):
            total = max(0, (-(-s // stride) - 1) * stride + d * (k - 1) + 1 - s)
            less, more = total // 2, total - total // 2
            starts.append(less if auto == "SAME_UPPER" else more)
            ends.append(more if auto == "SAME_UPPER" else less)
        return starts + ends
    return [0] * (2 * rank) if auto == "VALID" else list(attribute(node, "pads", None) or (0,) * (2 * rank))
