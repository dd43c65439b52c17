"""Taking parts of tensors, and putting parts together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from . import at_run_time
from .call import Call, Handler, as_sizes, from_sizes
from .values import Constant, Size, Sizes, Value

TO_THE_END = 2**31 - 1
"""Exporters write this, or more, for "up to the end"."""


def concat(n: Call) -> Value:
    """Concat; of shapes, the shape."""
    parts = [n[i] for i in range(len(n.inputs))]
    lists = [as_sizes(p) for p in parts]
    if any(isinstance(p, Sizes) for p in parts) and all(s is not None and not s.scalar for s in lists):
        return from_sizes(n.build, list(itertools.chain.from_iterable(s.items for s in lists if s)))
    return n.call(n.torch.cat, parts, n.axis("axis", 0)) if len(parts) > 1 else parts[0]


def split(n: Call) -> Sequence[Value]:
    """Split into the sizes given, or equal ones of which the last may be smaller."""
    count, axis = len(n.node.outputs), n.axis("axis", 0)
    sizes: list[Any] | None = n.attr("split") if n.opset < 13 else (n.sizes(1) if n.has(1) else None)
    if n.opset >= 13 and n.has(1) and sizes is None:
        return n.calls(at_run_time.split, count, n[0], n[1], axis)
    if isinstance(n[0], Sizes):
        return _sizes_split(n, sizes, count)
    if sizes is None:
        whole = n.size(0, axis)
        if not isinstance(whole, int):
            return n.calls(at_run_time.split_evenly, count, n[0], count, axis)
        each = -(-whole // count)
        sizes = [min(each, whole - i * each) for i in range(count)]
    return n.calls(n.torch.split, count, n[0], sizes, axis)


def _sizes_split(n: Call, sizes: list[Any] | None, count: int) -> Sequence[Value]:
    items = n.sizes(0) or []
    sizes = sizes or [len(items) // count] * count
    ends = list(itertools.accumulate(sizes))
    return [from_sizes(n.build, items[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def slice_(n: Call) -> Value:
    """Slice."""
    if n.opset < 10:
        starts: Any = n.attr("starts")
        ends: Any = n.attr("ends")
        axes: Any = n.attr("axes") or list(range(len(starts)))
        steps: Any = [1] * len(starts)
    else:
        starts, ends = n.sizes(1), n.sizes(2)
        axes = n.integers(3) if n.has(3) else list(range(len(starts or ())))
        steps = n.integers(4) if n.has(4) else [1] * len(starts or ())
    if isinstance(n[0], Sizes) and _all_known(starts, ends, steps):
        return from_sizes(n.build, (n.sizes(0) or [])[slice(starts[0], ends[0], steps[0])])
    if any(v is None for v in (starts, ends, axes, steps)):
        given = [n[i] if n.has(i) else None for i in range(1, 5)]
        return n.call(at_run_time.slices, n[0], *given)
    made: Value = n[0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        made = _sliced(n, made, start, end, axis, step)
    return made


def _all_known(*lists: Any) -> bool:
    return all(v is not None and all(isinstance(i, int) for i in v) for v in lists)


def _sliced(n: Call, x: Value, start: int | Size, end: int | Size, axis: int, step: int) -> Value:
    shape = n.build.shape(x)
    if shape is not None and axis < 0:
        axis += len(shape)
    if step < 0:
        return n.call(at_run_time.sliced, x, start, end, axis, step)
    end = TO_THE_END if isinstance(end, int) and end > TO_THE_END else end
    whole = None if shape is None else shape[axis]
    if isinstance(start, int) and isinstance(end, int) and step == 1 and whole is not None:
        begin, stop, _ = slice(start, end).indices(whole)
        if (begin, stop) == (0, whole):
            return x
        return n.call(n.torch.narrow, x, axis, begin, max(stop - begin, 0))
    return n.call(n.torch.ops.aten.slice.Tensor, x, axis, start, end, step)


def gather(n: Call) -> Value:
    """Gather along an axis."""
    index = n.constant(1)
    sizes = as_sizes(n[0])
    if isinstance(n[0], Sizes) and sizes and index is not None and index.dim() < 2:
        picked = [sizes.items[int(i)] for i in index.reshape(-1).tolist()]
        return from_sizes(n.build, picked, scalar=index.dim() == 0)
    axis = n.axis("axis", 0)
    if index is None:
        return _gathered_at_run_time(n, axis)
    if index.dim() == 0:
        return n.call(n.torch.select, n[0], axis, int(index))
    index = index.to(n.torch.int64)
    if bool((index < 0).any()):
        whole = n.size(0, axis)
        if not isinstance(whole, int):
            return n.call(at_run_time.gather, n[0], n[1], axis)
        index = n.torch.where(index < 0, index + whole, index)
    if index.dim() == 1:
        return n.call(n.torch.index_select, n[0], axis, Constant(index))
    return n.call(at_run_time.gather, n[0], Constant(index), axis)


def _gathered_at_run_time(n: Call, axis: int) -> Value:
    """Rows of a matrix by tokens are an embedding, which every runtime knows."""
    if axis == 0 and n.shape(0) is not None and n.rank() == 2 and n.floating() and n.shape(1) is not None:
        return (
            n.call(at_run_time.rows, n[0], n[1]) if _may_be_negative(n) else n.call(n.functional.embedding, n[1], n[0])
        )
    return n.call(at_run_time.gather, n[0], n[1], axis)


def _may_be_negative(n: Call) -> bool:
    """An input of the model is taken for what it is called: indices of a vocabulary."""
    value = n.node.inputs[1]
    return not (value is not None and value.is_graph_input())


def gather_elements(n: Call) -> Value:
    """GatherElements."""
    return n.call(at_run_time.gather_elements, n[0], n[1], n.axis("axis", 0))


def gather_nd(n: Call) -> Value:
    """GatherND."""
    return n.call(at_run_time.gather_nd, n[0], n[1], n.attr("batch_dims", 0))


def scatter_elements(n: Call) -> Value:
    """ScatterElements, and Scatter as it was called before."""
    return n.call(at_run_time.scatter_elements, n[0], n[1], n[2], n.axis("axis", 0), n.attr("reduction", "none"))


def scatter_nd(n: Call) -> Value:
    """ScatterND."""
    return n.call(at_run_time.scatter_nd, n[0], n[1], n[2], n.attr("reduction", "none"))


def tensor_scatter(n: Call) -> Value:
    """TensorScatter: writes an update into a cache, at a place per sample."""
    where = n[2] if n.has(2) else None
    return n.call(at_run_time.tensor_scatter, n[0], n[1], where, n.attr("axis", -2), n.attr("mode", "linear"))


def one_hot(n: Call) -> Value:
    """OneHot."""
    depth = n.sizes(1)
    count: Any = depth[0] if depth else n[1]
    return n.call(at_run_time.one_hot, n[0], count, n[2], n.attr("axis", -1))


def top_k(n: Call) -> Sequence[Value]:
    """TopK; the first of equals comes first."""
    count: Any = [n.attr("k")] if n.opset < 10 else n.sizes(1)
    axis, largest = n.axis("axis", -1), bool(n.attr("largest", 1))
    return n.calls(at_run_time.top_k, 2, n[0], count[0] if count else n[1], axis, largest)


def non_zero(n: Call) -> Value:
    """NonZero."""
    return n.call(at_run_time.non_zero, n[0])


def compress(n: Call) -> Value:
    """Compress."""
    return n.call(at_run_time.compress, n[0], n[1], n.attr("axis"))


def unique(n: Call) -> Sequence[Value]:
    """Unique."""
    return n.calls(at_run_time.unique, 4, n[0], n.attr("axis"), bool(n.attr("sorted", 1)))[: len(n.node.outputs)]


def trilu(n: Call) -> Value:
    """Trilu."""
    if n.has(1) and n.constant(1) is None:
        return n.call(at_run_time.trilu, n[0], n[1], bool(n.attr("upper", 1)))
    return n.call(n.torch.triu if n.attr("upper", 1) else n.torch.tril, n[0], int(n.scalar(1, 0)))


def cumulative(name: str) -> Handler:
    """CumSum and CumProd."""

    def handler(n: Call) -> Value:
        exclusive, reverse = bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0))
        return n.call(at_run_time.cumulative, name, n[0], n.number(1), exclusive, reverse)

    return handler


def reverse_sequence(n: Call) -> Value:
    """ReverseSequence."""
    return n.call(at_run_time.reverse_sequence, n[0], n[1], n.attr("time_axis", 0), n.attr("batch_axis", 1))


OPERATORS: dict[str, Handler] = {
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "OneHot": one_hot,
    "TopK": top_k,
    "NonZero": non_zero,
    "Compress": compress,
    "Unique": unique,
    "Trilu": trilu,
    "CumSum": cumulative("cumsum"),
    "CumProd": cumulative("cumprod"),
    "ReverseSequence": reverse_sequence,
}
