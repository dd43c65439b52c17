"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV, which read and write channels last.

Padding that LiteRT's SAME and VALID do not mean is a PAD of its own, which XNNPACK takes into the convolution. What has
one axis of space gets a second one of size 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from . import layout
from .lowering import Lowering, refuse
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

SAME, VALID = 0, 1
FEW = 4
"""Channels of an image, for which an integer kernel by stride 2 is best computed in blocks."""
REMEDY = "leave this model to another runtime, or change the layer"


def conv(low: Lowering, node: ir.Node) -> None:
    """Conv."""
    shape, kernel = low.shape(node.inputs[0]), low.shape(node.inputs[1])
    space = _space(node, len(shape))
    group, channels = attribute(node, "group", 1), shape[1]
    strides, dilations = pair(node, "strides"), pair(node, "dilations")
    size = (1, *kernel[2:]) if space == 1 else kernel[2:]
    x = _flat(low, low.read(node.inputs[0], layout.channels_last(len(shape))), space)
    result = low.shape(node.outputs[0])
    out = (result[0], *((1, result[2]) if space == 1 else result[2:]), result[1])
    pads = padding(node, _flat_shape(low, x), size, strides, dilations, out[1:3])
    depthwise = group == channels and kernel[1] == 1 and group > 1
    few = low.at.integer and space == 2 and group == 1 and channels <= FEW
    if few and _in_pairs(low, node, strides, dilations):
        x, weight, pads = _paired(low, node, x, pads)
        size, strides = low.file.tensors[weight].shape[1:3], (strides[0], 1)
    else:
        weight = _weight(low, node, space, depthwise)
    x, how = padded(low, x, pads, size, strides, dilations, out[1:3])
    weight = scaled_weight(low, node, x, weight)
    code = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    options: dict[str, Any] = {"depthMultiplier": kernel[0] // channels} if depthwise else {}
    y = low.emit(
        code,
        [x, weight, bias(low, node, weight, kernel[0], x)],
        out,
        {
            "padding": how,
            "strideH": strides[0],
            "strideW": strides[1],
            "dilationHFactor": dilations[0],
            "dilationWFactor": dilations[1],
            "fusedActivationFunction": low.at.activation,
            **options,
        },
        quant=low.at.quant,
    )
    _give(low, y, result, space)


def _in_pairs(low: Lowering, node: ir.Node, strides: tuple[int, int], dilations: tuple[int, int]) -> bool:
    width, weight = low.shape(node.inputs[0])[3], low.coded.get(node.inputs[1].name or "") if node.inputs[1] else None
    constant = weight is not None and weight.codes is not None
    return strides[1] == 2 and dilations[1] == 1 and width % 2 == 0 and constant


def _paired(
    low: Lowering, node: ir.Node, x: int, pads: list[tuple[int, int]]
) -> tuple[int, int, list[tuple[int, int]]]:
    """The image and weight of a convolution by stride 2 with pairs of columns as one: the same sums, by stride 1.

    Integer kernels take channels in eights: an image's three cost as much as eight, and so do the six of a pair, of
    which a 3×3 kernel has 6 taps instead of 9. Nothing is moved for it. Measured: PLACEHOLDER.

    Returns:
        Image, weight, padding.
    """
    t = low.file.tensors[x]
    count, height, width, channels = t.shape
    weight = weight_form(low, node, (0, 2, 3, 1))
    w = low.file.tensors[weight]
    assert w.data is not None
    size, begin = w.shape[2], pads[1][0]
    first = -(-begin // 2)
    taps = first + (size - 1 - begin) // 2 + 1
    wide = np.zeros((*w.shape[:2], 2 * taps, channels), w.data.dtype)
    wide[:, :, 2 * first - begin : 2 * first - begin + size] = w.data
    made = low.store(wide.reshape(*w.shape[:2], taps, 2 * channels), w.quant, w.name)
    x = low.reshape(x, (count, height, width // 2, 2 * channels))
    places = low.shape(node.outputs[0])[3]
    return x, made, [pads[0], (first, max(places + taps - 1 - first - width // 2, 0))]


def conv_transpose(low: Lowering, node: ir.Node) -> None:
    """ConvTranspose: a CONV_2D and a DEPTH_TO_SPACE where the strides are equal, else a TRANSPOSE_CONV per group.

    XNNPACK's transposed convolution took 40 times as long in int8 (2×2 by stride 2, 24 channels to 1, 320×320).
    """
    shape, kernel = low.shape(node.inputs[0]), low.shape(node.inputs[1])
    space = _space(node, len(shape))
    group, strides, dilations = attribute(node, "group", 1), pair(node, "strides"), pair(node, "dilations")
    result = low.shape(node.outputs[0])
    out = (result[0], *((1, result[2]) if space == 1 else result[2:]), result[1])
    x = _flat(low, low.read(node.inputs[0], layout.channels_last(len(shape))), space)
    if group == 1 and strides[0] == strides[1] > 1:
        whole = scaled_weight(low, node, x, _transposed_weight(low, node, space, dilations, slice(None)))
        _give(low, _between(low, node, x, whole, out, strides[0]), result, space)
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
        weight = _transposed_weight(
            low, node, space, dilations, slice(g * kernel[0] // group, (g + 1) * kernel[0] // group)
        )
        weight = scaled_weight(low, node, x, weight)
        b = bias(low, node, weight, each, x, slice(g * each, (g + 1) * each))
        parts.append(_one_transposed(low, node, part, weight, b, (*out[:3], each), strides))
    y = parts[0]
    if group > 1:
        y = low.emit("CONCATENATION", parts, out, {"axis": 3}, quant=low.at.quant)
    _give(low, y, result, space)


def _between(low: Lowering, node: ir.Node, x: int, weight: int, out: Sequence[int], stride: int) -> int:
    """A transposed convolution as a plain one that makes all ``stride × stride`` results between two points at once.

    Result ``stride · m + r`` sums ``x[m - t] · w[stride · t + r]`` over t: a convolution with the taps of each r.
    """
    t, w = low.file.tensors[x], low.file.tensors[weight]
    assert w.data is not None
    channels, size = w.shape[0], w.shape[1:3]
    full = [(t.shape[i + 1] - 1) * stride + size[i] for i in (0, 1)]
    begin = _transposed_begin(node, full, out[1:3])
    taps = [-(-n // stride) for n in size]
    wide = np.zeros((channels, taps[0] * stride, taps[1] * stride, w.shape[3]), w.data.dtype)
    wide[:, : size[0], : size[1]] = w.data
    parts = wide.reshape(channels, taps[0], stride, taps[1], stride, w.shape[3])
    parts = parts.transpose(2, 4, 0, 1, 3, 5)[:, :, :, ::-1, ::-1].reshape(-1, *taps, w.shape[3])
    repeat, quant = stride * stride, w.quant
    if quant is not None and len(quant.scale) > 1:
        quant = Quant(quant.scale * repeat, quant.zero * repeat)
    b = low.file.tensors[bias(low, node, weight, channels, x)]
    assert b.data is not None
    tiled = (
        None
        if b.quant is None
        else Quant(
            b.quant.scale * (repeat if len(b.quant.scale) > 1 else 1),
            (0,) * (len(b.quant.scale) * repeat if len(b.quant.scale) > 1 else 1),
        )
    )
    inputs = [low.store(np.ascontiguousarray(parts), quant, w.name), low.store(np.tile(b.data, repeat), tiled, b.name)]
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
    common = {"strideH": strides[0], "strideW": strides[1], "fusedActivationFunction": low.at.activation}
    same = all(-(-out[i + 1] // strides[i]) == shape[i + 1] for i in (0, 1)) and all(
        max(full[i] - out[i + 1], 0) // 2 == begin[i] and full[i] >= out[i + 1] for i in (0, 1)
    )
    if same or list(out[1:3]) == full:
        inputs = [low.integers(out), weight, x, b]
        how = SAME if same else VALID
        return low.emit(
            "TRANSPOSE_CONV",
            inputs,
            out,
            {"padding": how, **common},
            dtype=low.file.tensors[x].dtype,
            quant=low.at.quant,
        )
    large = [max(full[i], begin[i] + out[i + 1]) for i in (0, 1)]
    if any(large[i] - full[i] >= strides[i] for i in (0, 1)):
        raise refuse(node, "has an output padding as large as its stride", REMEDY)
    whole = (out[0], *large, out[3])
    inputs = [low.integers(whole), weight, x, b]
    y = low.emit(
        "TRANSPOSE_CONV",
        inputs,
        whole,
        {"padding": VALID, **common},
        dtype=low.file.tensors[x].dtype,
        quant=low.at.quant,
    )
    return low.emit("SLICE", [y, low.integers([0, *begin, 0]), low.integers(out)], out, quant=low.at.quant)


def _transposed_begin(node: ir.Node, full: Sequence[int], out: Sequence[int]) -> list[int]:
    """How much is cut off at the beginning of each axis of space."""
    auto = attribute(node, "auto_pad", "NOTSET")
    pads = [int(p) for p in attribute(node, "pads", (0,) * 4)]
    if len(pads) == 2:
        pads = [0, pads[0], 0, pads[1]]
    extra = [int(p) for p in attribute(node, "output_padding", (0, 0))]
    extra = [0, *extra] if len(extra) == 1 else extra
    if auto in ("NOTSET", "VALID") and "output_shape" not in node.attributes:
        return pads[:2] if auto == "NOTSET" else [0, 0]
    total = [max(f + e - o, 0) for f, e, o in zip(full, extra, out, strict=True)]
    return [t // 2 if auto != "SAME_LOWER" else t - t // 2 for t in total]


def padding(
    node: ir.Node,
    size: tuple[int, int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
) -> list[tuple[int, int]]:
    """(begin, end) per axis of space; the end reaches as far as the last window does."""
    auto = attribute(node, "auto_pad", "NOTSET")
    given = [int(p) for p in attribute(node, "pads", (0,) * 4)]
    if len(given) == 2:
        given = [0, given[0], 0, given[1]]
    found = []
    for i in (0, 1):
        reach = (out[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(reach - size[i], 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        else:
            begin = given[i] if auto == "NOTSET" else 0
        found.append((begin, max(reach - size[i] - begin, 0)))
    return found


def padded(
    low: Lowering,
    x: int,
    pads: Sequence[tuple[int, int]],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
    value: float = 0.0,
    separate: bool = False,
) -> tuple[int, int]:
    """A tensor with padding that SAME and VALID do not mean added to it.

    Args:
        low: The graph.
        x: Channels last.
        pads: (begin, end) per axis of space.
        kernel: Size of the window.
        strides: Of the window.
        dilations: Of the window.
        out: Size of the output.
        value: What is padded with; -inf for the lowest number that there is.
        separate: Do not use SAME, which leaves the padding out of averages.

    Returns:
        The tensor, and SAME or VALID.
    """
    t = low.file.tensors[x]
    size = t.shape[1:3]
    if not any(b or e for b, e in pads):
        return x, VALID
    if not separate and is_same(size, pads, kernel, strides, dilations, out):
        return x, SAME
    shape = (t.shape[0], *(size[i] + sum(pads[i]) for i in (0, 1)), t.shape[3])
    table = low.store(np.asarray([(0, 0), *pads, (0, 0)], np.int32))
    if value == 0:
        return low.emit("PAD", [x, table], shape, quant=t.quant), VALID
    filler = np.asarray(-128, np.int8) if t.dtype == "int8" else np.asarray(np.finfo(np.float32).min, np.float32)
    return low.emit("PADV2", [x, table, low.store(filler, t.quant)], shape, quant=t.quant), VALID


def is_same(
    size: Sequence[int],
    pads: Sequence[tuple[int, int]],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
) -> bool:
    """Whether the pads are what LiteRT computes for SAME."""
    for i in (0, 1):
        total = max((out[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - size[i], 0)
        if out[i] != -(-size[i] // strides[i]) or pads[i] != (total // 2, total - total // 2):
            return False
    return True


def bias(low: Lowering, node: ir.Node, weight: int, channels: int, x: int, part: slice = slice(None)) -> int:
    """The bias of a layer: the node's third input and what is added behind it.

    In integers it is int32 counts of (input scale · weight scale), as the accumulator holds them.

    Args:
        low: The graph.
        node: The layer.
        weight: Its weight, stored.
        channels: How many there are.
        x: Its input, stored.
        part: Channels that are meant.
    """
    total: NDArray[Any] = np.zeros(channels, np.float32)
    given = [v for v in (*node.inputs[2:3], low.at.bias) if v is not None]
    quant = low.file.tensors[weight].quant
    known = [low.number(v) for v in given]
    if not low.at.integer and len(given) == 1 and known[0] is None:
        return low.read(given[0])
    for value, number in zip(given, known, strict=True):
        if number is None:
            raise refuse(node, f"computes its bias {value.name} as it runs", "run pass simplify first")
        total = total + np.broadcast_to(number.reshape(-1), total.shape if part == slice(None) else number.shape)[part]
    if not low.at.integer:
        return low.store(total.astype(np.float32), None, given[0].name or "bias" if given else "zero bias")
    source = low.file.tensors[x].quant
    assert quant is not None
    assert source is not None
    step = np.float32(source.scale[0]) * np.asarray(quant.scale, np.float32)
    codes = np.clip(np.rint(total.astype(np.float64) / step), -(2**31), 2**31 - 1).astype(np.int32)
    scale = Quant(tuple(map(float, step)), (0,) * step.size)
    return low.store(codes, scale, given[0].name or "bias" if given else "zero bias")


def _weight(low: Lowering, node: ir.Node, space: int, depthwise: bool) -> int:
    """Output channels, height, width, inputs; or 1, height, width, output channels for a depthwise convolution."""
    rank = low.rank(node.inputs[1])
    if space == 1:
        perm: layout.Perm = (1, 2, 0) if depthwise else (0, 2, 1)
        stored = weight_form(low, node, perm)
        t = low.file.tensors[stored]
        shape = (t.shape[0], 1, *t.shape[1:])
        return spread(low, stored, shape)
    perm = (1, *range(2, rank), 0) if depthwise else (0, *range(2, rank), 1)
    return weight_form(low, node, perm)


def spread(low: Lowering, tensor: int, shape: layout.Shape) -> int:
    """A weight with an axis of size 1 put in; its channels stay the last or the first axis."""
    t = low.file.tensors[tensor]
    if t.data is None:
        return low.reshape(tensor, shape)
    quant = t.quant
    if quant is not None and len(quant.scale) > 1 and quant.axis:
        quant = Quant(quant.scale, quant.zero, len(shape) - 1)
    return low.store(t.data.reshape(shape), quant, t.name)


def scaled_weight(low: Lowering, node: ir.Node, x: int, weight: int) -> int:
    """A stored weight that makes up for a factor on the scale of the layer's input."""
    factor = low.factor(x, node.inputs[0]) if low.at.integer else 1.0
    t = low.file.tensors[weight]
    if factor == 1.0 or t.quant is None or t.data is None:
        return weight
    return low.store(t.data, Quant(tuple(s * factor for s in t.quant.scale), t.quant.zero, t.quant.axis), t.name)


def weight_form(low: Lowering, node: ir.Node, perm: layout.Perm) -> int:
    """A layer's weight: codes in an integer step, or where the activations are quantised as they come."""
    value = node.inputs[1]
    code = low.coded.get(value.name or "") if value is not None else None
    dynamic = low.dynamic and code is not None and code.codes is not None and code.dtype == "int8"
    plain = dynamic and code is not None and not code.block and not code.zero_point.any()
    return low.form(value, perm, codes=low.at.integer or plain).tensor


def _transposed_weight(low: Lowering, node: ir.Node, space: int, dilations: tuple[int, int], part: slice) -> int:
    """Outputs, height, width, inputs of one group, dilated with zeros."""
    whole = low.form(node.inputs[1], codes=low.at.integer).tensor
    t = low.file.tensors[whole]
    if t.data is None:
        raise refuse(node, "computes its weight as it runs; LiteRT's TRANSPOSE_CONV wants a constant here", REMEDY)
    array = t.data[part]
    array = array[:, :, None, :] if space == 1 else array
    if max(dilations) > 1:
        size = [(array.shape[i + 2] - 1) * dilations[i] + 1 for i in (0, 1)]
        wide = np.zeros((*array.shape[:2], *size), array.dtype)
        wide[:, :, :: dilations[0], :: dilations[1]] = array
        array = wide
    quant = t.quant
    if quant is not None and len(quant.scale) > 1:
        quant = Quant(quant.scale, quant.zero, 0)
    return low.store(array.transpose(1, 2, 3, 0), quant, t.name)


def _space(node: ir.Node, rank: int) -> int:
    if rank not in (3, 4):
        raise refuse(node, f"has {rank - 2} axes of space; one and two can be written", REMEDY)
    return rank - 2


def pair(node: ir.Node, name: str) -> tuple[int, int]:
    """An attribute with a number for each of two axes of space; 1 where there is but one axis."""
    given = tuple(int(n) for n in attribute(node, name, (1, 1)))
    return (1, given[0]) if len(given) == 1 else (given[0], given[1])


def _flat(low: Lowering, x: int, space: int) -> int:
    t = low.file.tensors[x]
    return x if space == 2 else low.reshape(x, (t.shape[0], 1, *t.shape[1:]))


def _flat_shape(low: Lowering, x: int) -> tuple[int, int]:
    shape = low.file.tensors[x].shape
    return shape[1], shape[2]


def _give(low: Lowering, y: int, result: layout.Shape, space: int) -> None:
    if space == 1:
        y = low.reshape(y, (result[0], result[2], result[1]))
    low.give(y, layout.channels_last(len(result)))


OPS: Mapping[str, Any] = {"Conv": conv, "ConvTranspose": conv_transpose}
