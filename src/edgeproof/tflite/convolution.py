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
from .held import REMEDY, refuse
from .lowering import Lowering
from .write import Quant

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

SAME, VALID = 0, 1
FEW = 4
"""Channels of an image, for which an integer kernel by stride 2 is best computed in blocks."""
SMALLEST = 2.0**-31
"""Ratio of the accumulator's scale to the result's below which XNNPACK leaves a layer to slow kernels."""


def conv(low: Lowering, node: ir.Node) -> None:
    """Conv."""
    shape, kernel = low.shape(node.inputs[0]), low.shape(node.inputs[1])
    space = space_of(node, len(shape))
    group, channels = attribute(node, "group", 1), shape[1]
    strides, dilations = pair(node, "strides"), pair(node, "dilations")
    size = (1, *kernel[2:]) if space == 1 else kernel[2:]
    x = flat(low, low.read(node.inputs[0], layout.channels_last(len(shape))), space)
    result = low.shape(node.outputs[0])
    out = flat_shape(result)
    pads = padding(node, low.file.tensors[x].shape[1:3], size, strides, dilations, out[1:3])
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
    give(low, y, result, space)


def _in_pairs(low: Lowering, node: ir.Node, strides: tuple[int, int], dilations: tuple[int, int]) -> bool:
    width, weight = low.shape(node.inputs[0])[3], low.coded.get(node.inputs[1].name or "") if node.inputs[1] else None
    constant = weight is not None and weight.codes is not None
    return strides[1] == 2 and dilations[1] == 1 and width % 2 == 0 and constant


def _paired(
    low: Lowering, node: ir.Node, x: int, pads: list[tuple[int, int]]
) -> tuple[int, int, list[tuple[int, int]]]:
    """The image and weight of a convolution by stride 2 with pairs of columns as one: the same sums, by stride 1.

    Integer kernels take channels in eights: an image's three cost as much as eight, and so do the six of a pair, of
    which a 3×3 kernel has 6 taps instead of 9. Nothing is moved for it. Measured: three quarters
    of the time (224×224, AVX512-VNNI).

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


def padding(
    node: ir.Node,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
) -> list[tuple[int, int]]:
    """(begin, end) per axis of space; the end reaches as far as the last window does."""
    auto = attribute(node, "auto_pad", "NOTSET")
    given = given_pads(node)
    found = []
    for i in (0, 1):
        reach = (out[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1
        begin = given[i][0] if auto == "NOTSET" else 0
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(reach - size[i], 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        found.append((begin, max(reach - size[i] - begin, 0)))
    return found


def given_pads(node: ir.Node) -> list[tuple[int, int]]:
    """(begin, end) for each of two axes of space, as the node's attribute has them."""
    pads = [int(p) for p in attribute(node, "pads", (0,) * 4)]
    pads = [0, pads[0], 0, pads[1]] if len(pads) == 2 else pads
    return [(pads[0], pads[2]), (pads[1], pads[3])]


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


def bias(
    low: Lowering, node: ir.Node, weight: int, channels: int, x: int, part: slice = slice(None), repeat: int = 1
) -> int:
    """The bias of a layer: the node's third input and what is added behind it.

    In integers it is int32 counts of (input scale · weight scale), as the accumulator holds them.

    Args:
        low: The graph.
        node: The layer.
        weight: Its weight, stored.
        channels: How many there are.
        x: Its input, stored.
        part: Channels that are meant.
        repeat: How often they stand behind one another.
    """
    total: NDArray[Any] = np.zeros(channels, np.float32)
    given = [v for v in (*node.inputs[2:3], low.at.bias) if v is not None]
    quant = low.file.tensors[weight].quant
    known = [low.number(v) for v in given]
    if not low.at.integer and len(given) == 1 and known[0] is None and repeat == 1:
        return low.read(given[0])
    for value, number in zip(given, known, strict=True):
        if number is None:
            raise refuse(node, f"computes its bias {value.name} as it runs", "run pass simplify first")
        total = total + np.broadcast_to(number.reshape(-1), total.shape if part == slice(None) else number.shape)[part]
    total = np.tile(total, repeat)
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
    """A stored weight that makes up for a factor on the scale of the layer's input, and whose scales kernels take.

    A channel that cannot move its result by one code (a dead one, with a scale near nothing) becomes zeros.
    """
    t, source, out = low.file.tensors[weight], low.file.tensors[x].quant, low.at.quant
    if not low.at.integer or t.quant is None or t.data is None or source is None or out is None:
        return weight
    factor = low.factor(x, node.inputs[0])
    scale = np.asarray(t.quant.scale) * factor
    least = out.scale[0] / source.scale[0] * SMALLEST
    dead = scale < least
    if factor == 1.0 and not dead.any():
        return weight
    data = t.data
    if dead.any():
        scale = np.where(dead, out.scale[0] / source.scale[0] * 2.0**-20, scale)
        shape = [-1 if i == t.quant.axis and scale.size > 1 else 1 for i in range(data.ndim)]
        data = np.where(dead.reshape(shape), 0, data).astype(data.dtype)
    return low.store(data, Quant(tuple(map(float, scale)), t.quant.zero, t.quant.axis), t.name)


def weight_form(low: Lowering, node: ir.Node, perm: layout.Perm) -> int:
    """A layer's weight: codes in an integer step, or where the activations are quantised as they come."""
    value = node.inputs[1]
    code = low.coded.get(value.name or "") if value is not None else None
    dynamic = low.dynamic and code is not None and code.codes is not None and code.dtype == "int8"
    plain = dynamic and code is not None and not code.block and not code.zero_point.any()
    return low.form(value, perm, codes=low.at.integer or plain).tensor


def space_of(node: ir.Node, rank: int) -> int:
    """How many axes of space a node has: one or two."""
    if rank not in (3, 4):
        raise refuse(node, f"has {rank - 2} axes of space; one and two can be written", REMEDY)
    return rank - 2


def pair(node: ir.Node, name: str) -> tuple[int, int]:
    """An attribute with a number for each of two axes of space; 1 where there is but one axis."""
    given = tuple(int(n) for n in attribute(node, name, (1, 1)))
    return (1, given[0]) if len(given) == 1 else (given[0], given[1])


def flat(low: Lowering, x: int, space: int) -> int:
    """A tensor with two axes of space."""
    t = low.file.tensors[x]
    return x if space == 2 else low.reshape(x, (t.shape[0], 1, *t.shape[1:]))


def flat_shape(shape: layout.Shape) -> layout.Shape:
    """Shape of a value once it is stored channels last, with two axes of space."""
    return (shape[0], *((1, *shape[2:])[-2:]), shape[1])


def give(low: Lowering, y: int, result: layout.Shape, space: int) -> None:
    """Give a result that has two axes of space as the node has it."""
    if space == 1:
        y = low.reshape(y, (result[0], result[2], result[1]))
    low.give(y, layout.channels_last(len(result)))


OPS: Mapping[str, Any] = {"Conv": conv}
