"""Operators that only move values. Most of them become nothing, or a RESHAPE, by the way their value is held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model import attribute
from . import layout
from .elementwise import common_order
from .held import Held, is_read, refuse
from .lowering import Lowering

if TYPE_CHECKING:
    import onnx_ir as ir


def transpose(low: Lowering, node: ir.Node) -> None:
    """Transpose: no operator at all; the same tensors hold the result with its axes renamed."""
    value = node.inputs[0]
    rank = low.rank(value)
    order = attribute(node, "perm", tuple(reversed(range(rank))))
    low.form(value, low.order(value), codes=low.at.integer)
    result = low.at.results[0]
    for held in reversed(low.forms(value)):
        low.hold(result.value, Held(held.tensor, layout.transposed(held.perm, order), held.quant))


def reshape(low: Lowering, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: a RESHAPE of the storage where its axes lie together."""
    value = node.inputs[0]
    shape, new = low.shape(value), low.shape(node.outputs[0])
    if 0 not in shape:
        for perm in [*low.orders(value), layout.identity(len(shape))]:
            made = layout.regrouped(shape, perm, new)
            if made is not None:
                low.give(low.copied(low.read(value, perm), layout.stored(new, made)), made)
                return
    low.give(low.copied(low.read(value), new))


def concat(low: Lowering, node: ir.Node) -> None:
    """Concat. Codes must mean the same in all parts: those that do not are turned first."""
    result = low.shape(node.outputs[0])
    perm = common_order(low, node.inputs, len(result))
    axis = perm.index(int(attribute(node, "axis", 0)) % len(result))
    parts = []
    for value in node.inputs:
        if 0 in low.shape(value):
            continue
        part = low.read(value, perm)
        t = low.file.tensors[part]
        if low.at.integer and t.quant != low.at.quant:
            part = low.emit("QUANTIZE", [part], t.shape, quant=low.at.quant)
        parts.append(part)
    shape = layout.stored(result, perm)
    low.give(low.emit("CONCATENATION", parts, shape, {"axis": axis}, quant=low.at.quant), perm)


def slice_node(low: Lowering, node: ir.Node) -> None:
    """Slice: SLICE, or STRIDED_SLICE with steps."""
    value = node.inputs[0]
    shape, result = low.shape(value), low.shape(node.outputs[0])
    starts, ends = low.ints(node, "starts", 1), low.ints(node, "ends", 2)
    assert starts is not None
    assert ends is not None
    axes = low.ints(node, "axes", 3) or tuple(range(len(starts)))
    steps = low.ints(node, "steps", 4) or (1,) * len(starts)
    begin, step = [0] * len(shape), [1] * len(shape)
    for axis, start, stride in zip(axes, starts, steps, strict=True):
        size = shape[axis]
        at = max(start + size, 0) if start < 0 else start
        begin[axis], step[axis] = min(at, size - 1 if stride < 0 else size), stride
    perm = low.order(value)
    x = low.read(value, perm)
    quant = low.file.tensors[x].quant
    if 0 in result:
        raise refuse(node, "gives nothing (a dimension of 0)", "run pass simplify first")
    begin_s, size_s, step_s = (layout.stored(tuple(v), perm) for v in (begin, result, step))
    if all(s == 1 for s in step):
        y = low.emit("SLICE", [x, low.integers(begin_s), low.integers(size_s)], size_s, quant=quant)
    else:
        ends_s = [b + (n - 1) * s + (1 if s > 0 else -1) for b, n, s in zip(begin_s, size_s, step_s, strict=True)]
        # A stop in front of the first element is written as "no end".
        mask = sum(1 << i for i, e in enumerate(ends_s) if e < 0)
        inputs = [x, *map(low.integers, (begin_s, [max(e, 0) for e in ends_s], step_s))]
        options = dict.fromkeys(("beginMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask"), 0)
        y = low.emit("STRIDED_SLICE", inputs, size_s, {"endMask": mask, **options}, quant=quant)
    low.give(y, perm)


def split(low: Lowering, node: ir.Node) -> None:
    """Split: one SLICE for each part that is used."""
    value = node.inputs[0]
    axis = int(attribute(node, "axis", 0)) % low.rank(value)
    perm = low.order(value)
    x = low.read(value, perm)
    at = 0
    for index, out in enumerate(node.outputs):
        result = low.shape(out)
        if is_read(out):
            begin = [at if a == axis else 0 for a in perm]
            size = layout.stored(result, perm)
            inputs = [x, low.integers(begin), low.integers(size)]
            low.give(low.emit("SLICE", inputs, size, quant=low.file.tensors[x].quant), perm, index)
        at += result[axis]


