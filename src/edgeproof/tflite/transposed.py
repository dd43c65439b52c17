"""Transposed convolutions: plain ones between the points where strides are equal, else TRANSPOSE_CONV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import attribute
from . import layout
from .convolution import SAME, VALID, bias, flat, flat_shape, give, given_pads, padded, pair, scaled_weight, space_of
from .held import REMEDY, refuse, stored_codes
from .lowering import Lowering
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir


def conv_transpose(low: Lowering, node: ir.Node) -> None:
    """ConvTranspose: a CONV_2D and a DEPTH_TO_SPACE where the strides are equal, else a TRANSPOSE_CONV per group.

    XNNPACK's transposed convolution took 40 times as long in int8 (2×2 by stride 2, 24 channels to 1, 320×320).
    """
    shape, kernel = low.shape(node.inputs[0]), low.shape(node.inputs[1])
    space = space_of(node, len(shape))
    group, strides, dilations = attribute(node, "group", 1), pair(node, "strides"), pair(node, "dilations")
    result = low.shape(node.outputs[0])
    out = flat_shape(result)
    x = flat(low, low.read(node.inputs[0], layout.channels_last(len(shape))), space)
    if group == 1 and strides[0] == strides[1] > 1:
        array, quant = _transposed_weight(low, node, space, dilations, slice(None))
        give(low, _between(low, node, x, array, quant, out, strides[0]), result, space)
        return
    parts = []
    each = kernel[1]
    for g in range(group):
        part = x
        if group > 1:
            t = low.file.tensors[x]
            width = shape[1] // group
            size = (*t.shape[:3], width)
            begin = [low.integers([0, 0, 0, g * width]), low.integers(size)]
            part = low.emit("SLICE", [x, *begin], size, quant=t.quant)
        inputs = slice(g * kernel[0] // group, (g + 1) * kernel[0] // group)
        weight = low.store(*_transposed_weight(low, node, space, dilations, inputs), "weight")
        weight = scaled_weight(low, node, x, weight)
        b = bias(low, node, weight, each, x, slice(g * each, (g + 1) * each))
        parts.append(_one_transposed(low, node, part, weight, b, (*out[:3], each), strides))
    y = parts[0]
    if group > 1:
        y = low.emit("CONCATENATION", parts, out, {"axis": 3}, quant=low.at.quant)
    give(low, y, result, space)


def _between(
    low: Lowering, node: ir.Node, x: int, weight: NDArray[Any], quant: Quant | None, out: Sequence[int], stride: int
) -> int:
    """A transposed convolution as a plain one that makes all ``stride × stride`` results between two points at once.

    Result ``stride · m + r`` sums ``x[m - t] · w[stride · t + r]`` over t: a convolution with the taps of each r.
    """
    t, channels, size = low.file.tensors[x], weight.shape[0], weight.shape[1:3]
    full = [(t.shape[i + 1] - 1) * stride + size[i] for i in (0, 1)]
    begin = _transposed_begin(node, full, out[1:3])
    taps = [-(-n // stride) for n in size]
    wide = np.zeros((channels, taps[0] * stride, taps[1] * stride, weight.shape[3]), weight.dtype)
    wide[:, : size[0], : size[1]] = weight
    parts = wide.reshape(channels, taps[0], stride, taps[1], stride, weight.shape[3])
    parts = parts.transpose(2, 4, 0, 1, 3, 5)[:, :, :, ::-1, ::-1].reshape(-1, *taps, weight.shape[3])
    repeat = stride * stride
    if quant is not None and len(quant.scale) > 1:
        quant = Quant(quant.scale * repeat, quant.zero * repeat)
    name = node.inputs[1].name or "weight" if node.inputs[1] is not None else "weight"
    stored = scaled_weight(low, node, x, low.store(np.ascontiguousarray(parts), quant, name))
    inputs = [stored, bias(low, node, stored, channels, x, repeat=repeat)]
    last = [max(-(-(begin[i] + out[i + 1]) // stride), 1) for i in (0, 1)]
    pads = [(taps[i] - 1, max(last[i] - t.shape[i + 1], 0)) for i in (0, 1)]
    places = [t.shape[i + 1] + sum(pads[i]) - taps[i] + 1 for i in (0, 1)]
    x, how = padded(low, x, pads, taps, (1, 1), (1, 1), places)
    options = {"padding": how, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    options["fusedActivationFunction"] = low.at.activation
    shape = (out[0], *places, channels * repeat)
    y = low.emit("CONV_2D", [x, *inputs], shape, options, quant=low.at.quant)
    whole = (out[0], places[0] * stride, places[1] * stride, channels)
    y = low.emit("DEPTH_TO_SPACE", [y], whole, {"blockSize": stride}, quant=low.at.quant)
    if whole == tuple(out):
        return y
    return low.emit("SLICE", [y, low.integers([0, *begin, 0]), low.integers(out)], out, quant=low.at.quant)


def _one_transposed(
    low: Lowering, node: ir.Node, x: int, weight: int, b: int, out: Sequence[int], strides: tuple[int, int]
) -> int:
    """One group: with SAME where the pads are what it means, else all of it, cut to size."""
    shape, size = low.file.tensors[x].shape, low.file.tensors[weight].shape[1:3]
    full = [(shape[i + 1] - 1) * strides[i] + size[i] for i in (0, 1)]
    begin = _transposed_begin(node, full, out[1:3])
    same = all(-(-out[i + 1] // strides[i]) == shape[i + 1] for i in (0, 1)) and all(
        max(full[i] - out[i + 1], 0) // 2 == begin[i] and full[i] >= out[i + 1] for i in (0, 1)
    )
    large = list(out[1:3]) if same else [max(full[i], begin[i] + out[i + 1]) for i in (0, 1)]
    if any(large[i] - full[i] >= strides[i] for i in (0, 1)):
        raise refuse(node, "has an output padding as large as its stride", REMEDY)
    whole = (out[0], *large, out[3])
    y = low.emit(
        "TRANSPOSE_CONV",
        [low.integers(whole), weight, x, b],
        whole,
        {
            "padding": SAME if same else VALID,
            "strideH": strides[0],
            "strideW": strides[1],
            "fusedActivationFunction": low.at.activation,
        },
        dtype=low.file.tensors[x].dtype,
        quant=low.at.quant,
    )
    if whole == tuple(out):
        return y
    return low.emit("SLICE", [y, low.integers([0, *begin, 0]), low.integers(out)], out, quant=low.at.quant)


def _transposed_begin(node: ir.Node, full: Sequence[int], out: Sequence[int]) -> list[int]:
    """How much is cut off at the beginning of each axis of space."""
    auto = attribute(node, "auto_pad", "NOTSET")
    extra = [int(p) for p in attribute(node, "output_padding", (0, 0))]
    extra = [0, *extra] if len(extra) == 1 else extra
    if auto in ("NOTSET", "VALID") and "output_shape" not in node.attributes:
        return [begin for begin, _ in given_pads(node)] if auto == "NOTSET" else [0, 0]
    total = [max(f + e - o, 0) for f, e, o in zip(full, extra, out, strict=True)]
    return [t // 2 if auto != "SAME_LOWER" else t - t // 2 for t in total]


def _transposed_weight(
    low: Lowering, node: ir.Node, space: int, dilations: tuple[int, int], part: slice
) -> tuple[NDArray[Any], Quant | None]:
    """Outputs, height, width, inputs of one group, dilated with zeros."""
    code = low.coded.get(node.inputs[1].name or "") if node.inputs[1] is not None else None
    held = stored_codes(code) if low.at.integer and code is not None else (low.number(node.inputs[1]), None)
    if held[0] is None:
        raise refuse(node, "computes its weight as it runs; LiteRT's TRANSPOSE_CONV wants a constant here", REMEDY)
    quant = held[1]
    array = held[0][part]
    array = array[:, :, None, :] if space == 1 else array
    if max(dilations) > 1:
        size = [(array.shape[i + 2] - 1) * dilations[i] + 1 for i in (0, 1)]
        wide = np.zeros((*array.shape[:2], *size), array.dtype)
        wide[:, :, :: dilations[0], :: dilations[1]] = array
        array = wide
    if quant is not None and len(quant.scale) > 1:
        quant = Quant(quant.scale, quant.zero, 0)
    return np.ascontiguousarray(array.transpose(1, 2, 3, 0)), quant


OPS: Mapping[str, Any] = {"ConvTranspose": conv_transpose}
