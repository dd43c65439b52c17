"""Poolings: MAX_POOL_2D, AVERAGE_POOL_2D, and MEAN over space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from . import layout
from .convolution import flat, flat_shape, give, given_pads, is_same, padded, padding, pair, space_of
from .held import REMEDY, is_read, off, refuse
from .lowering import Lowering

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray


def pool(low: Lowering, node: ir.Node) -> None:
    """MaxPool and AveragePool; an average that counts otherwise than LiteRT's is put right by a product."""
    shape = low.shape(node.inputs[0])
    space = space_of(node, len(shape))
    if any(is_read(v) for v in node.outputs[1:]):
        raise refuse(node, "tells where the largest values were, which LiteRT's MAX_POOL_2D does not", REMEDY)
    kernel, strides, dilations = (pair(node, n) for n in ("kernel_shape", "strides", "dilations"))
    if max(dilations) > 1:
        raise refuse(node, "is dilated, which LiteRT's poolings are not", REMEDY)
    result = low.shape(node.outputs[0])
    out, size = flat_shape(result), flat_shape(shape)[1:3]
    pads = padding(node, size, kernel, strides, dilations, out[1:3])
    largest = node.op_type == "MaxPool"
    windows = (kernel, strides, dilations, out[1:3])
    factor = None if largest else _factor(node, size, pads, windows)
    order = layout.channels_last(len(shape))
    # A factor per place has no codes of its own, so such an average is computed in float.
    x = low.read(node.inputs[0], order) if factor is None else low.form(node.inputs[0], order, codes=False).tensor
    x = flat(low, x, space)
    source = low.file.tensors[x].quant
    filler = -np.inf if largest else 0.0
    # SAME leaves the padding out of averages.
    separate = factor is not None or bool(attribute(node, "count_include_pad", 0))
    x, how = padded(low, x, pads, *windows, value=filler, separate=separate)
    y = low.emit(
        "MAX_POOL_2D" if largest else "AVERAGE_POOL_2D",
        [x],
        out,
        {
            "padding": how,
            "strideH": strides[0],
            "strideW": strides[1],
            "filterHeight": kernel[0],
            "filterWidth": kernel[1],
            "fusedActivationFunction": low.at.activation if factor is None else 0,
        },
        quant=source,
    )
    if factor is not None:
        y = low.emit("MUL", [y, low.store(factor)], out, {"fusedActivationFunction": low.at.activation})
    give(low, y, result, space)


def _factor(
    node: ir.Node, size: Sequence[int], pads: list[tuple[int, int]], windows: tuple[Any, ...]
) -> NDArray[np.float32] | None:
    """What the average of a padded window is multiplied by to count as ONNX does, float32 [1, h, w, 1]; None for 1."""
    kernel, strides, dilations, out = windows
    counted = bool(attribute(node, "count_include_pad", 0))
    given = given_pads(node) if attribute(node, "auto_pad", "NOTSET") == "NOTSET" else pads
    counts = []
    for i in (0, 1):
        begin, end = (-given[i][0], size[i] + given[i][1]) if counted else (0, size[i])
        first = np.arange(out[i]) * strides[i] - pads[i][0]
        counts.append(np.minimum(first + kernel[i], end) - np.maximum(first, begin))
    count = np.outer(*counts)
    area = kernel[0] * kernel[1]
    if (count == area).all() or (not counted and is_same(size, pads, kernel, strides, dilations, out)):
        return None
    factor: NDArray[np.float32] = (area / count).astype(np.float32)[None, :, :, None]
    return factor


def global_pool(low: Lowering, node: ir.Node) -> None:
    """GlobalAveragePool and GlobalMaxPool: MEAN or REDUCE_MAX over space, which stays as axes of size 1."""
    rank = low.rank(node.inputs[0])
    order = layout.channels_last(rank)
    axes = low.integers(range(1, rank - 1))
    x = low.read(node.inputs[0], order)
    average = node.op_type == "GlobalAveragePool"
    factor = low.factor(x, node.inputs[0]) if average and low.at.integer else 1.0
    quant = off(low.at.quant, factor) if average else low.file.tensors[x].quant
    shape = layout.stored(low.shape(node.outputs[0]), order)
    y = low.emit("MEAN" if average else "REDUCE_MAX", [x, axes], shape, {"keepDims": True}, quant=quant)
    low.give(y, order, factor=factor)


def local_response(low: Lowering, node: ir.Node) -> None:
    """LRN, over the channels."""
    size = int(attribute(node, "size", 1))
    if size % 2 == 0:
        raise refuse(node, f"takes an even number of channels, {size}; LiteRT takes them on both sides alike", REMEDY)
    order = layout.channels_last(low.rank(node.inputs[0]))
    x = low.read(node.inputs[0], order)
    y = low.emit(
        "LOCAL_RESPONSE_NORMALIZATION",
        [x],
        low.file.tensors[x].shape,
        {
            "radius": size // 2,
            "bias": float(attribute(node, "bias", 1.0)),
            "alpha": float(attribute(node, "alpha", 0.0001)) / size,
            "beta": float(attribute(node, "beta", 0.75)),
        },
    )
    low.give(y, order)


OPS: Mapping[str, Any] = {
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "LRN": local_response,
}