def pad(low: Lowering, node: ir.Node) -> None:
    """Pad: PAD, PADV2, MIRROR_PAD or GATHER; what is cut off (negative pads) by a SLICE ahead of it."""
    value = node.inputs[0]
    rank = low.rank(value)
    mode = attribute(node, "mode", "constant")
    given = low.ints(node, "pads", 1) or low.ints(node, "paddings", 1)
    axes = low.ints(node, "axes", 3)
    assert given is not None
    half = len(given) // 2
    pads = [[0, 0] for _ in range(rank)]
    for i, axis in enumerate(axes or range(rank)):
        pads[axis] = [given[i], given[i + half]]
    if mode in ("edge", "wrap"):
        _repeat(low, node, pads, mode)
        return
    filler = attribute(node, "value", None)
    if filler is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        filler = low.wanted(node, 2, "value").reshape(-1)[0]
    filler = float(0.0 if filler is None else filler)
    perm = low.order(value)
    x = low.read(value, perm)
    ordered = [pads[a] for a in perm]
    if any(p < 0 for pair in ordered for p in pair):
        t = low.file.tensors[x]
        begin = [max(-b, 0) for b, _ in ordered]
        size = [n - max(-b, 0) - max(-e, 0) for n, (b, e) in zip(t.shape, ordered, strict=True)]
        x = low.emit("SLICE", [x, low.integers(begin), low.integers(size)], size, quant=t.quant)
        ordered = [[max(b, 0), max(e, 0)] for b, e in ordered]
    shape = layout.stored(low.shape(node.outputs[0]), perm)
    t = low.file.tensors[x]
    table = low.store(np.asarray(ordered, np.int32))
    if mode == "reflect":
        y = low.emit("MIRROR_PAD", [x, table], shape, {"mode": 0}, quant=t.quant)
    elif filler == 0:
        y = low.emit("PAD", [x, table], shape, quant=t.quant)
    else:
        number = np.asarray(filler, t.dtype)
        if t.quant is not None:
            code = np.rint(filler / t.quant.scale[0]) + t.quant.zero[0]
            number = np.clip(code, -128, 127).astype(np.int8)
        elif np.isinf(filler):
            number = np.asarray(np.copysign(np.finfo(np.float32).max, filler), np.float32)
        y = low.emit("PADV2", [x, table, low.store(number, t.quant)], shape, quant=t.quant)
    low.give(y, perm)


def _repeat(low: Lowering, node: ir.Node, pads: list[list[int]], mode: str) -> None:
    """Pad with what stands at the edges, or at the other end: a GATHER per axis."""
    perm = low.order(node.inputs[0])
    x = low.read(node.inputs[0], perm)
    for place, axis in enumerate(perm):
        if not any(pads[axis]):
            continue
        t = low.file.tensors[x]
        size = t.shape[place]
        at = np.arange(-pads[axis][0], size + pads[axis][1])
        index = np.clip(at, 0, size - 1) if mode == "edge" else at % size
        shape = (*t.shape[:place], len(at), *t.shape[place + 1 :])
        x = low.emit("GATHER", [x, low.integers(index)], shape, {"axis": place}, quant=t.quant)
    low.give(x, perm)


def expand(low: Lowering, node: ir.Node) -> None:
    """Expand: BROADCAST_TO."""
    value = node.inputs[0]
    result = low.shape(node.outputs[0])
    x = low.read(value)
    x = low.reshape(x, (1,) * (len(result) - low.rank(value)) + low.shape(value))
    low.give(low.emit("BROADCAST_TO", [x, low.integers(result)], result))


def tile(low: Lowering, node: ir.Node) -> None:
    """Tile."""
    value = node.inputs[0]
    perm = low.order(value)
    repeats = layout.stored(tuple(int(n) for n in low.wanted(node, 1, "repeats").reshape(-1)), perm)
    x = low.read(value, perm)
    shape = layout.stored(low.shape(node.outputs[0]), perm)
    low.give(low.emit("TILE", [x, low.integers(repeats)], shape, quant=low.file.tensors[x].quant), perm)


def depth_to_space(low: Lowering, node: ir.Node) -> None:
    """DepthToSpace; with mode CRD the channels are put in the order of DCR first."""
    block, order = int(attribute(node, "blocksize", 1)), layout.channels_last(4)
    x = low.read(node.inputs[0], order)
    t = low.file.tensors[x]
    if attribute(node, "mode", "DCR") == "CRD":
        channels = t.shape[3]
        index = np.arange(channels).reshape(-1, block * block).T.reshape(-1)
        x = low.emit("GATHER", [x, low.integers(index)], t.shape, {"axis": 3, "batchDims": 0}, quant=t.quant)
    shape = layout.stored(low.shape(node.outputs[0]), order)
    low.give(low.emit("DEPTH_TO_SPACE", [x], shape, {"blockSize": block}, quant=t.quant), order)


def space_to_depth(low: Lowering, node: ir.Node) -> None:
    """SpaceToDepth; with mode CRD the channels are put in that order behind it."""
    order, block = layout.channels_last(4), int(attribute(node, "blocksize", 1))
    x = low.read(node.inputs[0], order)
    shape = layout.stored(low.shape(node.outputs[0]), order)
    quant = low.file.tensors[x].quant
    y = low.emit("SPACE_TO_DEPTH", [x], shape, {"blockSize": block}, quant=quant)
    if attribute(node, "mode", "DCR") == "CRD":
        index = np.arange(shape[3]).reshape(block * block, -1).T.reshape(-1)
        y = low.emit("GATHER", [y, low.integers(index)], shape, {"axis": 3}, quant=quant)
    low.give(y, order)


OPS: Mapping[str, Any] = {
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": reshape,
    "Squeeze": reshape,
    "Unsqueeze": reshape,
    "Concat": concat,
    "Slice": slice_node,
    "Split": split,
    "Pad": pad,
    "Expand": expand,
    "Tile": tile,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
