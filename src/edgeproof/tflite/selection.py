"""Operators that choose: by index, by size, by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import attribute
from . import layout
from .elementwise import cast
from .held import REMEDY, is_read, refuse
from .lowering import Lowering

if TYPE_CHECKING:
    import onnx_ir as ir


def _indices(low: Lowering, node: ir.Node, size: int) -> int:
    """Indices as LiteRT takes them: int32, none negative."""
    known = low.number(node.inputs[1])
    if known is not None:
        return low.store(_from_front(known, size))
    index = cast(low, low.read(node.inputs[1]), "int32")
    return low.emit("FLOOR_MOD", [index, low.scalar(size, "int32")], low.file.tensors[index].shape)


def _from_front(index: NDArray[Any], sizes: int | NDArray[Any]) -> NDArray[np.int32]:
    """Constant indices, negative ones counted from the front, as LiteRT takes them."""
    made: NDArray[np.int32] = np.where(index < 0, index + sizes, index).astype(np.int32)
    return made


def gather(low: Lowering, node: ir.Node) -> None:
    """Gather."""
    value = node.inputs[0]
    axis = int(attribute(node, "axis", 0)) % low.rank(value)
    size, count = low.shape(value)[axis], low.rank(node.inputs[1])
    index = _indices(low, node, size)
    perm = low.order(value)
    x = low.read(value, perm)
    new: list[int] = []
    for a in perm:
        new += range(axis, axis + count) if a == axis else [a if a < axis else a + count - 1]
    shape = layout.stored(low.shape(node.outputs[0]), tuple(new))
    quant = low.file.tensors[x].quant
    y = low.emit("GATHER", [x, index], shape, {"axis": perm.index(axis), "batchDims": 0}, quant=quant)
    low.give(y, tuple(new))


def gather_nd(low: Lowering, node: ir.Node) -> None:
    """GatherND. Indices that are computed must not be negative."""
    if attribute(node, "batch_dims", 0):
        raise refuse(node, "has batch axes (batch_dims), which LiteRT's GATHER_ND has not", REMEDY)
    known = low.number(node.inputs[1])
    if known is not None:
        sizes = np.asarray(low.shape(node.inputs[0])[: known.shape[-1]])
        index = low.store(_from_front(known, sizes))
    else:
        index = cast(low, low.read(node.inputs[1]), "int32")
    low.give(low.emit("GATHER_ND", [low.read(node.inputs[0]), index], low.shape(node.outputs[0])))


def gather_elements(low: Lowering, node: ir.Node) -> None:
    """GatherElements by constant indices: GATHER of the values in a row."""
    known = low.wanted(node, 1, "indices")
    shape = low.shape(node.inputs[0])
    axis = int(attribute(node, "axis", 0)) % len(shape)
    index = _from_front(known, shape[axis])
    places: list[NDArray[Any]] = list(np.indices(index.shape))
    places[axis] = index
    flat = np.asarray(np.ravel_multi_index(tuple(places), shape), np.int32)
    x = low.reshape(low.read(node.inputs[0]), (int(np.prod(shape)),))
    low.give(low.emit("GATHER", [x, low.store(flat)], index.shape, {"axis": 0, "batchDims": 0}))


def top_k(low: Lowering, node: ir.Node) -> None:
    """TopK, largest first; smallest first by the negative of the values."""
    value = node.inputs[0]
    rank = low.rank(value)
    axis = int(attribute(node, "axis", -1)) % rank
    largest = bool(attribute(node, "largest", 1))
    result = low.shape(node.outputs[0])
    perm = layout.last(layout.identity(rank), axis)
    x = low.read(value, perm)
    t = low.file.tensors[x]
    if t.dtype == "int64":
        x = cast(low, x, "int32")
        t = low.file.tensors[x]
    if not largest:
        x = low.emit("NEG", [x], t.shape)
    shape = layout.stored(result, perm)
    outs = [low.tensor(shape, t.dtype), low.tensor(shape, "int32")]
    low.add("TOPK_V2", [x, low.scalar(result[axis], "int32")], outs)
    best = outs[0] if largest else low.emit("NEG", [outs[0]], shape)
    low.give(cast(low, best, low.dtype(node.outputs[0])), perm)
    if len(node.outputs) > 1 and is_read(node.outputs[1]):
        low.give(cast(low, outs[1], "int64"), perm, 1)


def arg(low: Lowering, node: ir.Node) -> None:
    """ArgMax and ArgMin."""
    from ai_edge_litert import schema_py_generated as schema

    value = node.inputs[0]
    axis = int(attribute(node, "axis", 0)) % low.rank(value)
    if attribute(node, "select_last_index", 0):
        raise refuse(node, "wants the last of equal values; LiteRT gives the first", REMEDY)
    perm = low.order(value)
    x = low.read(value, perm)
    keep = bool(attribute(node, "keepdims", 1))
    result = low.shape(node.outputs[0])
    small = layout.without(perm, (axis,))
    sizes = [low.shape(value)[a] for a in range(len(perm)) if a != axis]
    code = "ARG_MAX" if node.op_type == "ArgMax" else "ARG_MIN"
    inputs = [x, low.scalar(perm.index(axis), "int32")]
    shape = layout.stored(tuple(sizes), small)
    y = low.emit(code, inputs, shape, {"outputType": schema.TensorType.INT64}, dtype="int64")
    new = perm if keep else small
    low.give(low.reshape(y, layout.stored(result, new)), new)


def one_hot(low: Lowering, node: ir.Node) -> None:
    """OneHot. Indices that are computed must not be negative."""
    depth = int(low.wanted(node, 1, "depth").reshape(-1)[0])
    values = low.wanted(node, 2, "values")
    result = low.shape(node.outputs[0])
    axis = int(attribute(node, "axis", -1)) % len(result)
    known = low.number(node.inputs[0])
    index = cast(low, low.read(node.inputs[0]), "int32") if known is None else low.store(_from_front(known, depth))
    inputs = [index, low.scalar(depth, "int32"), *(low.store(np.asarray(v)) for v in (values[1], values[0]))]
    dtype = values.dtype.name
    low.give(low.emit("ONE_HOT", inputs, result, {"axis": axis}, dtype=dtype))


def scatter_nd(low: Lowering, node: ir.Node) -> None:
    """ScatterND by constant indices that do not repeat: the updates put into zeros, and chosen where they are."""
    known = low.wanted(node, 1, "indices")
    if attribute(node, "reduction", "none") != "none":
        raise refuse(node, f"combines values ({attribute(node, 'reduction', '')})", REMEDY)
    shape = low.shape(node.inputs[0])
    sizes = np.asarray(shape[: known.shape[-1]])
    index = _from_front(known, sizes)
    if len(np.unique(index.reshape(-1, index.shape[-1]), axis=0)) != index.reshape(-1, index.shape[-1]).shape[0]:
        raise refuse(node, "writes one place twice", REMEDY)
    mask = np.zeros(shape, bool)
    mask[tuple(np.moveaxis(index, -1, 0))] = True
    inputs = [low.store(index), low.read(node.inputs[2]), low.integers(shape)]
    dtype = low.dtype(node.inputs[0])
    spread = low.emit("SCATTER_ND", inputs, shape, dtype=dtype)
    low.give(low.emit("SELECT_V2", [low.store(mask), spread, low.read(node.inputs[0])], shape, dtype=dtype))


OPS: Mapping[str, Any] = {
    "Gather": gather,
    "GatherND": gather_nd,
    "GatherElements": gather_elements,
    "TopK": top_k,
    "ArgMax": arg,
    "ArgMin": arg,
    "OneHot": one_hot,
    "ScatterND": scatter_nd,
}
